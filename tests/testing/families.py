"""Collected samples as prometheus_client's parser reads their text."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pvebench.metrics.exposition import Families, text_of


def families_of(*parts: Families) -> list[Metric]:
    return list(text_string_to_metric_families(text_of(parts)))
