"""Upkeep of the hub's database by its owner: old months, and rows that no rule needs any more."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from pvebench.hub.store.site_transaction import Connection

KEPT_SECONDS: Final = 90 * 86400.0
"""How long sites keep acknowledged lines: no older mark can be common."""
DENSE_SECONDS: Final = 86400.0
"""Age up to which each mark is kept; of older ones one an hour, so that a site resends more."""
REFUSED: Final = 1000
"""Refused lines that are kept per site, newest first."""
_MONTH: Final = re.compile(r"run_(\d{4})_(\d{2})")
_MONTHS: Final = (
    "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'run'::regclass "
    "ORDER BY 1"
)
# A replaced version is restored if a process with an older turn turns out to be a twin: only one
# that was seen lately, or has the turn.
_REPLACED: Final = """
DELETE FROM replaced r USING site s WHERE r.site = s.site AND r.turn <= coalesce(
    (SELECT min(p.turn) FROM process p WHERE p.site = s.site AND NOT p.banned
        AND (p.seen > %s OR p.process = s.process)), s.turn)
"""
_MARKS: Final = """
DELETE FROM mark m USING (
    SELECT site, seq, at, row_number() OVER (PARTITION BY site ORDER BY seq DESC) AS place,
        row_number() OVER (PARTITION BY site, floor(at / 3600) ORDER BY seq DESC) AS of_hour
    FROM mark) old
WHERE m.site = old.site AND m.seq = old.seq AND old.place > 1
    AND (old.at < %s OR (old.at < %s AND old.of_hour > 1))
"""
_REFUSED: Final = """
DELETE FROM refused r USING (
    SELECT ctid AS row, row_number() OVER (PARTITION BY site ORDER BY at DESC, seq DESC) AS place
    FROM refused) old
WHERE r.ctid = old.row AND old.place > %s
"""


def old_months(connection: Connection, keep: int, now: float) -> list[str]:
    """Return the partitions that ended at least `keep` months ago, oldest first."""
    today = time.gmtime(now)
    first = 12 * today.tm_year + today.tm_mon - keep
    found = []
    for row in connection.execute(_MONTHS):
        month = _MONTH.fullmatch(row["name"])
        if month and 12 * int(month[1]) + int(month[2]) < first:
            found.append(row["name"])
    return found


def drop_month(connection: Connection, name: str) -> None:
    """Remove a partition; the newest run of each case stays in `case_state`."""
    connection.execute(f"ALTER TABLE run DETACH PARTITION {name}".encode())
    connection.execute(f"DROP TABLE {name}".encode())


def thin(connection: Connection, now: float) -> dict[str, int]:
    """Remove marks, replaced versions and refused lines that no rule needs; return the counts."""
    statements: dict[str, tuple[str, tuple[Any, ...]]] = {
        "replaced": (_REPLACED, (now - KEPT_SECONDS,)),
        "mark": (_MARKS, (now - KEPT_SECONDS, now - DENSE_SECONDS)),
        "refused": (_REFUSED, (REFUSED,)),
    }
    return {
        table: connection.execute(query.encode(), values).rowcount
        for table, (query, values) in statements.items()
    }


def settings(connection: Connection) -> dict[str, str]:
    """Return settings of PostgreSQL that protect results, and the size of the database."""
    query = (
        "SELECT name, setting FROM pg_settings WHERE name IN ('server_version_num', 'fsync', "
        "'synchronous_commit', 'full_page_writes') UNION ALL SELECT 'bytes', "
        "pg_database_size(current_database())::text UNION ALL "
        "SELECT 'odd_runs', (SELECT count(*) FROM run_other)::text"
    )
    return {row["name"]: row["setting"] for row in connection.execute(query.encode())}
