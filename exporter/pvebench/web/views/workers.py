"""Status of workers as values for the web UI. Free of side effects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from pvebench.model.status import CycleStatus, State, WorkerStatus
from pvebench.report.text import iso, phase_text, show_clock, show_span, state_text, without_secrets


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as text and as ISO 8601."""

    text: str
    iso: str


@dataclass(frozen=True, slots=True)
class Next:
    """A case and its expected start."""

    slug: str
    url: str
    at: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleView:
    """Progress of a cycle."""

    number: int
    pack: str
    done: int
    planned: int
    failed: int
    ends: Moment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Status of a worker.

    Attributes:
        phase: current phase as text; empty between cases.
        elapsed: elapsed and expected time of the phase.
        phase_seconds: elapsed and expected time, for a progress bar; None if unknown.
        due: for an idle worker, start of the next case.
        hold: reason why the next case has not started.
        pending: versions that are installed on the node but not running yet.
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
    """Return the URL path of a case; its slashes stay, since proxies reject quoted ones."""
    return f"/cases/{quote(key, safe='/')}"


def moment(at: datetime, now: datetime) -> Moment:
    """Return a time with its distance: `12:30 UTC, in 3 min`."""
    seconds = (at - now).total_seconds()
    distance = f"in {show_span(seconds)}" if seconds >= 1 else "now"
    return Moment(f"{show_clock(at, now)}, {distance}", iso(at))


def worker_view(status: WorkerStatus, now: datetime) -> WorkerView:
    """Return the status of a worker."""
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
    """Return the expected start of each upcoming case, counted back from the cycle's end.

    Cases of a cycle take about the same time, so each gets an equal share of it.
    """
    cycle = status.cycle
    if cycle is None:
        return [now for _ in status.upcoming]
    each = (cycle.expected_end - cycle.started) / max(1, cycle.planned)
    left = cycle.planned - cycle.done - (status.case is not None)
    return [max(now, cycle.expected_end - each * (left - i)) for i in range(len(status.upcoming))]
