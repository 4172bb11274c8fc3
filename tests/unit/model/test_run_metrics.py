"""The table of all numbers of a run, and that nothing else knows them by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pvebench
from pvebench.metrics.state_metrics import CATALOG
from pvebench.model.figure import Exported, Source
from pvebench.model.run_metrics import FIGURES, JUDGED, of_source

EXPORTER = Path(pvebench.__file__).parents[1]
OTHER_WORDS = {"bandwidth", "bytes", "disturbed", "iops", "operations", "runtime", "seeks", "warm"}
OTHER_WORDS |= {"window"}
"""Names that are also words of settings, columns, units or tools."""
OWN_NAMES = {
    "model/run_metrics.py": "the table",
    "model/consistency.py": "names of plausibility checks",
    "pvebench_lab/references/columns.py": "columns of published tables",
    "pvebench_lab/references/library.py": "columns of published tables",
    "workloads/fio_samples.py": "keys of fio's output",
    "pvebench_lab/simulated/simulated_tools.py": "keys of fio's output",
}


def literals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_other_module_spells_the_name_of_a_figure() -> None:
    unclear = set(FIGURES) - OTHER_WORDS
    found = {
        str(path.relative_to(EXPORTER)).removeprefix("pvebench/"): sorted(
            unclear & set(literals(path))
        )
        for path in EXPORTER.glob("pvebench*/**/*.py")
        if unclear & set(literals(path))
    }
    assert set(found) == set(OWN_NAMES), found


def test_each_figure_has_a_metric_and_a_column_of_its_own() -> None:
    exported = [one for one in FIGURES.values() if isinstance(one, Exported)]
    assert {one.metric.name for one in exported} <= set(CATALOG)
    assert len({one.metric.name for one in exported}) == len(exported)
    columns = [one.column[0] for one in FIGURES.values() if one.column[0]]
    assert len(set(columns)) == len(columns)


def test_the_sources_share_no_figure() -> None:
    assert sum(len(of_source(source)) for source in Source) == len(FIGURES)


@pytest.mark.parametrize("name", JUDGED)
def test_a_judged_figure_is_measured(name: str) -> None:
    assert FIGURES[JUDGED[name].source.name] is JUDGED[name].source
