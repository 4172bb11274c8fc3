"""Metric families as text in both formats, in pieces that can be joined.

The exposition is joined from pieces because prometheus_client takes more than a second for
50,000 series, and one result changes about forty of them. Lines that begin with `#` are a family's
head, the others its samples. Both formats require that the samples of one family follow a single
head, also if they come from several pieces.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from pvebench.model.metric import Metric

# --- samples under the names and labels of the catalog ---


class Families:
    """Collection of samples: one family per metric in the order of first use, histograms last."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}

    def add(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        """Add one sample. Labels that the metric does not have are ignored.

        Raises:
            KeyError: a label of the metric is missing.
        """
        values = [labels[name] for name in metric.labels]
        family = self._families.get(metric.name)
        if family is None:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            self._families[metric.name] = family
        family.add_metric(values, value)

    def add_histogram(
        self, metric: Metric, labels: Mapping[str, str], counts: Mapping[str, float], total: float
    ) -> None:
        """Add one histogram; labels as in `add`.

        Args:
            counts: upper bound -> count of its bucket alone, in the order of the bounds.
            total: sum of all values.
        """
        values = [labels[name] for name in metric.labels]
        family = self._histograms.get(metric.name)
        if family is None:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            self._histograms[metric.name] = family
        buckets = zip(counts, accumulate(counts.values()), strict=True)
        family.add_metric(values, list(buckets), total)

    def families(self) -> list[Family]:
        """Return the collected families."""
        return [*self._families.values(), *self._histograms.values()]


EOF: Final = b"# EOF\n"
_HEAD: Final = re.compile(rb"^(?:# .*\n)+", re.MULTILINE)
LEVEL: Final = 4
"""Compression level: output a third larger than at the best level, but several times faster."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text in the plain format and in OpenMetrics."""

    plain: bytes
    opened: bytes

    def __add__(self, other: Text) -> Text:
        return Text(self.plain + other.plain, self.opened + other.opened)

    def deflated(self) -> Text:
        """Return both compressed, each as a part of a stream."""
        return Text(deflate(self.plain), deflate(self.opened))

    def choose(self, *, opened: bool) -> bytes:
        """Return the text in the requested format."""
        return self.opened if opened else self.plain


@dataclass(frozen=True, slots=True)
class Piece:
    """Head and samples of one family. The samples are equal in both formats."""

    head: Text
    samples: bytes


class _Fixed(Collector):
    """Collector of existing families, as prometheus_client requires for rendering."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        return self._families


def render(families: Iterable[Family]) -> Text:
    """Return families as text, without the end mark of OpenMetrics."""
    families = list(families)
    registry = _registry(families)
    opened: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call] # library
    return Text(generate_latest(registry), opened.removesuffix(EOF))


def _registry(families: Iterable[Family]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(families))
    return registry


def render_pieces(families: Iterable[Family]) -> dict[str, Piece]:
    """Return family name -> head and samples; for gauges, counters and histograms."""
    families = list(families)
    blocks = _HEAD.split(generate_latest(_registry(families)))[1:]
    return {
        family.name: Piece(_head(family.name, family.documentation, family.type), samples)
        for family, samples in zip(families, blocks, strict=True)
    }


@functools.cache
def _head(name: str, documentation: str, kind: str) -> Text:
    return render([Family(name, documentation, kind)])


def deflate(text: bytes) -> bytes:
    """Return text compressed for any position in a deflate stream.

    The full flush ends it at a whole byte, and later data cannot refer to earlier data.
    """
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)


def gzip_stream(parts: Iterable[bytes], deflated: Iterable[bytes]) -> bytes:
    """Return one gzip member from deflated parts.

    RFC 1952 allows several members, but some clients stop after the first.
    """
    checksum, size = 0, 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
        size += len(part)
    # Method deflate, no flags, no time (equal text gives equal bytes), unknown system.
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    last = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
    return b"".join([head, *deflated, last, struct.pack("<II", checksum, size & 0xFFFFFFFF)])
