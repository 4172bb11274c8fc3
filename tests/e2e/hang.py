"""`make hang RUNS=500`: does an emulated disk ever hang? Prints hung and all runs.

Each run is a second (`--seconds`) of random writes of 4 KiB, 32 at once, and a hot-plug of the disk
as something else. A run is hung if the guest waits for I/O while QEMU does none; a busy machine's
slow run is not. `--single-cpu` starts QEMU as it was before it was known why
(tests/integration/test_cpus.py).
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from integration.conftest import MACHINE, Lab, scenario
from pvebench.drivers.qemu import machine, qemu_hypervisor
from pvebench.drivers.vm_lifecycle import Power
from pvebench.errors import DriverError, ToolStuck
from pvebench.guest.build import build_image
from pvebench.guest.image import default_directory
from pvebench.model.disk import Aio, Bus, Format
from pvebench.model.ports import HostProbe, Site
from pvebench.model.scenario import Scenario
from pvebench.runner.measure import wait_for_end

END_SECONDS: Final = 45.0
"""fio ends long before this time is over beside its own, on a busy machine too."""
QUIET_SECONDS: Final = 5.0
"""QEMU does something within this time if it has anything to do."""
FIO: Final = (
    "fio --name=hang --rw=randwrite --bs=4k --iodepth=32 --ioengine=libaio --direct=1 "
    "--time_based --size=64M"
)
DISKS: Final = tuple(
    scenario(bus, kind, aio=aio)
    for kind, aio, bus in itertools.product(
        (Format.RAW, Format.QCOW2), (Aio.IO_URING, Aio.THREADS), (Bus.VIRTIO, Bus.SCSI)
    )
)


@dataclass
class Count:
    runs: int = 0
    hung: int = 0
    slow: int = 0
    other: int = 0
    writes: int = 0
    evidence: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.hung} hung, {self.slow} too slow, {self.other} other failures in {self.runs} "
            f"runs ({self.writes / max(1, self.runs):.0f} writes a run)"
        )


def play(site: Site, place: Lab, requested: Scenario, count: Count, seconds: int) -> None:
    """Plug the disk in, write, count what came of it; the VM is new after trouble."""
    count.runs += 1
    try:
        guest, attachment = place.plug(requested)
        more = [f"--filename={attachment.device}", f"--runtime={seconds}"]
        pid = guest.start([*FIO.split(), *more])
        deadline = site.clock.monotonic() + seconds + END_SECONDS
        wait_for_end(site, guest, pid, deadline=deadline)
        count.writes += site.hypervisor.counters().write_operations
    except ToolStuck as error:
        if is_hung(site, error.evidence):
            count.hung += 1
            count.evidence.append(error.evidence)
        else:
            count.slow += 1
        end(place)
    except DriverError as error:
        count.other += 1
        print(f"{requested.slug}: {error}", flush=True)
        end(place)


def is_hung(site: Site, evidence: str) -> bool:
    """Whether the guest has I/O in flight that QEMU has no more to do with."""
    if not re.search(r"/sys/block/(vd|sd)\w+/inflight:.*[1-9]", evidence):
        return False
    before = site.hypervisor.counters()
    site.clock.sleep(QUIET_SECONDS)
    return site.hypervisor.counters() == before


def end(place: Lab) -> None:
    place.qemu._state.power = Power.BROKEN
    place.qemu.power_off()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int)
    parser.add_argument("--seconds", type=int, default=1, help="of writing in each run")
    parser.add_argument("--single-cpu", action="store_true", help="room for one CPU, as it was")
    parser.add_argument("--minutes", type=float, default=1e9, help="end sooner, after so many")
    given = parser.parse_args()
    if given.single_cpu:
        machine.cpus_option = lambda *_: str(MACHINE.cpus)
    qemu_hypervisor.BOOT_SECONDS = 600.0  # type: ignore[misc] # how fast it boots is not the question
    begun, count = time.monotonic(), Count()
    with tempfile.TemporaryDirectory() as directory:
        place = Lab(Path(directory), build_image(default_directory(), say=print))
        probe = cast("HostProbe", None)  # nobody asks it
        site = Site(node="lab", hypervisor=place.qemu, probe=probe, clock=place.clock)
        try:
            for requested in itertools.islice(itertools.cycle(DISKS), given.runs):
                play(site, place, requested, count, given.seconds)
                if count.runs % 20 == 0:
                    print(f"{time.monotonic() - begun:5.0f} s: {count}", flush=True)
                if time.monotonic() - begun > given.minutes * 60:
                    break
        finally:
            place.close()
    for evidence in count.evidence[:3]:
        print(evidence)
    print(f"{'room for one CPU' if given.single_cpu else 'as pvebench starts it'}: {count}")
    return int(bool(count.hung or count.other))


if __name__ == "__main__":
    sys.exit(main())
