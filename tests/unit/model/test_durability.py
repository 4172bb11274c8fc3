"""Durability of a configuration: verdict, storage and key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pvebench.model.durability import Durability, Survival, Sync, Touch, durability_key
from testing.durabilities import DURABLE
from testing.packs import ROOT


def test_it_survives_json_unchanged() -> None:
    assert Durability.from_json(DURABLE.to_json()) == DURABLE


@pytest.mark.parametrize(
    ("change", "durable"),
    [
        ({}, True),
        ({"torn": 1}, False),
        ({"damaged": 1}, False),
        ({"broken": 1}, False),
        ({"power": (Survival(sync=Sync.FLUSH, touch=Touch.FIRST, written=16, found=15),)}, False),
        ({"killed": (Survival(sync=Sync.FUA, touch=Touch.FIRST, written=16, found=0),)}, False),
        ({"killed": (Survival(sync=Sync.NONE, touch=Touch.FIRST, written=16, found=0),)}, True),
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


RECORDED = json.loads((ROOT / "tests/golden/durability/results.json").read_text("utf-8"))


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["configuration"])
def test_a_recorded_configuration_keeps_what_its_cache_mode_promises(row: dict[str, Any]) -> None:
    """As pve-docs describes the modes, and as 16 writes to a killed QEMU 7.2.22 showed before."""
    one = Durability.from_json(json.dumps(row))
    image, _, cache = one.configuration.rpartition(".")
    each_flushed = cache in ("directsync", "writethrough")
    in_memory = image in ("qcow2.preallocation-off", "qcow2.chain") and not each_flushed
    unflushed = [known.found for known in one.killed if known.sync is Sync.NONE]
    assert unflushed == [0 if in_memory else 16, 16]
    assert one.lost_killed == 0
    assert one.durable is (cache != "unsafe")
    assert [known.found for known in one.power][2] == (16 if each_flushed else 0)
    assert (one.flushed >= 64) is each_flushed
    assert (one.requested == 0) is each_flushed
