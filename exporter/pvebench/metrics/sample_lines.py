"""Samples as lines of text, which are equal in the plain format and in OpenMetrics.

Lines instead of objects of prometheus_client, which takes more than a second for 50,000 series: a
line is formatted when its result changes, not for every scrape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.utils import floatToGoString

from pvebench.model.figure import Metric

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
