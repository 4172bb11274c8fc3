"""The database of the hub: connections, sites and their tokens, removal of old rows."""

from __future__ import annotations

import hashlib
import queue
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg.sql import SQL, Identifier

from pvebench.model.units import DAY
from pvebench_fleet import HubDatabaseError
from pvebench_fleet.hub.rules import RUN_BYTES, SITE_BYTES, TABLES, SiteRow, State, release
from pvebench_fleet.hub.store.node_transaction import CHOOSE, NodeTransaction
from pvebench_fleet.hub.store.schema import OF_SITE, check_version, connect
from pvebench_fleet.hub.store.site_transaction import Connection, SiteTransaction, SiteUnknown

T = TypeVar("T")

CONNECTIONS: Final = 4
"""Maximum connections of the door, and so of requests that work at once."""
CONNECT_SECONDS: Final = 5

# --- What no rule needs any more.

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


class HubDatabase:
    """Connections to the database.

    Args:
        url: connection string of libpq; passwords belong into its `passfile`.
        role: role to use after the login, with only the needed rights; empty: the login's own.
    """

    def __init__(self, url: str, *, role: str = "") -> None:
        self._url = url
        self._role = role
        self._free: queue.LifoQueue[Connection | None] = queue.LifoQueue()
        for _ in range(CONNECTIONS):
            self._free.put(None)

    @contextmanager
    def connection(self, role: str = "") -> Iterator[Connection]:
        """Yield a connection in a transaction.

        Args:
            role: role of this transaction; empty: that of the database.

        Raises:
            HubDatabaseError: PostgreSQL is unreachable, the schema is not this version's, or the
                login lacks a right.
        """
        connection = self._free.get()
        try:
            connection = self._opened(connection)
            with connection.transaction():
                if role:
                    _change_role(connection, "SET LOCAL ROLE {}", role)
                yield connection
        except psycopg.errors.InsufficientPrivilege as error:
            raise HubDatabaseError(
                f"the hub's database refused: {str(error).strip()}"[:500],
                cause="the login is not the role that migrated the database",
                next_step="log in as the role that ran `pvebench hub migrate`",
            ) from error
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
            failed = HubDatabaseError(
                f"the hub's database failed: {str(error).strip()}"[:500],
                cause="PostgreSQL is down, full or refuses this role",
                next_step="check PostgreSQL; sites send again",
            )
            failed.full = isinstance(error, psycopg.errors.DiskFull)
            raise failed from error
        finally:
            broken = connection is not None and (connection.closed or connection.broken)
            self._free.put(None if broken else connection)

    def _opened(self, connection: Connection | None) -> Connection:
        if connection is not None and not connection.closed:
            return connection
        opened = connect(self._url, autocommit=True, connect_timeout=CONNECT_SECONDS)
        try:
            check_version(opened)
            if self._role:
                _change_role(opened, "SET ROLE {}", self._role)
        except BaseException:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        """Close all free connections; one in use ends with its request."""
        with suppress(queue.Empty):
            while True:
                if (connection := self._free.get_nowait()) is not None:
                    connection.close()

    @contextmanager
    def begin(
        self, site: str, sent: float | None, *, wait: bool = False
    ) -> Iterator[SiteTransaction]:
        """Open the transaction of a site and lock its row; see `rules.Transaction`.

        Args:
            sent: clock of the site in the request, UNIX seconds.
            wait: whether to wait for another request of the site.

        Raises:
            SiteUnknown: there is no such site. SiteBusy: another request has the lock.
        """
        with self.connection() as connection:
            yield SiteTransaction(connection, site, sent, wait=wait)

    # --- Judging.

    @contextmanager
    def begin_judging(self, now: float) -> Iterator[NodeTransaction | None]:
        """Lock the next node with unjudged runs, in a transaction; None: there is none."""
        with self.connection() as connection:  # apart: another worker would wait for new rows
            connection.execute(
                "INSERT INTO node_state (site, node) SELECT site, node FROM arrived "
                "ON CONFLICT DO NOTHING"
            )
            chosen = connection.execute(CHOOSE, {"now": now}).fetchone()
        with self.connection() as connection:
            yield None if chosen is None else NodeTransaction.of(connection, chosen)

    def postpone(self, site: int, node: str, due: float, reason: str) -> None:
        """Record that the judging of a node failed; `due`: when to try again, UNIX seconds."""
        query = "UPDATE node_state SET due = %s, failed = %s WHERE site = %s AND node = %s"
        with self.connection() as connection:
            connection.execute(query, (due, reason[:300], site, node))

    # --- Reading.

    def read(self, function: Callable[[Connection], T], role: str = "") -> T:
        """Return what a function of `overview` reads, of the sites that a role sees."""
        with self.connection(role) as connection:
            return function(connection)

    # --- Upkeep, by the owner.

    def prune(self, keep_months: int, now: float, *, apply: bool) -> list[str]:
        """Return the months that ended longer ago, and remove them and outdated rows if `apply`."""
        with self.connection() as connection:
            months = _old_months(connection, keep_months, now)
        if not apply:
            return months
        # The newest run of each case stays in `case_state`.
        for month in months:  # each in a transaction of its own: sites wait as briefly as possible
            with self.connection() as connection:
                connection.execute(f"ALTER TABLE run DETACH PARTITION {month}".encode())
                connection.execute(f"DROP TABLE {month}".encode())
        with self.connection() as connection:
            _thin(connection, keep_months, now)
        return months

    def settings(self) -> dict[str, str]:
        """Return settings of PostgreSQL that protect results, and the size of the database."""
        query = (
            "SELECT name, setting FROM pg_settings WHERE name IN ('server_version_num', 'fsync', "
            "'synchronous_commit', 'full_page_writes') UNION ALL SELECT 'bytes', "
            "pg_database_size(current_database())::text UNION ALL "
            "SELECT 'odd_runs', (SELECT count(*) FROM run_other)::text"
        )
        with self.connection() as connection:
            return {row["name"]: row["setting"] for row in connection.execute(query)}

    # --- Sites and their tokens.

    def site_of(self, token: str) -> str:
        """Return the name of the site with a token; raises SiteUnknown."""
        query = "SELECT name FROM token JOIN site USING (site) WHERE sha256 = %s"
        with self.connection() as connection:
            row = connection.execute(query, (_digest(token),)).fetchone()
        if row is None:
            raise SiteUnknown("unknown token")
        return str(row["name"])

    def add_token(self, name: str, token: str) -> None:
        """Create the site if it is new, and let a token speak for it; of older ones, one stays."""
        with self.connection() as connection:
            connection.execute(
                "INSERT INTO site (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,)
            )
            _check_known(SiteTransaction(connection, name, None, wait=True))
            connection.execute(
                "INSERT INTO token SELECT %s, site, %s FROM site WHERE name = %s",
                (_digest(token), time.time(), name),
            )
            connection.execute(
                "DELETE FROM token WHERE sha256 IN (SELECT sha256 FROM token JOIN site USING (site)"
                " WHERE name = %s ORDER BY made DESC OFFSET 2)",
                (name,),
            )

    def sites(self) -> list[dict[str, Any]]:
        """Return the sites with their processes and the number of their refused lines."""
        query = (
            "SELECT s.name, s.state, s.acked, s.contact, s.skew_seconds, s.process AS current, "
            "(SELECT count(*) FROM refused f WHERE f.site = s.site) AS refused, "
            "(SELECT coalesce(sum(count), 0) FROM arrived a WHERE a.site = s.site)::bigint "
            "AS runs, "
            "ARRAY(SELECT p.process FROM process p WHERE p.site = s.site AND NOT p.banned "
            "ORDER BY p.seen DESC LIMIT 5) AS processes FROM site s ORDER BY s.name"
        )
        with self.connection() as connection:
            return connection.execute(query).fetchall()

    def keep(self, name: str, process: str, step: Callable[[], int]) -> bool:
        """Select the process that is the site; return whether the hub knows it."""
        with self.begin(name, None, wait=True) as change:
            _check_known(change)
            return release(change, process, step)

    def hold(self, name: str) -> None:
        """Hold a site until `keep`."""
        with self.begin(name, None, wait=True) as change:
            _check_known(change)
            change.save(SiteRow(state=State.HELD, turn=change.site.turn, cursor=change.site.cursor))

    def forget(self, name: str, *, apply: bool) -> int:
        """Return the number of a site's runs; remove them and refuse the site if `apply`."""
        with self.connection() as connection:
            row = connection.execute(
                "SELECT site FROM site WHERE name = %s FOR UPDATE", (name,)
            ).fetchone()
            if row is None:
                raise SiteUnknown(f"no site {name!r}")
            site = (row["site"],)
            counted = connection.execute("SELECT count(*) AS n FROM run WHERE site = %s", site)
            count = int((counted.fetchone() or {"n": 0})["n"])
            if apply:
                for table in (*OF_SITE, "replaced", "mark", "process"):
                    connection.execute(f'DELETE FROM "{table}" WHERE site = %s', site)  # noqa: S608 # constants
                query = (
                    "UPDATE site SET state = 'forgotten', process = '', bytes = 0 WHERE site = %s"
                )
                connection.execute(query, site)
        return count


def _old_months(connection: Connection, keep: int, now: float) -> list[str]:
    """Return the partitions that ended at least `keep` months ago, oldest first."""
    today = time.gmtime(now)
    first = 12 * today.tm_year + today.tm_mon - keep
    found = []
    for row in connection.execute(_MONTHS):
        month = _MONTH.fullmatch(row["name"])
        if month and 12 * int(month[1]) + int(month[2]) < first:
            found.append(row["name"])
    return found


def _thin(connection: Connection, keep: int, now: float) -> None:
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


def _change_role(connection: Connection, query: LiteralString, role: str) -> None:
    try:
        connection.execute(SQL(query).format(Identifier(role)))
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue) as error:
        raise HubDatabaseError(
            f"the hub's database refused the role: {str(error).strip()}"[:500],
            cause="it does not exist, or was not granted to the login",
            next_step="log in as the role that ran `pvebench hub migrate`; grant it the roles of "
            "users",
        ) from error


def _check_known(change: SiteTransaction) -> None:
    if change.site.state is State.FORGOTTEN:
        raise SiteUnknown("the site was forgotten", next_step="add a site of another name")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
