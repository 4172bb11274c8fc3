"""Metric catalog, collectors, and the cached text of `/metrics`."""

from pvebench.metrics.catalog import CATALOG, Metric
from pvebench.metrics.exposition import Page
from pvebench.metrics.snapshot import Snapshot

__all__ = ["CATALOG", "Metric", "Page", "Snapshot"]
