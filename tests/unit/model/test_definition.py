"""Options of ZFS and LVM-thin: where they exist, and what a case with them means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, storage_kind
from pvebench.drivers.storages import KINDS
from pvebench.model.definition import Definition
from pvebench.model.disk import Bus, HostCache, PrimaryCache, Sync
from pvebench.model.durability import Durable, KnownDurability, durable_of
from pvebench.model.rules import StorageKind, why_not, why_not_run
from pvebench.model.scenario import Scenario
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Case
from testing.packs import tool_workload
from testing.storages import host_row

pytestmark = pytest.mark.lab  # its storages are zfs and lvmthin


def scenario(bus: Bus = Bus.HOST, **options: Any) -> Scenario:
    row = host_row(64 * MIB, "here", "zfs", **options)
    return replace(row, disk=replace(row.disk, bus=bus), host_cache=HostCache.ARC)


@pytest.mark.parametrize("bus", [Bus.HOST, Bus.SCSI])
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"thin_chunk": 64 * KIB}, {"lvmthin"}),
        ({"sync": Sync.ALWAYS, "volblocksize": 64 * KIB}, {"zfs"}),
        ({"recordsize": 128 * KIB}, {"zfs"}),
        ({"recordsize": 128 * KIB, "volblocksize": 16 * KIB}, set()),
        ({"thin_chunk": 64 * KIB, "sync": Sync.ALWAYS}, set()),
    ],
)
def test_an_option_is_planned_only_where_pvebench_creates_the_pool(
    bus: Bus, options: dict[str, Any], kinds: set[str]
) -> None:
    def held(storages: Iterable[StorageKind]) -> set[str]:
        return {one.name for one in storages if why_not(scenario(bus, **options), one) is None}

    assert held(kind.holds for kind in KINDS.values()) == kinds
    assert held(map(storage_kind, STORAGE_TYPES)) == set()  # an administrator's, on a cluster


def test_the_name_and_the_definition_have_the_options_and_the_host_case_has_the_same() -> None:
    guest = scenario(Bus.SCSI, volblocksize=64 * KIB, sync=Sync.DISABLED)
    assert guest.slug == "zfs.scsi.raw.none.volblocksize-64k.sync-disabled"
    assert guest.host_slug == scenario(volblocksize=64 * KIB, sync=Sync.DISABLED).slug
    assert guest.volume == "zfs.raw.volblocksize-64k.sync-disabled"
    other = replace(guest, disk=replace(guest.disk, sync=None))
    assert guest.fingerprint != other.fingerprint
    assert guest.meaning()["volblocksize"] == str(64 * KIB)


@pytest.mark.parametrize(
    ("cached", "warm"), [(None, True), (PrimaryCache.ALL, True), (PrimaryCache.METADATA, False)]
)
def test_reads_are_warm_only_if_the_arc_caches_data(
    cached: PrimaryCache | None, *, warm: bool
) -> None:
    workload = tool_workload("fio", {"rw": "randread", "bs": "4k"})
    case = Case(scenario=scenario(primarycache=cached), workload=workload)
    assert Definition.of(case).is_warm is warm


def test_sync_disabled_is_not_durable_whatever_the_cache_mode() -> None:
    workload = tool_workload("fio", {"rw": "randwrite", "bs": "4k"})
    for sync, durable in ((Sync.DISABLED, Durable.NO), (Sync.STANDARD, Durable.BY_DESIGN)):
        one = Definition.of(Case(scenario=scenario(Bus.SCSI, sync=sync), workload=workload))
        assert durable_of(one, KnownDurability()) is durable


def test_a_file_in_a_dataset_has_a_directory_for_tools_and_a_zvol_has_none() -> None:
    kind, tool = KINDS["zfs"].holds, tool_workload("sysbench", {"mode": "rndwr", "size": "16M"})
    assert why_not_run(scenario(recordsize=128 * KIB), tool, kind) is None
    assert "creates its own files" in str(why_not_run(scenario(), tool, kind))
