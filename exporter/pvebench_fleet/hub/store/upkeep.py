"""Upkeep of the hub's database by its owner: old months, and rows that no rule needs any more."""

from __future__ import annotations

import re
import time
from typing import Final

from pvebench.model.units import DAY
from pvebench_fleet.hub.rules import RUN_BYTES, SITE_BYTES, TABLES
from pvebench_fleet.hub.store.site_transaction import Connection

KEPT_SECONDS: Final = 90 * DAY
"""How long sites keep acknowledged lines: no older mark can be common."""
DENSE_SECONDS: Final = DAY
"""Age up to which each mark is kept; of older ones one an hour, so that a site resends more."""
MONTH_SECONDS: Final = 31 * DAY
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
# All runs that used the row are in removed months: none ended more than a day after it was stored.
_UNUSED: Final = """
DELETE FROM "{table}" t WHERE seen < %s
    AND NOT EXISTS (SELECT FROM run_other r WHERE r.{column} = t.{column})
    AND NOT EXISTS (SELECT FROM replaced r WHERE r.{column} = t.{column})
    AND NOT EXISTS (SELECT FROM case_state s WHERE {state} = t.{column})
"""
_OF_STATE: Final = {
    "shape": "good_shape",
    "environment": "s.env",
    "cycle": "0",
    "case": "s.case_id",
}
# Runs that came again and removed months were counted, too.
_BYTES: Final = f"""
UPDATE site SET bytes = (SELECT coalesce(sum({RUN_BYTES} + 8 * cardinality(vals)
    + octet_length(reason)), 0) FROM run WHERE run.site = site.site) WHERE bytes > %s
"""  # noqa: S608 # constants


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


def thin(connection: Connection, keep: int, now: float) -> None:
    """Remove marks and replaced versions that no rule needs, and rows that no run refers to.

    Args:
        keep: months of runs that are kept, besides the present one; older ones are removed.
    """
    connection.execute(_REPLACED.encode(), (now - KEPT_SECONDS,))
    connection.execute(_MARKS.encode(), (now - KEPT_SECONDS, now - DENSE_SECONDS))
    for table, state in _OF_STATE.items():
        query = _UNUSED.format(table=table, column=TABLES[table][2], state=state)
        connection.execute(query.encode(), (now - (keep + 2) * MONTH_SECONDS,))
    connection.execute(_BYTES.encode(), (SITE_BYTES / 2,))


def settings(connection: Connection) -> dict[str, str]:
    """Return settings of PostgreSQL that protect results, and the size of the database."""
    query = (
        "SELECT name, setting FROM pg_settings WHERE name IN ('server_version_num', 'fsync', "
        "'synchronous_commit', 'full_page_writes') UNION ALL SELECT 'bytes', "
        "pg_database_size(current_database())::text UNION ALL "
        "SELECT 'odd_runs', (SELECT count(*) FROM run_other)::text"
    )
    return {row["name"]: row["setting"] for row in connection.execute(query.encode())}
