"""The whole way of a result on Proxmox VE: command line, HTTPS, real VMs on two nodes, fio."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pve.cluster import Cluster
from pve.instance import write_settings
from pve.real import direct
from pve.server import RunningApi, running_api
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.guest.image import GuestImage
from pvebench.model.units import MIB
from testing.packs import write_pack
from testing.stores import TemporaryStore

PACK = """\
pack: short
title: Hot and cold, local and shared
every: 1d
axes:
  storage: [local, share]
  bus: [scsi]
  format: [raw]
  cache: [none]
variants:
  - {bus: sata, format: vmdk}
volume:
  size: 16M
measure:
  ramp: 500ms
  runtime: 2s
workloads:
  - fio: {rw: randrw, bs: 4k, iodepth: 8}
"""
STORAGES = {"local": "{type: dir, nodes: [pve1]}", "share": "{type: nfs}"}


@pytest.fixture
def api(tmp_path: Path, image: GuestImage) -> Iterator[RunningApi]:
    with running_api(Cluster(tmp_path / "cluster", major=9, make_machine=direct(image))) as found:
        yield found


def test_two_nodes_measure_hot_and_cold_disks_and_leave_nothing(
    api: RunningApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_settings(
        tmp_path,
        api,
        packs=[write_pack(tmp_path, PACK)],
        nodes=("pve1", "pve2"),
        storages=STORAGES,
        kvm="false",
        cpu="max",
    )
    given = ["--config", str(config)]
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert run_cli(["proxmox", "init", *given, "--apply"]) == 0
    assert run_cli(["check", *given]) == 0
    assert run_cli(["run", *given]) in (0, 9)  # a loaded machine's numbers may be implausible
    capsys.readouterr()
    run_cli(["results", "--state", str(tmp_path / "state"), "--format=json"])
    runs = json.loads(capsys.readouterr().out)
    assert not {run["outcome"] for run in runs} & {"failed", "invalid", "skipped"}, runs
    assert {(run["node"], run["scenario"]) for run in runs} == {
        ("pve1", "local.scsi.raw.none"),
        ("pve1", "local.sata.vmdk.none"),
        ("pve1", "share.scsi.raw.none"),
        ("pve2", "share.scsi.raw.none"),
    }
    store = TemporaryStore(tmp_path / "state" / "pvebench.db")
    # The fill, and what fio wrote.
    assert store.written_bytes("share", datetime.now(UTC), node="pve2") > 16 * MIB
    store.close()
    assert api.cluster.vms == {}
    left = [
        row["volid"]
        for volumes in api.cluster.volumes_on.values()
        for name in STORAGES
        for row in volumes.listed(name, "", None)
    ]
    assert [volid for volid in left if ":iso/" not in volid] == []


READS = """\
pack: reads
title: One volume, only read
every: 1d
axes: {bus: [scsi], format: [raw], cache: [none]}
volume: {size: 16M}
measure: {ramp: 500ms, runtime: 2s}
workloads:
  - fio: {rw: randread, bs: 4k, iodepth: 8}
"""


def test_a_volume_that_is_kept_is_filled_once_for_two_starts(
    api: RunningApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_settings(
        tmp_path,
        api,
        packs=[write_pack(tmp_path, READS)],
        storages={"local": "{type: dir}"},
        kvm="false",
        cpu="max",
        keep_volumes="true",
    )
    given = ["--config", str(config)]
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert run_cli(["proxmox", "init", *given, "--apply"]) == 0
    written = []
    for start in (1, 2):
        assert run_cli(["run", *given]) in (0, 9)
        assert [vm.running for vm in api.cluster.vms.values()] == [False], start
        store = TemporaryStore(tmp_path / "state" / "pvebench.db")
        assert store.totals().runs == start
        written.append(store.written_bytes("local", datetime.now(UTC), node="pve1"))
        store.close()
    assert written[0] >= 16 * MIB
    assert written[1] == written[0]
    (vmid,) = api.cluster.vms
    assert run_cli(["cleanup", "--orphans", *given, "--remove", str(vmid)]) == 0
    assert api.cluster.vms == {}
    assert api.cluster.volumes.owned(vmid) == []
