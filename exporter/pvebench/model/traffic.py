"""How much a node's API was asked, and how often in vain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

OPERATIONS: Final = ("get", "post", "put", "delete")
"""HTTP methods of the Proxmox API: read, make, change, remove."""


def _none() -> dict[str, int]:
    return dict.fromkeys(OPERATIONS, 0)


@dataclass(slots=True)
class Traffic:
    """Counts since the start. Written by one worker's thread, read by any.

    Attributes:
        requests: operation -> requests that were made, repeated reads included.
        failures: operation -> those without an answer, or with one that told of no access or a
            server in trouble. A request that the server understood and declined is none.
        tasks: that the requests started on the node.
    """

    requests: dict[str, int] = field(default_factory=_none)
    failures: dict[str, int] = field(default_factory=_none)
    tasks: int = 0

    def count(self, operation: str, *, failed: bool) -> None:
        """Count a request that has ended."""
        self.requests[operation] += 1
        self.failures[operation] += failed
