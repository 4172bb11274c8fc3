"""Results in words: the fastest configurations, the gap of the default, upcoming results.

The web UI and the terminal after a cycle show these sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pvebench.analysis.case_history import LEAST_BASELINE
from pvebench.analysis.verdict import LEAST_PRESENT
from pvebench.model.definition import configuration_text, workload_text
from pvebench.model.run import Sample
from pvebench.model.run_metrics import OPERATION_GAP, OPERATION_RESOLUTION, was_canceled
from pvebench.model.status import WorkerStatus
from pvebench.model.units import count_text, show_clock, show_rate
from pvebench.model.workload import DISK_OPERATIONS, FLEECING, operation_words
from pvebench.store.live_results import View
from pvebench.store.records import StoredRun
from pvebench.verdicts.change_text import interval_text, percent_text
from pvebench.verdicts.ranking import (
    LEAST_RUNS,
    Exclusion,
    Rank,
    RankedCase,
    Ranking,
    answers,
    emulated_in,
    shown_definitions,
)

LEAST_JUDGED: Final = LEAST_BASELINE + LEAST_PRESENT
"""Minimum runs of a case for a verdict."""
EMULATED_TEXT: Final = "Emulated CPU (TCG): the values say little about a VM with KVM."
NOT_COUNTED: Final = {
    Exclusion.NOT_DURABLE: ("ignores flushes, a host crash loses data", "!", "not durable"),
    Exclusion.UNFLUSHED: (
        "its writes stay in host memory until the guest flushes",
        "~",
        "in host memory",
    ),
    Exclusion.WARM: ("may read from host memory", "~", "warm cache"),
    Exclusion.NOISY: ("noisy runs only; raise `runtime`", "!", "noisy runs only"),
    Exclusion.HOST: ("", "", "no VM"),
    Exclusion.LXC: ("", "", "no VM"),
    Exclusion.DISTURBED: ("", "", "not ranked"),
}
"""Why a configuration of a VM is not ranked; empty: none of a VM, or none to choose. Sign and text
of its cell in a matrix."""
HIDDEN: Final = 0.5
"""Possible loss from which on a measured gap says nothing."""
MOST_LINES: Final = 8
"""Maximum results on a terminal; a wide pack has more than a screen holds."""

When = Callable[[str, int], str]
"""(case key, further runs) -> when: `expected about 14:20 UTC`, `2 more cycles needed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """An upcoming result.

    Attributes:
        runs: required runs of each case.
        at: when, at the current schedule; None: available already, or unknown.
    """

    text: str
    runs: int
    reached: bool
    at: datetime | None


def level_text(metric: str, level: float) -> str:
    """Return a level in words: `9,072 IOPS`, `35.4 MiB/s`."""
    return show_rate(level) if metric == "bandwidth" else f"{level:,.0f} IOPS"


def ranking_title(ranking: Ranking, *, name_node: bool = False) -> str:
    """Return `4k random read, depth 32 on local`."""
    (first, *_) = (*ranking.places, *ranking.excluded)
    where = f"{ranking.node}, {ranking.storage}" if name_node else ranking.storage
    return f"{workload_text(first.definition)} on {where}"


def ranking_text(ranking: Ranking, when: When) -> str:
    """Return the fastest configuration, the gap of the default, and its confidence."""
    first = ranking.fastest
    if first is None:
        reasons = {NOT_COUNTED[place.exclusion][0] for place in ranking.excluded}
        known = "; ".join(sorted(reasons - {""})) or "no VM has a comparable result yet"
        return f"No configuration is ranked: {known}."
    level = level_text(ranking.metric, first.level)
    text = f"{configuration_text(first.definition)} {_rank(ranking)}: {level}."
    emulated = [EMULATED_TEXT] if ranking.emulated else []
    more = (excluded_text(place, ranking.metric) for place in faster_excluded(ranking))
    return " ".join([*emulated, text, *_gap(ranking, first, when), *more])


def _rank(ranking: Ranking) -> str:
    """Return the rank of the first, no more than is known."""
    other_places = ranking.places[1:]
    if not other_places:
        return "is the only ranked configuration so far"
    if not ranking.decided:
        return "has the highest result of the durable configurations so far"
    alike = sum(place.rank is Rank.EQUAL for place in other_places)
    if not alike:
        return "is the fastest durable configuration"
    others_text = f"{count_text(alike, 'other')} within noise"
    return f"is among the fastest durable configurations ({others_text})"


def _gap(ranking: Ranking, first: RankedCase, when: When) -> Iterator[str]:
    """Yield the gap of the default; if that is the fastest, the gap of the second."""
    usual = ranking.usual
    if usual is first:
        yield "This is the default."
        if len(ranking.places) > 1:
            second = ranking.places[1]
            yield compared_text(
                f"The second ({configuration_text(second.definition)})", second, when
            )
    elif usual is not None:
        yield compared_text(f"The default ({configuration_text(usual.definition)})", usual, when)


def _lower(subject: str) -> str:
    return subject[:1].lower() + subject[1:]


def compared_text(subject: str, place: RankedCase, when: When) -> str:
    """Return the gap of a configuration to the fastest, as a sentence about `subject`."""
    gap, runs, size = place.gap, count_text(place.runs, "run"), percent_text(place.gap.ratio)
    if place.rank is Rank.SLOWER:
        interval = interval_text(gap.ratio, gap.low, gap.high)
        return f"{subject} is {size} slower (95% CI {interval}, {runs})."
    if place.rank is Rank.EQUAL:
        return f"{subject} is within noise, at most {percent_text(gap.low)} slower."
    if gap.low <= -HIDDEN:
        return f"{runs} can't show whether {_lower(subject)} is slower."
    if gap.known:
        return f"{subject} is {size} slower; noise of {runs} hides up to {percent_text(gap.low)}."
    more = max(1, LEAST_RUNS - place.runs)
    runs = "One run" if place.runs == 1 else f"{place.runs} runs"
    return f"{subject} is {size} slower. {runs} each can't exclude noise; {when(place.key, more)}."


def gap_text(place: RankedCase) -> str:
    """Return the gap of a compared configuration to the fastest and its noise, for a cell."""
    gap = signed_percent(place.gap.ratio)
    if place.rank is Rank.UNKNOWN:
        return f"{gap}, noise {'too large' if place.gap.known else 'unknown'}"
    return f"{gap}, within noise" if place.rank is Rank.EQUAL else gap


def signed_percent(ratio: float) -> str:
    """Return a ratio in percent, always with a sign: minus 18%, plus 2.3%."""
    digits = 0 if abs(ratio) >= 0.0995 else 1
    return f"{100 * ratio:+.{digits}f}%".replace("-", "\N{MINUS SIGN}")


LOST: Final = "flushed writes are lost, by measurement or by options of the storage"


def faster_excluded(ranking: Ranking) -> Iterator[RankedCase]:
    """Yield the fastest excluded configuration of each kind, if it beats the fastest."""
    for exclusion, (reason, *_) in NOT_COUNTED.items():
        own = (place for place in ranking.excluded if place.exclusion is exclusion and reason)
        best = max(own, key=lambda place: place.level, default=None)
        if best is not None and best.level > ranking.places[0].level:
            yield best


def excluded_text(place: RankedCase, metric: str) -> str:
    """Return the result of a configuration that is not ranked, and why."""
    configuration, level = configuration_text(place.definition), level_text(metric, place.level)
    lost = place.exclusion is Exclusion.NOT_DURABLE and not place.definition.ignores_flushes
    reason = LOST if lost else NOT_COUNTED[place.exclusion][0]
    return f"{configuration} reaches {level}; excluded: {reason}."


def schedule_of(view: View, statuses: Sequence[WorkerStatus], now: datetime) -> When:
    """Return when the workers expect further runs, as a function."""

    def when(key: str, more: int) -> str:
        at = _expected(view, statuses, key, more, now)
        if at is None:
            return f"{count_text(more, 'more run')} needed"
        return f"expected about {show_clock(at, now)}"

    return when


def after_cycles(_: str, more: int) -> str:
    """Return how many further cycles are needed, without a schedule."""
    return f"{count_text(more, 'more cycle')} needed"


def _expected(
    view: View, statuses: Sequence[WorkerStatus], key: str, more: int, now: datetime
) -> datetime | None:
    """Return when a case will have so many further runs; None: unknown, or no worker runs it."""
    planned, record = view.planned.get(key), view.cases.get(key)
    if planned is None:
        return None
    status = next((one for one in statuses if one.node == planned.definition.node), None)
    every = timedelta(seconds=planned.every_seconds)
    last = None if record is None else record.last.finished
    return status.expected(key, more, every=every, last=last, now=now) if status else None


_STEPS: Final = (
    (1, "first results per workload"),
    (LEAST_RUNS, "significant differences between configurations"),
    (LEAST_JUDGED, "regressions, and the updates that cause them"),
)
"""(required runs of each case, result)."""


def milestones(
    view: View, statuses: Sequence[WorkerStatus], now: datetime
) -> tuple[Milestone, ...]:
    """Return the upcoming results; empty if nothing is planned, or all are available.

    Cases that never gave a result delay nothing: failures are listed separately.

    Without `statuses`, those of the workers of this process, no time is known.
    """
    counts = {key: view.cases[key].good_runs if key in view.cases else 0 for key in view.planned}
    tried = {key: count for key, count in counts.items() if count or key not in view.cases}
    if not tried or min(tried.values()) >= LEAST_JUDGED:
        return ()
    return tuple(
        Milestone(
            text=text,
            runs=runs,
            reached=min(tried.values()) >= runs,
            at=_reached_at(view, statuses, tried, runs, now),
        )
        for runs, text in _STEPS
    )


def _reached_at(
    view: View, statuses: Sequence[WorkerStatus], counts: dict[str, int], runs: int, now: datetime
) -> datetime | None:
    missing = {key: runs - count for key, count in counts.items() if count < runs}
    times = [_expected(view, statuses, key, more, now) for key, more in missing.items()]
    moments = [at for at in times if at is not None]
    return max(moments, default=None) if len(moments) == len(times) else None


def milestone_text(milestone: Milestone, now: datetime) -> str:
    """Return an upcoming result as a sentence without a period."""
    runs = f"{count_text(milestone.runs, 'run')} per case"
    if milestone.reached:
        return f"Available: {milestone.text}"
    if milestone.at is None:
        return f"With {runs}: {milestone.text}"
    return f"About {show_clock(milestone.at, now)} ({runs}): {milestone.text}"


def cycle_end_lines(
    view: View, node: str, statuses: Sequence[WorkerStatus], now: datetime
) -> Iterator[str]:
    """Yield the lines for a terminal at the end of a node's cycle.

    Args:
        statuses: of the workers if further cycles start automatically; otherwise empty.
    """
    when = schedule_of(view, statuses, now) if statuses else after_cycles
    keys = [key for key, case in shown_definitions(view).items() if case.node == node]
    results = [f"{line}." for line in latest_operation_lines(view, keys)]
    rankings = answers(view)
    several = len({ranking.node for ranking in rankings}) > 1
    results += (
        f"{ranking_title(ranking, name_node=several)}: {ranking_text(ranking, when)}"
        for ranking in rankings
        if ranking.node == node
    )
    if not results:
        return
    yield f"Results on {node}:"
    yield from (f"  {line}" for line in results[:MOST_LINES])
    if len(results) > MOST_LINES:
        yield f"  and {len(results) - MOST_LINES} more in the web UI"
    ahead = [milestone for milestone in milestones(view, statuses, now) if not milestone.reached]
    if ahead:
        yield "Next:"
        yield from (f"  {milestone_text(milestone, now)}" for milestone in ahead)


# --- Effects of operations on a guest: stalls of a backup, with and without fleecing.

_NO_GAP: Final = 1.5
"""Intervals between readings up to which there is no gap: they vary."""


def operation_lines(runs: Iterable[StoredRun], emulated: Collection[str] = ()) -> tuple[str, ...]:
    """Return the answer of successful runs with an operation as sentences without a period.

    Args:
        runs: those without an operation are ignored; of a disk, a workload and an operation, the
            newest one counts.
        emulated: digests of environments with an emulated CPU.
    """
    newest: dict[tuple[str, ...], dict[str, StoredRun]] = {}
    for run in sorted(runs, key=lambda run: run.started):
        options = {**run.definition.parameters}
        if name := str(options.pop("during", "")):
            load = (run.definition.node, run.definition.scenario, str(sorted(options.items())))
            newest.setdefault(load, {})[name] = run
    lines = [line for of_load in newest.values() for line in _stalls(of_load)]
    shown = [run for of_load in newest.values() for run in of_load.values()]
    canceled = dict.fromkeys(_operation(run) for run in shown if was_canceled(run.samples))
    if canceled:
        lines.append(f"Not ended, so canceled at the end of the run: {', '.join(canceled)}")
    if lines and any(run.environment in emulated for run in shown):
        lines.append(EMULATED_TEXT.removesuffix("."))
    return tuple(lines)


def latest_operation_lines(view: View, cases: Iterable[str]) -> tuple[str, ...]:
    """Return the lines of the latest successful runs of cases, by their keys."""
    records = (view.cases.get(key) for key in cases)
    good = (record.good for record in records if record is not None)
    return operation_lines((run for run in good if run is not None), emulated_in(view.periods))


def _operation(run: StoredRun) -> str:
    name = str(run.definition.parameters["during"])
    return f"{operation_words(name)} on {run.definition.storage}"


def _stalls(runs: Mapping[str, StoredRun]) -> Iterator[str]:
    """Yield how long each operation stalls one workload on one disk."""
    spans = {name: span for name, run in runs.items() if (span := _span(run.samples))}
    for name, operation in DISK_OPERATIONS.items():
        if name not in spans or (name == FLEECING and "backup" in spans):
            continue
        case = runs[name].definition
        load = replace(case, parameters={**case.parameters, "during": ""})
        text = f"{operation.words} on node {case.node}, storage {case.storage} stalls "
        text += f"{workload_text(load)} ({configuration_text(case)}) for {spans[name]}"
        if name == "backup" and FLEECING in spans:
            text += f"; with fleecing {spans[FLEECING]}"
        yield text[0].upper() + text[1:]


def _span(samples: Iterable[Sample]) -> str:
    """Return the longest gap in words, and how long it can be at most; empty: not measured.

    Without any gap, it is the interval between two readings of the counters.
    """
    values = {sample.metric: sample.value for sample in samples}
    gap, resolution = values.get(OPERATION_GAP.name), values.get(OPERATION_RESOLUTION.name, 0.0)
    if gap is None:
        return ""
    most = _rounded_up(gap + resolution)
    if gap <= _NO_GAP * resolution:
        return f"less than {most} s"
    return f"{gap:.2g} s" if most == f"{gap:.2g}" else f"{gap:.2g} s (at most {most} s)"


def _rounded_up(seconds: float) -> str:
    """Return a number with two digits that is not smaller."""
    digits = 1 - math.floor(math.log10(seconds)) if seconds > 0 else 0
    unit = 10.0**digits
    return f"{math.ceil(seconds * unit - 1e-9) / unit:.2g}"
