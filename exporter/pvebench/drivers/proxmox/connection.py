"""One connection to the Proxmox API: credentials, certificate, deadlines, retries of reads."""

from __future__ import annotations

import io
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from proxmoxer import ProxmoxAPI  # type: ignore[import-untyped] # proxmoxer has no types
from proxmoxer.backends.https import (  # type: ignore[import-untyped] # proxmoxer has no types
    ProxmoxHTTPAuthBase,
)
from proxmoxer.core import (  # type: ignore[import-untyped] # proxmoxer has no types
    AuthenticationError,
    ResourceException,
)
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter

from pvebench.drivers.proxmox.faults import Rejected, translate
from pvebench.drivers.proxmox.login import Password, Token
from pvebench.errors import AccessDenied, DriverError, ServerGone
from pvebench.model.ports import Clock
from pvebench.model.traffic import Traffic

_CONNECT_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 60.0
"""Longer than the 30 s after which pveproxy itself gives up with 596."""
_READ_PAUSES: Final = (0.5, 1.0, 2.0)
"""Seconds between the tries of a call that changes nothing."""

# proxmoxer logs the parameters of each call at level INFO.
logging.getLogger("proxmoxer").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the API is and how its certificate is proved.

    Attributes:
        ca_file: certificate authority to trust instead of the system's.
        fingerprint: SHA-256 of the server's certificate, hexadecimal with or without colons; takes
            the place of any authority.
    """

    host: str
    port: int = 8006
    ca_file: Path | None = None
    fingerprint: str = ""


class _Adapter(HTTPAdapter):
    """Gives each call its deadline, each change a fresh connection, and pins the certificate."""

    def __init__(self, fingerprint: str) -> None:
        self.deadline = _CALL_SECONDS
        self._fingerprint = fingerprint.replace(":", "").lower()
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        if self._fingerprint:
            # No authority is asked, so none needs to be loaded for each connection.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            options |= {"assert_fingerprint": self._fingerprint, "ssl_context": context}
        super().init_poolmanager(*args, **options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        if request.method != "GET" and self.poolmanager is not None:
            # The server closes idle connections: on one that is just being closed a change would
            # be lost without anybody knowing whether it was heard.
            self.poolmanager.clear()
        options["timeout"] = (_CONNECT_SECONDS, self.deadline)
        return super().send(request, *args, **options)


class Api(Protocol):
    """What the rest of the driver needs of a connection. Paths begin with `/`."""

    def get(self, path: str, /, **params: Any) -> Any:
        """Read; tried again when the server is away for a moment."""

    def once(self, path: str, /, **params: Any) -> Any:
        """Read what is handed out once only, or must not wait; never tried again."""

    def post(self, path: str, /, *, seconds: float = _CALL_SECONDS, **params: Any) -> Any:
        """Make or change something; never tried again."""

    def put(self, path: str, /, **params: Any) -> Any:
        """Change something; never tried again."""

    def delete(self, path: str, /, **params: Any) -> Any:
        """Remove something; never tried again."""


class Connection:
    """`Api` over proxmoxer. Owned by one thread.

    Every method raises ServerGone (never sent, or nothing lost), OutcomeUnknown (sent, answer
    lost), AccessDenied, ServerUntrusted, Busy, or `faults.Rejected` with the server's own words.
    True and False become 1 and 0, a parameter that is None is left out.

    Args:
        traffic: counts the requests; may be shared with other connections of the same thread.
    """

    def __init__(
        self, server: Server, login: Token | Password, clock: Clock, traffic: Traffic | None = None
    ) -> None:
        self.server = server
        self._traffic = traffic or Traffic()
        self.login = login
        self._clock = clock
        self._adapter = _Adapter(server.fingerprint)
        self._api: ProxmoxAPI | None = None

    def get(self, path: str, /, **params: Any) -> Any:
        """Read. See the protocol."""
        for pause in _READ_PAUSES:
            try:
                return self._call("GET", path, params, _CALL_SECONDS)
            except ServerGone:
                self._clock.sleep(pause)
        return self._call("GET", path, params, _CALL_SECONDS)

    def once(self, path: str, /, **params: Any) -> Any:
        """Read once. See the protocol."""
        return self._call("GET", path, params, _CALL_SECONDS)

    def post(self, path: str, /, *, seconds: float = _CALL_SECONDS, **params: Any) -> Any:
        """Make or change. See the protocol."""
        return self._call("POST", path, params, seconds)

    def put(self, path: str, /, **params: Any) -> Any:
        """Change. See the protocol."""
        return self._call("PUT", path, params, _CALL_SECONDS)

    def delete(self, path: str, /, **params: Any) -> Any:
        """Remove. See the protocol."""
        return self._call("DELETE", path, params, _CALL_SECONDS)

    def _call(self, method: str, path: str, params: Mapping[str, Any], seconds: float) -> Any:
        what = f"{method} {path}"
        sent = {key: _plain(value) for key, value in params.items() if value is not None}
        self._adapter.deadline = seconds
        failed = True
        try:
            resource = self._session()(path.lstrip("/"))
            answer = getattr(resource, method.lower())(**sent)
            failed = False
        except (ResourceException, AuthenticationError, RequestException) as error:
            fault: DriverError = translate(what, error, reads=method == "GET")
            failed = not isinstance(fault, Rejected)
            raise fault from None  # the original's text may hold what was sent
        finally:
            self._traffic.count(method.lower(), failed=failed)
        return answer

    def _session(self) -> ProxmoxAPI:
        if self._api is None:
            server, login = self.server, self.login
            verify: bool | str = str(server.ca_file) if server.ca_file else not server.fingerprint
            name, secret = (login.name, login.secret) if isinstance(login, Token) else ("-", "-")
            api = ProxmoxAPI(
                server.host, port=server.port, user=login.user, verify_ssl=verify,
                timeout=_CALL_SECONDS, token_name=name, token_value=secret,
            )  # fmt: skip
            session = api._store["session"]  # noqa: SLF001 # proxmoxer offers no pinning
            session.mount("https://", self._adapter)
            # Proxies and .netrc of the environment are for the web, not for the cluster.
            session.trust_env = False
            if isinstance(login, Password):
                session.auth = self._ticket(login, verify)
            self._api = api
        return self._api

    def _ticket(self, login: Password, verify: bool | str) -> ProxmoxHTTPAuthBase:
        """Log in. Not by proxmoxer: it would send the password to a server that is not pinned."""
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        with Session() as session:
            session.mount("https://", self._adapter)
            session.trust_env = False
            answer = session.post(
                f"https://{host}:{self.server.port}/api2/json/access/ticket",
                data={"username": login.user, "password": login.secret}, verify=verify,
            )  # fmt: skip
        data = answer.json().get("data") if answer.status_code == 200 else None
        if not data or data.get("NeedTFA"):
            why = "a second factor is asked for" if data else answer.reason
            raise AccessDenied(
                f"{login.user} cannot log in: {why}",
                next_step="run the commands that pvebench proxmox init prints, as root on the node",
            )
        return _TicketAuth(data, verify)


class _TicketAuth(ProxmoxHTTPAuthBase):  # type: ignore[misc] # proxmoxer has no types
    """A ticket in place of a token."""

    def __init__(self, data: Mapping[str, str], verify: bool | str) -> None:
        super().__init__(timeout=_CALL_SECONDS, verify_ssl=verify)
        self._data = data

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["CSRFPreventionToken"] = self._data["CSRFPreventionToken"]
        request.headers["Cookie"] = f"PVEAuthCookie={self._data['ticket']}"
        return request


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list | int | str | io.IOBase):
        return value
    return str(value)
