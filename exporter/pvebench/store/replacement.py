"""Corrections of stored runs, as a later version of a parser reads their output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine, delete, select
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model.run import Outcome, Sample
from pvebench.store.engine import reading, writing
from pvebench.store.records import StoredRun, definitions_of, sample_row, with_samples
from pvebench.store.tables import GOOD, cases, cycles, runs, samples
from pvebench.store.writing import reclassify

REPLACE_BATCH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedRun:
    """Corrections of a stored run.

    Attributes:
        gone: samples to remove.
        put: samples to replace or add.
    """

    number: int
    gone: tuple[Sample, ...]
    put: tuple[Sample, ...]
    outcome: Outcome
    reason: str


class RunReplacement:
    """Iterates over all runs and corrects them. `Store.replacement` is one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def batches(self, pack: str | None) -> Iterator[list[StoredRun]]:
        """Yield the runs of one pack, or all, in the order of their numbers, with samples."""
        query = select(runs).order_by(runs.c.id).limit(REPLACE_BATCH)
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
        """Return the newest good run of a place that was stored before `before`.

        Args:
            place, conditions: of its definition, the latter as `device_conditions`.
            age: how much older than `before` it may be.
        """
        node, scenario, workload = place
        keys_of_place = select(cases.c.key).where(
            cases.c.node == node, cases.c.scenario == scenario, cases.c.workload == workload
        )
        with reading(self._engine) as connection:
            definitions = definitions_of(connection, connection.scalars(keys_of_place).all())
            keys = [
                key
                for key, definition in definitions.items()
                if definition.device_conditions == conditions
            ]
            query = (
                select(runs)
                .where(runs.c.case_key.in_(keys), runs.c.outcome.in_(GOOD))
                .where(runs.c.id < before.number)
                .where(runs.c.finished > (before.finished - age).timestamp())
                .order_by(runs.c.finished.desc())
                .limit(1)
            )
            matches = with_samples(connection, query)
        return matches[0] if matches else None

    def apply(self, corrections: Sequence[ReplacedRun]) -> None:
        """Store corrections of runs, all or none; repeating it changes nothing."""
        with writing(self._engine) as connection:
            for correction in corrections:
                for sample in correction.gone:
                    row = sample_row(correction.number, sample)
                    key = [samples.c[name] == row[name] for name in _KEY]
                    connection.execute(delete(samples).where(*key))
                for sample in correction.put:
                    row = sample_row(correction.number, sample)
                    new = {name: row[name] for name in ("value", "unit")}
                    added = upsert(samples).values(row)
                    connection.execute(added.on_conflict_do_update(index_elements=_KEY, set_=new))
                reclassify(connection, correction.number, correction.outcome, correction.reason)


_KEY: Final = ("run", "metric", "direction", "part")
