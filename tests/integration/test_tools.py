"""Every benchmark tool of the guest image for real: in a VM, and on the host beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from integration.conftest import MACHINE, Lab, scenario
from pvebench.drivers.backend_router import local_router
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.scenario import Filesystem, Layout, Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import HOST as OF_HOST
from pvebench_lab.host.host_engine import ThisMachine
from testing.packs import Recorder, tool_workload
from testing.real_outcomes import MEASURED, value

DEVICE = scenario(size=64 * MIB)
ON_EXT4 = replace(
    scenario(size=128 * MIB), layout=Layout(filesystem=Filesystem.EXT4, file_bytes=24 * MIB)
)
HOST = scenario(bus=Bus.HOST, size=64 * MIB)
# A doubt about the numbers of a busy machine is none about the tool.


class Bench:
    """A VM with the host beside it, as an instance puts them together."""

    def __init__(self, lab: Lab) -> None:
        host = HostDisk(
            node="lab",
            storages=lab.storages,
            machine=ThisMachine(lab.directory / "run", lab.store.journal),
        )
        both = local_router(lab.qemu, {Bus.HOST: host}, [OF_HOST])
        probe = ProcProbe(
            lambda: None if both.replacement else lab.qemu.pid,
            lambda: (both.replacement or lab.qemu).volume_path,
        )
        site = Site(node="lab", hypervisor=both, probe=probe, clock=lab.clock)
        self.runner = Runner(site, Recorder())

    def run(self, requested: Scenario, tool: str, seconds: float = 1.0, **options: Any) -> Run:
        workload = tool_workload(tool, options, ramp_seconds=0.3, runtime_seconds=seconds)
        case = Case(scenario=requested, workload=workload)
        return self.runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    lab = Lab(tmp_path_factory.mktemp("tools"), image)
    made = Bench(lab)
    yield made
    made.runner.close()
    lab.close()


PING = {"count": 20, "interval": 0}
READ = {"rw": "read", "direct": True}
WRITE = {"rw": "write", "bs": "64k", "flush": "fdatasync"}
TINY = {"rw": "write", "bs": 512, "count": 200, "direct": True}


@pytest.mark.parametrize(
    ("requested", "tool", "options"),
    [
        (DEVICE, "ioping", {**PING, "rw": "write"}),
        (DEVICE, "dd", READ),
        (DEVICE, "dd", TINY),
        (HOST, "ioping", PING),
        (HOST, "dd", WRITE),
        (ON_EXT4, "ioping", PING),
        (ON_EXT4, "dd", READ),
        (ON_EXT4, "dd", WRITE),
    ],
    ids=lambda one: getattr(one, "slug", str(one)),
)
def test_a_tool_that_takes_any_target_measures_it(
    bench: Bench, requested: Scenario, tool: str, options: dict[str, Any]
) -> None:
    """All tools of a target in a row: another size is another volume, which is filled again."""
    run = bench.run(requested, tool, **options)
    assert run.outcome in MEASURED, run.reason
    assert value(run, "bandwidth") > 10_000


@pytest.mark.parametrize("requested", [ON_EXT4, HOST], ids=["ext4", "host"])
def test_sysbench_and_bonnie_make_files_and_leave_none(bench: Bench, requested: Scenario) -> None:
    mixed = bench.run(requested, "sysbench", mode="rndrw", size="16M", direct=True)
    assert mixed.outcome in MEASURED, mixed.reason
    assert value(mixed, "iops") > 10
    created = bench.run(requested, "sysbench", mode="seqwr", size="16M")
    assert created.outcome in MEASURED, created.reason
    stream = bench.run(requested, "bonnie++", size="16M")
    assert stream.outcome in MEASURED, stream.reason
    again = bench.run(requested, "sysbench", mode="seqrd", size="16M")
    assert again.outcome in MEASURED, again.reason


@pytest.mark.parametrize("options", [{}, {"direct": True}, {"cached": True}], ids=str)
def test_hdparm_times_the_bare_device(bench: Bench, options: dict[str, bool]) -> None:
    run = bench.run(DEVICE, "hdparm", **options)
    assert run.outcome in MEASURED, run.reason
    assert value(run, "bandwidth") > 100_000


def test_the_host_measures_the_guests_volume_without_ending_the_vm(bench: Bench) -> None:
    guest = bench.run(DEVICE, "fio", rw="randread", bs="4k", iodepth=8)
    host = bench.run(HOST, "fio", rw="randread", bs="4k", iodepth=8)
    again = bench.run(DEVICE, "fio", rw="randread", bs="4k", iodepth=8)
    assert {run.outcome for run in (guest, host, again)} <= MEASURED
    assert guest.environment == host.environment == again.environment
    assert "host_fio" in host.environment.facts
    # Not a boot for the host, and none when the guest has its disk again.
    assert not [s for run in (host, again) for s in run.samples if s.metric == "boot_time"]
    assert HOST.machine == MACHINE


def test_reads_of_a_direct_disk_come_from_the_device(bench: Bench) -> None:
    run = bench.run(DEVICE, "fio", seconds=3.0, rw="randread", bs="4k", iodepth=8)
    # From the page cache it would be none; window and counters do not end at the same moment.
    assert 0.5 < value(run, "device_share") < 2


def test_flushes_of_the_guest_reach_qemu(bench: Bench) -> None:
    run = bench.run(DEVICE, "fio", seconds=3.0, rw="randwrite", bs="4k", fsync=1)
    assert 0.5 < value(run, "flush_share") < 2
