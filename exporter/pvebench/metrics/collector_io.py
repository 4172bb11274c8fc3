"""What collectors read and return: results at one moment, samples as lines of text.

Lines instead of objects of prometheus_client, which takes more than a second for 50,000 series: a
line is formatted when its result changes, not for every scrape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from prometheus_client.utils import floatToGoString

from pvebench.config.settings import WallSettings
from pvebench.metrics import state_metrics
from pvebench.model.definition import Definition, workload_text
from pvebench.model.figure import Metric
from pvebench.model.units import DAY
from pvebench.store.live_results import View, main_metric
from pvebench.store.records import CaseRecord

# --- Samples as lines of text, which are equal in the plain format and in OpenMetrics.

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_PLAIN_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Families:
    """Samples as lines of text, by metric in the order of first use."""

    def __init__(self) -> None:
        self.lines: dict[str, tuple[Metric, list[str]]] = {}

    def add(
        self, metric: Metric, labels: Mapping[str, str], value: float, suffix: str = ""
    ) -> None:
        """Add one sample. Labels that the metric does not have are ignored.

        Args:
            suffix: of the name, for a part of a histogram; `_bucket` has the label `le`.

        Raises:
            KeyError: a label of the metric is missing.
        """
        names = (*metric.labels, "le") if suffix == "_bucket" else metric.labels
        pairs = [label_text(name, labels[name]) for name in sorted(names)]
        where = f"{{{','.join(pairs)}}}" if pairs else ""
        name = f"{metric.name}{suffix}" if suffix else metric.exposed
        text = floatToGoString(value)  # type: ignore[no-untyped-call] # library
        self.lines.setdefault(metric.name, (metric, []))[1].append(f"{name}{where} {text}\n")

    def add_histogram(
        self, metric: Metric, labels: Mapping[str, str], counts: Mapping[str, float], total: float
    ) -> None:
        """Add one histogram; labels as in `add`.

        Args:
            counts: upper bound -> count of its bucket alone, in the order of the bounds.
            total: sum of all values.
        """
        count = 0.0
        for bound, count in zip(counts, accumulate(counts.values()), strict=True):
            self.add(metric, {**labels, "le": bound}, count, "_bucket")
        self.add(metric, labels, count, "_count")
        self.add(metric, labels, total, "_sum")


def label_text(name: str, value: str) -> str:
    """Return a label as both formats write it."""
    return f'{name}="{value.translate(_ESCAPES)}"'


def text_of(parts: Iterable[Families], *, opened: bool = False) -> str:
    """Return the families of all parts as text; see `family_texts`."""
    families: dict[str, tuple[Metric, list[str]]] = {}
    for part in parts:
        for name, (metric, lines) in part.lines.items():
            families.setdefault(name, (metric, []))[1].extend(lines)
    return "".join(family_texts(families.values(), opened=opened))


def family_texts(
    families: Iterable[tuple[Metric, Collection[str]]], *, opened: bool
) -> Iterator[str]:
    """Yield the samples of each family after a single head, as both formats require.

    Args:
        opened: whether to return OpenMetrics, without its end mark.
    """
    for metric, lines in families:
        if lines:
            yield "".join([head_of(metric, opened=opened), *lines])


def head_of(metric: Metric, *, opened: bool) -> str:
    """Return the lines before the samples of a family."""
    if opened:
        name, text = metric.name, metric.help.translate(_ESCAPES)
    else:
        name = metric.exposed if metric.kind == "counter" else metric.name
        text = metric.help.translate(_PLAIN_HELP_ESCAPES)
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n"


# --- Results at one moment.


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Results at one moment.

    Attributes:
        records: state of each case that may be shown.
        view: everything else; its periods are those of the shown nodes.
        max_age_seconds: results older than this at `now` are not shown.
        wall: slots of the wall dashboard; empty: selected from the results.
    """

    now: datetime
    records: Sequence[CaseRecord]
    view: View = field(default_factory=View)
    max_age_seconds: float = 14 * DAY
    wall: Sequence[WallSettings] = ()


def snapshot_of(
    view: View, *, now: datetime, max_age_seconds: float, wall: Sequence[WallSettings] = ()
) -> Snapshot:
    """Return the results of a view for the cases of the current packs and their nodes."""
    nodes = {planned.definition.node for planned in view.planned.values()}
    return Snapshot(
        now=now,
        records=[view.cases[key] for key in view.planned if key in view.cases],
        view=replace(view, periods=[period for period in view.periods if period.node in nodes]),
        max_age_seconds=max_age_seconds,
        wall=wall,
    )


def shown(snapshot: Snapshot) -> list[CaseRecord]:
    """Return the records whose last run is recent enough to be exposed."""
    return [
        record
        for record in snapshot.records
        if (snapshot.now - record.last.finished).total_seconds() <= snapshot.max_age_seconds
    ]


# --- wall slots: cases from the settings, or the first four kinds of access ---

SLOTS: Final = 4
KINDS: Final = ("randread", "randwrite", "read", "write")
"""Order of the slots if the settings define none."""


_DEFAULT: Final = {"bus": "scsi", "format": "raw", "cache": "none"}


def collect_wall(snapshot: Snapshot, families: Families) -> None:
    """Add the cases of the wall dashboard's slots."""
    for slot, (title, case, direction) in sorted(_selected(snapshot).items()):
        labels = {
            **case.labels,
            "slot": str(slot),
            "direction": direction,
            "title": title or workload_text(case),
            "figure": main_metric(case),
        }
        families.add(state_metrics.WALL_SLOT, labels, 1)


def _selected(snapshot: Snapshot) -> dict[int, tuple[str, Definition, str]]:
    """Return slot -> title, case and direction.

    Configured cases, then one of each kind, then any: a wall shows what was measured.
    """
    measured = [record.definition for record in shown(snapshot) if record.good is not None]
    left: dict[tuple[str, str, str], Definition] = {}
    for case in sorted(measured, key=_preference):
        for direction in map(str, case.directions):
            left.setdefault((case.scenario, case.workload, direction), case)
    chosen: dict[int, tuple[str, Definition, str]] = {}
    for slot, configured in enumerate(snapshot.wall[:SLOTS], start=1):
        key = (configured.scenario, configured.workload, configured.direction)
        if key in left:
            chosen[slot] = configured.title, left.pop(key), configured.direction
    for exact in (True, False):
        for slot, kind in enumerate(KINDS, start=1):
            fitting = (
                key for key, case in left.items() if case.parameters.get("rw") == kind or not exact
            )
            if slot not in chosen and (first := next(fitting, None)):
                chosen[slot] = "", left.pop(first), first[2]
    return chosen


def _preference(case: Definition) -> tuple[Any, ...]:
    """Return the sort key: the default configuration first, then alphabetical order."""
    differing = [case.labels[key] != value for key, value in _DEFAULT.items()]
    return (*differing, case.node, case.scenario, case.workload)
