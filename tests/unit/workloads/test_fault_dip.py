"""What a fault of the storage does to a run, who may make it, and that it ends whatever happens.

That the figures follow real faults of real servers is what `make e2e-fault` looks at.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.drivers.storages.storage_settings import FaultCommand, faults_of
from pvebench.errors import FaultFailed
from pvebench.model.ports import Fault, StorageFunctions
from pvebench.model.run import Outcome, Run
from pvebench.scheduler.worker import Worker
from pvebench.workloads.fault_dip import Dip, find_dip
from pvebench.workloads.fio import Fio
from pvebench.workloads.tool import Target
from pvebench_lab.host import HostSettings
from pvebench_lab.simulated.simulated_hypervisor import simulated_site
from testing.packs import SMALL, tool_refusal, tool_workload, write_pack
from testing.simulations import simulate

GOLDEN = Path(__file__).parents[2] / "golden" / "fio"


def dip(text: str, width: float = 1.0) -> Dip | None:
    return find_dip([float(word) for word in text.split()], width)


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ("100 100 100 100 0 0 49 81 81 81 100 100", Dip(1.0, 3.0, 3.0)),
        ("100 100 100 100 100 100 100 100 100 100 100 100", Dip(0.0, 0.0, 0.0)),
        ("100 100 100 100 51 51 51 100 100 100 100 100", Dip(0.49, 0.0, 0.0)),
        ("100 100 100 100 0 300 0 85 79 81 81 81", Dip(1.0, 2.0, 5.0)),
        ("100 100 100 100 100 100 100 100 100 0 0 0", Dip(1.0, 3.0, None)),
    ],
    ids=["a pause", "nothing", "slower, not down", "what piled up is no recovery", "never back"],
)
def test_a_dip_is_reported_by_depth_time_and_recovery(rates: str, found: Dip) -> None:
    assert dip(rates) == found


def test_without_a_rate_before_nothing_is_said() -> None:
    assert dip("0 0 0 0 100 100 100 100 100 100 100 100") is None
    assert dip("100 100 0 0 0 100") is None


class Noted:
    """A fault that is over at once."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def lasted(self) -> float | None:
        return 2.5


PACK = SMALL.replace("runtime: 2s", "runtime: 12s").replace("iodepth: 8", "fault: outage")


def runs_with(tmp_path: Path, faults: dict[tuple[str, str], Fault]) -> list[Run]:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, PACK))
    worker = simulation.worker
    site = replace(simulated_site(simulation.world), storages=StorageFunctions(faults=faults))
    worker = Worker(
        site=site,
        assignments=worker.assignments,
        results=simulation.results,
        notify=simulation.recorder.runs.append,
        cycles=1,
    )
    worker.run()
    return simulation.recorder.runs


def values(run: Run) -> dict[str, float]:
    return {one.metric: one.value for one in run.samples}


def test_the_fault_that_the_storages_settings_name_is_made_once_a_run(tmp_path: Path) -> None:
    fault = Noted()
    runs = runs_with(tmp_path, {("local", "outage"): fault})
    assert [str(one.outcome) for one in runs] == ["ok", "ok"]
    assert fault.begun == 2
    for one in runs:
        assert one.case.workload.slug == "randread-4k-qd1-fault-outage"
        assert values(one)["fault_time"] == 2.5
        assert "no fault was caused" not in one.evidence.get("notes", "")


@pytest.mark.parametrize("other", [("local", "flood"), ("elsewhere", "outage")])
def test_nothing_is_done_to_a_storage_whose_settings_do_not_name_it(
    tmp_path: Path, other: tuple[str, str]
) -> None:
    fault = Noted()
    runs = runs_with(tmp_path, {other: fault})
    assert fault.begun == 0
    for one in runs:
        assert one.outcome.good
        assert "fault_time" not in values(one)
        assert values(one)["fault_dip"] < 0.5
        assert "the storage's settings define no fault outage" in one.evidence["notes"]


class Awaited(FaultCommand):
    """A command whose end simulated time, where ten minutes pass in milliseconds, waits for."""

    def lasted(self) -> float | None:
        while (seconds := super().lasted()) is None:
            time.sleep(0.02)
        return seconds


def test_a_fault_that_no_one_knows_to_have_ended_fails_the_run(tmp_path: Path) -> None:
    fault = Awaited("outage", ["/bin/sh", "-c", "sleep 0.2; exit 1"])
    runs = runs_with(tmp_path, {("local", "outage"): fault})
    assert {one.outcome for one in runs} == {Outcome.FAILED}
    assert "ended with exit code 1" in runs[0].reason


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_fault_ends_although_pvebench_was_killed_in_it(tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"
    command = f"touch {began}; sleep 0.3; touch {ended}"
    script = (
        "import os, signal\n"
        "from pvebench.drivers.storages.storage_settings import FaultCommand\n"
        f"FaultCommand('outage', ['/bin/sh', '-c', {command!r}]).begin()\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, start_new_session=True)
    assert done.returncode == -9
    wait_for(ended)


def test_one_fault_at_a_time_and_a_missing_program_is_reported(tmp_path: Path) -> None:
    fault = FaultCommand("outage", ["/bin/sh", "-c", f"until [ -e {tmp_path}/go ]; do :; done"])
    fault.begin()
    assert fault.lasted() is None
    with pytest.raises(FaultFailed, match="still active"):
        fault.begin()
    (tmp_path / "go").touch()
    while (seconds := fault.lasted()) is None:
        time.sleep(0.01)
    assert seconds > 0
    with pytest.raises(FaultFailed, match="No such file"):
        FaultCommand("outage", [str(tmp_path / "absent")]).begin()


def test_the_settings_name_the_faults_of_each_storage(tmp_path: Path) -> None:
    storage = {"kind": "dir", "path": str(tmp_path), "faults": {"outage": ["/bin/true"]}}
    settings = HostSettings.model_validate({"state": tmp_path, "storages": {"local": storage}})
    assert list(faults_of(settings)) == [("local", "outage")]
    assert faults_of(HostSettings.model_validate({"state": tmp_path})) == {}
    del storage["faults"]["outage"][0]  # type: ignore[attr-defined] # a list in there
    with pytest.raises(ValueError, match="outage"):
        HostSettings.model_validate({"state": tmp_path, "storages": {"local": storage}})


def test_a_workload_under_fault_is_another_one_and_counts_its_errors() -> None:
    asked = {"rw": "randwrite", "bs": "4k", "iodepth": 4}
    plain, under = (tool_workload("fio", asked | more) for more in ({}, {"fault": "outage"}))
    assert plain.fingerprint != under.fingerprint
    assert "fault" not in plain.parameters
    target = Target(device="/dev/vdb", size_bytes=1 << 28)
    jobs = [Fio().job(one, target).files["/run/pvebench/job.fio"] for one in (plain, under)]
    assert [b"continue_on_error=io" in job for job in jobs] == [False, True]


def test_what_failed_is_counted_as_errors_and_not_as_operations() -> None:
    options = {"rw": "randwrite", "bs": "4k", "iodepth": 4, "fault": "outage"}
    workload = tool_workload("fio", options, ramp_seconds=1, runtime_seconds=30)
    output = (GOLDEN / "errors.json").read_text("utf-8")
    logs = {"fio_iops.log": (GOLDEN / "errors_iops.log").read_text("utf-8")}
    found = {one.metric: one.value for one in Fio().parse(workload, output, logs).samples}
    assert found["fault_errors"] == 4627
    assert found["operations"] == 10881 - 4627 + 4
    assert found["iops"] == pytest.approx(847560 / 4096)
    assert (found["fault_dip"], found["fault_dip_time"], found["fault_recovery"]) == (1, 7, 7)


def test_no_depth_is_searched_during_a_fault(tmp_path: Path) -> None:
    asked = {"rw": "randread", "bs": "4k", "iodepth": 4, "latency_target": "2ms", "fault": "outage"}
    assert "fault: cannot be combined with latency_target" in tool_refusal(tmp_path, "fio", asked)
