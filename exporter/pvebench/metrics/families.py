"""Samples gathered under the names and labels of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from pvebench.metrics.catalog import Metric


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
