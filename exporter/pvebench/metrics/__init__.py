"""Metrics of states, collectors, the cached text of `/metrics`, and past samples."""
