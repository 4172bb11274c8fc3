"""Connections to a server that answers `hello`."""

from __future__ import annotations

import socket

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response


def hello(_: Request) -> Response:
    return PlainTextResponse("hello\n")


def gone(connection: socket.socket) -> bool:
    """Return whether the server closed the connection."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
