"""Which notifications follow from changes, activity and what was notified before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pvebench.analysis.change import Change
from pvebench.model.definition import Definition
from pvebench.model.ports import Hold, HoldKind
from pvebench.model.run import Outcome
from pvebench.model.status import State, WorkerStatus
from pvebench.notify.planner import (
    NodeActivity,
    change_messages,
    node_activities,
    stop_messages,
    week_messages,
)
from pvebench.store.changes import KnownChange
from pvebench.store.live_results import LiveResults, PlannedCase, View
from pvebench.store.outbox import Message
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import summary
from testing.changes import CASES, DAY, FINDING, known, measured, named

NOW = 200 * DAY
MONDAY = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)


def planned(
    changes: Sequence[Change], state: Iterable[KnownChange] = (), now: float = NOW
) -> tuple[list[Message], list[KnownChange]]:
    """Return the plan for open changes; `state`: of those that are not new."""
    stored = {one.id: known(one) for one in changes} | {one.id: one for one in state}
    return change_messages(changes, [*stored.values()], now)


def over(name: str, ending: str, ended: float = NOW) -> KnownChange:
    return known(named(name), notified="open", ended=ended, ending=ending)


def test_a_new_change_has_its_verdict_start_places_and_cases_and_is_noted() -> None:
    (message,), (noted,) = planned([named("new")])
    assert message.kind == "changed"
    assert message.title == summary(FINDING)
    lines = message.body.splitlines()
    assert lines[0].startswith("a, b, c and 1 more are 18% slower")
    assert "95% CI" in lines[0]
    assert lines[1:] == [
        *("", "Since: 1970-04-11", "Where: pve1, storage local-zfs", ""),
        *("Cases (4):", "* a", "* b", "* c", "* d", ""),
        "To accept the current level: pvebench baseline accept --only CASE --reason WHY",
    ]
    assert (noted.id, noted.notified, noted.notified_at) == ("new", "open", NOW)
    assert planned([named("new")], [noted]) == ([], [])
    ((message,), _) = planned([named("imported", nodes=())])
    assert "\nWhere: storage local-zfs\n" in message.body


def test_ten_cases_are_listed_and_of_more_only_the_number() -> None:
    names = tuple(f"case {number}" for number in range(11))
    ((ten,), _), ((eleven,), _) = (planned([named("n", names=names[:n] * 2)]) for n in (10, 11))
    assert ten.body.count("\n* ") == 10
    assert "* case 9\n\nTo accept" in ten.body
    assert "Cases (11):\n" in eleven.body
    assert "* case 9\n* and 1 more\n" in eleven.body


def test_three_new_changes_have_a_message_each_and_four_share_one() -> None:
    names = ["n1", "n2", "n3", "n4"]
    three, _ = planned([named(name) for name in names[:3]])
    assert [one.body.count("Since:") for one in three] == [1, 1, 1]
    (message,), noted = planned([named(name) for name in names])
    assert message.title == "4 regressions"
    assert message.body.splitlines()[0] == f"* 1970-04-11: {summary(FINDING)}"
    assert len(message.body.splitlines()) == 4
    assert [one.id for one in noted] == names


def test_three_ends_have_a_message_each_and_four_share_one() -> None:
    ends = [over(f"e{number}", "resolved") for number in range(4)]
    assert len(planned([], ends[:3])[0]) == 3
    (message,), noted = planned([], ends)
    assert message.title == "4 changes resolved"
    assert message.body.count("Resolved: later changes have taken back more than half") == 4
    assert [one.notified for one in noted] == ["ended"] * 4


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("resolved", "Resolved: later changes have taken back more than half of it."),
        ("accepted", "Accepted: the current level is the new baseline."),
        ("unconfirmed", "No longer confirmed: no run of the last day shows it."),
    ],
)
def test_an_end_has_its_reason_and_is_reported_once(ending: str, text: str) -> None:
    (message,), noted = planned([], [over("e", ending)])
    assert message.kind == "ended"
    assert message.body == f"{text}\n\n{summary(FINDING)}\n\nSince: 1970-04-11"
    assert planned([], noted) == ([], [])


def test_a_change_is_reported_as_back_a_day_after_its_end_at_the_earliest() -> None:
    state = [known(named("c"), notified="ended", notified_at=NOW)]
    assert planned([named("c")], state, NOW + 86399) == ([], [])
    (message,), (noted,) = planned([named("c")], state, NOW + 86400)
    assert message.body.startswith("This change is back:\na, b, c and 1 more are 18% slower")
    assert noted.notified == "open"
    # The end was reported while the clock was ahead.
    assert len(planned([named("c")], state, NOW - 400 * DAY)[0]) == 1


def test_verdicts_that_differ_from_the_stored_changes_report_nothing() -> None:
    assert change_messages([named("not stored yet")], [], NOW) == ([], [])
    ended = known(named("c"), ended=NOW, ending="resolved")
    assert planned([named("c")], [ended]) == ([], [])


def test_ten_thousand_changes_at_once_are_one_message_of_bounded_length() -> None:
    (message,), noted = planned([named(f"c{number}") for number in range(10_000)])
    assert "* and 9990 more" in message.body
    assert len(message.body) < 10_000
    (message,), _ = planned([], [replace(one, ended=NOW, ending="accepted") for one in noted])
    assert "* and 9990 more" in message.body


def test_an_improvement_is_reported_once_it_is_implausible() -> None:
    better = named("gain", severity="info")
    assert planned([better]) == ([], [])
    (message,), _ = planned([replace(better, severity="warning")])
    assert message.kind == "changed"


def test_hostile_names_make_no_second_line() -> None:
    evil = 'x\r\nBcc: y@example.org\r\n\r\n<script>"' + "z" * 3000
    (message,), _ = planned([named("evil", names=(evil,), nodes=(evil,), storages=(evil,))])
    activity = NodeActivity(node=evil, interval=1.0, doing=evil)
    for one in (message, *stop_messages(activity, None, idle=NOW)):
        assert one.title.isprintable()
        assert all(line.isprintable() and len(line) <= 500 for line in one.body.splitlines())
        assert not any(line.startswith("Bcc") for line in one.body.splitlines())


PVE1 = NodeActivity(node="pve1", last_run=1000.0, interval=7200, doing="paused")


def test_a_node_has_stopped_after_more_than_two_and_a_half_intervals_and_an_hour() -> None:
    assert stop_messages(PVE1, None, idle=18_000) == []
    (message,) = stop_messages(PVE1, None, idle=18_001)
    assert (message.kind, message.node, message.last_run) == ("stopped", "pve1", 1000.0)
    assert message.title == "measuring has stopped on pve1"
    assert message.body.splitlines() == [
        "No successful run on pve1, though several were due.",
        "The latest one ended 1970-01-01 00:16 UTC.",
        "Current state: paused.",
        "",
        "Cause: see the web UI and the log, or run `pvebench check`.",
    ]
    often = replace(PVE1, interval=60, last_run=0.0)
    assert stop_messages(often, None, idle=3600) == []
    (message,) = stop_messages(often, None, idle=3601)
    assert "There has been none yet." in message.body


def test_a_stop_is_reported_once_and_so_is_the_next_run() -> None:
    (stop,) = stop_messages(PVE1, None, idle=1e6)
    assert stop_messages(PVE1, stop, idle=2e6) == []
    running = replace(PVE1, last_run=90_000.0)
    (again,) = stop_messages(running, stop, idle=0)
    assert (again.kind, again.title) == ("resumed", "measuring has resumed on pve1")
    assert again.body == "New successful run on pve1."
    assert stop_messages(running, again, idle=0) == []
    assert stop_messages(running, again, idle=1e6)[0].kind == "stopped"
    # Retention has removed the latest run.
    assert stop_messages(replace(PVE1, last_run=0.0), stop, idle=1e6) == []


def test_an_exit_is_reported_once_until_a_run_and_never_for_a_lack_of_runs() -> None:
    service = NodeActivity(last_run=1000.0)
    assert stop_messages(service, None, idle=1e9) == []
    (message,) = stop_messages(service, None, idle=0, exit_reason="no guest image")
    assert message.title == "measuring has stopped: pvebench has exited"
    assert message.body.splitlines() == [
        "pvebench has exited; nothing is measured until it runs again.",
        "",
        "no guest image",
    ]
    assert stop_messages(service, message, idle=0, exit_reason="no guest image") == []
    running = replace(service, last_run=2000.0)
    (again,) = stop_messages(running, message, idle=0)
    assert (again.title, again.body) == ("measuring has resumed", "New successful run.")
    assert stop_messages(running, message, idle=0, exit_reason="again")[0].kind == "stopped"
    assert stop_messages(replace(PVE1, last_run=0), None, idle=0, exit_reason="x") == []


def test_activities_are_those_of_the_service_and_of_each_node_with_cases(store: Store) -> None:
    status = WorkerStatus(node="lab", state=State.IDLE, since=MONDAY, progressed=MONDAY)
    assert list(node_activities(View(), [status])) == [NodeActivity()]
    runs = [measured(case, day) for day, case in enumerate(CASES[:3])]
    for run in [*runs, replace(runs[0], uid="failed", finished=MONDAY, outcome=Outcome.FAILED)]:
        store.add_run(run)
    planned_cases = [  # without the case of the newest run
        PlannedCase(key=run.case.key, definition=Definition.of(run.case), every_seconds=every)
        for run, every in zip(runs, (600.0, 1200.0), strict=False)
    ]
    view = LiveResults(store, planned_cases).now
    service, node = node_activities(view, [status, replace(status, node="without cases")])
    assert service == NodeActivity(last_run=runs[2].finished.timestamp())
    last = runs[1].finished.timestamp()
    assert node == NodeActivity(node="lab", last_run=last, interval=600.0, doing="idle")
    held = [replace(status, hold=Hold(kind=kind, reason="why")) for kind in HoldKind]
    found = [list(node_activities(view, [one]))[1] for one in held]
    assert [one.waiting for one in found] == [kind is HoldKind.QUIET for kind in HoldKind]
    assert found[0].doing == "waiting: why"
    (_, failing) = node_activities(view, [replace(status, fault="full disk")])
    assert failing.doing == "error: full disk"


VERDICTS = Verdicts(version=1, changes=(named("old"), named("gain", severity="info")))


@pytest.mark.parametrize(
    ("now", "last", "due"),
    [
        (timedelta(), timedelta(seconds=-1), True),
        (timedelta(), timedelta(), False),
        (timedelta(seconds=-1), timedelta(seconds=-2), False),
        (timedelta(days=7, seconds=-1), timedelta(hours=1), False),
        (timedelta(days=7), timedelta(hours=1), True),
        # The last one was planned while the clock was ahead.
        (timedelta(hours=1), timedelta(days=400), True),
    ],
)
def test_the_summary_is_due_once_a_week(now: timedelta, last: timedelta, due: bool) -> None:
    times: Any = {"now": MONDAY + now, "last": (MONDAY + last).timestamp()}
    assert len(week_messages(VERDICTS, [], weekly="Mon 08:00", **times)) == due
    assert week_messages(VERDICTS, [], weekly="off", **times) == []
    assert week_messages(Verdicts(), [], weekly="Mon 08:00", **times) == []  # none so far


def test_the_summary_has_open_and_ended_changes() -> None:
    monday = MONDAY.timestamp()
    recent = over("recent", "resolved", monday - 7 * DAY + 1)
    ends = [recent, over("past", "resolved", monday - 7 * DAY)]
    (message,) = week_messages(VERDICTS, ends, weekly="Mon 08:00", now=MONDAY, last=0.0)
    line = f"* 1970-04-11: {summary(FINDING)}"
    assert message.kind == "weekly"
    assert message.title.startswith("weekly summary: a, b, c and 1 more are 18% slower")
    assert message.body.splitlines()[1:] == [
        *("", "Open regressions (1):", line, ""),
        *("Open improvements (1):", line, ""),
        *("Resolved or accepted in the last week (1):", f"* {recent.text}", ""),
        "No successful run yet.",
    ]
    (calm,) = week_messages(Verdicts(version=1), [], weekly="Mon 08:00", now=MONDAY, last=0.0)
    assert calm.body.splitlines()[1:] == ["", "No successful run yet."]
