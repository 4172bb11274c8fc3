"""What only the real agent in Wine can show, too slow or too large for a transcript.

`make e2e-windows` names this file; `make test` does not collect it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.qemu.qmp import QemuGuest
from pvebench.drivers.responses import CAPTURED
from pvebench.errors import OutputUnreadable, SwitchFailed
from pvebench.model.units import MIB
from pvebench_lab.windows import powershell
from pvebench_lab.windows.windows_guest import COMMANDS, WindowsGuest
from windows.conftest import PROGRAMS
from windows.test_windows_guest import COMPLETE
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


@pytest.mark.parametrize("command", ["guest-exec", "guest-file-write", "guest-info", "guest-ping"])
def test_a_command_that_qemu_ga_conf_blocks_is_named_or_not_needed(
    tmp_path: Path, command: str
) -> None:
    assert PROGRAMS is not None
    agent = WineAgent(PROGRAMS, tmp_path, disk_bytes=MIB, options=["-b", command])
    with closing(agent):
        client = QemuGuest(agent.channel, SystemClock())
        client.ping(timeout=60.0)
        agent.answer(powershell.SYSTEM, {}, COMPLETE)
        guest = WindowsGuest(client, SystemClock())
        if command not in COMMANDS:
            assert guest.facts()["windows_build"] == "20348.2700"
            return
        with pytest.raises(SwitchFailed, match=f"the agent's command {command}: allow it"):
            guest.facts()
