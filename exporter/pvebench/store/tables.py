"""Table definitions of a new database. A change here needs one of MIGRATIONS for older ones.

Times are UTC seconds since the epoch as floats: SQLite has no time type, and a number sorts
and subtracts without parsing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

from pvebench.model.run import Outcome
from pvebench.model.run_metrics import NUMBERS

GOOD: Final = tuple(outcome for outcome in Outcome if outcome.good)
"""Outcomes of successful runs, whose numbers are published."""
MIGRATIONS: Final[tuple[Callable[[Connection], None], ...]] = ()
"""Each makes a database of one schema one of the next, oldest first; all in one transaction, with
foreign keys off and without triggers, which come after the last."""
SCHEMA: Final = 1 + len(MIGRATIONS)
"""Version of the schema that this code reads and writes, in SQLite's `user_version`."""

metadata = MetaData()


def _columns(
    kind: type[TypeEngine[Any]], *names: str, primary_key: bool = False
) -> list[Column[Any]]:
    """Return columns of one type that are never NULL."""
    return [Column(name, kind, nullable=False, primary_key=primary_key) for name in names]


facts = Table(
    "facts",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", Text, nullable=False),
)

environments = Table(
    "environments",
    metadata,
    Column("digest", String, primary_key=True),
    *_columns(String, "node", "slug"),
    Column("facts", Text, nullable=False),
    *_columns(Float, "first_seen", "last_seen"),
)

cycles = Table(
    "cycles",
    metadata,
    Column("uid", String, primary_key=True),
    *_columns(String, "node", "pack", "tier"),
    Column("planned", Integer, nullable=False),
    Column("started", Float, nullable=False),
    Column("finished", Float),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", String, nullable=False, unique=True),
    *_columns(String, "case_key", "node", "scenario", "workload"),
    Column("cycle", String, ForeignKey("cycles.uid"), nullable=False),
    Column("environment", String, ForeignKey("environments.digest"), nullable=False),
    *_columns(Float, "started", "finished"),
    Column("outcome", String, nullable=False),
    Column("reason", Text, nullable=False),
    # 0: unknown.
    Column("pass_number", Integer, nullable=False),
    # Number of corrections.
    Column("revision", Integer, nullable=False, server_default="0"),
    Index("runs_of_case", "case_key", "finished"),
    Index("runs_by_time", "finished"),
    Index("runs_not_ok", "finished", sqlite_where=text("outcome != 'ok'")),
)
NOT_OK: Final = text("runs.outcome != 'ok'")
"""Condition of the index `runs_not_ok`: SQLite uses a partial index only for the same condition."""

# Derived from the runs of each case, so that readers need not go through all runs.
cases = Table(
    "cases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String, nullable=False, unique=True),
    *_columns(String, "node", "scenario", "workload"),
    Column("definition", Text, nullable=False),
    *_columns(Float, "first_started", "last_finished"),
    Column("last_run", Integer, nullable=False),
    Column("good_finished", Float),
    Column("good_run", Integer),
    Column("failures_in_row", Integer, nullable=False),
)

case_outcomes = Table(
    "case_outcomes",
    metadata,
    *_columns(String, "case_key", "outcome", primary_key=True),
    Column("count", Integer, nullable=False),
)

# Sums over all good runs of a case, including removed ones: counters never decrease.
case_sums = Table(
    "case_sums",
    metadata,
    *_columns(String, "case_key", "metric", "direction", "part", primary_key=True),
    Column("value", Float, nullable=False),
)

environment_periods = Table(
    "environment_periods",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("node", String, nullable=False),
    Column("environment", String, ForeignKey("environments.digest"), nullable=False),
    *_columns(Float, "started", "finished"),
    Index("environment_periods_of_node", "node"),
)

samples = Table(
    "samples",
    metadata,
    Column("run", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    *_columns(String, "metric", "direction", "part", primary_key=True),
    Column("value", Float, nullable=False),
    Column("unit", String, nullable=False),
    sqlite_with_rowid=False,
)

NUMBER_COLUMNS: Final = tuple("_".join(filter(None, number)) for number in NUMBERS)
"""Columns of `run_numbers` with `NUMBERS`; NULL: not measured."""
# Numbers of good runs as their samples have them, clustered by case, so that a start
# reads millions of runs in seconds. Samples that are changed by hand are not followed.
run_numbers = Table(
    "run_numbers",
    metadata,
    Column("case_id", Integer, primary_key=True),
    Column("run", Integer, primary_key=True),
    Column("finished", Float, nullable=False),
    Column("environment", String, nullable=False),
    Column("ok", Integer, nullable=False),
    *(Column(name, Float) for name in NUMBER_COLUMNS),
    sqlite_with_rowid=False,
)

evidence = Table(
    "evidence",
    metadata,
    Column("run", Integer, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

totals = Table(
    "totals",
    metadata,
    *_columns(String, "node", "storage", "name", primary_key=True),
    Column("value", Float, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("opened", Float, nullable=False),
    Column("closed", Float),
    Column("kind", String, nullable=False),
    Column("details", Text, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("made", Float, nullable=False),
    *_columns(String, "kind", "cases"),
    Column("until", Float, nullable=False),
    Column("reason", Text, nullable=False),
)

storage_identities = Table(
    "storage_identities",
    metadata,
    Column("id", Integer, primary_key=True),
    *_columns(String, "node", "storage"),
    Column("facts", Text, nullable=False),
    Column("since", Float, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("id", String, primary_key=True),
    Column("since", Float, nullable=False),
    *_columns(Integer, "worse", "gradual"),
    Column("severity", String, nullable=False),
    *_columns(Text, "cases", "text"),
    Column("missing", Float),
    Column("ended", Float),
    *_columns(String, "ending", "notified"),
    Column("notified_at", Float, nullable=False),
)

# Notifications; the newest one about a node has its state.
messages = Table(
    "messages",
    metadata,
    Column("id", Integer, primary_key=True),
    *_columns(String, "kind", "node"),
    Column("last_run", Float, nullable=False),
    *_columns(Text, "title", "body"),
    Column("receiver", String, nullable=False),
    *_columns(Float, "made", "due"),
    Column("attempts", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", String, nullable=False),
    Column("done", Float),
)

# What a hub has to learn, in the order of its happening; see `fleet_log`. Written by triggers.
fleet_log = Table(
    "fleet_log",
    metadata,
    Column("seq", Integer, primary_key=True),
    *_columns(String, "kind", "key"),
    Column("revision", Integer, nullable=False),
    Column("nonce", LargeBinary, nullable=False, server_default=text("(randomblob(8))")),
    sqlite_autoincrement=True,
)

# One row while the site belongs to a fleet: the newest line that the hub has acknowledged.
fleet_position = Table(
    "fleet_position",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("chain", String, nullable=False),
    # State of the sending thread, for `pvebench fleet status`.
    Column("contact", Float),
    *_columns(String, "state", "process"),
)

# Chain values of some acknowledged lines, so that no other has to be computed from the first line.
fleet_marks = Table(
    "fleet_marks",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("chain", String, nullable=False),
    Column("at", Float, nullable=False),
)

_VALUES: Final = ", ".join(
    f"(SELECT value FROM samples WHERE run = runs.id AND metric = '{metric}' "  # noqa: S608 # constants
    f"AND direction = '{direction}' AND part = '{part}')"
    for metric, direction, part in NUMBERS
)
_GOOD: Final = ", ".join(f"'{outcome}'" for outcome in GOOD)


def numbers_statement(condition: str) -> str:
    """Return the statement that stores the numbers of the good runs that fulfill a condition."""
    return (
        "INSERT OR REPLACE INTO run_numbers SELECT cases.id, runs.id, runs.finished, "  # noqa: S608 # constants
        f"runs.environment, runs.outcome = 'ok', {_VALUES} FROM runs JOIN cases ON "
        f"cases.key = runs.case_key WHERE runs.outcome IN ({_GOOD}) AND {condition} ORDER BY 1, 2"
    )


_REMOVED: Final = (
    "DELETE FROM run_numbers WHERE case_id = (SELECT id FROM cases WHERE key = OLD.case_key) "
    "AND run = OLD.id"
)
_NUMBERS_TRIGGERS: Final = (
    f"CREATE TRIGGER IF NOT EXISTS run_removed AFTER DELETE ON runs BEGIN {_REMOVED}; END",
    f"CREATE TRIGGER IF NOT EXISTS run_changed AFTER UPDATE ON runs BEGIN {_REMOVED}; "
    f"{numbers_statement('runs.id = NEW.id')}; END",
)
_FLEET: Final = "EXISTS (SELECT 1 FROM fleet_position)"
_NEW_CASE: Final = "NOT EXISTS (SELECT 1 FROM runs WHERE case_key = NEW.case_key)"
# A line comes before the lines that refer to it.
_LOGGED: Final = {
    "first_run": ("BEFORE INSERT ON runs", _NEW_CASE, "'definition', NEW.case_key, 0"),
    "run": ("AFTER INSERT ON runs", "TRUE", "'run', NEW.uid, NEW.revision"),
    "correction": ("AFTER UPDATE OF revision ON runs", "TRUE", "'run', NEW.uid, NEW.revision"),
    "definition": (
        "AFTER UPDATE OF definition ON cases",
        "OLD.definition IS NOT NEW.definition",
        "'definition', NEW.key, 0",
    ),
    "environment": ("AFTER INSERT ON environments", "TRUE", "'environment', NEW.digest, 0"),
    "cycle": ("AFTER INSERT ON cycles", "TRUE", "'cycle', NEW.uid, 0"),
    "cycle_end": ("AFTER UPDATE OF finished ON cycles", "TRUE", "'cycle', NEW.uid, 0"),
    "decision": ("AFTER INSERT ON decisions", "TRUE", "'decision', NEW.id, 0"),
}
FLEET_TRIGGERS: Final = tuple(
    f"CREATE TRIGGER IF NOT EXISTS fleet_{name} {event} WHEN {_FLEET} AND {condition} BEGIN "  # noqa: S608 # constants of this file
    f"INSERT INTO fleet_log (kind, key, revision) VALUES ({line}); END"
    for name, (event, condition, line) in _LOGGED.items()
)
TRIGGERS: Final = (*FLEET_TRIGGERS, *_NUMBERS_TRIGGERS)
"""Statements that create the triggers.

The numbers of a run follow each change of its row, which every correction changes. In a fleet,
everything that the hub has to learn adds a line to `fleet_log` in its own transaction.
"""
