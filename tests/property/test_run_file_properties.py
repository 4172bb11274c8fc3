"""Whatever runs are stored: another machine reads all of them from a file, and nothing else."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.store.store import Store
from testing.run_files import exported, imported, lines_of, store_at
from testing.stored_runs import FIRST, SECOND, run
from testing.stores import TemporaryStore

words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2000, categories=("L", "N", "S")))
sizes = st.floats(1e-18, 1e9)  # larger rates are refused
numbers = st.just(0.0) | sizes
samples = st.builds(
    Sample,
    st.sampled_from(["iops", "bandwidth", "clat_percentile"]),
    st.sampled_from([None, *Direction]),
    numbers,
    st.sampled_from(Unit),
    words.map(lambda text: text[:20]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    count = draw(st.integers(1, 6))
    versions = draw(st.lists(words, min_size=1, max_size=3))
    runs = []
    for at in range(count):
        made = run(at, draw(st.sampled_from([FIRST, SECOND])), draw(st.sampled_from(Outcome)))
        facts = {"kernel": draw(st.sampled_from(versions)), draw(words) or "fio": "3.39"}
        found = {(s.metric, s.direction, s.part): s for s in draw(st.lists(samples, max_size=5))}
        late = timedelta(seconds=draw(st.floats(0, 1e6)))
        runs.append(
            replace(
                made,
                uid=f"uid {at}",
                environment=Environment(node="lab", facts=facts),
                reason=draw(words),
                samples=tuple(found.values()),
                finished=made.finished + late,
                pass_number=draw(st.integers(0, 9)),
            )
        )
    return runs


def content(store: Store) -> tuple[object, ...]:
    runs = store.runs(limit=100)
    return runs, store.cases(), store.periods(), [*map(dict, store.environments())]


@settings(max_examples=8, deadline=None)
@given(histories(), st.sampled_from([".ndjson", ".ndjson.gz"]))
def test_a_file_of_runs_loses_changes_and_adds_nothing(history: list[Run], ending: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here, there = store_at(folder / "a", history), TemporaryStore(folder / "b.db")
        path = exported(here, folder / f"runs{ending}")
        assert imported(path, there).added == len(history)
        assert content(here) == content(there)
        assert exported(there, folder / f"again{ending}").read_bytes() == path.read_bytes()
        count = imported(path, there)
        assert (count.added, count.known) == (0, len(history))
        assert content(here) == content(there)
        anonymous = lines_of(exported(here, folder / "anonymous.ndjson", anonymous=True))
        runs = [line for line in anonymous if line["kind"] == "run"]
        assert [line["values"] for line in runs] == [
            [sample.value for sample in one.samples]
            for one in sorted(here.runs(limit=100), key=lambda one: one.number)
        ]
        for store in (here, there):
            store.close()
