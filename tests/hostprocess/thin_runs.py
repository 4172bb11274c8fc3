"""What the host driver makes of thin pools of its own: run in the host, says it as JSON.

The host has a volume group `bench` with a logical volume of others in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import StorageContext
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench.store.store import Store
from pvebench.workloads import TOOLS
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine
from pvebench_lab.storages.pools import LvmSettings

OWNER: Final = "thin"
STATE: Final = Path("/var/tmp/thin")
CONTEXT: Final = StorageContext(
    name="thin", owner=OWNER, settings=LvmSettings(kind="lvmthin", vgname="bench")
)
SCENARIO: Final = Scenario(
    node="inside",
    storage="thin",
    machine=Machine(memory_bytes=MIB, cpus=1),
    volume_bytes=32 * MIB,
    disk=Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE, thin_chunk=256 * KIB),
)


def volumes() -> list[str]:
    """Return the names in the volume group, with the inner ones of pools."""
    command = ["lvs", "--all", "--noheadings", "-o", "lv_name", "bench"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def table(name: str) -> str:
    """Return what the kernel says of a device-mapper device, without its numbers."""
    command = ["dmsetup", "table", "--target", "thin-pool"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if name in line).split(" ", 1)[1]


def host_runner(store: Store) -> Runner:
    storage = KINDS["lvmthin"].make(CONTEXT, store.journal)
    machine = ThisMachine(STATE / "run", store.journal)
    disk = HostDisk(node="inside", storages={"thin": storage}, machine=machine)
    probe = ProcProbe(lambda: None, lambda: disk.volume_path)
    return Runner(
        Site(node="inside", hypervisor=disk, probe=probe, clock=SystemClock()), lambda *_: None
    )


def run(runner: Runner) -> Run:
    options = TOOLS["fio"].options.model_validate({"rw": "randwrite", "bs": "4k", "iodepth": 4})
    workload = options.workload(ramp_seconds=0, runtime_seconds=1)
    case = Case(scenario=SCENARIO, workload=workload)
    return runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))


def killed(before: list[str]) -> list[str]:
    """Return what a run leaves that is killed as soon as it has a pool."""
    child = os.fork()
    if not child:
        os.setsid()
        run(host_runner(Store(STATE / "pvebench.db", simulated=False)))
        os._exit(1)
    while volumes() == before:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it had a volume"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return [name for name in volumes() if name not in before]


def main() -> Mapping[str, Any]:
    STATE.mkdir()
    (STATE / "run").mkdir()
    before = volumes()
    said: dict[str, Any] = {"identity": KINDS["lvmthin"].identify(CONTEXT), "before": before}
    said["killed"] = killed(before)
    store = Store(STATE / "pvebench.db", simulated=False)
    said["undone"] = undo_local(store.journal, instance=OWNER, runtime=STATE / "run")
    said["after_undo"] = volumes()
    runner = host_runner(store)
    done = run(runner)
    said["run"] = {"outcome": done.outcome, "reason": done.reason}
    said["table"] = table("bench-pvebench")
    runner.close()
    said["after_run"] = volumes()
    said["pending"] = [kind for _, kind, _ in store.journal.pending()]
    said["foreign"] = foreign(store)
    store.close()
    return said


def foreign(store: Store) -> str:
    """Return why a pool is not removed in which someone made a volume."""
    storage = KINDS["lvmthin"].make(CONTEXT, store.journal)
    disk = replace(SCENARIO.disk, thin_chunk=None)
    volume = storage.create(replace(SCENARIO, disk=disk))
    pool = f"{volume.volid.removeprefix('/dev/')}-pool"
    command = ["lvcreate", "--quiet", "--yes", "--thin", "--virtualsize", "8M", "--name", "other"]
    subprocess.run([*command, pool], check=True, capture_output=True)
    try:
        storage.remove(volume)
    except Exception as error:  # noqa: BLE001 # the test says which
        return str(error).splitlines()[0]
    return "removed"


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
