"""Every output derives the same state, headline and color from the same reports."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from pvebench.analysis.case_history import CaseHistory, CaseStep, GoodRun, GoodRuns
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.lasting_steps import with_courses
from pvebench.analysis.step_groups import find_changes
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.cli.verdict import Recorded, show_verdicts
from pvebench.metrics.exposition import Families, text_of
from pvebench.metrics.verdict_collectors import collect_changes
from pvebench.model.run_metrics import JUDGED
from pvebench.notify.planner import change_messages, week_messages
from pvebench.sanitize import one_line
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.verdicts.change_text import BRIEF, sentence
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.node_verdicts import Verdicts, changes_of
from pvebench.verdicts.overall_state import headline, overall_state, verdicts_data
from pvebench.web.views.pages import index_view
from testing.changes import DAY, START, upgrade
from testing.stores import TemporaryStore

RUNS = GoodRuns(GoodRun(day * DAY, "", 1.0) for day in range(200))
WALL = Path(__file__).parents[3] / "grafana/dashboards/wall.json"
NOW = START + timedelta(days=20)


def step(ratio: float, day: int) -> CaseStep:
    effect = math.log(ratio)
    return CaseStep(
        time=day * DAY,
        known=False,
        effect=effect,
        low=effect - 0.02,
        high=effect + 0.02,
        p_value=1e-6,
        runs=200 - day,
    )


def verdict(
    state: VerdictState,
    *steps: CaseStep,
    case: str = "disk",
    direction: str = "read",
    accepted: bool = False,
    level: float | None = 1.0,
) -> Verdict:
    """A verdict whose current value is what its steps make of it; `level`: None: unknown."""
    effect = sum(one.effect for one in steps) if level and not accepted else 0.0
    history = CaseHistory(
        case=f"{case}|{direction}",
        of=case,
        name=case,
        figure=JUDGED["throughput"],
        labels={"storage": "a"},
        direction=direction,
        points=RUNS,
    )
    return Verdict(
        history=history,
        state=state,
        effect=effect,
        low=effect - 0.02,
        high=effect + 0.02,
        reason="few runs" if state is VerdictState.INCONCLUSIVE else "",
        baseline=level,
        steps=with_courses(history, steps, math.inf if accepted else -math.inf),
    )


def verdicts_on(*verdicts: Verdict, store: Store) -> Verdicts:
    """Verdicts with the changes that detection makes of their steps."""
    report = NodeReport(
        node="pve1",
        verdicts=verdicts,
        findings=find_changes(verdicts, (), (), node="pve1"),
        events=(),
        levels=(),
        judged_until=200 * DAY,
    )
    labels = {
        one.history.of: {"node": "pve1", "storage": "a", "scenario": "s", "workload": "w"}
        for one in verdicts
    }
    made = Verdicts(version=1, reports=(report,), labels=labels, changes=changes_of((report,)))
    return replace(made, changes=ChangeTracker(store.changes).name(made))


SLOWER = step(0.8, 100)
STORIES = {
    "slower": ([verdict(VerdictState.SLOWER, SLOWER)], "disk is 20% slower"),
    "no newest run at a comparable hour": (
        [verdict(VerdictState.INCONCLUSIVE, SLOWER, level=None)],
        "disk is 20% slower",
    ),
    "between two levels by now": (
        [verdict(VerdictState.INCONCLUSIVE, SLOWER)],
        "disk is 20% slower",
    ),
    "only one direction": (
        [verdict(VerdictState.SLOWER, SLOWER), verdict(VerdictState.UNCHANGED, direction="write")],
        "disk is 20% slower",
    ),
    "after a larger improvement": (
        [verdict(VerdictState.FASTER, step(1.6, 60), step(0.85, 150))],
        "disk is 15% slower",
    ),
    "implausible": ([verdict(VerdictState.IMPLAUSIBLE_GAIN, step(3.0, 100))], "disk is 3.0 times"),
    "accepted": ([verdict(VerdictState.UNCHANGED, SLOWER, accepted=True)], "ok"),
    "resolved": ([verdict(VerdictState.UNCHANGED, SLOWER, step(1.25, 150))], "ok"),
    "faster": ([verdict(VerdictState.FASTER, step(1.2, 100))], "ok"),
    "unchanged": ([verdict(VerdictState.UNCHANGED)], "ok"),
    "partial": (
        [verdict(VerdictState.UNCHANGED), verdict(VerdictState.INCONCLUSIVE, case="other")],
        "partial",
    ),
    "inconclusive": ([verdict(VerdictState.INCONCLUSIVE)], "inconclusive"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> LiveResults:
    store = TemporaryStore(tmp_path_factory.mktemp("same") / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    upgrade(store, slower=1.0, days=10, after=0)
    return LiveResults(store)


@pytest.mark.parametrize("story", STORIES)
def test_every_output_says_the_same(story: str, store: Store, results: LiveResults) -> None:
    judged, expected = STORIES[story]
    verdicts = verdicts_on(*judged, store=store)
    regression = expected not in {"ok", "partial", "inconclusive"}
    state = "regression" if regression else expected
    text = expected if regression else headline(verdicts)
    assert overall_state(verdicts) == state
    assert text in headline(verdicts)
    assert state_of_metrics(verdicts, text) == (state, regression)
    assert is_red_on_the_wall(state) is regression
    assert of_api(verdicts, text) == (state, regression)
    assert of_command(verdicts, expected if regression else "") == (1 if regression else 0)
    assert of_page(verdicts, results, text) is regression
    assert of_notifications(verdicts, store, text) is regression


def state_of_metrics(verdicts: Verdicts, text: str) -> tuple[str, bool]:
    families = Families()
    collect_changes(verdicts, families)
    shown = text_of([families])
    samples = [one for family in text_string_to_metric_families(shown) for one in family.samples]
    (overall,) = [one.labels for one in samples if one.name == "pvebench_verdict_info"]
    assert one_line(text) in overall["summary"]
    assert len(overall["headline"]) <= BRIEF
    # It has the same size, and states no regression where there is none.
    assert ("% slower" in overall["headline"]) == ("% slower" in text)
    assert set(re.findall(r"\d+%", overall["headline"])) <= set(re.findall(r"\d+%", text))
    counts = [one for one in samples if one.name == "pvebench_changes"]
    open_now = sum(one.value for one in counts if one.labels["severity"] != "info")
    return overall["state"], open_now > 0


def is_red_on_the_wall(state: str) -> bool:
    """Evaluate the wall's query on `verdict_info`: 2 is red."""
    texts = json.dumps(json.loads(WALL.read_text("utf-8")))
    queries = set(re.findall(r"2 \* pvebench_verdict_info\{state=~\\\"(.*?)\\\"", texts))
    (red,) = {re.sub(r"\\+", "", one) for one in queries}
    return re.fullmatch(red, state) is not None


def of_api(verdicts: Verdicts, text: str) -> tuple[str, bool]:
    data = verdicts_data(verdicts)
    assert text in data["headline"]
    assert data["regression"] == any(one["regression"] for one in data["changes"])
    for one in data["changes"]:
        assert one["regression"] == (one["severity"] != "info")
        assert one["id"]
    return data["state"], data["regression"]


def of_command(verdicts: Verdicts, text: str) -> int:
    @click.command()
    @click.pass_context
    def command(context: click.Context) -> None:
        show_verdicts(context, verdicts, "text", every=False, strict=False)

    done = CliRunner().invoke(command)
    first, *lines = done.output.splitlines()
    red = [line for line in lines if line.startswith("× ")]
    if text:
        assert first.startswith("1 regression: ")
        assert len(red) == 1
        assert text in red[0]
    else:
        assert (first, red) == (headline(verdicts), [])
    return done.exit_code


def of_page(verdicts: Verdicts, results: LiveResults, text: str) -> bool:
    page = index_view(results.now, [], NOW, verdicts)
    red = [sentence(change) for change, _ in page.changes if change.regression]
    if red:
        assert page.verdict == ""
        assert red[0].startswith(text)
    else:
        assert page.verdict == text
    return bool(red)


def of_notifications(verdicts: Verdicts, store: Store, text: str) -> bool:
    known = store.changes.all()
    messages, _ = change_messages(verdicts.open_changes, known, NOW.timestamp())
    assert all(one.kind == "changed" and text in one.body for one in messages)
    (week,) = week_messages(verdicts, known, weekly="Mon 08:00", now=NOW, last=0.0)
    assert one_line(text) in week.body
    return bool(messages)


def test_a_command_shows_the_ids_of_the_instance_and_records_none(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    (first,) = verdicts_on(verdict(VerdictState.SLOWER, SLOWER), store=store).changes
    recorded = store.changes.all()
    other = TemporaryStore(tmp_path / "other.db", simulated=False)
    moved = verdicts_on(verdict(VerdictState.SLOWER, step(0.8, 103)), store=other)
    (shown,) = ChangeTracker(Recorded(store.changes)).name(moved)
    assert shown.id == first.id != moved.changes[0].id
    assert store.changes.all() == recorded
