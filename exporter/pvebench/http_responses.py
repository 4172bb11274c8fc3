"""HTTP responses within limits, and the TLS of all clients.

A server may send without end, or very slowly.

`http.client` limits the length of a line and the number of headers, but neither the interim
responses (100), the trailers, nor the time of all of them. So each wait ends with one deadline.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from pvebench.model.units import show_bytes

_PIECE: Final = 65536


def client_tls(ca_file: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context of a client, which trusts `ca_file` or the system. Raises OSError.

    By default, Python 3.13 rejects authorities without key usage, as openssl and Proxmox VE make.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def accept_common_authorities() -> None:
    """Let the contexts that libraries create in this process accept what `client_tls` accepts."""
    flags: Any = ssl.SSLContext.verify_flags

    def set_flags(context: ssl.SSLContext, value: int) -> None:
        flags.fset(context, value & ~ssl.VERIFY_X509_STRICT)

    setattr(ssl.SSLContext, "verify_flags", flags.setter(set_flags))  # noqa: B010 # to mypy, a field


C = TypeVar("C", bound=http.client.HTTPConnection)


class BadResponse(OSError):
    """A response that exceeded a limit or ended early; the text says which."""


class Body(Protocol):
    """A response body, such as `http.client.HTTPResponse`."""

    def read1(self, n: int = -1, /) -> bytes:
        """Return at most `n` bytes as soon as some have arrived; nothing at the end."""


def read_body(answer: Body, *, most: int, seconds: float) -> bytes:
    """Return the whole body.

    Args:
        most: maximum bytes. seconds: time limit for all pieces together.

    Raises:
        BadResponse: it exceeds one of the limits, or is shorter than announced.
    """
    deadline = time.monotonic() + seconds
    content = bytearray()
    while piece := answer.read1(_PIECE):
        content += piece
        if len(content) > most or time.monotonic() > deadline:
            raise BadResponse(f"response exceeds {show_bytes(most)} or {seconds:.0f} s")
    if getattr(answer, "length", None):  # the cut number of a page would be another one
        raise BadResponse("response ends early")
    return bytes(content)


class _Received(io.RawIOBase):
    """Bytes of a socket until a deadline, in monotonic seconds."""

    def __init__(self, opened: socket.socket, until: float) -> None:
        self._socket, self._until = opened, until
        self._still = opened.gettimeout() or until
        self._raw = opened.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise BadResponse("response does not end in time")
        self._socket.settimeout(min(self._still, remaining))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    until = 0.0

    def __init__(self, opened: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(opened, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Received(opened, self.until))


def bounded(connection: C, seconds: float) -> C:
    """Return the connection, whose responses must end within that time from now."""
    until = time.monotonic() + seconds
    connection.response_class = type("Response", (_Response,), {"until": until})
    return connection


class BoundedHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Handler of an opener whose responses must end within `seconds` of the request."""

    def __init__(self, seconds: float, context: ssl.SSLContext | None = None) -> None:
        # Only for HTTPS: the system's certificates take 40 ms, also of a page without TLS.
        urllib.request.AbstractHTTPHandler.__init__(self)
        self._seconds = seconds
        self._tls = context

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(self._plain, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request with TLS."""
        return self.do_open(self._secured, req, context=self._tls or client_tls())

    def _plain(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return bounded(http.client.HTTPConnection(host, **options), self._seconds)

    def _secured(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return bounded(http.client.HTTPSConnection(host, **options), self._seconds)


def open_url(
    request: str | urllib.request.Request, *, still: float, seconds: float
) -> http.client.HTTPResponse:
    """Return the response of a server that the user named.

    Args:
        still: maximum seconds without a byte. seconds: for the whole response.
    """
    opener = urllib.request.build_opener(BoundedHandler(seconds))
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=still)
    except urllib.error.HTTPError as error:
        error.close()  # its body is not read
        raise
    return response
