"""One judging of a node: its results as a source of verdicts, and the storing of the verdicts.

All in one transaction, which locks the node: a worker that dies leaves nothing, and one that only
seemed dead cannot commit.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from sys import intern
from typing import Any, Final

from psycopg.types.json import Jsonb

from pvebench.analysis.concurrent_changes import RunValues
from pvebench.log import log
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run import Outcome
from pvebench.model.run_metrics import NUMBERS, Number
from pvebench.store.changes import Decision, KnownChange
from pvebench.store.live_results import Listener, View
from pvebench.store.records import CaseNumbers, CaseRecord, StoredRun
from pvebench.store.tables import GOOD
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import verdicts_data
from pvebench_fleet.hub.store.site_transaction import Connection
from pvebench_fleet.node_effects import NodeEffect, node_effects

CHUNK: Final = 200
"""Cases whose runs are read by one query."""
LONGEST_PAUSE: Final = "30min"
"""Time after which PostgreSQL ends the transaction of a worker that asks nothing."""
_VERDICT: Final = (
    *("direction", "metric", "state", "reason", "change_ratio", "low_ratio", "high_ratio"),
    *("p_value", "runs", "more_runs", "baseline", "baseline_runs", "accepted_changes"),
)
# The sites in turn: neither many nodes nor a judging that kills its worker keeps others waiting.
CHOOSE: Final = """
UPDATE node_state SET tried = %(now)s WHERE (site, node) = (
    SELECT n.site, n.node
    FROM node_state n JOIN arrived a USING (site, node) JOIN site s USING (site)
    WHERE s.state <> 'forgotten' AND a.count > n.judged AND (n.due <= %(now)s OR EXISTS (
        SELECT FROM environment e
        WHERE e.site = n.site AND e.node = n.node AND e.env > n.newest_env AND n.failed = ''))
    ORDER BY (SELECT max(m.tried) FROM node_state m WHERE m.site = n.site), n.tried, n.due
    FOR UPDATE OF n SKIP LOCKED LIMIT 1
) RETURNING site, node
"""
_LOCK: Final = """
SELECT n.site, n.node, n.known, a.count AS arrived, s.name AS site_name
FROM node_state n JOIN arrived a USING (site, node) JOIN site s USING (site)
WHERE n.site = %(site)s AND n.node = %(node)s AND a.count > n.judged FOR UPDATE OF n SKIP LOCKED
"""
# From nothing: corrected and undone runs need no case of their own. Cases whose runs all expired
# keep their row.
_CASES: Final = """
INSERT INTO case_state
SELECT c.case_id, c.site, newest.number, newest.finished, newest.outcome, newest.env,
    (SELECT jsonb_object_agg(outcome, count) FROM (SELECT outcome, count(*) FROM run r
        WHERE r.site = c.site AND r.case_id = c.case_id GROUP BY outcome) counted),
    good.finished, good.shape, good.vals
FROM "case" c
CROSS JOIN LATERAL (SELECT * FROM run r WHERE r.site = c.site AND r.case_id = c.case_id
    ORDER BY finished DESC, number DESC LIMIT 1) newest
LEFT JOIN LATERAL (SELECT * FROM run r WHERE r.site = c.site AND r.case_id = c.case_id
    AND outcome = ANY(%s) ORDER BY finished DESC, number DESC LIMIT 1) good ON true
WHERE c.site = %s AND c.node = %s
ON CONFLICT (case_id) DO UPDATE SET number = excluded.number, finished = excluded.finished,
    outcome = excluded.outcome, env = excluded.env, counts = excluded.counts,
    good_finished = coalesce(excluded.good_finished, case_state.good_finished),
    good_shape = coalesce(excluded.good_shape, case_state.good_shape),
    good_vals = coalesce(excluded.good_vals, case_state.good_vals)
"""


class NodeTransaction:
    """Results of a node, as `judge_input.RunSource` with all its parts."""

    def __init__(self, connection: Connection, row: Mapping[str, Any]) -> None:
        self._connection = connection
        self.site, self._arrived = int(row["site"]), int(row["arrived"])
        self.site_name, self.node = str(row["site_name"]), str(row["node"])
        self._known: list[dict[str, Any]] = row["known"]
        self._ids: dict[str, int] = {}
        self._run(f"SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_PAUSE}'")
        # Cases, then runs, then environments: what arrives meanwhile is judged next time.
        self._run(_CASES, [*GOOD], self.site, self.node)
        self._cases = self._read_cases()

    @classmethod
    def of(cls, connection: Connection, node: Mapping[str, Any]) -> NodeTransaction | None:
        """Lock a node of CHOOSE; None: another worker judges it."""
        row = connection.execute(_LOCK, node).fetchone()
        return None if row is None else cls(connection, row)

    def _run(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(query.encode(), values, binary=True)
        return cursor.fetchall() if cursor.description else []

    # --- Source of verdicts.

    @property
    def store(self) -> NodeTransaction:
        """The stored runs."""
        return self

    @property
    def decisions(self) -> NodeTransaction:
        """Decisions about baselines."""
        return self

    @cached_property
    def now(self) -> View:
        """State of the node's cases, and its environments."""
        version = max((case.last.number for case in self._cases.values()), default=0)
        periods = [
            EnvironmentPeriod(
                node=self.node,
                environment=row["digest"],
                slug=row["slug"],
                facts=row["facts"],
                started=_moment(0.0),
                finished=_moment(0.0),
            )
            for row in self._environments.values()
        ]
        return View(version=version, cases=self._cases, periods=periods)

    @cached_property
    def _environments(self) -> dict[int, dict[str, Any]]:
        query = "SELECT env, digest, node, slug, facts FROM environment WHERE site = %s"
        return {row["env"]: row for row in self._run(query, self.site)}

    def _read_cases(self) -> dict[str, CaseRecord]:
        rows = self._run(
            "SELECT c.case_id, c.key, c.definition, c.first_started, s.number, s.finished, "
            's.outcome, s.counts FROM case_state s JOIN "case" c USING (case_id) '
            "WHERE c.site = %s AND c.node = %s AND c.definition IS NOT NULL ORDER BY case_id",
            *(self.site, self.node),
        )
        cases: dict[str, CaseRecord] = {}
        for row in rows:
            try:
                cases[row["key"]] = _record(row)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                log.warning("definition of a case unusable", case=row["key"], reason=str(error))
            else:
                self._ids[row["key"]] = row["case_id"]
        return cases

    def listen(self, listener: Listener) -> None:
        """Ignore the listener: within a judging no run is added."""

    def numbers_by_case(self, *, until: int) -> Iterator[CaseNumbers]:
        """Yield the good runs of each case; without any, `until` is 0."""
        if until == 0:
            return
        query, keys = self._numbers_query(NUMBERS), {id_: key for key, id_ in self._ids.items()}
        ids = sorted(keys)
        for begin in range(0, len(ids), CHUNK):
            rows = self._run(query, self.site, ids[begin : begin + CHUNK], [*GOOD])
            yield from (self._numbers(keys[row["case_id"]], row, NUMBERS) for row in rows)

    def _numbers_query(self, requested: Sequence[Number]) -> str:
        """Return the query of columns by case; a number has its own place in each shape."""
        places: list[list[tuple[int, int]]] = [[] for _ in requested]
        query = "SELECT shape, numbers FROM shape WHERE site = %s ORDER BY shape"
        for row in self._run(query, self.site):
            found = {tuple(number[:3]): at for at, number in enumerate(row["numbers"], 1)}
            for number, place in zip(requested, places, strict=True):
                if number in found:
                    place.append((int(row["shape"]), found[number]))
        values = [_value(place) for place in places]
        columns = ", ".join(f"{value} AS v{at}" for at, value in enumerate(values))
        arrays = ", ".join(
            f"array_agg(coalesce(v{at}, 'NaN')) AS v{at}" for at in range(len(values))
        )
        return (
            "SELECT case_id, array_agg(number) AS numbers, array_agg(finished) AS finished, "  # noqa: S608 # constants
            f"array_agg(env) AS envs, array_agg(outcome = 'ok') AS ok, {arrays} FROM ("
            f"SELECT case_id, number, finished, env, outcome, {columns} FROM run WHERE site = %s "
            "AND case_id = ANY(%s) AND outcome = ANY(%s) "
            f"AND num_nonnulls({', '.join(values)}) > 0 ORDER BY case_id, number) runs "
            "GROUP BY case_id ORDER BY case_id"
        )

    def _numbers(
        self, key: str, row: Mapping[str, Any], requested: Sequence[Number]
    ) -> CaseNumbers:
        if not self._environments.keys() >= set(row["envs"]):
            del self.__dict__["_environments"]  # one came after the last look
        digests = {env: intern(one["digest"]) for env, one in self._environments.items()}
        columns = {number: array("d", row[f"v{at}"]) for at, number in enumerate(requested)}
        return CaseNumbers(
            key,
            array("q", row["numbers"]),
            array("d", row["finished"]),
            [digests[env] for env in row["envs"]],
            bytearray(row["ok"]),
            {number: one for number, one in columns.items() if not all(map(math.isnan, one))},
        )

    def oldest_good_runs(self) -> dict[str, float]:
        """Return nothing: no run is removed within a judging."""
        return {}

    def undirected(
        self, case_key: str, metrics: Collection[str], *, at: float, until: float, most: int
    ) -> tuple[list[RunValues], list[RunValues]]:
        """Return numbers without a direction of the newest good runs before and after `at`."""
        sides = (("r.finished < %s", (at,)), ("r.finished BETWEEN %s AND %s", (at, until)))
        found: list[list[RunValues]] = []
        for condition, times in sides:
            rows = self._run(
                "SELECT vals, numbers FROM run r JOIN shape USING (shape) WHERE r.site = %s "  # noqa: S608 # constants
                f"AND case_id = %s AND outcome = ANY(%s) AND {condition} "
                "ORDER BY finished DESC LIMIT %s",
                *(self.site, self._ids[case_key], [*GOOD], *times, most),
            )
            runs = (_undirected(row, metrics) for row in rows)
            found.append([run for run in runs if run])
        return found[0], found[1]

    # --- Decisions of the site, and known changes.

    @cached_property
    def _decisions(self) -> list[Decision]:
        query = "SELECT * FROM decision WHERE site = %s ORDER BY number"
        return [
            Decision(
                made=_moment(row["made"]),
                kind=row["kind"],
                cases=row["cases"],
                until=_moment(row["until"]),
                reason=row["reason"],
            )
            for row in self._run(query, self.site)
        ]

    def all(self) -> list[Decision]:
        """Return the decisions, oldest first."""
        return self._decisions

    @property
    def known_changes(self) -> NodeChanges:
        """Known changes of the node."""
        return NodeChanges(self._known)

    # --- Result.

    def save(self, verdicts: Verdicts, *, now: float, due: float, seconds: float) -> None:
        """Store the verdicts and the cursor.

        Args:
            now, due: UNIX seconds of this judging, and of the next one at the latest.
            seconds: duration of the judging.
        """
        data = verdicts_data(verdicts)
        place = self.site, self.node
        rows = [
            (*place, at, self._ids[one["case_key"]], *(one[name] for name in _VERDICT))
            for at, one in enumerate(data.pop("verdicts"))
        ]
        self._replace("verdict", rows)
        changes = zip(verdicts.changes, data.pop("changes"), strict=True)
        self._replace(
            "change",
            [
                (
                    *(
                        *place,
                        at,
                        change.id,
                        change.begin,
                        change.state,
                        change.severity,
                        change.regression,
                    ),
                    *(fields["moves"][0]["change_ratio"], json.dumps(fields)),
                )
                for at, (change, fields) in enumerate(changes)
            ],
        )
        effects = [
            effect
            for report in verdicts.reports
            for effect in node_effects([v.history for v in report.verdicts], report.events)
        ]
        self._replace("effect", [(*place, at, *_row(effect)) for at, effect in enumerate(effects)])
        newest = max(
            (env for env, row in self._environments.items() if row["node"] == self.node), default=0
        )
        self._run(
            "UPDATE node_state SET judged = %s, due = %s, newest_env = %s, judged_at = %s, "
            "seconds = %s, failed = '', known = %s::jsonb, summary = %s::json "
            "WHERE site = %s AND node = %s",
            *(self._arrived, due, newest, now, seconds, json.dumps(self._known), json.dumps(data)),
            *place,
        )

    def _replace(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        query = f"DELETE FROM {table} WHERE site = %s AND node = %s"  # noqa: S608 # constants
        self._run(query, self.site, self.node)
        # COPY refuses tables with row-level security.
        query = f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(rows[0] if rows else ()))})"  # noqa: S608 # constants
        with self._connection.cursor() as cursor:
            cursor.executemany(query.encode(), rows)


class NodeChanges:
    """Known changes of a node; `keep` changes the list, which the judging stores."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def all(self) -> list[KnownChange]:
        """Return all known changes, oldest first."""
        changes = [KnownChange(**{**row, "cases": frozenset(row["cases"])}) for row in self._rows]
        return sorted(changes, key=lambda change: (change.since, change.id))

    def keep(self, known: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Store changes; delete those to forget."""
        rows = {row["id"]: row for row in self._rows}
        rows |= {change.id: {**asdict(change), "cases": sorted(change.cases)} for change in known}
        for name in forget:
            rows.pop(name, None)
        self._rows[:] = rows.values()


def _row(effect: NodeEffect) -> tuple[Any, ...]:
    different = [[item.fact, item.before, item.after] for item in effect.differences]
    numbers = effect.effect, effect.error, effect.own, effect.cases
    return effect.time, Jsonb(different), effect.figure, Jsonb(effect.group), *numbers


def _record(row: Mapping[str, Any]) -> CaseRecord:
    """Return the state of a case; of its newest run only what verdicts use."""
    definition = Definition.from_data(row["definition"])
    last = StoredRun(
        number=row["number"],
        uid="",
        case_key=row["key"],
        node=definition.node,
        scenario=definition.scenario,
        workload=definition.workload,
        definition=definition,
        cycle="",
        environment="",
        started=_moment(row["finished"]),
        finished=_moment(row["finished"]),
        outcome=Outcome(row["outcome"]),
        reason="",
    )
    return CaseRecord(
        last=last,
        good=None,
        outcomes={Outcome(name): count for name, count in row["counts"].items()},
        failures_in_row=0,
        first_started=_moment(row["first_started"]),
    )


def _undirected(row: Mapping[str, Any], metrics: Collection[str]) -> RunValues:
    return {
        (metric, part): value
        for (metric, direction, part, _), value in zip(row["numbers"], row["vals"], strict=True)
        if metric in metrics and not direction
    }


def _value(places: Sequence[tuple[int, int]]) -> str:
    """Return an SQL expression for a number of a run, by (shape, place in it)."""
    if not places:
        return "NULL::float8"
    branches = " ".join(f"WHEN {shape} THEN {place}" for shape, place in places)
    return f"vals[CASE shape {branches} END]"


def _moment(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
