"""pvebench's command line for a host in a process: it waits longer until a new QEMU answers.

Nothing else is changed. The host has one CPU, which other work of this machine slows down further.
"""

from __future__ import annotations

from typing import Final

from pvebench.cli.main import main
from pvebench.drivers.qemu.qmp import Channel

CONNECT_SECONDS: Final = 200.0

_connect = Channel.connect


def connect(channel: Channel, *, timeout: float) -> None:
    _connect(channel, timeout=max(timeout, CONNECT_SECONDS))


def be_patient() -> None:
    Channel.connect = connect  # type: ignore[method-assign,assignment] # this process only


if __name__ == "__main__":
    be_patient()
    main()
