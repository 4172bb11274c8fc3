"""`pvebench export openmetrics`: past metrics as text for `promtool tsdb create-blocks-from`.

The exposition at any moment follows from the runs that had ended by then. So the collectors of
`/metrics` also produce past samples: they are called once for every run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
import re
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

import click

from pvebench.analysis.change import Change
from pvebench.analysis.judge import Judge
from pvebench.cli.options import (
    output_option,
    read_settings,
    scale_option,
    settings_options,
    writing,
)
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.errors import StoreError
from pvebench.metrics.exposition import Families, head_of, label_text
from pvebench.metrics.result_collectors import (
    CASE_COLLECTORS,
    Snapshot,
    collect_environments,
    collect_info,
    collect_wall,
    snapshot_of,
)
from pvebench.model.environment import KnownIssue
from pvebench.model.units import DAY, show_bytes
from pvebench.service.instance import planned_cases
from pvebench.service.startup import assignments
from pvebench.store.live_results import LiveResults
from pvebench.store.records import CaseNumbers, CaseRecord, StoredRun
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.judge_input import JudgeInput
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.verdict_updates import judged

EVERYTHING: Final = 10_000_000
"""More runs than a case has."""
STEP_SECONDS: Final = 240.0
"""Sample interval below Prometheus' look-back of five minutes, so that a value has no gaps."""

_BOUND: Final = re.compile(r'(?<=[{,])le="[^"]*",?')

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})

PastMetrics = tuple[float, Sequence[Families]]
"""Time of a verdict update, Unix seconds, and its metric families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Period of an export in Unix seconds; `end` is excluded.

    Attributes:
        step: seconds between two samples of a constant value.
        labels: labels that a scrape would add, such as job and instance.
    """

    start: float
    end: float
    step: float = STEP_SECONDS
    labels: Mapping[str, str] = field(default_factory=dict)


Changes = list[tuple[float, str | None]]
"""Values of one series as text: (since, value); None: the series has ended."""
Key = tuple[str, str]
"""Family of a series, and its name with its labels, as text."""


@dataclass(slots=True)
class _Past:
    """All series by family; `heads` are the TYPE and HELP lines of the families."""

    labels: Mapping[str, str]
    heads: dict[str, str] = field(default_factory=dict)
    series: dict[str, dict[str, Changes]] = field(default_factory=dict)

    def note(
        self,
        moment: float,
        families: Iterable[Families],
        shown: set[Key],
        more: Mapping[str, str] = NO_LABELS,
    ) -> set[Key]:
        """Add the samples of a case from `moment` on; return the keys of its series.

        Args:
            shown: series of the case before `moment`; those without a new sample end.
        """
        now: set[Key] = set()
        labels = "".join(f"{label_text(*label)}," for label in {**self.labels, **more}.items())
        for metric, lines in (entry for part in families for entry in part.lines.values()):
            self.heads.setdefault(metric.name, head_of(metric, opened=True))
            series = self.series.setdefault(metric.name, {})
            for line in lines:
                where, _, value = line[:-1].rpartition(" ")
                key = _with_labels(where, labels)
                series.setdefault(key, []).append((moment, value))
                now.add((metric.name, key))
        self.end(moment, shown - now)
        return now

    def end(self, moment: float, keys: set[Key]) -> None:
        """End series."""
        for family, key in keys:
            self.series[family][key].append((moment, None))


def _with_labels(where: str, labels: str) -> str:
    """Return the key of a series with further labels, each as text with a comma."""
    name, _, own = where.partition("{")
    return f"{name}{{{labels}{own}" if own else f"{name}{{{labels[:-1]}}}" if labels else name


def write_past(
    results: LiveResults,
    settings: Settings,
    window: Period,
    file: TextIO,
    *,
    cases: Iterable[Sequence[StoredRun]] | None = None,
) -> None:
    """Write a past time window as OpenMetrics text.

    Args:
        cases: runs per case, as `histories` returns them; None: read them.
    """
    view = results.now
    present = snapshot_of(
        view, now=datetime.now(UTC), max_age_seconds=settings.max_age, wall=settings.wall
    )
    # The history may have nodes that the current packs no longer name.
    snapshot = replace(present, view=view)
    runs = histories(results) if cases is None else cases
    current = frozenset(view.current().values())
    file.writelines(past_text(runs, snapshot, window, current=current))


def histories(results: LiveResults) -> Iterator[list[StoredRun]]:
    """Yield the runs of each case, oldest first."""
    for key in results.now.cases:
        yield results.store.runs(limit=EVERYTHING, case_key=key)[::-1]


def first_moment(results: LiveResults) -> float:
    """Return when the first run started, UNIX seconds; 0 if there is none."""
    starts = (record.first_started for record in results.now.cases.values())
    return min((start.timestamp() for start in starts), default=0.0)


def past_text(
    cases: Iterable[Sequence[StoredRun]],
    snapshot: Snapshot,
    window: Period,
    *,
    current: Collection[str],
) -> Iterator[str]:
    """Yield past samples of a window as text, without verdicts.

    Args:
        cases: the runs of each case with samples, oldest first.
        snapshot: current results: intervals, environment periods, greatest age, simulated or not.
        current: keys of the cases with a current definition. The others get its fingerprint as
            the label `definition`; otherwise both would appear as one history.
    """
    past = _Past(window.labels)
    records = [
        (runs[0].case_key in current, _note_case(past, runs, snapshot, window, current))
        for runs in cases
        if runs
    ]
    _note_summary(past, [record for present, record in records if present], snapshot, window)
    return _text(past, window)


def past_metrics_text(updates: Sequence[PastMetrics], window: Period) -> Iterator[str]:
    """Yield past verdict samples of a window as text.

    Args:
        updates: verdict updates, oldest first; each is valid until the next one.
    """
    past, shown = _Past(window.labels), set[Key]()
    for number, (moment, families) in enumerate(updates):
        until = updates[number + 1][0] if number + 1 < len(updates) else math.inf
        if moment < window.end and until > window.start:
            shown = past.note(moment, families, shown)
    return _text(past, window)


def _text(past: _Past, window: Period) -> Iterator[str]:
    for name, head in past.heads.items():
        lines = list(_family_lines(past.series[name], window))
        if lines:
            yield head
            yield from lines
    yield "# EOF\n"


def _note_case(
    past: _Past,
    runs: Sequence[StoredRun],
    snapshot: Snapshot,
    window: Period,
    current: Collection[str],
) -> CaseRecord:
    """Add the samples of one case; return its state at the end of the window."""
    present = runs[0].case_key in current
    more = {} if present else {"definition": runs[0].definition.fingerprint}
    shown, expiry = set[Key](), math.inf
    record = CaseRecord.before(runs[0])
    for number, run in enumerate(runs):
        if run.finished.timestamp() >= window.end:
            break
        record = record.after(run)
        moment = run.finished.timestamp()
        following = runs[number + 1].finished.timestamp() if number + 1 < len(runs) else math.inf
        if following < window.start:
            continue
        if moment > expiry:
            past.end(expiry, shown)
        shown = past.note(moment, [_case_families(record, snapshot)], shown, more)
        expiry = moment + snapshot.max_age_seconds
    if expiry < window.end:
        past.end(expiry, shown)
    return record


def _case_families(record: CaseRecord, snapshot: Snapshot) -> Families:
    families = Families()
    moment = Snapshot(
        now=record.last.finished,
        records=[record],
        view=snapshot.view,
        max_age_seconds=snapshot.max_age_seconds,
    )
    for collect in CASE_COLLECTORS.values():
        collect(moment, families)
    return families


def _note_summary(
    past: _Past, records: Sequence[CaseRecord], snapshot: Snapshot, window: Period
) -> None:
    """Add the environments in order, and the definitions of scenarios and workloads."""
    shown: set[Key] = set()
    moments = sorted({period.started for period in snapshot.view.periods})
    begun = [moment for moment in moments if moment.timestamp() < window.end]
    first = max((start for start in begun if start.timestamp() <= window.start), default=None)
    for moment in [start for start in begun if first is None or start >= first]:
        periods = [
            replace(period, finished=min(period.finished, max(moment, period.started)))
            for period in snapshot.view.periods
            if period.started <= moment
        ]
        then = Snapshot(now=moment, records=[], view=replace(snapshot.view, periods=periods))
        families = Families()
        collect_environments(then, families)
        shown = past.note(moment.timestamp(), [families], shown)
    families = Families()
    present = Snapshot(
        now=datetime.fromtimestamp(window.end, UTC),
        records=records,
        max_age_seconds=math.inf,
        wall=snapshot.wall,
    )
    collect_info(present, families)
    collect_wall(present, families)
    oldest = min((record.first_started.timestamp() for record in records), default=window.end)
    past.note(max(window.start, min(oldest, window.end)), [families], set())


def _family_lines(series: Mapping[str, Changes], window: Period) -> Iterator[str]:
    """Yield a family's samples in OpenMetrics order: at each time a histogram stays together."""
    for _, group in itertools.groupby(series.items(), key=lambda entry: _labels_of(entry[0])):
        samples = [_samples(key, changes, window) for key, changes in group]
        yield from (line for _, line in heapq.merge(*samples, key=operator.itemgetter(0)))


def _labels_of(key: str) -> str:
    """Return the labels of a series without the bound of its bucket."""
    _, brace, labels = key.partition("{")
    return _BOUND.sub("", f"{brace}{labels}")


def _samples(
    key: str, changes: Sequence[tuple[float, str | None]], window: Period
) -> Iterator[tuple[float, str]]:
    """Yield a sample at every change in the window, and one every step without a change."""
    for number, (since, value) in enumerate(changes):
        until = changes[number + 1][0] if number + 1 < len(changes) else window.end
        if value is None or until <= window.start or since >= window.end:
            continue
        text = f"{key} {value} "
        if since >= window.start:
            yield since, f"{text}{since:.3f}\n"
        step = math.floor(max(since, window.start) / window.step) + (
            1 if since >= window.start or window.start % window.step else 0
        )
        while (moment := step * window.step) < min(until, window.end):
            yield moment, f"{text}{moment:.3f}\n"
            step += 1


# --- Verdicts of past moments.


def past_verdicts(
    results: LiveResults,
    issues: Sequence[KnownIssue],
    moments: Sequence[float],
    *,
    known: Sequence[Change] = (),
) -> Iterator[tuple[float, Verdicts]]:
    """Yield (moment, verdicts at that moment), from the runs that had ended by then.

    Args:
        issues: known ones.
        moments: Unix seconds, oldest first. Each takes about as long as a full update.
        known: later changes; the same ones of the past have their IDs.
    """
    stored = results.store.numbers_by_case(until=results.now.version)
    cases = [numbers.in_order() for numbers in stored]
    judge_input, judge, begun = JudgeInput(results), Judge(issues), -math.inf
    for moment in moments:
        judge_input.take(_ended(cases, begun, moment), until=moment)
        begun = moment
        yield moment, judged(judge_input, judge, ChangeTracker(known=known))


def _ended(cases: Iterable[CaseNumbers], after: float, until: float) -> Iterator[CaseNumbers]:
    """Yield the runs that ended after one moment, and until another."""
    spans = (
        (case, range(bisect_right(case.finished, after), bisect_right(case.finished, until)))
        for case in cases
    )
    yield from (numbers.at(places) for numbers, places in spans if places)


# --- The command.

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
LONGEST: Final = 20 * 366 * DAY
"""Longest period without --from; each year of a run takes gigabytes."""


@click.command()
@settings_options
@scale_option
@click.option("--from", "start", type=MOMENT, help="Start in UTC; default: the first run.")
@click.option("--to", "end", type=MOMENT, help="End in UTC, exclusive; default: now.")
@click.option(
    "--step",
    type=click.FloatRange(min=1),
    default=STEP_SECONDS,
    show_default=True,
    help="Seconds between samples of a constant value; less than Prometheus' lookback delta.",
)
@click.option("--job", default="pvebench", show_default=True, help="Label 'job'.")
@click.option("--instance", help="Label 'instance'; default: the listen address of the settings.")
@output_option("File to write; default: standard output.")
def openmetrics(
    start: datetime | None,
    end: datetime | None,
    step: float,
    job: str,
    instance: str | None,
    output: Path | None,
    scale: float,
    **options: Any,
) -> None:
    """Export past `/metrics` samples, for `promtool tsdb create-blocks-from openmetrics`.

    The export fills gaps of Prometheus, for example from before its installation.
    """
    settings = read_settings(**options)
    labels = {"job": job, "instance": instance or settings.listen}
    with results_of(settings) as store:
        results = LiveResults(store, planned_cases(assignments(settings, scale=scale)))
        first = first_moment(results)
        if start is None and datetime.now(UTC).timestamp() - first > LONGEST:
            raise StoreError(
                f"the first run began {datetime.fromtimestamp(first, UTC):%Y-%m-%d}",
                cause="the clock of that machine was wrong; samples of all years would not fit",
                next_step="pass --from, or remove the run: pvebench results --delete RUN",
            )
        window = Period(
            start=_stamp(start) if start else first,
            end=_stamp(end) if end else datetime.now(UTC).timestamp(),
            step=step,
            labels=labels,
        )
        with _open_output(output) as file:
            write_past(results, settings, window, file)


def _stamp(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


@contextmanager
def _open_output(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with writing(path), path.open("w", encoding="utf-8") as file:
        yield file
    click.echo(f"wrote {path}: {show_bytes(path.stat().st_size)}")
