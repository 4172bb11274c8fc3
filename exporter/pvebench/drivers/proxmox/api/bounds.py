"""What came back from the server: read strictly, and with no secret of ours in it."""

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

# --- Every call ends, whatever the server does: by one deadline over all of it, by a bound on
# bytes.
#
# Both are kept where the bytes come in, so that no trick above it matters: heads that never end,
# bodies that drip, chunks whose length is a line without an end. Nothing is followed elsewhere, and
# nothing packed is unpacked: it was not asked for.

_CONNECT_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 1 << 20
"""For the status line, the headers, and how a body is cut into chunks."""


class ResponseRejected(RequestException):
    """An answer that is not read; the text says what is wrong with it."""


@dataclass(slots=True)
class _Limit:
    """What is left of a call: until when, and how many bytes may still come in."""

    until: float = 0.0
    bytes: int = 0

    def seconds(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline passed")
        return left


class _Socket(ssl.SSLSocket):
    limit: _Limit

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(self.limit.seconds())
        got = super().recv_into(*args, **options)
        self.limit.bytes -= got
        if self.limit.bytes < 0:
            raise OSError("more bytes than an answer may have")
        return got

    def send(self, *args: Any, **options: Any) -> int:
        self.settimeout(self.limit.seconds())
        return super().send(*args, **options)


class BoundedAdapter(HTTPAdapter):
    """Gives each call its deadline and its bound, each change a fresh connection, and pins.

    Args:
        fingerprint: SHA-256 of the certificate in hexadecimal digits; empty: authorities prove it.
    """

    def __init__(self, fingerprint: str) -> None:
        self._limit = _Limit()
        self._seconds = _CONNECT_SECONDS
        self._fingerprint = fingerprint
        super().__init__()

    def allow(self, seconds: float, answer_bytes: int) -> None:
        """Set what the next calls may take: seconds in all, bytes of the answer's body."""
        self._seconds, self._bytes = seconds, answer_bytes

    @property
    def broken_off(self) -> str:
        """Why the last call was ended here, empty if it was not."""
        if self._limit.bytes < 0:
            return f"longer than {self._bytes >> 20} MiB"
        return "deadline passed" if time.monotonic() >= self._limit.until else ""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class = type("Socket", (_Socket,), {"limit": self._limit})
        if self._fingerprint:
            # No authority is asked, so none needs to be loaded for each connection.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            options["assert_fingerprint"] = self._fingerprint
        super().init_poolmanager(*args, ssl_context=context, **options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        if request.method != "GET" and self.poolmanager is not None:
            # The server closes idle connections: on one that is just being closed a change would
            # be lost without anybody knowing whether it was heard.
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
        return f"a redirect ({response.status_code}), which is never followed"
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "packed, which was not asked for"
    return ""


_GUESSABLE: Final = 16
"""A secret shorter than this may be a word that an answer has for other reasons."""
_HIDDEN: Final = "(secret)"

F = TypeVar("F", bound=DriverError)


class Secrets:
    """What must never be shown, in the forms that a server could echo it in."""

    def __init__(self, *secrets: str) -> None:
        self._known: set[str] = set()
        self._all = self._long = _any_of(self._known)
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide this one as well from now on."""
        coded = base64.b64encode(secret.encode()).decode().rstrip("=")
        escaped = "".join(f"\\u{ord(one):04x}" for one in secret)
        plain = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
        self._known |= {*plain, coded, escaped} - {""}
        self._all = _any_of(self._known)
        self._long = _any_of({one for one in self._known if len(one) >= _GUESSABLE})

    def hide(self, text: str) -> str:
        """Return a text for messages without them."""
        return self._all.sub(_HIDDEN, text)

    def without(self, value: Any) -> Any:
        """Return an answer without those that no answer has by chance, and without nulls."""
        if isinstance(value, str):
            return self._long.sub(_HIDDEN, value)
        if isinstance(value, list):
            return [self.without(one) for one in value]
        if isinstance(value, dict):
            # A member that is null is one that is not there, to all who look at it.
            told = ((key, one) for key, one in value.items() if one is not None)
            return {self.without(key): self.without(one) for key, one in told}
        return value

    def cleaned(self, fault: F) -> F:
        """Return the error with all that it says cleaned of them."""
        for name in ("happened", "cause", "next_step", "evidence", "text"):
            if isinstance(said := getattr(fault, name, None), str):
                setattr(fault, name, self.hide(said))
        fault.args = tuple(self.hide(str(one)) for one in fault.args)
        if isinstance(fields := getattr(fault, "fields", None), dict):
            fault.__dict__["fields"] = {
                self.hide(key): self.hide(why) for key, why in fields.items()
            }
        return fault


def _any_of(secrets: set[str]) -> re.Pattern[str]:
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


def data_of(response: Response) -> Any:
    """Return the member `data` of an answer.

    Raises:
        AnswerRefused: it is not what Proxmox VE answers.
    """
    try:
        whole = json.loads(response.content.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ResponseRejected(_other_than_json(response)) from None
    if not isinstance(whole, dict) or "data" not in whole:
        raise ResponseRejected("JSON that is no answer of Proxmox VE: it has no member 'data'")
    return whole["data"]


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _other_than_json(response: Response) -> str:
    if not response.content:
        return "empty"
    start = response.content[:200].lstrip().lower()
    return "a web page" if start.startswith((b"<!doctype", b"<html")) else "no JSON"


class ResponseReader:
    """proxmoxer's serializer: JSON or an error, where its own makes up an answer of any text."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def get_accept_types(self) -> str:
        return "application/json"

    def loads(self, response: Response) -> Any:
        return self._secrets.without(data_of(response))

    def loads_errors(self, response: Response) -> dict[str, str] | None:
        """Return parameter -> complaint of a refusal; nothing if it does not say."""
        try:
            errors = json.loads(response.content.decode("utf-8"))["errors"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return None
        if not isinstance(errors, dict):
            return None
        return {str(key): str(why) for key, why in list(errors.items())[:20]}
