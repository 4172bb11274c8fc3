"""What the host driver makes of quick_storages.sh: run in the host, says it as JSON.

One process for all of it, without the command line: the host's CPU is slow.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.block_devices import identity
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import StorageContext
from pvebench.drivers.storages.identity import claim
from pvebench.errors import VolumeError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench.store.store import Store
from pvebench.workloads import TOOLS
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine

OWNER: Final = "quick"
STATE: Final = Path("/var/tmp/quick")
STORAGES: Final = {
    "raid1": ("block", "/dev/md0"),
    "dm-cache": ("block", "/dev/mapper/cached"),
    "thin": ("block", "/dev/mapper/thin"),
    "nfs": ("dir", "/srv/nfs/pvebench"),
}
"""Name -> kind and path."""
DISKS: Final = ("/dev/ubda", "/dev/ubdc", "/dev/ubdd", "/dev/ubde", "/dev/ubdf")
MEASURED: Final = ("dm-cache", "nfs")
"""One of each kind: a run takes two seconds of CPU time."""
SECONDS: Final = 1.0
RATE: Final = {"bs": "4k", "iodepth": 4, "rate_iops": 400}
"""The one CPU of this host has other work as well."""
MIXED: Final = {"rw": "randrw", "rwmixread": 50}


def claims(devices: Sequence[str]) -> dict[str, str]:
    """Return device -> its identity after the claim, or why it is refused."""
    found = {}
    for path in devices:
        try:
            claim(Path(path), destroy=False)
            found[path] = identity(Path(path).stat().st_rdev)
        except VolumeError as error:
            found[path] = str(error).splitlines()[0]
    return found


def host_runner(store: Store, places: Mapping[str, tuple[str, str]], runtime: Path) -> Runner:
    """Return what runs cases on storages: name -> kind and path."""
    storages = {
        name: KINDS[kind].make(
            StorageContext(
                name=name,
                owner=OWNER,
                settings=KINDS[kind].settings.model_validate({"kind": kind, "path": path}),
            ),
            store.journal,
        )
        for name, (kind, path) in places.items()
    }
    machine = ThisMachine(runtime, store.journal)
    disk = HostDisk(node="inside", storages=storages, machine=machine)
    probe = ProcProbe(lambda: None, lambda: disk.volume_path)
    site = Site(node="inside", hypervisor=disk, probe=probe, clock=SystemClock())
    return Runner(site, lambda *_: None)


def runner_of_all(store: Store) -> Runner:
    return host_runner(store, STORAGES, STATE / "run")


def run(runner: Runner, name: str, job: Mapping[str, Any] = MIXED) -> Run:
    """Return one run on a storage."""
    scenario = Scenario(
        node="inside",
        storage=name,
        machine=Machine(memory_bytes=MIB, cpus=1),
        volume_bytes=16 * MIB,
        disk=Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE),
    )
    options = TOOLS["fio"].options.model_validate(job | RATE)
    workload = options.workload(ramp_seconds=0, runtime_seconds=SECONDS)
    case = Case(scenario=scenario, workload=workload)
    return runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))


def killed(name: str) -> list[str]:
    """Return what a run on a directory leaves that is killed as soon as it has a volume there."""
    child = os.fork()
    if not child:
        os.setsid()
        run(runner_of_all(Store(STATE / "pvebench.db", simulated=False)), name)
        os._exit(1)
    while not (left := _names(name)):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it had a volume"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return left


def _names(name: str) -> list[str]:
    return [path.name for path in Path(STORAGES[name][1]).iterdir()]


def main() -> Mapping[str, Any]:
    STATE.mkdir()
    (STATE / "run").mkdir()
    Path(STORAGES["nfs"][1]).mkdir()
    said: dict[str, Any] = {
        "plain disk": identity(Path(DISKS[0]).stat().st_rdev),
        "claims": claims([*(path for kind, path in STORAGES.values() if kind == "block"), *DISKS]),
        "killed": killed("nfs"),
    }
    store = Store(STATE / "pvebench.db", simulated=False)
    said["undone"] = undo_local(store.journal, instance=OWNER, runtime=STATE / "run")
    said["ended"] = _names("nfs")
    runner = runner_of_all(store)
    said["runs"] = {name: _shown(run(runner, name)) for name in MEASURED}
    runner.close()
    store.close()
    return said


def _shown(one: Run) -> dict[str, Any]:
    shares = {str(s.direction): s.value for s in one.samples if s.metric == "device_share"}
    return {"outcome": one.outcome, "reason": one.reason, "shares": shares}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
