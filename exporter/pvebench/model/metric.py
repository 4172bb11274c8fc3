"""Metric family: name, type, labels and help, as `/metrics` exposes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]

NODE: Final = ("node",)
SCENARIO: Final = ("node", "storage", "bus", "cache", "format", "scenario")
CASE: Final = (*SCENARIO, "workload")
RESULT: Final = (*CASE, "direction")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    A counter's `name` has no `_total` and a histogram's no `_bucket`, as the client library
    requires. A histogram's label `le` is implied and not listed.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def exposed(self) -> str:
        """Name of the series as Prometheus stores it."""
        suffix = {"counter": "_total", "histogram": "_bucket"}.get(self.kind, "")
        return f"{self.name}{suffix}"
