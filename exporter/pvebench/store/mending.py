"""Replacing numbers of stored runs by what their raw output really says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine, delete, select
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model.run import Outcome, Sample
from pvebench.store.cases import reclassify
from pvebench.store.engine import reading, writing
from pvebench.store.records import GOOD, StoredRun
from pvebench.store.rows import definitions_of, sample_row, with_samples
from pvebench.store.tables import cases, cycles, runs, samples

BATCH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """What a stored run is to become.

    Attributes:
        gone: samples that it no longer has.
        put: samples that it has instead, or anew.
    """

    number: int
    gone: tuple[Sample, ...]
    put: tuple[Sample, ...]
    outcome: Outcome
    reason: str


class Mending:
    """Goes through all runs. `Store.mending` is one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def batches(self, pack: str | None) -> Iterator[list[StoredRun]]:
        """Yield the runs of one pack, or all, in the order of their numbers, with samples."""
        query = select(runs).order_by(runs.c.id).limit(BATCH)
        if pack is not None:
            query = query.join(cycles, cycles.c.uid == runs.c.cycle).where(cycles.c.pack == pack)
        after = 0
        while True:
            with reading(self._engine) as connection:
                batch = with_samples(connection, query.where(runs.c.id > after))
            if not batch:
                return
            yield batch
            after = batch[-1].number

    def newest_good(
        self, place: tuple[str, str, str], conditions: str, *, before: StoredRun, age: timedelta
    ) -> StoredRun | None:
        """Return the newest good run of a place that was there when `before` was made.

        Args:
            place, conditions: of its definition, the latter as `device_conditions`.
            age: how much older than `before` it may be.
        """
        node, scenario, workload = place
        there = select(cases.c.key).where(
            cases.c.node == node, cases.c.scenario == scenario, cases.c.workload == workload
        )
        with reading(self._engine) as connection:
            known = definitions_of(connection, connection.scalars(there).all())
            keys = [key for key, one in known.items() if one.device_conditions == conditions]
            query = (
                select(runs)
                .where(runs.c.case_key.in_(keys), runs.c.outcome.in_(GOOD))
                .where(runs.c.id < before.number)
                .where(runs.c.finished > (before.finished - age).timestamp())
                .order_by(runs.c.finished.desc())
                .limit(1)
            )
            found = with_samples(connection, query)
        return found[0] if found else None

    def apply(self, mended: Sequence[Mended]) -> None:
        """Store what runs have become, all or none; doing it again changes nothing."""
        with writing(self._engine) as connection:
            for one in mended:
                for sample in one.gone:
                    row = sample_row(one.number, sample)
                    key = [samples.c[name] == row[name] for name in _KEY]
                    connection.execute(delete(samples).where(*key))
                for sample in one.put:
                    row = sample_row(one.number, sample)
                    new = {name: row[name] for name in ("value", "unit")}
                    added = upsert(samples).values(row)
                    connection.execute(added.on_conflict_do_update(index_elements=_KEY, set_=new))
                reclassify(connection, one.number, one.outcome, one.reason)


_KEY: Final = ("run", "metric", "direction", "part")
