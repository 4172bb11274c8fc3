"""Families as text, by prometheus_client, in both formats and in pieces that can be put together.

A page is put together from pieces because prometheus_client takes more than a second for
50,000 series, and one result changes about forty of them. What is a family's head and what its
samples is told apart by the `#`; the samples of one family from several pieces follow each other
under one head, as both formats demand.
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

from pvebench.metrics.catalog import Metric

# --- Samples gathered under the names and labels of the catalogue.


class Families:
    """Collects samples; one family for each metric, in the order of first use, histograms last."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}

    def add(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        """Add one sample. Labels beyond those of the metric are left out.

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
        """Add one histogram; as `add`.

        Args:
            counts: upper bound -> what its bucket alone holds, in the order of the bounds.
            total: sum of all that was counted.
        """
        values = [labels[name] for name in metric.labels]
        family = self._histograms.get(metric.name)
        if family is None:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            self._histograms[metric.name] = family
        buckets = zip(counts, accumulate(counts.values()), strict=True)
        family.add_metric(values, list(buckets), total)

    def families(self) -> list[Family]:
        """Return what was gathered."""
        return [*self._families.values(), *self._histograms.values()]


EOF: Final = b"# EOF\n"
_HEAD: Final = re.compile(rb"^(?:# .*\n)+", re.MULTILINE)
LEVEL: Final = 4
"""Of the compression: a third larger than the best, and several times quicker."""


@dataclass(frozen=True, slots=True)
class Text:
    """The same in the plain format and in OpenMetrics."""

    plain: bytes
    opened: bytes

    def __add__(self, other: Text) -> Text:
        return Text(self.plain + other.plain, self.opened + other.opened)

    def deflated(self) -> Text:
        """Return both compressed, each as a part of a stream."""
        return Text(deflate(self.plain), deflate(self.opened))

    def choose(self, *, opened: bool) -> bytes:
        """Return the one in the wanted format."""
        return self.opened if opened else self.plain


@dataclass(frozen=True, slots=True)
class Piece:
    """One family's head and samples. The samples look alike in both."""

    head: Text
    samples: bytes


class _Fixed(Collector):
    """Families that are ready, in the form that prometheus_client renders."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        return self._families


def render(families: Iterable[Family]) -> Text:
    """Return families as text, without OpenMetrics' end mark."""
    families = list(families)
    registry = _registry(families)
    opened: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call] # library
    return Text(generate_latest(registry), opened.removesuffix(EOF))


def _registry(families: Iterable[Family]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(families))
    return registry


def render_pieces(families: Iterable[Family]) -> dict[str, Piece]:
    """Return family name -> its text, head and samples apart; of gauges, counters, histograms."""
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
    """Return text compressed so that it may stand anywhere in a deflate stream.

    The full flush ends it at a whole byte and lets what follows refer to nothing before it.
    """
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)


def gzip_stream(parts: Iterable[bytes], deflated: Iterable[bytes]) -> bytes:
    """Return one gzip member made of parts that are deflated already.

    One member, although RFC 1952 allows several: some clients read the first and stop.
    """
    checksum, size = 0, 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
        size += len(part)
    # Method deflate, no flags, no time (the same text has the same bytes), unknown system.
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    last = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS).flush()
    return b"".join([head, *deflated, last, struct.pack("<II", checksum, size & 0xFFFFFFFF)])
