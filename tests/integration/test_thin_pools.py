"""Thin pools of the host driver on the kernel's own dm-thin and LVM, in a host in a process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from hostprocess.machine import (
    HostProcessMissing,
    make_disks,
    need_host_process,
    running_host_process,
)
from pvebench.model.units import KIB, MIB, SECTOR
from testing.packs import ROOT
from testing.real_outcomes import MEASURED

NAME: Final = "pvebench-test-thin-thin.raw.thin_chunk-256k"
MAKE: Final = """
modprobe -a dm-thin-pool
vgcreate --quiet --yes bench /dev/disk/by-id/virtio-pvebench-d1 >&2
lvcreate --quiet --yes --size 8M --name vm-100-disk-0 bench >&2
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What thin_runs.py says, and LVM of what it leaves."""
    try:
        need_host_process("lvcreate", "dmsetup", "thin_check")
    except HostProcessMissing as error:
        pytest.skip(f"no host in a process: {error}")
    directory = tmp_path_factory.mktemp("host")
    with running_host_process(directory, make_disks(directory, 1, 768 * MIB)) as machine:
        machine.run(MAKE)
        script = machine.python(f"{ROOT}/tests/hostprocess/thin_runs.py")
        found: dict[str, Any] = json.loads(machine.run(script, seconds=600))
        found["uuid"] = machine.run("vgs --noheadings -o vg_uuid bench").strip()
        found["left"] = machine.run("lvs --noheadings -o lv_name,lv_tags bench").split()
        yield found


def test_a_case_runs_on_a_pool_of_its_own_with_the_chunk_of_the_pack(said: dict[str, Any]) -> None:
    assert said["run"]["outcome"] in MEASURED, said["run"]["reason"]
    # The kernel's table: start, length, thin-pool, metadata, data, chunk in sectors …
    assert int(said["table"].split()[5]) * SECTOR == 256 * KIB
    assert said["identity"] == {"type": "lvmthin", "uuid": said["uuid"]}


def test_nothing_of_it_stays_in_the_volume_group(said: dict[str, Any]) -> None:
    assert said["after_run"] == said["before"] == ["vm-100-disk-0"]
    assert said["pending"] == []


def test_the_pool_of_a_killed_run_is_removed_by_the_next_start(said: dict[str, Any]) -> None:
    assert f"{NAME}-pool" in said["killed"]
    assert said["undone"] == [f"removed thin-pool bench/{NAME}"]
    assert said["after_undo"] == said["before"]


def test_a_pool_with_a_volume_of_others_is_left_alone(said: dict[str, Any]) -> None:
    assert said["foreign"] == "bench/other not changed: no ownership marker of pvebench"
    assert {"other", "pvebench-test-thin-thin.raw-pool", "vm-100-disk-0"} <= {*said["left"]}
