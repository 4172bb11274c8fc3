"""Every call ends, whatever the server does: by one deadline over all of it, by a bound on bytes.

Both are kept where the bytes come in, so that no trick above it matters: heads that never end,
bodies that drip, chunks whose length is a line without an end. Nothing is followed elsewhere, and
nothing packed is unpacked: it was not asked for.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import Any, Final

from requests import PreparedRequest, RequestException, Response
from requests.adapters import HTTPAdapter

_CONNECT_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 1 << 20
"""For the status line, the headers, and how a body is cut into chunks."""


class AnswerRefused(RequestException):
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
            raise AnswerRefused(wrong, response=response)
        return response


def _refused(response: Response) -> str:
    if 300 <= response.status_code < 400:
        return f"a redirect ({response.status_code}), which is never followed"
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "packed, which was not asked for"
    return ""
