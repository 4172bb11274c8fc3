"""Metrics of states, collectors, and the cached text of `/metrics`."""
