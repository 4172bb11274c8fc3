"""Canary gate: stop, go on or undecided, valid at every look."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pvebench.advice.gate import Gate, GateResult, gate_data, gate_lines
from pvebench.advice.gate_statistic import LEAST_BEFORE, Bound, Decision, bound
from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.cli.main import run_cli
from pvebench.config import load_pack
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers.clocks import START
from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import snapshot_of
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment, EnvironmentPeriod
from pvebench.model.run import Run, Sample, Unit
from pvebench.model.run_metrics import JUDGED
from pvebench.model.workload import Case
from pvebench.scheduler.plan import expand
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.verdict_updates import VerdictService
from testing.packs import QUICK, STORAGES
from testing.simulated_results import HOUR, case, series
from testing.stored_runs import ended
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]
UPGRADE = 40


def values(seed: int, count: int, shift: float = 0.0, sd: float = 0.03) -> list[float]:
    noise = random.Random(seed)
    return [noise.gauss(shift, sd) for _ in range(count)]


def look(before: list[float], after: list[float], tolerance: float = 0.05) -> Bound:
    return bound(series(before, after), tolerance, 0.05)


def test_a_loss_above_the_tolerance_stops_and_none_passes() -> None:
    assert look(values(1, 60), values(2, 20, -0.11)).decision is Decision.STOP
    assert look(values(1, 60), values(2, 20)).decision is Decision.PASS
    assert look(values(1, 60), values(2, 20, -0.05)).decision is Decision.UNDECIDED


@pytest.mark.parametrize(("before", "after"), [(LEAST_BEFORE - 1, 50), (60, 1), (60, 0), (0, 0)])
def test_sparse_data_decide_nothing(before: int, after: int) -> None:
    found = look(values(1, before), values(2, after, -5.0))
    assert found.decision is Decision.UNDECIDED
    assert found.loss is None


def test_more_variability_alone_stops_nothing() -> None:
    stopped = 0
    for seed in range(100):
        after = values(1000 + seed, 30, sd=0.06)
        before = values(seed, 60)
        stopped += any(look(before, after[:n]).decision is Decision.STOP for n in range(2, 31))
    assert stopped <= 5


def test_looks_at_every_run_rarely_stop_without_a_loss() -> None:
    stopped = 0
    for seed in range(100):
        # The mean before is nearly exact, so only the sequence protects against many looks.
        before, after = values(seed, 2000), values(5000 + seed, 40)
        looks = [look(before, after[:count], 0.0001) for count in range(2, 41)]
        stopped += any(one.decision is Decision.STOP for one in looks)
    assert stopped <= 5


def test_autocorrelation_widens_the_interval() -> None:
    noise, value, alike = random.Random(3), 0.0, []
    for _ in range(200):
        value = 0.7 * value + noise.gauss(0, 0.03 * 0.51**0.5)
        alike.append(value)
    apart, plain = look(alike, alike[:40]).loss, look(values(1, 200), values(2, 40)).loss
    assert apart is not None
    assert plain is not None
    assert apart[2] - apart[1] > 1.5 * (plain[2] - plain[1])


def results(
    loss: float = 0.0, *, fault: float = 0.0, peers: int = 1, zeros: bool = False, bus: str = ""
) -> GateResult:
    """Return a look after 15 rounds; all nodes share strong noise of their storage."""
    noise = random.Random(7)
    common = [noise.gauss(0, 0.2) for _ in range(UPGRADE + 15)]
    cases, histories = {}, []
    for slug in ("scsi.raw.none", "virtio.raw.none", "sata.raw.none"):
        for node in ["pve1", *(f"pve{place}" for place in range(2, peers + 2))]:
            one = replace(case(slug), node=node)
            lost = loss if node == "pve1" and bus in {"", one.bus} else 0.0
            shifts = [0.0] * UPGRADE + [math.log1p(-lost) + math.log1p(-fault)] * 15
            levels = [
                0.0 if zeros else 1000 * math.exp(shared + shift + noise.gauss(0, 0.02))
                for shared, shift in zip(common, shifts, strict=True)
            ]
            cases[f"{node} {slug}"] = one
            histories.append(history(f"{node} {slug}", one, levels))
    return Gate("pve1", verdicts_on(histories), cases).look(START.timestamp() + UPGRADE * HOUR)


def history(key: str, one: Definition, levels: Sequence[float]) -> CaseHistory:
    """Return one run an hour."""
    return CaseHistory(
        case=f"{key}|write",
        of=key,
        name=one.name,
        figure=JUDGED["throughput"],
        labels={},
        points=GoodRuns(
            GoodRun(START.timestamp() + run * HOUR, "e", level) for run, level in enumerate(levels)
        ),
    )


def verdicts_on(histories: list[CaseHistory]) -> Verdicts:
    report = NodeReport(
        node="pve1",
        verdicts=tuple(Verdict(history=one, state=VerdictState.UNCHANGED) for one in histories),
        findings=(),
        events=(),
        levels=(),
        judged_until=0.0,
    )
    return Verdicts(reports=(report,))


RETURN = 70


def returned(
    loss: float = 0.0,
    *,
    fault: float = 0.0,
    drift: float = 0.0,
    spread: float = 0.02,
    seed: int = 11,
    back: int = RETURN,
) -> GateResult:
    """Return a look after 40 runs with A, 30 with B and 20 with A again, of one node.

    Args:
        loss: with B.
        fault: loss since the first run with B, also after the return.
        drift: loss per run.
        spread: standard deviation of a run.
    """
    noise = random.Random(seed)
    cases, histories = {}, []
    for slug in ("scsi.raw.none", "virtio.raw.none"):
        one = replace(case(slug), node="pve1")
        lost = [
            drift * run
            - math.log1p(-loss) * (UPGRADE <= run < back)
            - math.log1p(-fault) * (run >= UPGRADE)
            for run in range(back + 20)
        ]
        cases[slug] = one
        levels = [1000 * math.exp(noise.gauss(0, spread) - shift) for shift in lost]
        histories.append(history(slug, one, levels))
    periods = [
        EnvironmentPeriod(
            node="pve1",
            environment=environment,
            slug=environment,
            facts={},
            started=START + timedelta(hours=begin),
            finished=START + timedelta(hours=begin + 1),
        )
        for environment, begin in (("a", 0), ("b", UPGRADE), ("a", back))
    ]
    return Gate("pve1", verdicts_on(histories), cases, periods).look()


@pytest.mark.parametrize(
    ("story", "decision", "sentence"),
    [
        ({"loss": 0.2}, Decision.STOP, "a loss above 5% began with the update and ended without"),
        ({"fault": 0.2}, Decision.PASS, "the update did not cause a loss of 5% or more"),
        ({"drift": 0.0003}, Decision.PASS, "the update did not cause a loss of 5% or more"),
        ({"loss": 0.05}, Decision.UNDECIDED, "a loss above 5% by the update is uncertain"),
    ],
    ids=["loss", "fault", "drift", "near"],
)
def test_an_update_is_blamed_only_for_a_loss_that_ends_without_it(
    story: dict[str, float], decision: Decision, sentence: str
) -> None:
    found = returned(**story)
    assert found.decision is decision
    head, upgraded, back, *_ = gate_lines(found, START)
    assert sentence in head
    assert upgraded.startswith("Upgraded 2026-01-02 16:00 UTC; compared with its own past only")
    assert back == "Returned to the environment before on 2026-01-03 22:00 UTC (A B B A)."
    data = gate_data(found, START)
    assert data["back"]["groups"][0]["runs_before"] == RETURN - UPGRADE
    assert data["back"]["groups"][0]["runs_after"] == 20


def test_both_sides_of_a_b_b_a_together_decide_where_neither_does_alone() -> None:
    looks = [returned(0.1, spread=0.05, seed=seed) for seed in range(12)]
    assert sum(one.decision is Decision.STOP for one in looks) >= 11
    for story in ({"fault": 0.2}, {"drift": 0.002}, {}):
        others = [returned(**story, spread=0.05, seed=seed) for seed in range(12)]
        assert all(one.decision is not Decision.STOP for one in others)


def test_a_return_after_few_runs_says_what_it_lacks() -> None:
    none, near, same = returned(0.2, back=UPGRADE + LEAST_BEFORE - 1), returned(0.05), returned()
    groups = [replace(one, series=replace(one.series, name="bus scsi")) for one in near.groups]
    some = replace(near, groups=(*same.groups, *groups), cases=(), back=same.back)
    for found in (none, some):  # of the cases have enough runs
        assert found.decision is Decision.UNDECIDED
        assert "Install the update again: fewer than 20 runs with it cannot decide." in [
            *gate_lines(found, START)
        ]


@pytest.mark.parametrize("drift", [0.002, 0.01, -0.002])
def test_a_strong_drift_is_not_blamed_on_the_update(drift: float) -> None:
    assert returned(drift=drift).decision is not Decision.STOP


def test_the_peers_remove_the_noise_of_a_shared_storage() -> None:
    alone, compared = results(0.1, peers=0), results(0.1, peers=2)
    assert compared.decision is Decision.STOP
    assert alone.decision is Decision.UNDECIDED
    (text,) = [line for line in gate_lines(alone, START) if line.startswith("Upgraded")]
    assert "its own past only" in text


def test_a_stop_by_the_verdict_alone_does_not_state_a_loss_above_the_tolerance() -> None:
    found = replace(results(peers=2), regressions=("p99 latency is 40% higher",))
    assert {one.decision for one in found.groups} == {Decision.PASS}
    assert found.decision is Decision.STOP
    assert next(gate_lines(found, START)) == (
        "Stop: the verdict confirmed a regression since the upgrade (pve1)."
    )


def test_a_fault_of_the_storage_is_not_blamed_on_the_upgrade() -> None:
    found = results(fault=0.3, peers=2)
    assert found.decision is Decision.PASS


def test_a_loss_of_one_bus_stops_and_names_it() -> None:
    found = results(0.2, peers=2, bus="sata")
    assert found.decision is Decision.STOP
    stopped = [one.series.name for one in found.cases if one.decision is Decision.STOP]
    assert stopped == [case("sata.raw.none").name]


def test_an_all_zero_baseline_decides_nothing() -> None:
    found = results(zeros=True)
    assert found.decision is Decision.UNDECIDED
    assert len(found.unpaired) == 3
    assert any("Measure first" in line for line in gate_lines(found, START))


def stored(directory: Path, loss: float, nodes: Sequence[str] = ("pve1", "pve2")) -> list[str]:
    """Store 30 runs of two cases on two nodes, with an upgrade of pve1 after 22 of them."""
    store = TemporaryStore(directory / "pvebench.db", simulated=False)
    pack, noise = load_pack(QUICK), random.Random(5)
    store.begin_cycle("c", node="pve1", pack=pack.name, tier=pack.tier, planned=2)
    store.add_history(
        run_of(one, at, noise, loss, upgraded=node == "pve1" and at >= 22)
        for at in range(30)
        for node in nodes
        for one in expand(pack, node=node, storages=STORAGES).cases[:2]
    )
    store.close()
    return ["gate", "--state", str(directory), "--canary", "pve1"]


def test_the_outlook_lists_the_nodes_by_name(tmp_path: Path, capsys: Captured) -> None:
    stored(tmp_path, 0.0, nodes=("pve2", "pve1"))
    state = ["--state", str(tmp_path), "--to", "pve-qemu-kvm=10.1.2-1"]
    assert run_cli(["upgrade", *state]) == 0
    lines = capsys.readouterr().out.splitlines()
    nodes = [line.partition(":")[0] for line in lines if line.startswith("pve") and "->" in line]
    assert nodes == ["pve1", "pve2"]


def run_of(one: Case, at: int, noise: random.Random, loss: float, *, upgraded: bool) -> Run:
    started = START + timedelta(hours=at)
    value = 1000 * math.exp(noise.gauss(0, 0.01)) * (1 - loss if upgraded else 1)
    (way, *_) = one.workload.directions
    facts = {"kernel": "6.14" if upgraded else "6.8"}
    environment = Environment(node=one.scenario.node, facts=facts)
    iops = Sample("iops", way, value, Unit.IOPS)
    return ended(one, started, iops, environment=environment, cycle="c")


@pytest.mark.parametrize(("loss", "tolerance", "code"), [(0.3, "5%", 1), (0.0, "5%", 0)])
def test_the_exit_code_is_the_decision(
    tmp_path: Path, capsys: Captured, loss: float, tolerance: str, code: int
) -> None:
    command = [*stored(tmp_path, loss), "--tolerance", tolerance]
    assert run_cli([*command, "--format", "json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == code
    assert data["peers"] == ["pve2"]
    assert run_cli(command) == code
    text = capsys.readouterr().out
    assert text.startswith("Stop: " if code else "Go on: ")
    assert ("Regression by the verdict: " in text) == bool(code)


@pytest.mark.parametrize("loss", [0.3, 0.0])
def test_the_metrics_and_the_command_show_the_same_look(
    tmp_path: Path, capsys: Captured, loss: float
) -> None:
    code = run_cli([*stored(tmp_path, loss), "--format", "json"])
    looked = json.loads(capsys.readouterr().out)
    values = metrics_of(tmp_path, START + timedelta(hours=31))
    assert values["pvebench_gate_exit_code", ""] == code == looked["exit_code"]
    for group in looked["groups"]:
        for name in ("loss", "low", "high"):
            metric = f"pvebench_gate_{'loss_' * (name != 'loss')}{name}_ratio"
            assert values[metric, group["name"]] == pytest.approx(group[f"{name}_ratio"])
    assert len(values) == 1 + 3 * len(looked["groups"])


def test_a_month_after_an_upgrade_its_metrics_end(tmp_path: Path) -> None:
    stored(tmp_path, 0.0)
    upgrade = START + timedelta(hours=22)
    assert metrics_of(tmp_path, upgrade + timedelta(days=29))
    assert not metrics_of(tmp_path, upgrade + timedelta(days=31))


def metrics_of(directory: Path, now: datetime) -> dict[tuple[str, str], float]:
    """Return (metric, group) -> value of the gates on `/metrics` at a moment."""
    store = TemporaryStore(directory / "pvebench.db")
    known = {key: record.definition for key, record in store.cases().items()}
    planned = [
        PlannedCase(key=key, definition=one, every_seconds=HOUR) for key, one in known.items()
    ]
    results = LiveResults(store, planned)
    page = Page(lambda: snapshot_of(results.now, now=now, max_age_seconds=math.inf), live={})
    VerdictService(results, load_known_issues(), on_update=page.judged).judge()
    text = page.render()[0].decode()
    store.close()
    return {
        (sample.name, sample.labels.get("group", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("pvebench_gate_") and sample.labels["node"] == "pve1"
    }


def test_a_tolerance_within_the_noise_is_undecided(tmp_path: Path, capsys: Captured) -> None:
    command = stored(tmp_path, 0.0)
    assert run_cli([*command, "--tolerance", "0.5%"]) == 10
    text = capsys.readouterr().out
    assert "Undecided: " in text
    assert "neither a loss above 0.5% nor its absence" in text
    assert "When it will be decided is unknown" in text


def test_a_look_that_the_runs_before_limit_says_how_many_would_decide() -> None:
    found = results(0.02, peers=1)
    few = look(values(3, 20, sd=0.05), values(4, 40, -0.1, sd=0.05), 0.05)
    assert (few.decision, few.seconds) == (Decision.UNDECIDED, None)
    assert few.enough is not None
    text = "\n".join(gate_lines(replace(found, groups=(few,), cases=()), START))
    assert "More runs cannot decide: the 20 runs before are too few." in text
    assert f"about {few.enough} before and as many after" in text
    with_that = (values(5, few.enough, sd=0.05), values(6, few.enough, -0.1, sd=0.05))
    assert look(*with_that).decision is Decision.STOP


def test_an_undecided_look_states_the_range_of_the_decision() -> None:
    found = results(0.02, peers=1)
    waiting = replace(found.groups[0], decision=Decision.UNDECIDED, seconds=10 * HOUR)
    found = replace(found, groups=(waiting,))
    assert found.decision is Decision.UNDECIDED
    assert found.wait == (pytest.approx(7 * HOUR), pytest.approx(22 * HOUR))
    text = "\n".join(gate_lines(found, START))
    assert "Expected decision: between 07:00 UTC and 22:00 UTC, if the loss stays the same." in text
    soon = replace(waiting, seconds=1)
    text = "\n".join(gate_lines(replace(found, groups=(soon,)), START))
    assert "Expected decision: about 00:00 UTC, if" in text
    data = gate_data(found, START)
    assert data["expected_between"] == ["2026-01-01T07:00:00+00:00", "2026-01-01T22:00:00+00:00"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--canary", "pve9"], "no results of node 'pve9'; known: pve1, pve2"),
        (["--canary", "pve2"], "pve2 has one environment only, so no upgrade"),
        (["--tolerance", "105%"], "write it as 5%"),
    ],
)
def test_wrong_options_are_errors(
    tmp_path: Path, capsys: Captured, options: list[str], message: str
) -> None:
    assert run_cli([*stored(tmp_path, 0.0), *options]) == 2
    assert message in capsys.readouterr().err
