"""The packs that reproduce published tests, and docs/published.md with its report about them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from pvebench.cli.main import cli
from pvebench.drivers.storages import KINDS
from pvebench.errors import ConfigError
from pvebench.scheduler.plan import expand, make_plan, select
from testing.packs import ROOT
from testing.published import (
    KIND_OF,
    NOT_YET,
    PACKS,
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

pytestmark = pytest.mark.lab  # they measure with its tools


@pytest.mark.parametrize("name", PACKS)
def test_a_published_pack_names_its_source_and_has_a_row_of_the_host(name: str) -> None:
    pack = load(name)
    assert name[-4:] in pack.source
    assert pack.host


@pytest.mark.parametrize("name", PACKS)
def test_each_plans_time_and_bytes_where_its_storages_are(name: str) -> None:
    pack = load(name)
    storages = {str(storage): KINDS["dir"].holds for storage in pack.axes["storage"]}
    plan = make_plan(expand(pack, node="lab", storages=storages), seed=1)
    assert plan.cases
    assert plan.seconds > 60
    assert plan.bytes_written > 0
    assert {case.scenario.disk.on_host for case in plan.cases} == {False, True}


def test_rows_on_storages_that_are_not_here_are_left_out_with_that_reason() -> None:
    matrix = expand(load("lvmcache-2019"), node="lab", storages={"lvm-off": KINDS["dir"].holds})
    assert {case.scenario.storage for case in matrix.cases} == {"lvm-off"}
    assert {left.reason for left in matrix.excluded} == {
        "boot needs a VM",
        "storage lvm-writeback is not configured on lab",
        "storage lvm-writethrough is not configured on lab",
    }


def test_a_pack_without_any_of_its_storages_is_an_error() -> None:
    with pytest.raises(ConfigError, match="is not configured on lab"):
        expand(load("zfs-mdadm-2016"), node="lab", storages={"local": KINDS["dir"].holds})


def test_packs_lists_them_with_their_sources() -> None:
    done = CliRunner().invoke(cli, ["packs", str(ROOT / "scenarios"), "--format=json"])
    rows = {row["pack"]: row for row in json.loads(done.output)}
    assert set(PACKS) <= set(rows)
    assert all(rows[name]["source"] for name in PACKS)
    assert rows["quick"]["source"] == ""


def test_eight_fio_tests_and_ioping_run_on_twenty_configurations_and_the_to_do_list() -> None:
    pack = load("cache-bus-format-2017")
    matrix = expand(pack, node="lab", storages={"local": KINDS["dir"].holds})
    slugs = {case.scenario.slug for case in matrix.cases}
    assert len(slugs) == 1 + 20 + 2
    assert len({case.workload.slug for case in matrix.cases}) == 9
    assert Path(pack.path).name == "cache-bus-format-2017.yaml"


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
