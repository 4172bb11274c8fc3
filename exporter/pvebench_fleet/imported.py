"""Storing runs of other machines, apart from own ones: a database holds one kind of results.

A node's name keeps machines apart within the database. Runs of a node that has others already are
stored only if the file continues them: it has one of the stored runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.errors import StoreError
from pvebench.model.environment import Environment
from pvebench.store.engine import writing
from pvebench.store.records import StoredRun, definitions_of
from pvebench.store.store import IMPORTED, SIMULATED, Store
from pvebench.store.tables import cycles, runs
from pvebench.store.writing import BATCH, add_numbers, insert_runs, newest_number, note_environments


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A run with everything that it refers to.

    Attributes:
        run: its number is that of the other database.
        cycle: row of `cycles`.
        revision: number of its corrections.
    """

    run: StoredRun
    environment: Environment
    cycle: Mapping[str, Any]
    revision: int


@dataclass(slots=True)
class ImportCount:
    """Number of runs of an import.

    Attributes:
        added: stored by it.
        known: stored before; they stay as they are.
        older: of a known node, but from before its stored ones: removed here, or never imported.
    """

    added: int = 0
    known: int = 0
    older: int = 0
    nodes: set[str] = field(default_factory=set)


def add_imported(store: Store, imported: Iterable[ImportedRun], *, simulated: bool) -> ImportCount:
    """Store runs of other machines that are not stored yet, all or none.

    Args:
        imported: in the order in which they were stored there.

    Raises:
        StoreMixed: the database has own results. StoreError: a node has runs of another machine.
    """
    with writing(store.engine) as connection:
        store.claim(connection, SIMULATED if simulated else IMPORTED)
        return _add(connection, imported)


def _add(connection: Connection, imported: Iterable[ImportedRun]) -> ImportCount:
    remaining = iter(imported)
    nodes, count = _Nodes(connection), ImportCount()
    first = number = newest_number(connection)
    while batch := list(itertools.islice(remaining, BATCH)):
        new = nodes.new(batch, count)
        _insert(connection, new, number)
        number += len(new)
    add_numbers(connection, first + 1)
    return count


class _Nodes:
    """Nodes with stored runs, and whether the import continues them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        query = select(runs.c.node, func.max(runs.c.finished)).group_by(runs.c.node)
        self._newest = {node: float(end) for node, end in connection.execute(query)}
        self._continued = set[str]()

    def new(self, batch: Sequence[ImportedRun], count: ImportCount) -> list[ImportedRun]:
        """Return the runs of a batch to store, each uid once; count all."""
        uids = [imported_run.run.uid for imported_run in batch]
        query = select(runs.c.uid, runs.c.node).where(runs.c.uid.in_(uids))
        known = {row.uid: row.node for row in self._connection.execute(query)}
        imported_runs: list[ImportedRun] = []
        for run in batch:
            if (node := known.get(run.run.uid)) is not None:
                count.known += 1
                self._continued.add(node)
            elif self._is_older(run.run):
                count.older += 1
            else:
                known[run.run.uid] = run.run.node
                count.added += 1
                count.nodes.add(run.run.node)
                imported_runs.append(run)
        return imported_runs

    def _is_older(self, run: StoredRun) -> bool:
        """Return whether a run precedes those of its node.

        Raises:
            StoreError: it follows them, but they may be another machine's.
        """
        newest = self._newest.get(run.node)
        if newest is None or run.node in self._continued:
            return False
        if run.finished.timestamp() <= newest:
            return True
        raise StoreError(
            f"node {run.node} has other runs here, and the file has none of them",
            cause="two machines have the same name",
            next_step=f"import it under another name: --rename {run.node}=NAME",
        )


def _insert(connection: Connection, new: Sequence[ImportedRun], number: int) -> None:
    if not new:
        return
    note_environments(connection, [(one.environment, one.run) for one in new])
    rows = list({one.cycle["uid"]: dict(one.cycle) for one in new}.values())
    connection.execute(upsert(cycles).on_conflict_do_nothing(), rows)
    stored = definitions_of(connection, {one.run.case_key for one in new})
    numbered = [
        replace(one.run, number=at, definition=stored.get(one.run.case_key, one.run.definition))
        for at, one in enumerate(new, start=number + 1)
    ]
    insert_runs(connection, numbered)
    for run, imported_run in zip(numbered, new, strict=True):
        if imported_run.revision:
            row = update(runs).where(runs.c.id == run.number)
            connection.execute(row.values(revision=imported_run.revision))
