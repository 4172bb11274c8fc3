"""What the host driver makes of a disk that fails: run in the host, says it as JSON.

    quick_faults.py DISK SECONDS FAULT…

Device mapper lies between pvebench and the disk. A fault begins just before a run starts its tool,
or before the run, or before the volume is filled again. It ends after SECONDS, and pvebench's
limits are its own. With 0 it lasts until the end of a second run, and the limits are short. The
last run has the whole disk again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from hostprocess import quick_runs
from pvebench.drivers.linux import block_devices, host_tools
from pvebench.drivers.linux.host_tools import HostTools
from pvebench.drivers.storages.identity import claim
from pvebench.model.run import Run
from pvebench.runner import measure
from pvebench.runner.runner import Runner
from pvebench.store.store import Store

NAME: Final = "failing"
DEVICE: Final = Path("/dev/mapper", NAME)
_WHOLE: Final = "swap linear $disk 0"
_HANG: Final = (f"dmsetup suspend --noflush --nolockfs {NAME}", f"dmsetup resume {NAME}")
FAULTS: Final = {
    "errors": ("swap error", _WHOLE),
    "hang": _HANG,
    "hang-later": _HANG,
    "delay": ("swap delay $disk 0 2000", _WHOLE),
    "dropped-writes": ("swap flakey $disk 0 0 600 1 drop_writes", _WHOLE),
}
"""Name -> shell words that begin it, and that end it."""
DROPS: Final = {
    "fill-dropped": ("swap flakey $disk 0 0 600 1 drop_writes", _WHOLE),
    "fill-zero": ("swap zero", _WHOLE),
}
"""Likewise, begun before a fill. The first returns what an equal fill wrote earlier."""
READS: Final = {"rw": "randread"}
"""Its runs leave all that a fill wrote."""
LATER: Final = "hang-later"
"""Begins before the run."""
_SWAP: Final = """
swap() {
    dmsetup load %s --table "0 $sectors $*"
    dmsetup suspend --noflush --nolockfs %s
    dmsetup resume %s
}
""".replace("%s", NAME)
START_SECONDS: Final = 5.0
"""Seconds to a tool's first I/O, where the limits are short."""
PROGRAM_SECONDS: Final = 10.0
"""Seconds that lsblk and wipefs may take then."""


class Device:
    """The device between pvebench and the disk: all of the disk at first."""

    def __init__(self, disk: str) -> None:
        size = ["blockdev", "--getsz", disk]
        sectors = subprocess.run(size, check=True, capture_output=True, text=True).stdout
        self._known = f"set -e\ndisk={disk} sectors={sectors}{_SWAP}"
        self.shell(f'dmsetup create {NAME} --table "0 $sectors linear $disk 0"')

    def command(self, words: str) -> list[str]:
        """Return a command line with `swap`, the disk and its sectors."""
        return ["bash", "-c", self._known + words]

    def shell(self, words: str) -> None:
        subprocess.run(self.command(words), check=True)


class Fault:
    """A fault of the device; seconds 0: until `over`."""

    def __init__(self, device: Device, name: str, seconds: int) -> None:
        self.name, self.seconds = name, seconds
        self._device = device
        self._later: subprocess.Popen[bytes] | None = None

    def begin_with_a_tool(self) -> None:
        """Begin just before the next start of a tool: later, the tool may have ended."""
        plain = HostTools.start

        def start(tools: HostTools, argv: list[str]) -> int:
            HostTools.start = plain  # type: ignore[method-assign] # this process only
            self.begin()
            return plain(tools, argv)

        HostTools.start = start  # type: ignore[method-assign,assignment] # this process only

    def begin(self) -> None:
        begin, end = (FAULTS | DROPS)[self.name]
        self._device.shell(begin)
        later = f"sleep {self.seconds}; {end}" if self.seconds else ":"
        self._later = subprocess.Popen(self._device.command(later))

    def over(self) -> None:
        """End it, or wait for its end."""
        assert self._later is not None, "it never began"
        assert self._later.wait(120) == 0
        if not self.seconds:
            self._device.shell((FAULTS | DROPS)[self.name][1])


@contextmanager
def short_limits() -> Iterator[None]:
    """Have what hangs given up after seconds."""
    with (
        patch.object(measure, "_START_SECONDS", START_SECONDS),
        patch.object(host_tools, "END_SECONDS", 0.5),
        patch.object(block_devices, "_SECONDS", PROGRAM_SECONDS),
    ):
        yield


def runs(runner: Runner, fault: Fault) -> list[Run]:
    """Return the runs during a fault, and the one after it."""
    if fault.name == LATER:
        fault.begin()
    else:
        fault.begin_with_a_tool()
    # Errors end a tool; a slow start of it must not look like a hang.
    with nullcontext() if fault.seconds or fault.name == "errors" else short_limits():
        said = [quick_runs.run(runner, NAME)]
        if not fault.seconds:
            said.append(quick_runs.run(runner, NAME))
    fault.over()
    return [*said, quick_runs.run(runner, NAME)]


def fills(runner: Runner, fault: Fault) -> list[Run]:
    """Return the run that fills the volume during a fault, and the one after it."""
    fault.begin()
    said = [quick_runs.run(runner, NAME, READS)]
    fault.over()
    return [*said, quick_runs.run(runner, NAME, READS)]


def main(disk: str, seconds: str, *names: str) -> Mapping[str, Any]:
    state = quick_runs.STATE / "faults"
    (state / "run").mkdir(parents=True)
    store = Store(state / "pvebench.db", simulated=False)

    def filled_again(runner: Runner | None = None) -> Runner:
        """Return another runner, which fills the volume in its first run."""
        if runner is not None:
            runner.close()
        return quick_runs.host_runner(store, storages, state / "run")

    device = Device(disk)
    claim(DEVICE, destroy=False)
    storages = {NAME: ("block", str(DEVICE))}
    runner = filled_again()
    quick_runs.run(runner, NAME)
    said = {}
    for name in names:
        if name in DROPS:
            runner = filled_again(runner)
            quick_runs.run(runner, NAME, READS)
            runner = filled_again(runner)
            done = fills(runner, Fault(device, name, 0))
        else:
            done = runs(runner, Fault(device, name, int(seconds)))
        said[name] = [(run.outcome, run.reason) for run in done]
    runner.close()
    store.close()
    device.shell(f"dmsetup remove {NAME}")
    return said


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
