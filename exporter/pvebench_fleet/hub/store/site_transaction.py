"""One request of a site: its transaction in PostgreSQL, and the storing of its lines.

Results of a push go to a staging table by COPY, then into `run` by one statement. If that statement
fails, the lines are stored one by one: one bad line never stops a site.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from pvebench.model.run_metrics import impossible_number
from pvebench.model.units import DAY, show_bytes, show_seconds
from pvebench_fleet import FleetError
from pvebench_fleet.hub.rules import (
    AHEAD_SECONDS,
    RUN_BYTES,
    SITE_BYTES,
    TABLES,
    Batch,
    Holder,
    SiteBusy,
    SiteRow,
    State,
)
from pvebench_fleet.wire import (
    CycleLine,
    DecisionLine,
    DefinitionLine,
    EnvironmentLine,
    Line,
    Position,
    RunLine,
    Shape,
)

Connection = psycopg.Connection[dict[str, Any]]
Refused = tuple[int, str, str]
"""Number of a line, reason, text."""
FIRST_TIME: Final = 1577836800.0
"""2020-01-01: a run that ended before has a wrong clock, and goes to the default partition."""
SEEN_SECONDS: Final = DAY
"""How exact `seen` is, the time of the last use of a row."""
_TABLES: Final[Mapping[type[Line], str]] = {
    Shape: "shape",
    EnvironmentLine: "environment",
    CycleLine: "cycle",
    DefinitionLine: "case",
    DecisionLine: "decision",
}
_NAMES: Final[Mapping[str, Callable[[RunLine], str]]] = {
    "shape": lambda run: run.shape,
    "case": lambda run: run.case,
    "cycle": lambda run: run.cycle,
    "environment": lambda run: run.environment,
    "arrived": lambda run: _node(run.case),
}
"""What a run refers to: table -> name of the row."""
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

    def __init__(
        self, connection: Connection, name: str, sent: float | None, *, wait: bool = False
    ) -> None:
        self._connection, self._now = connection, time.time()
        lock = "FOR NO KEY UPDATE" + " NOWAIT" * (not wait)  # a judging locks the key
        try:
            row = self._one(f"SELECT * FROM site WHERE name = %s {lock}", name)  # noqa: S608 # constants
        except psycopg.errors.LockNotAvailable as error:
            raise SiteBusy from error
        if row is None:
            raise SiteUnknown(f"no site {name!r}", next_step="add it with `pvebench hub sites add`")
        self._site, self._bytes = int(row["site"]), int(row["bytes"])
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
        self._put("process", **asdict(holder), seen=self._now)

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
        self._put("mark", chain=place[1], at=self._now, seq=place[0])

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
        for kind, table in _TABLES.items():
            lines = [line for line in batch.lines if isinstance(line, kind)]
            refused += self._store_lines(table, lines)
        runs = {
            (line.case, line.finished, line.uid): line
            for line in batch.lines
            if isinstance(line, RunLine)
        }  # a statement cannot replace a row twice
        shapes = {
            line.shape: [number[0] for number in line.numbers]
            for line in batch.lines
            if isinstance(line, Shape)
        }
        refused += self._store_results([*runs.values()], shapes, turn)
        if refused:
            self._note_refused(refused)
        return [number for number, _, _ in refused]

    def _store_lines(self, table: str, lines: Sequence[Line]) -> Iterator[Refused]:
        """Store lines of a kind; yield those that do not fit."""
        rows = {row[TABLES[table][1]]: (line, row) for line in lines for row in (_row(line),)}
        known = self._ids(table, rows)
        fitting = [one for key, one in rows.items() if key in known]
        yield from (_refused(one[0], _full(table)) for key, one in rows.items() if key not in known)
        yield from self._each(partial(self._fill, table), fitting)

    def _store_results(
        self, runs: Iterable[RunLine], shapes: Mapping[str, Sequence[str]], turn: int
    ) -> Iterator[Refused]:
        """Store runs; yield those that do not fit."""
        names = {
            table: {name_of(run) for run in runs if run.shape in shapes}
            for table, name_of in _NAMES.items()
        }
        ids = {table: self._ids(table, found) for table, found in names.items()}
        reasons = [(run, self._misfit(run, shapes, ids)) for run in runs]
        yield from (_refused(run, reason) for run, reason in reasons if reason)
        fitting = [run for run, reason in reasons if not reason]
        rows = self._rows(fitting, ids)
        yield from self._each(partial(self._store_runs, turn), [*zip(fitting, rows, strict=True)])

    def _misfit(
        self,
        run: RunLine,
        shapes: Mapping[str, Sequence[str]],
        ids: Mapping[str, Mapping[str, Any]],
    ) -> str:
        """Return why a run cannot be stored; empty: it can."""
        names = shapes.get(run.shape)
        if names is None or len(names) != len(run.values):
            return "shape missing or of another length"
        if reason := impossible_number(names, run.values):
            return reason
        if (ahead := run.finished - self._now) > AHEAD_SECONDS:
            return f"ended {show_seconds(ahead)} in the future: check the clock of this site"
        if self._bytes > SITE_BYTES:
            return f"this site has {show_bytes(self._bytes)} of runs, the maximum of a site"
        full = (table for table, name_of in _NAMES.items() if name_of(run) not in ids[table])
        return next((_full(table) for table in full), "")

    def _each(
        self, store: Callable[[Sequence[Any]], None], rows: Sequence[tuple[Line, Any]]
    ) -> Iterator[Refused]:
        """Store rows by one statement, or one by one if it fails; yield those that fail."""
        reason = self._try(store, [row for _, row in rows]) if rows else ""
        if reason and len(rows) == 1:
            yield _refused(rows[0][0], reason)
        elif reason:
            for one in rows:
                yield from self._each(store, [one])

    def _note_refused(self, refused: Sequence[Refused]) -> None:
        kept = [
            (number, reason[:300], _storable(text)[:1000])
            for number, reason, text in refused[-TABLES["refused"][0] :]
        ]
        self._run(
            "INSERT INTO refused SELECT %s, number, %s, reason, line "
            "FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS t(number, reason, line)",
            *(self._site, self._now, *map(list, zip(*kept, strict=True))),
        )
        self._trim("refused", "at DESC, seq")

    def _try(self, function: Callable[..., None], *arguments: Any) -> str:
        """Return why a statement failed for its values; empty: it did not."""
        try:
            with self._connection.transaction():
                function(*arguments)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
            return str(error).partition("\n")[0] or type(error).__name__
        return ""

    def _fill(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store the content of rows that exist."""
        values = ", ".join(f"{name} = r.{name}" for name in rows[0])
        self._run(
            f'UPDATE "{table}" t SET {values} FROM jsonb_populate_recordset(NULL::"{table}", %s) r '  # noqa: S608 # constants
            f"WHERE t.site = %s AND t.{TABLES[table][1]} = r.{TABLES[table][1]}",
            *(Jsonb(rows), self._site),
        )

    def _put(self, table: str, /, **values: Any) -> None:
        """Insert or replace a row of the site; of all, those with the newest last value stay."""
        key = TABLES[table][1]
        names, places = ", ".join(["site", *values]), ", ".join(["%s"] * (len(values) + 1))
        replaced = ", ".join(f"{name} = excluded.{name}" for name in values if name != key)
        self._run(
            f"INSERT INTO {table} ({names}) VALUES ({places}) "  # noqa: S608 # constants
            f"ON CONFLICT (site, {key}) DO UPDATE SET {replaced}",
            *(self._site, *values.values()),
        )
        self._trim(table, [*values][-1])

    def _trim(self, table: str, newest: str) -> None:
        self._run(
            f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} "  # noqa: S608 # constants
            f"WHERE site = %s ORDER BY {newest} DESC OFFSET %s))",
            *(self._site, TABLES[table][0]),
        )

    def _ids(self, table: str, names: Collection[Any]) -> dict[Any, Any]:
        """Return name -> id; new names get an empty row, as far as the limit of the table allows.

        Known ones take no number from the sequence, as they would with ON CONFLICT. They are marked
        as used before they are read: a row that `HubDatabase.prune` removes at this moment is new.
        """
        if not names:
            return {}
        most, key, id_of = TABLES[table]
        known = f"site = %s AND {key} = ANY(%s)", (self._site, [*names])
        query = f'UPDATE "{table}" SET seen = %s WHERE seen < %s AND {known[0]}'  # noqa: S608 # constants
        self._run(query, self._now, self._now - SEEN_SECONDS, *known[1])
        query = f'SELECT {key} AS name, {id_of} AS id FROM "{table}" WHERE {known[0]}'  # noqa: S608 # constants
        found = {row["name"]: row["id"] for row in self._run(query, *known[1])}
        if new := sorted(names - found.keys()):
            kind = "integer" if table == "decision" else "text"
            columns, values = f"site, seen, {key}", "%s, %s, name"
            if table == "case":
                columns, values = f"{columns}, node", f"{values}, split_part(name, '/', 1)"
            query = (
                f'INSERT INTO "{table}" ({columns}) SELECT {values} FROM unnest(%s::{kind}[]) name '  # noqa: S608 # constants
                f'LIMIT greatest(0, %s - (SELECT count(*) FROM "{table}" WHERE site = %s)) '
                f"RETURNING {key} AS name, {id_of} AS id"
            )
            added = self._run(query, self._site, self._now, new, most, self._site)
            found |= {row["name"]: row["id"] for row in added}
        return found

    def _rows(
        self, runs: Sequence[RunLine], ids: Mapping[str, Mapping[str, Any]]
    ) -> list[tuple[Any, ...]]:
        times = {time.gmtime(run.finished)[:2]: run.finished for run in runs}
        for at in times.values():
            if at >= FIRST_TIME:
                self._run("SELECT add_month(%s)", at)
        size = sum(RUN_BYTES + 8 * len(run.values) + len(run.reason.encode()) for run in runs)
        query = (
            "UPDATE site SET newest_run = greatest(newest_run, %s), bytes = bytes + %s "
            "WHERE site = %s"
        )
        self._run(query, max((run.finished for run in runs), default=None), size, self._site)
        counts = Counter(_node(run.case) for run in runs)
        query = (
            "UPDATE arrived SET count = arrived.count + new.count "
            "FROM unnest(%s::text[], %s::bigint[]) AS new(node, count) "
            "WHERE arrived.site = %s AND arrived.node = new.node"
        )
        self._run(query, [*counts], [*counts.values()], self._site)
        cases, cycles, environments, shapes = (
            ids[table] for table in ("case", "cycle", "environment", "shape")
        )
        return [
            (
                *(self._site, cases[run.case], run.finished, _uuid(run.uid), cycles[run.cycle]),
                *(environments[run.environment], shapes[run.shape], run.number, run.revision),
                *(run.started, run.pass_number, str(run.outcome), run.reason, run.values),
            )
            for run in runs
        ]

    def _store_runs(self, turn: int, rows: Sequence[tuple[Any, ...]]) -> None:
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


def _refused(line: Line, reason: str) -> Refused:
    text = line.uid if isinstance(line, RunLine) else line.model_dump_json()
    return 0 if isinstance(line, Shape) else line.seq, reason, text


def _full(table: str) -> str:
    return f"this site has {TABLES[table][0]} rows in table {table}, the maximum of a site"


def _row(line: Line) -> dict[str, Any]:
    """Return a line as a row of its table."""
    row = line.model_dump(exclude={"kind", "seq"})
    if isinstance(line, Shape):
        row["digest"] = row.pop("shape")
    elif isinstance(line, DefinitionLine):
        row["definition"] = line.definition.as_data()
    elif isinstance(line, DecisionLine):
        row["kind"] = row.pop("decision")
    return row


def _uuid(uid: str) -> str:
    """Return the name of a run in 128 bits: its own ones, or of another name its digest."""
    if re.fullmatch("[0-9a-f]{32}", uid):
        return uid
    return hashlib.sha256(uid.encode()).hexdigest()[:32]


def _node(case_key: str) -> str:
    return case_key.partition("/")[0]


def _storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
