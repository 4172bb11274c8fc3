"""docs/published.md and its report: their tables match the packs and the published tables."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pvebench.drivers.storages import KINDS
from pvebench.scheduler.plan import expand, select
from testing.packs import ROOT
from testing.published import (
    KIND_OF,
    NOT_YET,
    PLACES,
    REPORT,
    SECTIONS,
    WHERE,
    Row,
    load,
    rows,
    section,
    small,
    small_rows,
)

ROWS = {row.key: row for row in rows()}
SMALL = [row for place in PLACES for row in small_rows(place)]


def test_every_row_of_every_pack_has_a_place_or_a_reason_and_no_other_has() -> None:
    assert set(WHERE) == set(ROWS)
    for row in ROWS.values():
        assert row.place or WHERE[row.key].startswith(("never: ", NOT_YET))


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tables_are_as_the_packs_are_now(name: str) -> None:
    """Update them with: PYTHONPATH=exporter:tests .venv/bin/python -m testing.published."""
    present, expected = section(name)
    assert present == expected


def test_every_place_is_explained_with_a_target_that_is_there() -> None:
    text = REPORT.read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for place in {row.place for row in ROWS.values()} - {""}:
        assert f"| {place} |" in text
        target = PLACES[place].strip("`").removeprefix("make ")
        assert PLACES[place] in text
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row.place])
def test_what_is_tried_of_a_row_has_each_scenario_and_each_workload(
    key: tuple[str, str, str],
) -> None:
    row: Row = ROWS[key]
    sample = row.sample()
    assert {one.scenario.slug for one in sample} == {one.scenario.slug for one in row.cases}
    assert {one.workload.slug for one in sample} == {one.workload.slug for one in row.cases}


@pytest.mark.parametrize("row", SMALL, ids=lambda row: "/".join(row.key))
def test_the_words_of_a_small_run_select_the_sample_of_the_row(row: Row) -> None:
    words = small(row)
    pack = load(row.pack, float(words[words.index("--scale") + 1]))
    only = [slug for word, slug in pairwise(words) if word == "--only"]
    (kind,) = KIND_OF.get(row.storage, ("loop" if "hdparm" in row.tools else "dir",))
    matrix = expand(pack, node="lab", storages={row.storage: KINDS[kind].holds})
    cases = select(matrix, only=only).cases
    assert {case.slug for case in cases} == {case.slug for case in row.sample()}
