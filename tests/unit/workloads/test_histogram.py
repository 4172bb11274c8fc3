"""Latencies in buckets that add up: real bins of fio, with fio's own converter as yardstick."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pvebench.errors import OutputUnreadable
from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import snapshot_of
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment
from pvebench.model.run import LATENCY_BOUNDS, Outcome, Run, Sample, Unit
from pvebench.model.workload import Case, Direction, Workload
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.store.store import Store
from pvebench.workloads.fio import Fio
from pvebench.workloads.tool import Target
from testing.packs import quick, tool_workload
from testing.stored_runs import ended

GOLDEN = Path(__file__).parents[2] / "golden" / "fio"
READ, WRITE = Direction.READ, Direction.WRITE
START = datetime(2026, 5, 1, tzinfo=UTC)
ENVIRONMENT = Environment(node="lab", facts={"kernel": "6.8.12", "accel": "kvm"})
DAY = 86400.0


def workload(**options: Any) -> Workload:
    mixed = {"rw": "randrw", "bs": "4k", "iodepth": 4, "rate_iops": 200, **options}
    return tool_workload("fio", mixed, ramp_seconds=0.5, runtime_seconds=2)


def counted(output: str) -> dict[tuple[Direction | None, str], float]:
    samples = Fio().parse(workload(), output, {}).samples
    return {(s.direction, s.part): s.value for s in samples if s.metric == "clat_histogram"}


def golden() -> str:
    return (GOLDEN / "histogram.json").read_text("utf-8")


def upto(table: list[dict[str, str]], direction: Direction, nanoseconds: float) -> int:
    """Operations at or below a latency, by fio's own converter."""
    name = f"{direction}_clat_ns_cumulative"
    held = [int(row[name]) for row in table if row[name] and int(row["nsec"]) <= nanoseconds]
    return held[-1] if held else 0


def test_buckets_hold_what_fios_own_converter_counts_below_their_bounds(tmp_path: Path) -> None:
    asked = ["fio_jsonplus_clat2csv", GOLDEN / "histogram.json", tmp_path / "of.csv"]
    subprocess.run(asked, check=True, capture_output=True)
    lines = (tmp_path / "of_job0.csv").read_text().replace(", ", ",").splitlines()
    table = list(csv.DictReader(lines))
    found = counted(golden())
    for direction in (READ, WRITE):
        held = 0.0
        for bound in LATENCY_BOUNDS:
            held += found.get((direction, bound), 0.0)
            assert held == upto(table, direction, float(bound) * 1e9), (direction, bound)
        job = json.loads(golden())["jobs"][0][direction]["clat_ns"]
        assert held == job["N"]
        assert found[direction, "sum"] == pytest.approx(job["mean"] * job["N"] / 1e9)
    assert len(found) > 2 * 5


def test_plain_json_of_fio_has_no_bins_and_gives_no_histogram() -> None:
    assert counted((GOLDEN / "mixed.json").read_text("utf-8")) == {}


@pytest.mark.parametrize("change", [{"999": 1}, {"-5": 1}, {"60": -1}, {"60": "x"}, {"a": 0}])
def test_bins_that_cannot_be_true_are_refused(change: dict[str, object]) -> None:
    document = json.loads(golden())
    document["jobs"][0]["write"]["clat_ns"]["bins"].update(change)
    with pytest.raises(OutputUnreadable, match="write: clat_ns: "):
        counted(json.dumps(document))


def test_to_keep_the_distribution_ends_no_history() -> None:
    plain, whole = workload(), workload(histogram=True)
    assert (plain.slug, plain.fingerprint) == (whole.slug, whole.fingerprint)
    target = Target(device="/dev/vdb", size_bytes=1 << 28)
    assert "--output-format=json" in Fio().job(plain, target).argv
    assert "--output-format=json+" in Fio().job(whole, target).argv


def case() -> Case:
    return quick()[1].cases[0]


def run(number: int, *, of: Case, outcome: Outcome = Outcome.OK) -> Run:
    """One with three operations: two of 3 ms, one of two seconds."""
    counts = {"0.004194304": 2.0, "+Inf": 1.0}
    return ended(
        of,
        START + timedelta(days=number),
        Sample("iops", READ, 100.0, Unit.IOPS),
        *(Sample("clat_histogram", READ, n, Unit.OPERATIONS, le) for le, n in counts.items()),
        Sample("clat_histogram", READ, 2.006, Unit.SECONDS, "sum"),
        environment=ENVIRONMENT,
        outcome=outcome,
    )


def exposed(results: LiveResults, of: Case) -> dict[str, float]:
    """The histogram of a case on the page: le, or what follows the name -> value."""
    results.plan([PlannedCase(key=of.key, definition=Definition.of(of), every_seconds=3600.0)])
    now = datetime(2026, 6, 30, tzinfo=UTC)
    shown = snapshot_of(results.now, now=now, max_age_seconds=365 * DAY)
    page = Page(lambda: shown, {}, now=lambda: now)
    page.refresh()
    families = text_string_to_metric_families(page.render()[0].decode())
    name = "pvebench_latency_seconds"
    samples = [one for family in families if family.name == name for one in family.samples]
    return {one.labels.get("le", one.name.removeprefix(name)): one.value for one in samples}


def test_good_runs_are_added_up_and_others_are_not(store: Store) -> None:
    results = LiveResults(store)
    outcomes = (Outcome.OK, Outcome.IMPLAUSIBLE, Outcome.NOISY, Outcome.FAILED)
    for number, outcome in enumerate(outcomes):
        results.keep(run(number, of=case(), outcome=outcome))
    page = exposed(results, case())
    assert set(page) == {*LATENCY_BOUNDS, "_count", "_sum"}
    assert (page["0.002097152"], page["0.004194304"], page["1.073741824"]) == (0, 4, 4)
    assert (page["+Inf"], page["_count"], page["_sum"]) == (6, 6, pytest.approx(4.012))
    assert exposed(LiveResults(store), case()) == page


def test_runs_that_were_removed_are_still_counted(store: Store) -> None:
    store.add_history([run(number, of=case()) for number in range(60)])
    removal, _ = store.prune(START + timedelta(days=60), evidence_seconds=DAY, runs_seconds=9 * DAY)
    assert removal.runs > 10
    assert exposed(LiveResults(store), case())["_count"] == 3 * 60


def test_a_case_that_means_something_else_begins_to_count_again(store: Store) -> None:
    results, other = LiveResults(store), replace(case(), scale=0.5)
    for number, one in enumerate((case(), case(), other)):
        results.keep(run(number, of=one))
    assert exposed(results, case())["_count"] == 6
    assert exposed(results, other)["_count"] == 3
