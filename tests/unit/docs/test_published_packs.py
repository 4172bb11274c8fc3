"""The packs that reproduce published tests: each names its source, and plans what can be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pvebench.cli.main import cli
from pvebench.config import Pack, load_pack
from pvebench.drivers.storages import KINDS
from pvebench.errors import ConfigError
from pvebench.scheduler.plan import expand, make_plan
from testing.packs import ROOT
from testing.published import PACKS

pytestmark = pytest.mark.lab  # they measure with its tools


def load(name: str) -> Pack:
    return load_pack(ROOT / "scenarios" / f"{name}.yaml")


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
