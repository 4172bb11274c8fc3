"""Durability of a configuration: verdict, storage and key."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pvebench.cli.main import run_cli
from pvebench.metrics.exposition import Page
from pvebench.model.durability import (
    Barrier,
    Durability,
    Durable,
    KnownDurability,
    Survival,
    Touch,
    durability_key,
    durable_of,
)
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.views.pages import case_view
from testing.durabilities import DURABLE
from testing.metrics_page import snapshot_of
from testing.packs import ROOT, SMALL, write_pack
from testing.simulated_results import case
from testing.simulations import simulate


def test_it_survives_json_unchanged() -> None:
    assert Durability.from_json(DURABLE.to_json()) == DURABLE


@pytest.mark.parametrize(
    ("change", "durable"),
    [
        ({}, True),
        ({"torn": 1}, False),
        ({"damaged": 1}, False),
        ({"broken": 1}, False),
        (
            {"power": (Survival(sync=Barrier.FLUSH, touch=Touch.FIRST, written=16, found=15),)},
            False,
        ),
        ({"killed": (Survival(sync=Barrier.FUA, touch=Touch.FIRST, written=16, found=0),)}, False),
        ({"killed": (Survival(sync=Barrier.NONE, touch=Touch.FIRST, written=16, found=0),)}, True),
    ],
)
def test_only_lost_flushed_records_torn_blocks_and_damage_are_not_durable(
    change: dict[str, int], durable: bool
) -> None:
    assert replace(DURABLE, **change).durable is durable  # type: ignore[arg-type] # by name


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"format": "raw", "preallocation": "off"}, "raw.none"),
        ({"format": "qcow2", "preallocation": "metadata"}, "qcow2.none"),
        ({"format": "qcow2", "preallocation": "full", "chain": "0"}, "qcow2.none"),
        ({"format": "qcow2", "preallocation": "off"}, "qcow2.preallocation-off.none"),
        ({"format": "qcow2", "preallocation": "metadata", "chain": "3"}, "qcow2.chain.none"),
        ({"format": "qcow2", "backing": "1"}, "qcow2.backing.none"),
    ],
)
def test_the_key_has_what_durability_depends_on(options: dict[str, str], key: str) -> None:
    assert durability_key({**options, "cache": "none"}) == key


@pytest.mark.parametrize(
    ("cache", "change", "state"),
    [
        ("none", None, Durable.BY_DESIGN),
        ("writeback", None, Durable.BY_DESIGN),
        ("unsafe", None, Durable.NO),
        ("none", {}, Durable.MEASURED),
        ("none", {"torn": 1}, Durable.NO),
        ("none", {"power": ()}, Durable.BY_DESIGN),
        ("unsafe", {"power": (), "configuration": "qcow2.preallocation-off.unsafe"}, Durable.NO),
        ("none", {"power": (), "torn": 1}, Durable.NO),
        ("unsafe", {"configuration": "qcow2.preallocation-off.unsafe"}, Durable.NO),
    ],
)
def test_a_measurement_takes_the_place_of_the_design(
    cache: str, change: dict[str, int] | None, state: Durable
) -> None:
    one = case(f"scsi.qcow2.{cache}.preallocation-off")
    known = KnownDurability()
    if change is not None:
        found = replace(DURABLE, node=one.node, **change)  # type: ignore[arg-type] # by name
        known = KnownDurability({(one.node, "local", found.configuration): found})
    assert durable_of(one, known) is state


def test_all_outputs_have_the_same_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMALL.replace("cache: [none]", "cache: [none, directsync, unsafe]")
    pack = write_pack(tmp_path, text)
    simulation = simulate(tmp_path, pack=pack)
    simulation.worker.run()
    store = simulation.store
    raw = replace(DURABLE, node="lab", configuration="raw.none", torn=1)
    store.record_durability(raw)
    results = LiveResults(store)
    page = Page(lambda: snapshot_of(simulation, view=results.now), live={})
    page.judged(Verdicts())
    ranks = {
        (sample.labels["scenario"], sample.labels["workload"]): sample.labels
        for family in text_string_to_metric_families(page.render()[0].decode())
        for sample in family.samples
        if sample.name == "pvebench_scenario_rank_info"
    }
    capsys.readouterr()
    assert run_cli(["results", "--state", str(tmp_path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    states = set()
    for key, record in results.now.cases.items():
        one = record.definition
        labels = ranks[one.scenario, one.workload]
        view = case_view(store, results.now, key, simulation.world.clock.now())
        assert view is not None
        shown = {row["durable"] for row in rows if row["scenario"] == one.scenario}
        assert {view.durable, labels["durable"]} == shown
        lost = labels["durable"] == "no"
        assert (labels["excluded"] == "not_durable") is lost
        assert lost is (durability_key(one.options) in {"raw.none", "raw.unsafe"})
        states |= shown
    assert states == {"no", "by design"}
    store.close()


RECORDED = json.loads((ROOT / "tests/golden/durability/results.json").read_text("utf-8"))


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["configuration"])
def test_a_recorded_configuration_keeps_what_its_cache_mode_promises(row: dict[str, Any]) -> None:
    """As pve-docs describes the modes, and as 16 writes to a killed QEMU 7.2.22 showed before."""
    one = Durability.from_json(json.dumps(row))
    image, _, cache = one.configuration.rpartition(".")
    each_flushed = cache in ("directsync", "writethrough")
    in_memory = image in ("qcow2.preallocation-off", "qcow2.chain") and not each_flushed
    unflushed = [known.found for known in one.killed if known.sync is Barrier.NONE]
    assert unflushed == [0 if in_memory else 16, 16]
    assert one.lost_killed == 0
    assert one.durable is (cache != "unsafe")
    assert [known.found for known in one.power][2] == (16 if each_flushed else 0)
    assert (one.flushed >= 64) is each_flushed
    assert (one.requested == 0) is each_flushed
