"""The database of the hub: the only module with psycopg.

Results of a push go to a staging table by COPY, then into `run` by one statement. If that statement
fails, the lines are stored one by one: one bad line never stops a site.
"""

from __future__ import annotations

import hashlib
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pvebench.errors import FleetError, HubDatabaseError
from pvebench.fleet.wire import (
    CycleLine,
    DecisionLine,
    DefinitionLine,
    EnvironmentLine,
    Line,
    Position,
    RunLine,
    Shape,
)
from pvebench.hub.rules import Batch, Holder, SiteRow, State, release
from pvebench.hub.schema import HEAD

Connection = psycopg.Connection[dict[str, Any]]
Refused = tuple[int, str, str]
"""Number of a line, reason, text."""
CONNECTIONS: Final = 4
"""Maximum connections of the door, and so of requests that work at once."""
CONNECT_SECONDS: Final = 5
FIRST_TIME: Final = 1577836800.0
"""2020-01-01: a run that ended before has a wrong clock, and goes to the default partition."""
AHEAD_SECONDS: Final = 86400.0
_COLUMNS: Final = (
    "site, case_id, finished, uid, env, shape, number, revision, started, arrived, pass, outcome, "
    "cycle, reason, vals"
)
_KEY: Final = "site, case_id, finished, uid"
_REST: Final = [name for name in _COLUMNS.split(", ") if name not in _KEY.split(", ")]
_SET: Final = ", ".join(f"{name} = excluded.{name}" for name in _REST)
_RESTORE: Final = ", ".join(f"{name} = old.{name}" for name in _REST)
_CONTENT: Final = "revision, outcome, reason, env, shape, vals"
_DIFFERS: Final = (
    f"({', '.join(f'r.{name}' for name in _CONTENT.split(', '))}) IS DISTINCT FROM "
    f"({', '.join(f's.{name}' for name in _CONTENT.split(', '))})"
)


class SiteUnknown(FleetError):
    """A token or a name that no site has."""


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
    def connection(self) -> Iterator[Connection]:
        """Yield a connection in a transaction.

        Raises:
            HubDatabaseError: PostgreSQL is unreachable, the schema is not this version's, or the
                login lacks a right.
        """
        connection = self._free.get()
        try:
            connection = self._opened(connection)
            with connection.transaction():
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
        opened = psycopg.connect(
            self._url, row_factory=dict_row, autocommit=True, connect_timeout=CONNECT_SECONDS
        )
        try:
            _check_schema(opened)
            if self._role:
                opened.execute(f'SET ROLE "{self._role}"')
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
    def begin(self, site: str, sent: float | None) -> Iterator[SiteTransaction]:
        """Open the transaction of a site and lock its row; see `rules.Transaction`.

        Args:
            sent: clock of the site in the request, UNIX seconds.

        Raises:
            SiteUnknown: there is no such site.
        """
        with self.connection() as connection:
            yield SiteTransaction(connection, site, sent)

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
            _check_known(SiteTransaction(connection, name, None))
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
            "(SELECT coalesce(sum(count), 0) FROM arrived a WHERE a.site = s.site) AS runs, "
            "ARRAY(SELECT p.process FROM process p WHERE p.site = s.site AND NOT p.banned "
            "ORDER BY p.seen DESC LIMIT 5) AS processes FROM site s ORDER BY s.name"
        )
        with self.connection() as connection:
            return connection.execute(query).fetchall()

    def keep(self, name: str, process: str, step: Callable[[], int]) -> bool:
        """Select the process that is the site; return whether the hub knows it."""
        with self.begin(name, None) as change:
            _check_known(change)
            return release(change, process, step)

    def hold(self, name: str) -> None:
        """Hold a site until `keep`."""
        with self.begin(name, None) as change:
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
                for table in _OF_SITE:
                    connection.execute(f'DELETE FROM "{table}" WHERE site = %s', site)  # noqa: S608 # constants
                query = "UPDATE site SET state = 'forgotten', process = '' WHERE site = %s"
                connection.execute(query, site)
        return count


_OF_SITE: Final = (
    *("run", "replaced", "case", "environment", "cycle", "decision", "arrived"),
    *("mark", "process", "refused"),
)


def _check_known(change: SiteTransaction) -> None:
    if change.site.state is State.FORGOTTEN:
        raise SiteUnknown("the site was forgotten", next_step="add a site of another name")


def _check_schema(connection: Connection) -> None:
    try:
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.errors.UndefinedTable:
        revision = None
    found = revision["version_num"] if revision else "none"
    if found != HEAD:
        raise HubDatabaseError(
            f"the hub's database has schema {found}, this pvebench has {HEAD}",
            cause="it was never migrated, or by another version",
            next_step="run `pvebench hub migrate`",
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class SiteTransaction:
    """One request of a site: the `rules.Transaction` of PostgreSQL."""

    def __init__(self, connection: Connection, name: str, sent: float | None) -> None:
        self._connection, self._now = connection, time.time()
        row = self._one("SELECT * FROM site WHERE name = %s FOR UPDATE", name)
        if row is None:
            raise SiteUnknown(f"no site {name!r}", next_step="add it with `pvebench hub sites add`")
        self._site = int(row["site"])
        self.site = SiteRow(
            state=State(row["state"]),
            turn=row["turn"],
            process=row["process"],
            cursor=(row["acked"], row["chain"]),
        )
        if sent is not None:
            query = "UPDATE site SET contact = %s, skew_seconds = %s WHERE site = %s"
            self._run(query, self._now, sent - self._now, self._site)

    def _run(self, query: str, *values: Any) -> psycopg.Cursor[dict[str, Any]]:
        return self._connection.execute(query.encode(), values)

    def _one(self, query: str, *values: Any) -> dict[str, Any] | None:
        return self._run(query, *values).fetchone()

    def save(self, site: SiteRow) -> None:
        """Store the state of the site."""
        query = (
            "UPDATE site SET state = %s, turn = %s, process = %s, acked = %s, chain = %s "
            "WHERE site = %s"
        )
        self._run(query, str(site.state), site.turn, site.process, *site.cursor, self._site)
        self.site = site

    def holder(self, process: str) -> Holder | None:
        """Return a process that has or had the turn."""
        query = "SELECT process, turn, banned FROM process WHERE site = %s AND process = %s"
        row = self._one(query, self._site, process)
        return None if row is None else Holder(**row)

    def put_holder(self, holder: Holder) -> None:
        """Store a process."""
        query = (
            "INSERT INTO process VALUES (%s, %s, %s, %s, %s) ON CONFLICT (site, process) "
            "DO UPDATE SET turn = excluded.turn, banned = excluded.banned, seen = excluded.seen"
        )
        self._run(query, self._site, holder.process, holder.turn, holder.banned, self._now)

    def ban_others(self, process: str) -> None:
        """Ban all processes but this one."""
        query = "UPDATE process SET banned = (process <> %s) WHERE site = %s"
        self._run(query, process, self._site)

    def marks(self, before: int, most: int) -> Sequence[Position]:
        """Return the newest places of the cursor below a number, newest first."""
        query = (
            "SELECT seq, chain FROM mark WHERE site = %s AND seq < %s ORDER BY seq DESC LIMIT %s"
        )
        return [(row["seq"], row["chain"]) for row in self._run(query, self._site, before, most)]

    def add_mark(self, place: Position) -> None:
        """Store a place of the cursor."""
        query = (
            "INSERT INTO mark VALUES (%s, %s, %s, %s) ON CONFLICT (site, seq) "
            "DO UPDATE SET chain = excluded.chain, at = excluded.at"
        )
        self._run(query, self._site, *place, self._now)

    def drop_marks(self, after: int) -> None:
        """Remove the places with higher numbers."""
        self._run("DELETE FROM mark WHERE site = %s AND seq > %s", self._site, after)

    def undo(self, after: int) -> None:
        """Restore the versions of runs that turns after this one have replaced."""
        self._run(
            f"UPDATE run r SET {_RESTORE} FROM (SELECT DISTINCT ON (uid) * FROM replaced "  # noqa: S608 # constants
            "WHERE site = %s AND turn > %s ORDER BY uid, turn) old WHERE r.site = old.site "
            "AND r.case_id = old.case_id AND r.finished = old.finished AND r.uid = old.uid",
            self._site,
            after,
        )
        self._run("DELETE FROM replaced WHERE site = %s AND turn > %s", self._site, after)

    # --- Lines of a push.

    def store(self, batch: Batch, turn: int) -> Sequence[int]:
        """Store lines, of which the later replaces the earlier; return refused numbers."""
        refused = [*batch.refused]
        shapes = self._shapes(line for line in batch.lines if isinstance(line, Shape))
        for line in batch.lines:
            if isinstance(line, RunLine | Shape):
                continue
            if reason := self._try(self._store_one, line):
                refused.append((line.seq, reason, line.model_dump_json()))
        runs = [line for line in batch.lines if isinstance(line, RunLine)]
        # A statement cannot replace a row twice.
        newest = {(run.case, run.finished, run.uid): run for run in runs}
        fitting = [run for run in newest.values() if _fits(run, shapes)]
        refused += [
            (run.seq, "shape missing or of another length", run.uid)
            for run in newest.values()
            if not _fits(run, shapes)
        ]
        rows = self._rows(fitting, shapes)
        if self._try(self._store_runs, rows, turn):
            for run, row in zip(fitting, rows, strict=True):
                if reason := self._try(self._store_runs, [row], turn):
                    refused.append((run.seq, reason, run.uid))
        for number, reason, text in refused:
            values = self._site, number, self._now, reason[:300], _storable(text)[:1000]
            self._run("INSERT INTO refused VALUES (%s, %s, %s, %s, %s)", *values)
        return [number for number, _, _ in refused]

    def _try(self, function: Callable[..., None], *arguments: Any) -> str:
        """Return why a statement failed for its values; empty: it did not."""
        try:
            with self._connection.transaction():
                function(*arguments)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
            return str(error).partition("\n")[0] or type(error).__name__
        return ""

    def _shapes(self, lines: Iterable[Shape]) -> dict[str, tuple[int, int]]:
        """Return the id of each shape, and the number of its places, by its digest.

        All sites share these rows: a known one is not locked, and new ones come in one order.
        """
        numbers = {line.shape: line.numbers for line in lines}
        found = self._shape_ids(numbers)
        for digest in sorted(numbers.keys() - found.keys()):
            query = "INSERT INTO shape (digest, numbers) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            self._run(query, digest, Jsonb(numbers[digest]))
        found |= self._shape_ids(numbers.keys() - found.keys())
        return {digest: (found[digest], len(numbers[digest])) for digest in numbers}

    def _shape_ids(self, digests: Iterable[str]) -> dict[str, int]:
        query = "SELECT digest, shape FROM shape WHERE digest = ANY(%s)"
        return {row["digest"]: row["shape"] for row in self._run(query, [*digests])}

    def _store_one(self, line: Line) -> None:
        match line:
            case EnvironmentLine():
                self._run(
                    "INSERT INTO environment (site, digest, node, slug, facts) "
                    "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (site, digest) DO UPDATE "
                    "SET node = excluded.node, slug = excluded.slug, facts = excluded.facts",
                    *(self._site, line.digest, line.node, line.slug, Jsonb(line.facts)),
                )
            case CycleLine():
                self._run(
                    "INSERT INTO cycle VALUES (%s, %s, %s, %s, %s, %s, %s, %s) "
                    "ON CONFLICT (site, uid) DO UPDATE SET finished = excluded.finished",
                    *(self._site, line.uid, line.node, line.pack, line.tier, line.planned),
                    *(line.started, line.finished),
                )
            case DefinitionLine():
                self._run(
                    'INSERT INTO "case" (site, key, node, definition, first_started) '
                    "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (site, key) DO UPDATE "
                    "SET definition = excluded.definition, first_started = excluded.first_started",
                    *(self._site, line.key, _node(line.key), Jsonb(line.definition)),
                    line.first_started,
                )
            case DecisionLine():
                self._run(
                    "INSERT INTO decision VALUES (%s, %s, %s, %s, %s, %s, %s) "
                    "ON CONFLICT (site, number) DO UPDATE SET made = excluded.made, "
                    "kind = excluded.kind, cases = excluded.cases, until = excluded.until, "
                    "reason = excluded.reason",
                    *(self._site, line.number, line.made, line.decision, line.cases, line.until),
                    line.reason,
                )
            case _:
                pass

    def _ids(self, table: str, key: str, names: Iterable[str]) -> dict[str, int]:
        """Return name -> id; a name whose own line was refused gets an empty row."""
        id_of = {"case": "case_id", "environment": "env"}[table]
        distinct = sorted(set(names))
        nodes = [_node(name) for name in distinct] if table == "case" else [""] * len(distinct)
        self._run(
            f'INSERT INTO "{table}" (site, {key}, node) SELECT %s, name, node '  # noqa: S608 # constants
            "FROM unnest(%s::text[], %s::text[]) AS t(name, node) ON CONFLICT DO NOTHING",
            *(self._site, distinct, nodes),
        )
        query = f'SELECT {key} AS name, {id_of} AS id FROM "{table}" WHERE site = %s AND {key} = ANY(%s)'  # noqa: S608, E501 # constants
        return {row["name"]: row["id"] for row in self._run(query, self._site, distinct)}

    def _rows(
        self, runs: Sequence[RunLine], shapes: Mapping[str, tuple[int, int]]
    ) -> list[tuple[Any, ...]]:
        cases = self._ids("case", "key", (run.case for run in runs))
        environments = self._ids("environment", "digest", (run.environment for run in runs))
        self._add_months(run.finished for run in runs)
        counts = Counter(_node(run.case) for run in runs)
        for node, count in sorted(counts.items()):
            query = (
                "INSERT INTO arrived VALUES (%s, %s, %s) ON CONFLICT (site, node) "
                "DO UPDATE SET count = arrived.count + excluded.count"
            )
            self._run(query, self._site, node, count)
        return [
            (
                *(self._site, cases[run.case], run.finished, run.uid),
                *(environments[run.environment], shapes[run.shape][0], run.number, run.revision),
                *(run.started, self._now, run.pass_number, str(run.outcome)),
                *(run.cycle, run.reason, run.values),
            )
            for run in runs
        ]

    def _add_months(self, times: Iterable[float]) -> None:
        known = [at for at in times if FIRST_TIME <= at < self._now + AHEAD_SECONDS]
        for at in {time.gmtime(at)[:2]: at for at in known}.values():
            self._run("SELECT add_month(%s)", at)

    def _store_runs(self, rows: Sequence[tuple[Any, ...]], turn: int) -> None:
        if not rows:
            return
        self._run(
            "CREATE TEMP TABLE IF NOT EXISTS staging (LIKE run) ON COMMIT DELETE ROWS; "
            "TRUNCATE staging"
        )
        copied = f"COPY staging ({_COLUMNS}) FROM STDIN".encode()
        with self._connection.cursor() as cursor, cursor.copy(copied) as copy:
            for row in rows:
                copy.write_row(row)
        self._run(
            f"INSERT INTO replaced SELECT %s, r.* FROM run r JOIN staging s USING ({_KEY}) "  # noqa: S608 # constants
            f"WHERE {_DIFFERS} ON CONFLICT DO NOTHING",
            turn,
        )
        self._run(
            f"INSERT INTO run ({_COLUMNS}) SELECT {_COLUMNS} FROM staging "  # noqa: S608 # constants
            f"ON CONFLICT ({_KEY}) DO UPDATE SET {_SET}"
        )


def _fits(run: RunLine, shapes: Mapping[str, tuple[int, int]]) -> bool:
    return shapes.get(run.shape, (0, -1))[1] == len(run.values)


def _node(case_key: str) -> str:
    return case_key.partition("/")[0]


def _storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
