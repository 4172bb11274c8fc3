"""Limits on server responses: deadline, size, strict JSON, and removal of secrets."""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, quote_plus

from requests import PreparedRequest, RequestException, Response
from requests.adapters import HTTPAdapter

from pvebench.errors import DriverError

# --- Limits of a call
#
# Every call ends by one deadline and one byte limit, whatever the server sends. The socket
# enforces both, so that endless headers, slow bodies and endless chunk lengths cannot bypass
# them. Redirects and compressed responses are rejected: pvebench did not request them.

_CONNECT_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 1 << 20
"""Allowance for the status line, the headers and the chunk framing, bytes."""


class ResponseRejected(RequestException):
    """Response that violates a limit; the text names the violation."""


@dataclass(slots=True)
class _Limit:
    """Remaining allowance of a call: deadline (monotonic seconds) and bytes."""

    until: float = 0.0
    bytes: int = 0

    def seconds(self) -> float:
        remaining = self.until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("deadline passed")
        return remaining


class _Socket(ssl.SSLSocket):
    limit: _Limit

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(self.limit.seconds())
        received = super().recv_into(*args, **options)
        self.limit.bytes -= received
        if self.limit.bytes < 0:
            raise OSError("response exceeds the byte limit")
        return received

    def send(self, *args: Any, **options: Any) -> int:
        self.settimeout(self.limit.seconds())
        return super().send(*args, **options)


class BoundedAdapter(HTTPAdapter):
    """HTTP adapter with a deadline and byte limit per call, and certificate pinning.

    Each changing request uses a new connection.

    Args:
        fingerprint: SHA-256 of the certificate, hexadecimal digits; empty: verified by CAs.
    """

    def __init__(self, fingerprint: str) -> None:
        self._limit = _Limit()
        self._seconds = _CONNECT_SECONDS
        self._fingerprint = fingerprint
        super().__init__()

    def allow(self, seconds: float, answer_bytes: int) -> None:
        """Set the total seconds and the body bytes that each following call may use."""
        self._seconds, self._bytes = seconds, answer_bytes

    @property
    def broken_off(self) -> str:
        """Limit that ended the last call; empty if none did."""
        if self._limit.bytes < 0:
            return f"longer than {self._bytes >> 20} MiB"
        return "deadline passed" if time.monotonic() >= self._limit.until else ""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class = type("Socket", (_Socket,), {"limit": self._limit})
        if self._fingerprint:
            # No CA is used, so none needs to be loaded for each connection.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            options["assert_fingerprint"] = self._fingerprint
        super().init_poolmanager(*args, ssl_context=context, **options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        if request.method != "GET" and self.poolmanager is not None:
            # The server closes idle connections. On one that is closing, a change could be lost
            # without evidence of whether the server received it.
            self.poolmanager.clear()
        self._limit.until = time.monotonic() + self._seconds
        self._limit.bytes = self._bytes + _HEAD_BYTES
        request.headers["Accept-Encoding"] = "identity"
        options["timeout"] = (min(_CONNECT_SECONDS, self._seconds), self._seconds)
        response = super().send(request, *args, **options)
        if wrong := _refused(response):
            response.close()
            raise ResponseRejected(wrong, response=response)
        return response


def _refused(response: Response) -> str:
    if 300 <= response.status_code < 400:
        return f"a redirect ({response.status_code}), which pvebench never follows"
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "compressed without being requested"
    return ""


_GUESSABLE: Final = 16
"""Minimum length in characters; shorter secrets can occur in a response by chance."""
_HIDDEN: Final = "(secret)"

F = TypeVar("F", bound=DriverError)


class Secrets:
    """Secrets to remove from text, in all encodings that a server could echo."""

    def __init__(self, *secrets: str) -> None:
        self._known: set[str] = set()
        self._all = self._long = _any_of(self._known)
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Add a secret to remove."""
        coded = base64.b64encode(secret.encode()).decode().rstrip("=")
        escaped = "".join(f"\\u{ord(character):04x}" for character in secret)
        plain = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
        self._known |= {*plain, coded, escaped} - {""}
        self._all = _any_of(self._known)
        self._long = _any_of({form for form in self._known if len(form) >= _GUESSABLE})

    def hide(self, text: str) -> str:
        """Replace the secrets in a message."""
        return self._all.sub(_HIDDEN, text)

    def without(self, value: Any) -> Any:
        """Remove null members and long secrets from a response.

        Short secrets stay: they can occur by chance.
        """
        if isinstance(value, str):
            return self._long.sub(_HIDDEN, value)
        if isinstance(value, list):
            return [self.without(item) for item in value]
        if isinstance(value, dict):
            # Callers treat a null member as missing.
            members = ((key, item) for key, item in value.items() if item is not None)
            return {self.without(key): self.without(item) for key, item in members}
        return value

    def cleaned(self, fault: F) -> F:
        """Remove the secrets from all texts of an error; return it."""
        for name in ("happened", "cause", "next_step", "evidence", "text"):
            if isinstance(text := getattr(fault, name, None), str):
                setattr(fault, name, self.hide(text))
        fault.args = tuple(self.hide(str(argument)) for argument in fault.args)
        if isinstance(fields := getattr(fault, "fields", None), dict):
            fault.__dict__["fields"] = {
                self.hide(key): self.hide(why) for key, why in fields.items()
            }
        return fault


def _any_of(secrets: set[str]) -> re.Pattern[str]:
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


def data_of(response: Response) -> Any:
    """Return the member `data` of a response.

    Raises:
        ResponseRejected: it is not a Proxmox VE response.
    """
    try:
        whole = json.loads(response.content.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ResponseRejected(_other_than_json(response)) from None
    if not isinstance(whole, dict) or "data" not in whole:
        raise ResponseRejected("JSON without the member 'data' that Proxmox VE sends")
    return whole["data"]


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _other_than_json(response: Response) -> str:
    if not response.content:
        return "empty"
    start = response.content[:200].lstrip().lower()
    return "a web page" if start.startswith((b"<!doctype", b"<html")) else "not JSON"


class ResponseReader:
    """proxmoxer serializer that requires JSON; proxmoxer's own accepts any text."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def get_accept_types(self) -> str:
        return "application/json"

    def loads(self, response: Response) -> Any:
        return self._secrets.without(data_of(response))

    def loads_errors(self, response: Response) -> dict[str, str] | None:
        """Return parameter -> error of a rejected request; None if it lists none."""
        try:
            errors = json.loads(response.content.decode("utf-8"))["errors"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return None
        if not isinstance(errors, dict):
            return None
        return {str(key): str(why) for key, why in list(errors.items())[:20]}
