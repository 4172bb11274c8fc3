"""What one site may store at the hub: sites share its disk, its processes and its pages."""

from __future__ import annotations

from typing import Final

SITE_BYTES: Final = 10_000_000_000
"""Maximum size of the runs of a site: seven times three years of 4,050 daily cases."""
RUN_BYTES: Final = 128
"""Size of a run without its numbers and its reason."""
TABLES: Final[dict[str, tuple[int, str, str]]] = {
    "shape": (200, "digest", "shape"),
    "environment": (1000, "digest", "env"),
    "cycle": (200_000, "uid", "cycle_id"),
    "case": (30_000, "key", "case_id"),
    "decision": (2000, "number", "number"),
    "arrived": (200, "node", "node"),
    "mark": (20_000, "seq", ""),
    "process": (100, "process", ""),
    "refused": (1000, "seq", ""),
}
"""Table -> (maximum rows per site, name of a row within its site, what other rows refer to).

Of the last three the newest rows stay; the others take no more.
"""
