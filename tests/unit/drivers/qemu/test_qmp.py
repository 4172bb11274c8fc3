"""What is kept of what QEMU says, by the real client at a socket."""

from __future__ import annotations

import base64
import contextlib
import socket
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fuzz.outside import monitor
from pvebench.drivers.clocks import START, SimulatedClock
from pvebench.drivers.qemu.qmp import Channel, QemuGuest
from pvebench.errors import GuestTimeout, HypervisorGone

EVENT = b'{"event": "JOB_STATUS_CHANGE", "data": {"status": "created", "id": "x"}, "timestamp": {}}'


def test_events_that_no_one_waits_for_are_not_kept() -> None:
    server, path = monitor()
    server.lines = [*[EVENT] * 200, b'{"id": "ID", "return": {"running": true}}']
    channel = Channel("QEMU", path, negotiate=True, check=lambda: None)
    channel.connect(timeout=10)
    assert channel.ask("query-status") == {"running": True}
    channel.close()
    assert not channel._client.events.history


def test_a_connection_that_is_closed_at_once_is_gone(tmp_path: Path) -> None:
    """The library asserts then that it is open, depending on who is faster."""

    def hang_up(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    path = str(tmp_path / "socket")
    with socket.create_server(path, family=socket.AF_UNIX, backlog=128) as listener:
        Thread(target=hang_up, args=(listener,), daemon=True).start()
        for _ in range(100):
            channel = Channel("QEMU", path, negotiate=False, check=lambda: None)
            with contextlib.suppress(HypervisorGone):
                channel.connect(timeout=10)
            channel.close()
        listener.shutdown(socket.SHUT_RDWR)


class _Slices:
    """A guest agent that returns larger slices than requested."""

    calls = 0

    def execute(self, command: str, _: Any = None, *, timeout: float = 1.0) -> Any:
        self.calls += 1
        if command == "guest-file-open":
            return 5
        content = base64.b64encode(bytes(1024 * 1024 + 1)).decode()
        return {"count": 1, "buf-b64": content, "eof": False}


def test_a_slice_beyond_the_requested_size_is_refused_at_once() -> None:
    channel = _Slices()
    guest = QemuGuest(channel, SimulatedClock(START))  # type: ignore[arg-type] # a stand-in
    with pytest.raises(GuestTimeout, match="a slice of 1048577 bytes"):
        guest.read_file("/x")
    assert channel.calls == 3  # open, read, close
