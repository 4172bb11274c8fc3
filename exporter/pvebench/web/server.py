"""uvicorn in a thread beside the workers."""

from __future__ import annotations

import errno
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from pvebench.errors import PortInUse
from pvebench.web.access import Access
from pvebench.web.door import HEAD_BYTES, BoundedProtocol
from pvebench.web.gate import Gate


def listen(address: str) -> socket.socket:
    """Return a listening socket on `host:port`; bound before anything else starts.

    Raises:
        PortInUse: somebody listens there already, or the address is not ours.
    """
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host.strip("[]"), int(port)))
        opened.listen(128)
    except OSError as error:
        opened.close()
        taken = error.errno == errno.EADDRINUSE
        raise PortInUse(
            f"cannot listen on {address}: {error.strerror}",
            cause="another pvebench or another program listens there" if taken else "",
            next_step="stop it, or choose another address with --listen",
        ) from error
    return opened


class _Counting(uvicorn.Server):
    """Counts the turns of its main loop, some ten a second: a loop that hangs turns no more."""

    turns = 0

    async def on_tick(self, counter: int) -> bool:
        self.turns += 1
        return await super().on_tick(counter)


class WebServer:
    """Serves an application on an open socket from its own thread, until closed.

    Args:
        access: by what names and under which rules clients come in; None: the usual names.
    """

    def __init__(self, app: ASGIApp, opened: socket.socket, access: Access | None = None) -> None:
        rules = access or Access()

        class Protocol(BoundedProtocol):
            tls = staticmethod(lambda: rules.now().tls)

        config = uvicorn.Config(
            Gate(app, rules),
            http=Protocol,
            ws="none",
            h11_max_incomplete_event_size=HEAD_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
        )
        self._server = _Counting(config)
        self._socket = opened
        self._thread = threading.Thread(target=self._serve, name="pvebench-web", daemon=True)

    @property
    def turns(self) -> int:
        """A number that grows as long as requests are answered."""
        return self._server.turns

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()
