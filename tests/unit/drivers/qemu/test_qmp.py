"""What is kept of what QEMU says, by the real client at a socket."""

from __future__ import annotations

from fuzz.outside import monitor
from pvebench.drivers.qemu.qmp import Channel

EVENT = b'{"event": "JOB_STATUS_CHANGE", "data": {"status": "created", "id": "x"}, "timestamp": {}}'


def test_events_that_nobody_waits_for_are_not_kept() -> None:
    server, path = monitor()
    server.lines = [*[EVENT] * 200, b'{"id": "ID", "return": {"running": true}}']
    channel = Channel("QEMU", path, negotiate=True, check=lambda: None)
    channel.connect(timeout=10)
    assert channel.ask("query-status") == {"running": True}
    channel.close()
    assert not channel._client.events.history
