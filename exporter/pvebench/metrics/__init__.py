"""Metric catalog, collectors, and the cached text of `/metrics`."""
