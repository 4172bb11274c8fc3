"""Connection to the Proxmox API: login, certificate, deadlines, retries of reads."""

from __future__ import annotations

import io
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

from proxmoxer import ProxmoxAPI  # type: ignore[import-untyped] # proxmoxer has no types
from proxmoxer.backends.https import ProxmoxHTTPAuthBase  # type: ignore[import-untyped] # proxmoxer has no types
from proxmoxer.core import AuthenticationError, ResourceException  # type: ignore[import-untyped] # proxmoxer has no types
from requests import PreparedRequest, Response, Session
from requests.exceptions import Timeout

from pvebench import __version__
from pvebench.drivers.proxmox.api.bounds import (
    BoundedAdapter,
    ResponseReader,
    ResponseRejected,
    Secrets,
    data_of,
)
from pvebench.drivers.proxmox.api.endpoints import endpoint_of, ordered, privileges_in
from pvebench.drivers.proxmox.api.faults import (
    Forbidden,
    InvalidResponse,
    Rejected,
    readable,
    translate,
)
from pvebench.errors import AccessDenied, DriverError, ServerGone, ServerUntrusted
from pvebench.files import Signature, read_secret, signature
from pvebench.model.ports import Clock, Traffic

_CALL_SECONDS: Final = 60.0
"""Longer than the 30 s after which pveproxy itself gives up with 596."""
_READ_PAUSES: Final = (0.5, 1.0, 2.0)
"""Seconds between the attempts of a read."""

# proxmoxer logs the parameters of each call at level INFO.
logging.getLogger("proxmoxer").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """API address and certificate verification.

    Attributes:
        ca_file: CA to trust instead of the system's.
        fingerprint: SHA-256 of the server's certificate, hexadecimal with or without colons;
                replaces CA verification.
    """

    host: str
    port: int = 8006
    ca_file: Path | None = None
    fingerprint: str = ""


class Api(Protocol):
    """Requests to the API. Paths begin with `/`.

    Attributes:
        refused: missing pool privileges for which calls were rejected; the caller that checks the
            rights clears it.
        login: whose requests they are.
    """

    refused: set[str]
    login: Token | Password

    def get(self, path: str, /, **params: Any) -> Any:
        """Read; retried when the server is briefly unreachable."""

    def once(self, path: str, /, **params: Any) -> Any:
        """Read data that the server returns only once, or that must not wait; never retried."""

    def post(self, path: str, /, *, seconds: float = _CALL_SECONDS, **params: Any) -> Any:
        """Create or change something; never retried."""

    def put(self, path: str, /, **params: Any) -> Any:
        """Change something; never retried."""

    def delete(self, path: str, /, **params: Any) -> Any:
        """Remove something; never retried."""


class Connection:
    """`Api` over proxmoxer. Owned by one thread.

    Every method raises ServerGone (not sent, or a read), OutcomeUnknown (sent, response lost),
    AccessDenied, ServerUntrusted, Busy, or `faults.Rejected` with the server's message. True and
    False become 1 and 0; parameters that are None are omitted.

    Args:
        traffic: request counters; may be shared with other connections of the same thread.
    """

    def __init__(
        self, server: Server, login: Token | Password, clock: Clock, traffic: Traffic | None = None
    ) -> None:
        self.server = server
        self._traffic = traffic or Traffic()
        self.login = login
        self._clock = clock
        self._adapter = BoundedAdapter(server.fingerprint.replace(":", "").lower())
        self._secrets = Secrets(login.secret)
        self._authority: Signature = ()
        self.refused: set[str] = set()
        self._api: ProxmoxAPI | None = None

    def get(self, path: str, /, **params: Any) -> Any:
        give_up = self._clock.monotonic() + _CALL_SECONDS
        for pause in _READ_PAUSES:
            try:
                return self._call("GET", path, params, _CALL_SECONDS)
            except ServerGone:
                if self._clock.monotonic() > give_up:
                    raise
                self._clock.sleep(pause)
        return self._call("GET", path, params, _CALL_SECONDS)

    def once(self, path: str, /, **params: Any) -> Any:
        return self._call("GET", path, params, _CALL_SECONDS)

    def post(self, path: str, /, *, seconds: float = _CALL_SECONDS, **params: Any) -> Any:
        return self._call("POST", path, params, seconds)

    def put(self, path: str, /, **params: Any) -> Any:
        return self._call("PUT", path, params, _CALL_SECONDS)

    def delete(self, path: str, /, **params: Any) -> Any:
        return self._call("DELETE", path, params, _CALL_SECONDS)

    def _call(self, method: str, path: str, params: Mapping[str, Any], seconds: float) -> Any:
        self._check_ca_file()
        what = f"{method} {path}"
        sent = {key: _plain(value) for key, value in params.items() if value is not None}
        endpoint = endpoint_of(method, path)
        self._adapter.allow(seconds, endpoint.most_bytes)
        failed = True
        try:
            resource = self._session()(path.lstrip("/"))
            answer = getattr(resource, method.lower())(**sent)
            if wrong := endpoint.answer(answer):
                raise ResponseRejected(f"not a Proxmox VE response: {wrong}")
            failed = False
            self._traffic.tasks += method != "GET" and str(answer).startswith("UPID:")
        # A RequestException is an OSError too; requests raises plain ones of its own.
        except (ResourceException, AuthenticationError, OSError) as error:
            fault = self._fault(what, error, reads=method == "GET")
            failed = not isinstance(fault, Rejected)
            self.refused |= privileges_in(fault.happened) if isinstance(fault, Forbidden) else set()
            raise fault from None  # the original text may contain request data
        finally:
            self._traffic.count(method.lower(), failed=failed)
        return ordered(answer)

    def _check_ca_file(self) -> None:
        """Raise ServerUntrusted if ca_file is unusable; the file may change during operation."""
        path = self.server.ca_file
        if path and (current := signature([path])) != self._authority:
            _require_valid_ca(path)
            self._authority = current

    def _fault(self, what: str, error: Exception, *, reads: bool) -> DriverError:
        broken_off = self._adapter.broken_off
        if broken_off and not isinstance(error, ResponseRejected | ResourceException):
            timeout = "deadline" in broken_off
            error = Timeout(broken_off) if timeout else ResponseRejected(broken_off)
        return self._secrets.cleaned(translate(what, error, reads=reads))

    def _session(self) -> ProxmoxAPI:
        if self._api is None:
            server, login = self.server, self.login
            verify: bool | str = str(server.ca_file) if server.ca_file else not server.fingerprint
            name, secret = (login.name, login.secret) if isinstance(login, Token) else ("-", "-")
            api = ProxmoxAPI(
                server.host,
                port=server.port,
                user=login.user,
                verify_ssl=verify,
                timeout=_CALL_SECONDS,
                token_name=name,
                token_value=secret,
            )
            api._store["serializer"] = ResponseReader(self._secrets)  # noqa: SLF001 # its own accepts any text
            session = api._store["session"]  # noqa: SLF001 # proxmoxer offers no pinning
            session.headers["User-Agent"] = f"pvebench/{__version__}"
            session.mount("https://", self._adapter)
            # Proxies and .netrc of the environment are meant for the web, not for the cluster.
            session.trust_env = False
            if isinstance(login, Password):
                session.auth = self._ticket(login, verify)
            self._api = api
        return self._api

    def _ticket(self, login: Password, verify: bool | str) -> ProxmoxHTTPAuthBase:
        """Log in without proxmoxer, which would send the password before the pin is checked."""
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        with Session() as session:
            session.mount("https://", self._adapter)
            session.trust_env = False

            def request_ticket(**secrets: str) -> Mapping[str, Any]:
                for secret in secrets.values():
                    self._secrets.add(secret)
                answer = session.post(
                    f"https://{host}:{self.server.port}/api2/json/access/ticket",
                    data={"username": login.user, **secrets},
                    verify=verify,
                )
                return self._admitted(login, answer)

            data = request_ticket(password=login.secret)
            if data.get("NeedTFA"):
                if not (code := login.second_factor()):
                    raise _no_login(login, "a second factor is required")
                data = request_ticket(password=code, **{"tfa-challenge": data["ticket"]})
        ticket, csrf = data["ticket"], data.get("CSRFPreventionToken") or ""
        self._secrets.add(ticket)
        self._secrets.add(csrf)
        return _TicketAuth(ticket, csrf, verify)

    def _admitted(self, login: Password, answer: Response) -> Mapping[str, Any]:
        if answer.status_code != 200:
            raise _no_login(login, self._secrets.hide(str(answer.reason)[:200]))
        data = data_of(answer)
        if wrong := endpoint_of("POST", "/access/ticket").answer(data):
            raise ResponseRejected(f"not a Proxmox VE response: {wrong}")
        return cast("Mapping[str, Any]", data)


def _no_login(login: Password, why: str) -> AccessDenied:
    return AccessDenied(
        f"{login.user} cannot log in: {why}",
        cause="wrong password or code, locked account, or a second factor that cannot be typed",
        next_step="try again, or run the commands of pvebench proxmox init as root on a node",
    )


class _TicketAuth(ProxmoxHTTPAuthBase):  # type: ignore[misc] # proxmoxer has no types
    """Authentication by ticket instead of by token."""

    def __init__(self, ticket: str, csrf: str, verify: bool | str) -> None:
        super().__init__(timeout=_CALL_SECONDS, verify_ssl=verify)
        self._ticket, self._csrf = ticket, csrf

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["CSRFPreventionToken"] = self._csrf
        request.headers["Cookie"] = f"PVEAuthCookie={self._ticket}"
        return request


def _require_valid_ca(path: Path) -> None:
    """Raise ServerUntrusted if a CA file is unusable: requests would blame the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    cause, how = "the file was not copied yet, or it is a different file", ""
    try:
        context.load_verify_locations(path)
    except OSError as error:
        wrong = "holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
    else:
        ends = [str(certificate["notAfter"]) for certificate in context.get_ca_certs()]
        if not ends or max(map(ssl.cert_time_to_seconds, ends)) > time.time():
            return
        wrong = f"certificate expired ({ends[0]})"
        cause = "the cluster's CA is older than its ten years, or this machine's clock is wrong"
        how = "let the cluster create a new CA, then "
    raise ServerUntrusted(
        f"tls.ca_file {path}: {wrong}",
        cause=cause,
        next_step=f"{how}copy /etc/pve/pve-root-ca.pem of any node there, or set tls.fingerprint",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list | int | str | io.IOBase):
        return value
    return str(value)


TOKEN_VARIABLE: Final = "PVEBENCH_PROXMOX_TOKEN"  # noqa: S105 # the variable's name, not a secret
_TOKEN: Final = re.compile(
    r"(?:PVEAPIToken=)?(?P<user>[^\s:/!]+@[^\s:/!]+)!(?P<name>[A-Za-z][A-Za-z0-9._-]+)"
    r"[= ](?P<secret>\S+)\Z"
)


@dataclass(frozen=True, slots=True)
class Token:
    """API token; its secret is never shown."""

    user: str
    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self})"

    def __str__(self) -> str:
        return f"{self.user}!{self.name}"


@dataclass(frozen=True, slots=True)
class Password:
    """Login for `pvebench proxmox init --apply`; never stored.

    Attributes:
        second_factor: called only if the server requires one; returns the server's format, such as
        totp:123456, or an empty string.
    """

    user: str
    secret: str
    second_factor: Callable[[], str] = str

    def __repr__(self) -> str:
        return f"Password({self.user})"


def read_token(path: Path | None) -> Token:
    """Return the token in the environment variable PVEBENCH_PROXMOX_TOKEN, or in file `path`.

    The format is Proxmox's own, `USER@REALM!NAME=SECRET`.

    Raises:
        AccessDenied: there is none, or its format is different.
        ConfigError: the file is not text, or other users can read it.
    """
    text, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
    if not text and path is not None:
        where = str(path)
        try:
            text = read_secret(path)
        except OSError as error:
            raise AccessDenied(
                f"token file {path}: {error.strerror}",
                cause="no token was created yet, or the file belongs to another user",
                next_step=_HOW,
            ) from error
    # Editors add a byte order mark, env files quotes, and bash a backslash before `!`.
    plain = text.lstrip("\ufeff").strip().strip("\"'").replace("\\!", "!")
    token = _TOKEN.match(plain)
    if token is None:
        what = "does not have the format USER@REALM!NAME=SECRET" if text else "holds no API token"
        raise AccessDenied(
            f"{where} {what}",
            cause="it was copied incompletely, or it is something else",
            next_step=_HOW,
        )
    return Token(token["user"], token["name"], token["secret"])


_HOW: Final = "create a token with pvebench setup, or with the commands of pvebench proxmox init"


_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")


def version_number(api: Api) -> tuple[int, ...]:
    """Return the version of pve-manager as numbers, such as (9, 2, 11). Raises as `Connection`."""
    reported = str(api.get("/version")["version"])
    if not (match := _VERSION.match(reported)):
        raise InvalidResponse("GET /version", f"{readable(reported):.80} is not a version")
    return numbers_of(match[0])


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the numbers in a version, in order: 6.8.12-4-pve -> (6, 8, 12, 4)."""
    return tuple(int(part) for part in re.findall("[0-9]{1,9}", text))
