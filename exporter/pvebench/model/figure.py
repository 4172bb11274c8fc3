"""Figure: a number of a run, its metric and its verdicts. `model/run_metrics.py` has the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Direction

# --- Metric family: name, type, labels and help, as `/metrics` exposes it.

Kind = Literal["gauge", "counter", "histogram"]

NODE: Final = ("node",)
SCENARIO: Final = ("node", "storage", "bus", "cache", "format", "scenario")
CASE: Final = (*SCENARIO, "workload")
RESULT: Final = (*CASE, "direction")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    A counter's `name` has no `_total` and a histogram's no `_bucket`, as the client library
    requires. A histogram's label `le` is implied and not listed.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def exposed(self) -> str:
        """Name of the series as Prometheus stores it."""
        suffix = {"counter": "_total", "histogram": "_bucket"}.get(self.kind, "")
        return f"{self.name}{suffix}"


# --- Figures.


class Source(StrEnum):
    """Where a number comes from: the tool's output, the host, or a derivation from both."""

    TOOL = "tool"
    HOST = "host"
    DERIVED = "derived"


MAX_VALUES: Final[Mapping[Unit, float]] = {
    Unit.BYTES_PER_SECOND: 1e15,
    Unit.IOPS: 1e12,
    Unit.SECONDS: 1e9,
    Unit.RATIO: 1e5,
    Unit.CORES: 1e5,
    Unit.BYTES: 1e18,
    Unit.OPERATIONS: 1e15,
    Unit.CELSIUS: 1e3,
}
"""Upper limits of valid values: a petabyte per second, thirty years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of a run.

    Attributes:
        name: its key in stored results.
        title: display name, where the name alone is unclear.
        column: column of the result table, and the part it shows; empty: none.
        limit: upper limit of valid values; 0: that of its unit.
    """

    name: str
    unit: Unit
    source: Source
    title: str = ""
    column: tuple[str, str] = ("", "")
    limit: float = 0.0

    def sample(self, value: float, direction: Direction | None = None, part: str = "") -> Sample:
        """Return a sample of it; `value` is in its unit."""
        return Sample(self.name, direction, float(value), self.unit, part)

    @property
    def text(self) -> str:
        """Display name."""
        return self.title or self.name.replace("_", " ")

    @property
    def most(self) -> float:
        """Upper limit of valid values."""
        return self.limit or MAX_VALUES[self.unit]

    def allows(self, value: float) -> bool:
        """Return whether a machine can have this value; only changes and margins are below 0."""
        return (-self.most if self.unit in (Unit.RATIO, Unit.CELSIUS) else 0) <= value <= self.most

    def of(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return its samples."""
        return [sample for sample in samples if sample.metric == self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Figure):
    """A number of a run with a metric.

    Attributes:
        part: label for the part of its samples; empty: none.
        tool: the only tool whose runs export it, because others give no complete series; empty:
            all.
    """

    metric: Metric
    part: str = ""
    tool: str = ""


FigureKind = Literal["speed", "stall", "cost", "operation"]


@dataclass(frozen=True, slots=True)
class VerdictFigure:
    """A number of a case that verdicts are about.

    Attributes:
        name: its name in labels.
        kind: meaning of its changes.
        source, part: the number of a run that it is read or computed from.
        noun, worse, better: words of the verdict.
        least_effect: smallest relevant change, a logarithm.
        floor: smallest value that differs from zero, in the figure's unit.
    """

    name: str
    kind: FigureKind
    source: Exported
    part: str
    noun: str
    worse: str
    better: str
    least_effect: float
    floor: float

    @property
    def more_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.worse == "slower"

    @property
    def per_direction(self) -> bool:
        """Whether a run has one value per direction."""
        return "direction" in self.source.metric.labels


class Values:
    """The samples of one run, by figure."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._values = {
            (sample.metric, sample.direction, sample.part): sample.value for sample in samples
        }

    def of(
        self, figure: Figure, direction: Direction | None = None, part: str = ""
    ) -> float | None:
        """Return a value; None: not measured."""
        return self._values.get((figure.name, direction, part))

    def parts(self, figure: Figure) -> dict[str, float]:
        """Return part -> value of a figure without a direction."""
        known = self._values.items()
        return {part: value for (name, _, part), value in known if name == figure.name}
