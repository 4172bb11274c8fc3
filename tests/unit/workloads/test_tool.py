"""CPU of a guest where fio counts none: from the guest's counters around the job."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from pvebench.workloads.tool import CPU_LOG
from pvebench_lab.simulated.simulated_hypervisor import SimulatedGuest
from testing.packs import write_pack
from testing.simulations import simulate


def test_counters_before_and_after_the_job_are_evidence_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = itertools.count(1)
    counters = lambda _: json.dumps({"user": next(count), "system": 0, "at": 0})  # noqa: E731 # short
    monkeypatch.setattr(SimulatedGuest, "cpu_counters", counters)
    simulation = simulate(tmp_path, pack=write_pack(tmp_path))
    simulation.worker.run()
    rows = simulation.recorder.runs[0].evidence[CPU_LOG].splitlines()
    assert [json.loads(row)["user"] for row in rows] == [1, 2]


def test_a_guest_without_counters_has_no_such_evidence(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path))
    simulation.worker.run()
    assert CPU_LOG not in simulation.recorder.runs[0].evidence
