"""What was found, in words: the fastest settings, what the usual disk loses, what comes when.

The page, the terminal after a cycle and the card say these sentences; nobody has others.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from pvebench.analysis.case_history import LEAST_BASELINE
from pvebench.analysis.verdict import LEAST_PRESENT, count_text
from pvebench.model.definition import Definition, setting_words, workload_words
from pvebench.model.disk import Cache
from pvebench.model.run import Outcome
from pvebench.model.units import show_rate
from pvebench.model.workload import Direction
from pvebench.store.current import View
from pvebench.verdicts.ranking import LEAST_RUNS, NEWEST, Exclusion, Place, Rank, Ranking, contests

LEAST_JUDGED: Final = LEAST_BASELINE + LEAST_PRESENT
"""Runs of a case from which on a verdict is possible."""
NOT_COUNTED: Final = {
    Exclusion.NOT_DURABLE: "but ignores flushes: data is lost with the host, so it does not count",
    Exclusion.WARM: "but may read from the host's memory, not from the disk, so it does not count",
    Exclusion.HOST: "",
    Exclusion.LXC: "",
}
"""Why a setting that shows more is not called the fastest."""
MOST_TOLD: Final = 8
"""Workloads that a terminal is told of; a wide pack has more than a screen holds."""
_SYNCED: Final = ("fsync", "fdatasync", "sync")

When = Callable[[str, int], str]
"""Says when a case will have so many more runs: `about 14:20 UTC`, `after 2 more cycles`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was found under one workload on one storage.

    Attributes:
        title: the workload and where, in words.
        text: what is said of it.
    """

    contest: Ranking
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """Something that will be known.

    Attributes:
        runs: of each case that it takes.
        at: when, at the present schedule; None: it is known now, or nobody can say.
    """

    text: str
    runs: int
    reached: bool
    at: datetime | None


def level_text(metric: str, level: float) -> str:
    """Return a level for people: `9,072 IOPS`, `35.4 MiB/s`."""
    return show_rate(level) if metric == "bandwidth" else f"{level:,.0f} IOPS"


def summaries(
    view: View, when: When, cases: Mapping[str, Definition] | None = None
) -> tuple[Summary, ...]:
    """Return what can be said of each workload on each storage; none without any result.

    Args:
        cases: key -> case; None: those of the present packs, or of all results without any.
    """
    known = _known(view) if cases is None else cases
    several = len({one.node for one in known.values()}) > 1
    made = (one for one in contests(known, view.trends) if one.places or one.excluded)
    return tuple(
        Summary(
            contest=contest,
            title=contest_title(contest, name_node=several),
            text=contest_text(contest, when),
        )
        for contest in made
    )


def _known(view: View) -> dict[str, Definition]:
    if view.planned:
        return {key: one.definition for key, one in view.planned.items()}
    return {key: view.cases[key].definition for key in view.current().values()}


def contest_title(contest: Ranking, *, name_node: bool = False) -> str:
    """Return `4k random read, depth 32 on local`."""
    (first, *_) = (*contest.places, *contest.excluded)
    where = f"{contest.node}, {contest.storage}" if name_node else contest.storage
    return f"{workload_words(first.definition)} on {where}"


def contest_text(contest: Ranking, when: When) -> str:
    """Return which setting is the fastest, what the usual disk loses, and how sure that is."""
    first = contest.fastest
    if first is None:
        return "No setting that can be compared has a result yet."
    level = level_text(contest.metric, first.level)
    text = f"{setting_words(first.definition)} {_rank(contest)}: {level}{_in_memory(first)}."
    return " ".join([text, *_beside(contest, first, when), *_faster_ones(contest, first)])


def _rank(contest: Ranking) -> str:
    """Return what the first of a contest is, no more than is known."""
    others = contest.places[1:]
    if not others:
        return "is the only one with a result"
    if any(one.rank is Rank.UNKNOWN for one in others):
        return "shows the most of those that keep data safe"
    alike = sum(one.rank is Rank.EQUAL for one in others)
    if not alike:
        return "is the fastest that keeps data safe"
    verb = "is" if alike == 1 else "are"
    equals = f"{count_text(alike, 'other')} {verb} as fast within noise"
    return f"is among the fastest that keep data safe ({equals})"


def _in_memory(place: Place) -> str:
    """Return what is to be known of writes that the host's memory takes."""
    unflushed = writes_unflushed(place.definition)
    return " (until the guest flushes, its writes are in the host's memory)" if unflushed else ""


def writes_unflushed(definition: Definition) -> bool:
    """Whether what is counted are writes that the host's memory has taken, and no more."""
    synced = any(definition.parameters.get(name) for name in _SYNCED)
    writes = Direction.WRITE in definition.directions
    return writes and not synced and definition.cache == Cache.WRITEBACK


def _beside(contest: Ranking, first: Place, when: When) -> Iterator[str]:
    """Yield what the usual disk loses; where it is the fastest, what the next one does."""
    usual = contest.usual
    if usual is first:
        yield "That is the usual disk."
        if len(contest.places) > 1:
            second = contest.places[1]
            yield compared_text(f"Next is {setting_words(second.definition)}, which", second, when)
    elif usual is not None:
        yield compared_text(f"The usual disk ({setting_words(usual.definition)})", usual, when)


def compared_text(subject: str, place: Place, when: When) -> str:
    """Return how a setting compares with the fastest, as a sentence about `subject`."""
    if place.rank is Rank.SLOWER:
        low, high = sorted((-100 * place.low, -100 * place.high))
        runs = f"95 % interval {low:.0f}-{high:.0f} %, {count_text(place.runs, 'run')}"
        return f"{subject} is {_percent(place.ratio)} slower, beyond noise ({runs})."
    if place.rank is Rank.EQUAL:
        return f"{subject} is as fast within noise: it loses {_percent(place.low)} at most."
    more = max(1, LEAST_RUNS - place.runs)
    runs = "one run" if place.runs == 1 else f"{place.runs} runs"
    return (
        f"{subject} shows {_percent(place.ratio)} less; with {runs} of each it cannot be known "
        f"whether that is more than noise, with {LEAST_RUNS} it can: {when(place.key, more)}."
    )


def _percent(ratio: float) -> str:
    """Return the size of a ratio: `18 %`, with one digit more where it is small."""
    size = abs(100 * ratio)
    return f"{size:.0f} %" if size >= 9.95 else f"{size:.1f} %"


def _faster_ones(contest: Ranking, first: Place) -> Iterator[str]:
    """Yield the setting that shows the most of each kind that does not count, if it is more."""
    for exclusion, reason in NOT_COUNTED.items():
        more = [
            one
            for one in contest.excluded
            if one.exclusion is exclusion and one.level > first.level
        ]
        if more and reason:
            best = max(more, key=lambda one: one.level)
            level = level_text(contest.metric, best.level)
            yield f"{setting_words(best.definition)} shows {level}, {reason}."


def schedule_of(view: View, now: datetime) -> When:
    """Return what says when more runs will be there, at the present schedule."""

    def when(key: str, more: int) -> str:
        at = _expected(view, key, more)
        if at is None or at <= now:
            return f"after {count_text(more, 'more run')}"
        return f"about {moment_text(at, now)}"

    return when


def after_cycles(_: str, more: int) -> str:
    """Say when more runs will be there if nobody has said when they are made."""
    return f"after {count_text(more, 'more cycle')}"


def moment_text(at: datetime, now: datetime) -> str:
    """Return the time of day, with the date unless it is the same day."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def _expected(view: View, key: str, more: int) -> datetime | None:
    """Return when a case will have so many more runs; None if it is in no pack."""
    planned, record = view.planned.get(key), view.cases.get(key)
    if planned is None:
        return None
    each = timedelta(seconds=max(planned.every_seconds, _pace(view, key)))
    begun = None if record is None else record.last.finished
    return None if begun is None else begun + more * each


def _pace(view: View, key: str) -> float:
    """Return the seconds from one run of a case to the next, as the newest ones were made.

    Where there is one, a round of all cases takes as long as the first one did.
    """
    trend = view.trends.get(key)
    times = sorted({point.finished for point in trend.points})[-NEWEST:] if trend else []
    if len(times) > 1:
        gaps = [(after - before).total_seconds() for before, after in pairwise(times)]
        return statistics.median(gaps)
    tried = [view.cases[one] for one in view.planned if one in view.cases]
    if not tried:
        return 0.0
    begun = min(record.first_started for record in tried)
    return (max(record.last.finished for record in tried) - begun).total_seconds()


_STEPS: Final = (
    (1, "which setting of each workload shows the most"),
    (LEAST_RUNS, "which differences between settings are more than noise"),
    (LEAST_JUDGED, "whether anything gets slower, and with which update"),
)
"""Runs of each case, and what they tell."""


def milestones(
    view: View, *, first_end: datetime | None, now: datetime, scheduled: bool = True
) -> tuple[Milestone, ...]:
    """Return what will be known when; empty where nothing is planned, or all is known already.

    Cases that never gave a result keep nothing back: they are told elsewhere.

    Args:
        first_end: when the cycle that runs now is expected to end; None if none does.
        scheduled: whether cycles follow by themselves.
    """
    counts = {key: _good_runs(view, key) for key in view.planned}
    tried = {key: count for key, count in counts.items() if count or key not in view.cases}
    if not tried or min(tried.values()) >= LEAST_JUDGED:
        return ()
    return tuple(
        Milestone(
            text=text,
            runs=runs,
            reached=min(tried.values()) >= runs,
            at=_reached_at(view, tried, runs, first_end, now) if scheduled else None,
        )
        for runs, text in _STEPS
    )


def _good_runs(view: View, key: str) -> int:
    record = view.cases.get(key)
    return 0 if record is None else sum(record.outcomes.get(one, 0) for one in _COUNTED)


_COUNTED: Final = tuple(one for one in Outcome if one.good)


def _reached_at(
    view: View, counts: dict[str, int], runs: int, first_end: datetime | None, now: datetime
) -> datetime | None:
    found: list[datetime] = []
    for key, count in counts.items():
        missing = runs - count
        if missing <= 0:
            continue
        at = _expected(view, key, missing)
        if at is None and first_end is not None:
            at = first_end + (missing - 1) * timedelta(seconds=view.planned[key].every_seconds)
        if at is None:
            return None
        found.append(at)
    latest = max(found, default=None)
    return latest if latest is not None and latest > now else None


def milestone_text(one: Milestone, now: datetime) -> str:
    """Return a milestone as a sentence without its stop."""
    runs = f"{count_text(one.runs, 'run')} of each case"
    if one.reached:
        return f"Known: {one.text}"
    if one.at is None:
        return f"With {runs}: {one.text}"
    return f"About {moment_text(one.at, now)}, with {runs}: {one.text}"


def cycle_end_lines(view: View, node: str, now: datetime, *, scheduled: bool) -> Iterator[str]:
    """Yield the lines that a terminal shows when a cycle of a node has ended.

    Args:
        scheduled: whether cycles follow by themselves.
    """
    when = schedule_of(view, now) if scheduled else after_cycles
    found = [one for one in summaries(view, when) if one.contest.node == node]
    if not found:
        return
    yield f"What was found on {node}:"
    yield from (f"  {one.title}: {one.text}" for one in found[:MOST_TOLD])
    if len(found) > MOST_TOLD:
        yield f"  and {len(found) - MOST_TOLD} more, on the page"
    ahead = [
        one
        for one in milestones(view, first_end=None, now=now, scheduled=scheduled)
        if not one.reached
    ]
    if ahead:
        yield "What comes:"
        yield from (f"  {milestone_text(one, now)}" for one in ahead)
