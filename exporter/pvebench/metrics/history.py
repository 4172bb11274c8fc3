"""The past as OpenMetrics text, for `promtool tsdb create-blocks-from openmetrics`.

What the page showed at any moment follows from the runs that had ended by then, so the same
collectors that make the page make its past: they are asked once for every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client.metrics_core import Metric as Family

from pvebench.metrics.environments import collect_environments
from pvebench.metrics.families import Families
from pvebench.metrics.results import CASE_COLLECTORS, collect_info
from pvebench.metrics.snapshot import Snapshot
from pvebench.metrics.text import EOF
from pvebench.metrics.wall import collect_wall
from pvebench.model.run import Outcome
from pvebench.store import CaseRecord, StoredRun

STEP_SECONDS: Final = 240.0
"""Below Prometheus' look-back of five minutes, so that a held value has no gaps."""

Key = tuple[str, str]
"""Name of the sample as exposed, and its labels as text."""

Told = tuple[float, Sequence[Family]]
"""When verdicts were made, UNIX seconds, and what the page showed of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What part of the past is wanted; UNIX seconds, `end` itself excluded.

    Attributes:
        step: seconds between two samples of a value that is held.
        labels: labels that a scrape would add, such as job and instance.
    """

    start: float
    end: float
    step: float = STEP_SECONDS
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Series:
    """The values of one series: (since, value); None: there is none any more."""

    changes: list[tuple[float, float | None]] = field(default_factory=list)


@dataclass(slots=True)
class _Past:
    """All series, grouped by family; `heads` are the families' TYPE and HELP lines."""

    labels: Mapping[str, str]
    heads: dict[str, str] = field(default_factory=dict)
    series: dict[str, dict[Key, _Series]] = field(default_factory=dict)

    def note(self, moment: float, families: Iterable[Family], shown: set[Key]) -> set[Key]:
        """Take over what a case shows from `moment` on; return its series.

        `shown` are those that it showed before: what is not among the new ones ends.
        """
        now: set[Key] = set()
        for family in families:
            self.heads.setdefault(family.name, _head(family))
            known = self.series.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, _labels({**sample.labels, **self.labels}))
                known.setdefault(key, _Series()).changes.append((moment, float(sample.value)))
                now.add(key)
        self.end(moment, shown - now)
        return now

    def end(self, moment: float, keys: set[Key]) -> None:
        """Let series end."""
        if not keys:
            return
        for known in self.series.values():
            for key in keys & known.keys():
                known[key].changes.append((moment, None))


def past_text(
    cases: Iterable[Sequence[StoredRun]],
    environments: Sequence[Mapping[str, Any]],
    snapshot: Snapshot,
    window: Window,
    *,
    told: Sequence[Told] = (),
) -> Iterator[str]:
    """Yield the text of everything that the page showed in a window of the past.

    Args:
        cases: the runs of each case with samples, oldest first.
        environments: as `Store.environments` gives them.
        snapshot: the present, for intervals, greatest age and whether it is simulated.
        told: what was shown of verdicts since when, oldest first.
    """
    past = _Past(window.labels)
    records = [_note_case(past, runs, snapshot, window) for runs in cases if runs]
    _note_summary(past, records, environments, snapshot, window)
    _note_told(past, told, window)
    for name, head in past.heads.items():
        lines = [
            line
            for key, series in past.series[name].items()
            for line in _lines(key, series.changes, window)
        ]
        if lines:
            yield head
            yield from lines
    yield EOF.decode()


def _note_case(
    past: _Past, runs: Sequence[StoredRun], snapshot: Snapshot, window: Window
) -> CaseRecord:
    """Add what one case showed; return what was known of it at the end of the window."""
    good: StoredRun | None = None
    outcomes: dict[Outcome, int] = {}
    failures, shown, expiry = 0, set[Key](), math.inf
    record = CaseRecord(last=runs[0], good=None, outcomes={}, failures_in_row=0)
    for number, run in enumerate(runs):
        if run.finished.timestamp() >= window.end:
            break
        outcomes[run.outcome] = outcomes.get(run.outcome, 0) + 1
        good, failures = (run, 0) if run.outcome.good else (good, failures + 1)
        record = CaseRecord(
            last=run, good=good, outcomes=dict(outcomes), failures_in_row=failures
        )  # fmt: skip
        moment = run.finished.timestamp()
        following = runs[number + 1].finished.timestamp() if number + 1 < len(runs) else math.inf
        if following < window.start:
            continue
        if moment > expiry:
            past.end(expiry, shown)
        shown = past.note(moment, _case_families(record, snapshot), shown)
        expiry = moment + snapshot.max_age_seconds
    if expiry < window.end:
        past.end(expiry, shown)
    return record


def _case_families(record: CaseRecord, snapshot: Snapshot) -> list[Family]:
    families = Families()
    moment = Snapshot(
        now=record.last.finished, records=[record], environments=[],
        intervals=snapshot.intervals, max_age_seconds=snapshot.max_age_seconds,
    )  # fmt: skip
    for collect in CASE_COLLECTORS.values():
        collect(moment, families)
    return families.families()


def _note_summary(
    past: _Past, records: Sequence[CaseRecord], environments: Sequence[Mapping[str, Any]],
    snapshot: Snapshot, window: Window,
) -> None:  # fmt: skip
    """Add the environments as they came, and what the labels stand for."""
    shown: set[Key] = set()
    moments = sorted({float(entry["first_seen"]) for entry in environments})
    begun = [moment for moment in moments if moment < window.end]
    first = max((moment for moment in begun if moment <= window.start), default=None)
    for moment in [one for one in begun if first is None or one >= first]:
        known = [
            {**entry, "last_seen": min(float(entry["last_seen"]), max(moment, entry["first_seen"]))}
            for entry in environments
            if float(entry["first_seen"]) <= moment
        ]
        now = datetime.fromtimestamp(moment, UTC)
        then = Snapshot(
            now=now, records=[], environments=known, simulated=snapshot.simulated,
        )  # fmt: skip
        families = Families()
        collect_environments(then, families)
        shown = past.note(moment, families.families(), shown)
    families = Families()
    present = Snapshot(
        now=datetime.fromtimestamp(window.end, UTC), records=records, environments=[],
        max_age_seconds=math.inf, wall=snapshot.wall,
    )  # fmt: skip
    collect_info(present, families)
    collect_wall(present, families)
    oldest = min((record.last.started.timestamp() for record in records), default=window.end)
    past.note(max(window.start, min(oldest, window.end)), families.families(), set())


def _note_told(past: _Past, told: Sequence[Told], window: Window) -> None:
    """Add what was said of the cases, each time until something else was said."""
    shown: set[Key] = set()
    for number, (moment, families) in enumerate(told):
        until = told[number + 1][0] if number + 1 < len(told) else math.inf
        if moment < window.end and until > window.start:
            shown = past.note(moment, families, shown)


def _lines(
    key: Key, changes: Sequence[tuple[float, float | None]], window: Window
) -> Iterator[str]:
    """Yield a sample at every change in the window, and one every step while it is held."""
    name, labels = key
    for number, (since, value) in enumerate(changes):
        until = changes[number + 1][0] if number + 1 < len(changes) else window.end
        if value is None or until <= window.start or since >= window.end:
            continue
        text = f"{name}{labels} {value!r} "
        if since >= window.start:
            yield f"{text}{since:.3f}\n"
        step = math.floor(max(since, window.start) / window.step) + (
            1 if since >= window.start or window.start % window.step else 0
        )
        while (moment := step * window.step) < min(until, window.end):
            yield f"{text}{moment:.3f}\n"
            step += 1


def _head(family: Family) -> str:
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.type}\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())]
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
