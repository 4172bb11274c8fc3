"""What the host driver makes of a disk that fails: run in the host, says it as JSON.

    quick_faults.py DISK SECONDS FAULT…

Device mapper lies between pvebench and the disk. A fault begins while its first run measures, or
after it. It ends after SECONDS, and pvebench's limits are its own. With 0 it lasts until the end
of a second run, and the limits are short. The last run has the whole disk again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from hostprocess import quick_runs
from pvebench.drivers.linux import block_devices, host_tools
from pvebench.drivers.storages.identity import claim
from pvebench.model.ports import Guest, Site
from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.runner import Runner, measure
from pvebench.store import Store

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
LATER: Final = "hang-later"
"""Begins after the first run."""
_SWAP: Final = """
swap() {
    dmsetup load %s --table "0 $sectors $*"
    dmsetup suspend --noflush --nolockfs %s
    dmsetup resume %s
}
""".replace("%s", NAME)
RUNTIME: Final = 8.0
"""Long beside the programs that begin a fault."""
DEADLINE: Final = 2.0
"""Seconds that a tool may take after its window, where the limits are short."""
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
    """A fault of the device. As an observer of runs it begins with the next measurement."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._later: subprocess.Popen[bytes] | None = None

    def prepare(self, name: str, seconds: int) -> None:
        """Choose the fault; seconds 0: until `over`."""
        self.name, self.seconds = name, seconds
        self._later = None

    def begin(self) -> None:
        begin, end = FAULTS[self.name]
        self._device.shell(begin)
        later = f"sleep {self.seconds}; {end}" if self.seconds else ":"
        self._later = subprocess.Popen(self._device.command(later))

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """See `RunObserver.phase`."""
        if phase is Phase.MEASURE and self.name != LATER and self._later is None:
            self.begin()

    def finished(self, run: Run) -> None:
        """See `RunObserver.finished`."""

    def over(self) -> None:
        """End it, or wait for its end."""
        assert self._later is not None, "it never began"
        assert self._later.wait(120) == 0
        if not self.seconds:
            self._device.shell(FAULTS[self.name][1])


def short_limits() -> None:
    """Have hanging tools given up after seconds, in this process."""
    plain = measure.wait_for_end

    def wait(site: Site, guest: Guest, pid: int, *, deadline: float) -> Any:
        return plain(site, guest, pid, deadline=min(deadline, site.clock.monotonic() + DEADLINE))

    measure.wait_for_end = wait
    host_tools.END_SECONDS = 0.5  # type: ignore[misc] # this process only
    block_devices._SECONDS = PROGRAM_SECONDS  # type: ignore[misc] # this process only


def runs(runner: Runner, fault: Fault) -> list[Run]:
    """Return the runs during a fault, and the one after it."""
    short = partial(quick_runs.run, runner, NAME)
    long = partial(short, seconds=RUNTIME, rate=50)
    later = fault.name == LATER
    said = [short() if later else long()]
    if later:
        fault.begin()
    if later or not fault.seconds:
        said.append(short())
    fault.over()
    return [*said, short()]


def main(disk: str, seconds: str, *names: str) -> Mapping[str, Any]:
    if not int(seconds):
        short_limits()
    state = quick_runs.STATE / "faults"
    (state / "run").mkdir(parents=True)
    store = Store(state / "pvebench.db", simulated=False)
    device = Device(disk)
    claim(DEVICE, destroy=False)
    fault = Fault(device)
    storages = {NAME: ("block", str(DEVICE))}
    runner = quick_runs.host_runner(store, storages, state / "run", fault)
    said = {}
    for name in names:
        fault.prepare(name, int(seconds))
        said[name] = [(run.outcome, run.reason) for run in runs(runner, fault)]
    runner.close()
    store.close()
    device.shell(f"dmsetup remove {NAME}")
    return said


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
