"""One request of a site: its transaction in PostgreSQL, and the storing of its lines.

Results of a push go to a staging table by COPY, then into `run` by one statement. If that statement
fails, the lines are stored one by one: one bad line never stops a site.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from pvebench.errors import FleetError
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
from pvebench.hub.rules import Batch, Holder, SiteRow, State

Connection = psycopg.Connection[dict[str, Any]]
Refused = tuple[int, str, str]
"""Number of a line, reason, text."""
FIRST_TIME: Final = 1577836800.0
"""2020-01-01: a run that ended before has a wrong clock, and goes to the default partition."""
AHEAD_SECONDS: Final = 86400.0
_COLUMNS: Final = (
    "site, case_id, finished, uid, cycle_id, env, shape, number, revision, started, pass, outcome, "
    "reason, vals"
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
        self._put("process", "process", **asdict(holder), seen=self._now)

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
        self._put("mark", "seq", seq=place[0], chain=place[1], at=self._now)

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
        values = line.model_dump(exclude={"kind", "seq"})
        match line:
            case EnvironmentLine():
                self._put("environment", "digest", **{**values, "facts": Jsonb(line.facts)})
            case CycleLine():
                self._put("cycle", "uid", **values)
            case DefinitionLine():
                definition = Jsonb(line.definition.as_data())
                self._put(
                    "case", "key", **{**values, "definition": definition}, node=_node(line.key)
                )
            case DecisionLine():
                self._put("decision", "number", kind=values.pop("decision"), **values)
            case _:
                pass

    def _put(self, table: str, key: str, /, **values: Any) -> None:
        """Insert a row of the site; replace the one with the same key."""
        names = ["site", *values]
        places = ", ".join(["%s"] * len(names))
        replaced = ", ".join(f"{name} = excluded.{name}" for name in values if name != key)
        self._run(
            f'INSERT INTO "{table}" ({", ".join(names)}) VALUES ({places}) '  # noqa: S608 # constants
            f"ON CONFLICT (site, {key}) DO UPDATE SET {replaced}",
            *(self._site, *values.values()),
        )

    def _ids(self, table: str, key: str, names: Iterable[str]) -> dict[str, int]:
        """Return name -> id; a name whose own line was refused gets an empty row."""
        id_of = {"case": "case_id", "cycle": "cycle_id", "environment": "env"}[table]
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
        cycles = self._ids("cycle", "uid", (run.cycle for run in runs))
        environments = self._ids("environment", "digest", (run.environment for run in runs))
        self._add_months(run.finished for run in runs)
        ends = [run.finished for run in runs if run.finished < self._now + AHEAD_SECONDS]
        query = "UPDATE site SET newest_run = greatest(newest_run, %s) WHERE site = %s"
        self._run(query, max(ends, default=None), self._site)
        counts = Counter(_node(run.case) for run in runs)
        for node, count in sorted(counts.items()):
            query = (
                "INSERT INTO arrived VALUES (%s, %s, %s) ON CONFLICT (site, node) "
                "DO UPDATE SET count = arrived.count + excluded.count"
            )
            self._run(query, self._site, node, count)
        return [
            (
                *(self._site, cases[run.case], run.finished, _uuid(run.uid), cycles[run.cycle]),
                *(environments[run.environment], shapes[run.shape][0], run.number, run.revision),
                *(run.started, run.pass_number, str(run.outcome), run.reason, run.values),
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


def _uuid(uid: str) -> str:
    """Return the name of a run in 128 bits: its own ones, or of another name its digest."""
    if re.fullmatch("[0-9a-f]{32}", uid):
        return uid
    return hashlib.sha256(uid.encode()).hexdigest()[:32]


def _node(case_key: str) -> str:
    return case_key.partition("/")[0]


def _storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
