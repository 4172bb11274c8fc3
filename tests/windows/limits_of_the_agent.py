"""What only the real agent in Wine can show, too slow or too large for a transcript.

`make e2e-windows` names this file; `make test` does not collect it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.qemu.qmp import QemuGuest
from pvebench.drivers.responses import CAPTURED
from pvebench.errors import OutputUnreadable
from pvebench.model.units import MIB
from pvebench_lab.windows.windows_guest import COMMANDS, WindowsGuest
from windows.wine import WineAgent

pytestmark = pytest.mark.lab

TYPE = [r"C:\windows\system32\cmd.exe", "/c", "type"]


@pytest.fixture
def guest(wine: Callable[[], WineAgent]) -> WindowsGuest:
    agent = wine()
    client = QemuGuest(agent.channel, SystemClock())
    client.ping(timeout=60.0)
    drive = agent.prefix / "drive_c/pvebench"
    (drive / "whole").write_bytes(bytes(4 * MIB))
    (drive / "cut").write_bytes(bytes(CAPTURED + MIB))
    return WindowsGuest(client, SystemClock())


@pytest.mark.timeout(900)
def test_an_output_beyond_16_mib_is_an_error_and_a_file_of_that_size_is_read(
    guest: WindowsGuest,
) -> None:
    assert len(guest.run([*TYPE, r"C:\pvebench\whole"], timeout=300.0).stdout) == 4 * MIB
    with pytest.raises(OutputUnreadable, match="truncated"):
        guest.run([*TYPE, r"C:\pvebench\cut"], timeout=600.0)
    assert len(guest.read_file("C:/pvebench/cut")) == CAPTURED + MIB


def test_the_agent_lists_each_command_that_a_guest_needs(guest: WindowsGuest) -> None:
    commands = guest._client.commands()
    assert {name: commands.get(name) for name in COMMANDS} == dict.fromkeys(COMMANDS, True)
