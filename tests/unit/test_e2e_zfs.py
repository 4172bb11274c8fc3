"""The pure parts of `make e2e-zfs`: its packs, and where reads came from by the VM's counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.on_zfs import CACHES, PLAIN, Counters, sample, small_pack, table, volumes, warmth, within
from pvebench.config import load_pack
from pvebench.drivers.storages import KINDS
from pvebench.scheduler.plan import expand
from testing.packs import write_pack
from testing.published import OVER_NBD, Row, small_rows

pytestmark = pytest.mark.lab  # its storages


@pytest.mark.parametrize(("name", "count"), [("pool-options", 2 * 4), ("zfs-mdadm-2016", 68)])
def test_a_small_pack_has_every_guest_case_on_an_export(
    tmp_path: Path, name: str, count: int
) -> None:
    pack = load_pack(write_pack(tmp_path, small_pack(name, ["zfs"])))
    cases = expand(pack, node="lab", storages={"zfs": KINDS["nbd"].holds}).cases
    assert len(cases) == count
    assert {str(case.scenario.disk.cache) for case in cases} == {*CACHES}
    assert {case.workload.runtime_seconds for case in cases} == {3}


@pytest.mark.parametrize("row", small_rows(OVER_NBD), ids=lambda row: row.storage)
def test_a_small_pack_has_the_sample_of_a_published_row(tmp_path: Path, row: Row) -> None:
    pack = load_pack(write_pack(tmp_path, small_pack(row.pack, [row.storage, PLAIN])))
    storages = dict.fromkeys((row.storage, PLAIN), KINDS["nbd"].holds)
    cases = expand(pack, node="lab", storages=storages).cases
    assert {*sample(row)} <= {case.slug for case in cases}


def test_the_volumes_are_block_sizes_with_and_without_sync_and_the_options_of_the_pack() -> None:
    options = volumes()
    assert len(options) == 10 + 4
    assert options["zfs-recordsize-16k-sync-disabled"] == {"recordsize": "16k", "sync": "disabled"}


def run(storage: str, far: Counters, rate: float) -> dict[str, Any]:
    sample = {"metric": "bytes", "direction": "read", "value": 1000.0}
    iops = {"metric": "iops", "direction": "read", "value": rate}
    name = {"scenario": f"{storage}.scsi.raw.none", "workload": "randread-4k-qd16"}
    return {**name, "samples": [sample, iops], "far": far}


def test_a_run_is_counted_from_the_last_reading_before_it_to_the_first_after_it() -> None:
    seen = [Counters(at, 10 * at, 2 * at, at) for at in (100, 101, 102, 110, 111)]
    times = {"started": "1970-01-01T00:01:41.5+00:00", "finished": "1970-01-01T00:01:45+00:00"}
    assert within(seen, times) == Counters(9, 90, 18, 9)


def test_a_table_has_the_ratio_to_the_bare_disk_and_where_reads_came_from() -> None:
    cold, warm = Counters(4, 1000, 0, 9), Counters(4, 50, 7, 0)
    rows = table([run("zfs", warm, 300), run(PLAIN, cold, 200)]).splitlines()[2:]
    assert rows == [
        "| plain | scsi.raw.none | randread-4k-qd16 | 200 | 200 | 1.00 | cold |",
        "| zfs | scsi.raw.none | randread-4k-qd16 | 300 | 200 | 1.50 "
        "| warm, 5% from disks, 7 ARC hits |",
    ]
    assert warmth({"samples": [], "far": cold}) == ""
