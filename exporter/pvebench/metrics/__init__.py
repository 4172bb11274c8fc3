"""Metric catalog, collectors, and the cached text of `/metrics`."""

from pvebench.metrics.catalog import CATALOG
from pvebench.metrics.exposition import Page
from pvebench.metrics.snapshot import Snapshot

__all__ = ["CATALOG", "Page", "Snapshot"]
