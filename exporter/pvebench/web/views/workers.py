"""What a worker does now and next, for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from pvebench.model.status import CycleStatus, State, WorkerStatus
from pvebench.report.text import iso, phase_text, show_clock, show_span, state_text, without_secrets


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as text for people and for machines."""

    text: str
    iso: str


@dataclass(frozen=True, slots=True)
class Next:
    """A case that will run, and when about."""

    slug: str
    url: str
    at: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleView:
    """How far a cycle is."""

    number: int
    pack: str
    done: int
    planned: int
    failed: int
    ends: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker.

    Attributes:
        phase: in words; empty between cases.
        elapsed: of the phase, with what is expected.
        phase_seconds: done and expected, for a bar; None where nothing is known.
        due: when idle, when the next case is due.
        hold: what the next case waits for.
        pending: what is installed on the node but does not run yet.
    """

    node: str
    state: str
    working: bool
    case: Next | None
    phase: str
    elapsed: str
    phase_seconds: tuple[float, float] | None
    cycle: CycleView | None
    upcoming: tuple[Next, ...]
    due: Moment | None
    fault: str
    hold: str
    pending: str


def case_url(key: str) -> str:
    """Return the address of a case's page. Its slashes stay: proxies refuse quoted ones."""
    return f"/cases/{quote(key, safe='/')}"


def moment(at: datetime, now: datetime) -> Moment:
    """Return a moment with its distance: `12:30 UTC, in 3 min`."""
    seconds = (at - now).total_seconds()
    near = f"in {show_span(seconds)}" if seconds >= 1 else "now"
    return Moment(f"{show_clock(at, now)}, {near}", iso(at))


def worker_view(status: WorkerStatus, now: datetime) -> WorkerView:
    """Return what a worker does."""
    cycle = status.cycle
    starts = expected_starts(status, now)
    between = status.state is State.IDLE and bool(status.upcoming)
    expected = status.phase_seconds
    elapsed = max(0.0, (now - status.since).total_seconds())
    current = None
    if status.case is not None:
        url = case_url(status.case.key)
        current = Next(status.case.slug, url, Moment("now", iso(status.since)))
    return WorkerView(
        node=status.node,
        state="between two cases" if between else state_text(status.state),
        working=status.case is not None or between,
        case=current,
        phase=phase_text(status.phase) if status.phase is not None else "",
        elapsed=_elapsed_text(elapsed, expected),
        phase_seconds=(min(elapsed, expected), expected) if expected > 0 else None,
        cycle=None if cycle is None else _cycle_view(cycle, now),
        upcoming=tuple(
            Next(case.slug, case_url(case.key), moment(at, now))
            for case, at in zip(status.upcoming, starts, strict=True)
        ),
        due=None if status.next_due is None else moment(status.next_due, now),
        fault=without_secrets(status.fault),
        hold=without_secrets(status.hold.reason) if status.hold else "",
        pending=", ".join(f"{fact} {version}" for fact, version in status.pending),
    )


def _elapsed_text(elapsed: float, expected: float) -> str:
    if expected <= 0:
        return f"for {show_span(elapsed)}"
    return f"{show_span(elapsed)} of about {show_span(max(1.0, expected))}"


def _cycle_view(cycle: CycleStatus, now: datetime) -> CycleView:
    running = cycle.done < cycle.planned
    return CycleView(
        number=cycle.number,
        pack=cycle.pack,
        done=cycle.done,
        planned=cycle.planned,
        failed=cycle.failed,
        ends=moment(cycle.expected_end, now) if running else None,
    )


def expected_starts(status: WorkerStatus, now: datetime) -> list[datetime]:
    """Return when each upcoming case is expected to start, counted back from the cycle's end.

    Cases of one cycle take about the same time, so each gets an equal share of it.
    """
    cycle = status.cycle
    if cycle is None:
        return [now for _ in status.upcoming]
    each = (cycle.expected_end - cycle.started) / max(1, cycle.planned)
    left = cycle.planned - cycle.done - (status.case is not None)
    return [max(now, cycle.expected_end - each * (left - i)) for i in range(len(status.upcoming))]
