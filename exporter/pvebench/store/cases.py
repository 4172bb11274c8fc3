"""What is kept of each case beside its runs, so that nobody has to go through them to know it.

A case's row has its definition once, its newest run, its newest good one and how often each
outcome came; an episode's row has where one stretch in one environment begins and ends. Both
are brought up to date in the transaction that stores a run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model.definition import Definition
from pvebench.model.run import Outcome, Run
from pvebench.store.records import GOOD, Sums, summed
from pvebench.store.tables import case_outcomes, case_sums, cases, episodes, runs

Newest = tuple[float, int]
"""When a run ended, and its number."""


@dataclass(slots=True)
class _Case:
    """A row of `cases` with those of `case_outcomes`, as they are to be written.

    Attributes:
        more: what is to be added to `case_sums`.
    """

    run: Run
    first_started: float
    last: Newest
    good: Newest | None = None
    failures_in_row: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    more: Sums = field(default_factory=dict)

    def add(self, run: Run, number: int) -> None:
        # The newest is what was stored last, whatever the clock said: of a run that a clock in
        # the future dated, nobody must wait until that day for the next.
        newest = run.finished.timestamp(), number
        self.run, self.last = run, newest
        self.first_started = min(self.first_started, run.started.timestamp())
        self.outcomes[run.outcome] += 1
        if run.outcome.good:
            self.good, self.failures_in_row = newest, 0
            self.more = summed(self.more, run.samples)
        else:
            self.failures_in_row += 1


@dataclass(slots=True)
class _Episode:
    """A node's newest episode. `number`: of its row."""

    number: int
    environment: str
    finished: float


class Bookkeeping:
    """Notes runs in the order in which they are stored; `write` puts down what came of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cases: dict[str, _Case] = {}
        self._episodes: dict[str, _Episode] = {}

    def note(self, run: Run, number: int) -> None:
        """Take a run into account that was stored under `number`."""
        key = run.case.key
        if key not in self._cases:
            self._cases[key] = self._known_case(run)
        self._cases[key].add(run, number)
        self._note_episode(run)

    def _known_case(self, run: Run) -> _Case:
        row = self._connection.execute(select(cases).where(cases.c.key == run.case.key)).first()
        if row is None:
            return _Case(run, run.started.timestamp(), (float("-inf"), 0))
        mine = select(case_outcomes.c.outcome, case_outcomes.c.count)
        counts = self._connection.execute(mine.where(case_outcomes.c.case_key == run.case.key))
        return _Case(
            run,
            row.first_started,
            (row.last_finished, row.last_run),
            None if row.good_run is None else (row.good_finished, row.good_run),
            row.failures_in_row,
            Counter({Outcome(outcome): count for outcome, count in counts}),
        )

    def _note_episode(self, run: Run) -> None:
        """Lengthen the node's present episode, or begin one.

        Of a VM that did not start half of the environment is unknown, so only good runs count.
        """
        if not run.outcome.good:
            return
        node, digest = run.case.scenario.node, run.environment.digest
        present = self._episodes.get(node) or self._known_episode(node)
        finished = run.finished.timestamp()
        if present is not None and present.environment == digest:
            present.finished = max(present.finished, finished)
            self._episodes[node] = present
            return
        if present is not None:
            self._write_episode(present)
        row = insert(episodes).values(
            node=node, environment=digest, started=run.started.timestamp(), finished=finished
        )
        number = int(self._connection.execute(row.returning(episodes.c.id)).scalar_one())
        self._episodes[node] = _Episode(number, digest, finished)

    def _known_episode(self, node: str) -> _Episode | None:
        mine = select(episodes.c.id, episodes.c.environment, episodes.c.finished)
        newest = mine.where(episodes.c.node == node).order_by(episodes.c.id.desc()).limit(1)
        row = self._connection.execute(newest).first()
        return None if row is None else _Episode(row.id, row.environment, row.finished)

    def write(self) -> None:
        """Put down what has become of the cases and episodes."""
        for key, case in self._cases.items():
            self._write_case(key, case)
        for episode in self._episodes.values():
            self._write_episode(episode)

    def _write_episode(self, episode: _Episode) -> None:
        mine = update(episodes).where(episodes.c.id == episode.number)
        self._connection.execute(mine.values(finished=episode.finished))

    def _write_case(self, key: str, case: _Case) -> None:
        definition = Definition.of(case.run.case)
        good = case.good or (None, None)
        values = {
            "node": definition.node,
            "scenario": definition.scenario,
            "workload": definition.workload,
            "definition": json.dumps(definition.as_data(), sort_keys=True),
            "first_started": case.first_started,
            "last_finished": case.last[0],
            "last_run": case.last[1],
            "good_finished": good[0],
            "good_run": good[1],
            "failures_in_row": case.failures_in_row,
        }
        row = upsert(cases).values(key=key, **values)
        self._connection.execute(row.on_conflict_do_update(index_elements=["key"], set_=values))
        for outcome, count in case.outcomes.items():
            counted = upsert(case_outcomes).values(case_key=key, outcome=str(outcome), count=count)
            self._connection.execute(
                counted.on_conflict_do_update(
                    index_elements=["case_key", "outcome"], set_={"count": count}
                )
            )
        self._add_sums(key, case.more)

    def _add_sums(self, key: str, more: Sums) -> None:
        for (metric, direction, part), value in more.items():
            row = upsert(case_sums).values(
                case_key=key, metric=metric, direction=direction, part=part, value=value
            )
            self._connection.execute(
                row.on_conflict_do_update(
                    index_elements=["case_key", "metric", "direction", "part"],
                    set_={"value": case_sums.c.value + row.excluded.value},
                )
            )


def reclassify(connection: Connection, number: int, outcome: Outcome, reason: str) -> None:
    """Give a stored run another outcome or reason, and its case the newest good run that is left.

    Episodes stay: the environment was there, whatever the run's numbers are worth. So do the
    counts of outcomes and the sums: they are published as counters, which do not go back.
    """
    row = connection.execute(select(runs).where(runs.c.id == number)).one()
    changed = update(runs).where(runs.c.id == number)
    connection.execute(changed.values(outcome=str(outcome), reason=reason))
    if row.outcome == outcome:
        return
    mine = runs.c.case_key == row.case_key
    newest = select(runs.c.id, runs.c.finished).where(mine, runs.c.outcome.in_(GOOD))
    good = connection.execute(newest.order_by(runs.c.id.desc()).limit(1)).first()
    since = select(func.count()).where(mine, runs.c.id > (good.id if good else 0))
    connection.execute(
        update(cases)
        .where(cases.c.key == row.case_key)
        .values(
            good_run=good.id if good else None,
            good_finished=good.finished if good else None,
            failures_in_row=since.scalar_subquery(),
        )
    )
