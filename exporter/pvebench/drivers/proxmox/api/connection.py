"""Connection to the Proxmox API: login, certificate, deadlines, retries of reads."""

from __future__ import annotations

import io
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proxmoxer.backends.https import ProxmoxHTTPAuthBase, ProxmoxHttpSession  # type: ignore[import-untyped] # proxmoxer has no types
from proxmoxer.core import ProxmoxResource, ResourceException  # type: ignore[import-untyped] # proxmoxer has no types
from requests import PreparedRequest
from requests.exceptions import Timeout

from pvebench import __version__
from pvebench.drivers.proxmox.api.bounds import (
    LOGIN,
    BoundedAdapter,
    ResponseReader,
    ResponseRejected,
    Secrets,
    most_bytes,
    ordered,
    shape_of,
)
from pvebench.drivers.proxmox.api.faults import (
    Forbidden,
    InvalidResponse,
    Rejected,
    readable,
    translate,
)
from pvebench.drivers.proxmox.api.privileges import privileges_in
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


class _Authentication(ProxmoxHTTPAuthBase):  # type: ignore[misc] # proxmoxer has no types
    """Headers that authenticate a request. proxmoxer's login would bypass `BoundedAdapter`."""

    def __init__(self, headers: Mapping[str, str], verify: bool | str) -> None:
        super().__init__(timeout=_CALL_SECONDS, verify_ssl=verify)
        self._headers = headers

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers.update(self._headers)
        return request


class Api:
    """Requests to the API, over proxmoxer. Paths begin with `/`. Owned by one thread.

    Every method raises ServerGone (not sent, or a read), OutcomeUnknown (sent, response lost),
    AccessDenied, ServerUntrusted, Busy, or `faults.Rejected` with the server's message. True and
    False become 1 and 0; parameters that are None are omitted.

    Args:
        traffic: request counters; may be shared with other connections of the same thread.

    Attributes:
        login: whose requests they are.
        refused: missing pool privileges for which calls were rejected; the caller that checks the
            rights clears it.
    """

    def __init__(
        self, server: Server, login: Token | Password, clock: Clock, traffic: Traffic | None = None
    ) -> None:
        self.server, self.login = server, login
        self.refused: set[str] = set()
        self._traffic = traffic or Traffic()
        self._clock = clock
        self._secrets = Secrets(login.secret)
        self._authority: Signature = ()
        self._adapter = BoundedAdapter(server.fingerprint.replace(":", "").lower())
        self._headers: dict[str, str] = {}
        if isinstance(login, Token):
            self._headers["Authorization"] = f"PVEAPIToken={login}={login.secret}"
        self._resource = self._connected()

    def get(self, path: str, /, **params: Any) -> Any:
        """Read; retried when the server is briefly unreachable."""
        give_up = self._clock.monotonic() + _CALL_SECONDS
        for pause in _READ_PAUSES:
            try:
                return self._call("GET", path, params)
            except ServerGone:
                if self._clock.monotonic() > give_up:
                    raise
                self._clock.sleep(pause)
        return self._call("GET", path, params)

    def once(self, path: str, /, **params: Any) -> Any:
        """Read data that the server returns only once, or that must not wait; never retried."""
        return self._call("GET", path, params)

    def post(self, path: str, /, *, seconds: float = _CALL_SECONDS, **params: Any) -> Any:
        """Create or change something; never retried."""
        return self._call("POST", path, params, seconds)

    def put(self, path: str, /, **params: Any) -> Any:
        """Change something; never retried."""
        return self._call("PUT", path, params)

    def delete(self, path: str, /, **params: Any) -> Any:
        """Remove something; never retried."""
        return self._call("DELETE", path, params)

    def _call(self, method: str, path: str, params: Mapping[str, Any], seconds: float = 0.0) -> Any:
        what = f"{method} {path}"
        if isinstance(self.login, Password) and not (self._headers or what == LOGIN):
            self._log_in(self.login)
        self._check_ca_file()
        sent = {key: _plain(value) for key, value in params.items() if value is not None}
        self._adapter.allow(seconds or _CALL_SECONDS, most_bytes(path))
        failed = True
        try:
            answer, wrong = shape_of(method, path).read(self._send(method, path, sent))
            if wrong:
                raise ResponseRejected(f"not a Proxmox VE response: {wrong}")
            failed = False
        # A RequestException is an OSError too; requests raises plain ones of its own.
        except (ResourceException, OSError) as error:
            fault = self._fault(what, error)
            failed = not isinstance(fault, Rejected)
            self.refused |= privileges_in(fault.happened) if isinstance(fault, Forbidden) else set()
            raise fault from None  # the original text may contain request data
        finally:
            self._traffic.count(method.lower(), failed=failed)
        self._traffic.tasks += method != "GET" and str(answer).startswith("UPID:")
        return ordered(answer)

    def _send(self, method: str, path: str, sent: Mapping[str, Any]) -> Any:
        return getattr(self._resource(path.lstrip("/")), method.lower())(**sent)

    def _fault(self, what: str, error: Exception) -> DriverError:
        if what == LOGIN and isinstance(error, ResourceException):
            return self._no_login(str(self._secrets.cleaned(error).content)[:200])
        broken_off = self._adapter.broken_off
        if broken_off and not isinstance(error, ResponseRejected | ResourceException):
            timeout = "deadline" in broken_off
            error = Timeout(broken_off) if timeout else ResponseRejected(broken_off)
        reads = what == LOGIN or what.startswith("GET ")
        fault = translate(what, self._secrets.cleaned(error), reads=reads)
        return self._secrets.cleaned(fault, ours=True)

    def _connected(self) -> ProxmoxResource:
        """Return proxmoxer's client with a session of our own: its backend offers no pinning."""
        session = ProxmoxHttpSession()
        verify = str(self.server.ca_file) if self.server.ca_file else not self.server.fingerprint
        session.auth = _Authentication(self._headers, verify)
        session.headers.update(
            {"User-Agent": f"pvebench/{__version__}", "Accept": "application/json"}
        )
        session.mount("https://", self._adapter)
        # Proxies and .netrc of the environment are meant for the web, not for the cluster.
        session.trust_env = False
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        return ProxmoxResource(
            base_url=f"https://{host}:{self.server.port}/api2/json",
            session=session,
            serializer=ResponseReader(self._secrets),
        )

    def _log_in(self, login: Password) -> None:
        """Replace the password by a ticket; proxmoxer would send it before the pin is checked."""
        answer = self.post("/access/ticket", username=login.user, password=login.secret)
        if answer.get("NeedTFA"):
            if not (code := login.second_factor()):
                raise self._no_login("a second factor is required")
            challenge = {"password": code, "tfa-challenge": answer["ticket"]}
            for secret in challenge.values():
                self._secrets.add(secret)
            answer = self.post("/access/ticket", username=login.user, **challenge)
        ticket, csrf = answer["ticket"], answer.get("CSRFPreventionToken") or ""
        self._secrets.add(ticket)
        self._secrets.add(csrf)
        self._headers |= {"CSRFPreventionToken": csrf, "Cookie": f"PVEAuthCookie={ticket}"}

    def _no_login(self, why: str) -> AccessDenied:
        return AccessDenied(
            f"{self.login.user} cannot log in: {why}",
            cause="wrong password or code, locked account, or a second factor that cannot be typed",
            next_step="try again, or run the commands of pvebench proxmox init as root on a node",
        )

    def _check_ca_file(self) -> None:
        """Raise ServerUntrusted if ca_file is unusable; the file may change during operation."""
        path = self.server.ca_file
        if path and (current := signature([path])) != self._authority:
            _require_valid_ca(path)
            self._authority = current


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
    return value if isinstance(value, list | int | str | io.IOBase) else str(value)


_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")


def version_number(api: Api) -> tuple[int, ...]:
    """Return the version of pve-manager as numbers, such as (9, 2, 11). Raises as `Api`."""
    reported = str(api.get("/version")["version"])
    if not (match := _VERSION.match(reported)):
        raise InvalidResponse("GET /version", f"{readable(reported):.80} is not a version")
    return numbers_of(match[0])


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the numbers in a version, in order: 6.8.12-4-pve -> (6, 8, 12, 4)."""
    return tuple(int(part) for part in re.findall("[0-9]{1,9}", text))


# --- logins

TOKEN_VARIABLE: Final = "PVEBENCH_PROXMOX_TOKEN"  # noqa: S105 # the variable's name, not a secret
_QUOTES: Final = "\"'\u2018\u2019\u201c\u201d"
_TOKEN: Final = re.compile(
    r"(?:(?:Authorization: )?PVEAPIToken=)?"
    r"(?P<user>[^\s:/!]+@[^\s:/!]+)!(?P<name>[A-Za-z][A-Za-z0-9._-]+)"
    r"[= ](?P<secret>\S+)\Z"
)


@dataclass(frozen=True, slots=True)
class Token:
    """API token; its secret is never shown."""

    user: str
    name: str
    secret: str = field(repr=False)

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
    secret: str = field(repr=False)
    second_factor: Callable[[], str] = str


def read_token(path: Path | None) -> Token:
    """Return the token in the environment variable PVEBENCH_PROXMOX_TOKEN, or in file `path`.

    The format is Proxmox's own, `USER@REALM!NAME=SECRET`.

    Raises:
        AccessDenied: there is none, or its format is different.
        ConfigError: the file is not text, or other users can read it.
    """
    text, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
    wrong, cause = "holds no API token", "it was copied incompletely, or it is something else"
    if not text and path is not None:
        where = str(path)
        try:
            text = read_secret(path)
        except OSError as error:
            where, wrong = f"token file {path}:", str(error.strerror)
            cause = "no token was created yet, or the file belongs to another user"
    # Editors add a byte order mark, env files and chats quotes, and bash a backslash before `!`.
    plain = text.lstrip("\ufeff").strip().strip(_QUOTES).replace("\\!", "!")
    if token := _TOKEN.match(plain):
        return Token(**token.groupdict())
    if text:
        wrong = "does not have the format USER@REALM!NAME=SECRET"
    raise AccessDenied(
        f"{where} {wrong}",
        cause=cause,
        next_step="create a token with pvebench setup, or with the commands of pvebench proxmox "
        "init",
    )
