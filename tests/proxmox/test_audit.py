"""`pvebench advise --vms` on a cluster with VMs of every bus, and only the rights that it needs.

Keys, defaults and refusals of drives are those of PVE/QemuServer/Drive.pm; what GET pending and
GET /storage show is in tests/pve/recordings-9.jsonl.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pve.cluster import Cluster, cheap
from pve.server import RunningApi
from pve.storage import Storage
from pve.vms import Vm
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.vm.description import description
from testing.prepared_cluster import api, config, granted, init_of
from testing.prepared_cluster import findings as findings_of_check

__all__ = ["api", "config", "granted"]
Patch = pytest.MonkeyPatch
Captured = pytest.CaptureFixture[str]
DRIVES = {
    "scsi0": "thin:vm-{vmid}-disk-0,size=32G",
    "scsi1": "thin:vm-{vmid}-disk-1,cache=unsafe,discard=on,iothread=1,size=1T",
    "virtio2": "lvm:vm-{vmid}-disk-2,aio=io_uring,iothread=on,size=4M",
    "virtio15": "share:{vmid}/vm-{vmid}-disk-3.qcow2,cache=writeback,aio=native",
    "sata0": "file=krbd:vm-{vmid}-disk-4,aio=io_uring,cache=writeback,snapshot=1",
    "ide0": "/dev/disk/by-id/ata-X;Y,serial=a%20b",
    "ide2": "local:iso/debian.iso,media=cdrom,size=600M",
    "sata5": "none,media=cdrom",
    "efidisk0": "thin:vm-{vmid}-disk-5,efitype=4m,size=4M",
    "unused0": "thin:vm-{vmid}-disk-6",
}


@pytest.fixture
def paused(monkeypatch: Patch) -> list[float]:
    """Return the pauses of the driver's clock, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: pauses.append(seconds))
    return pauses


def fill(cluster: Cluster, count: int) -> None:
    """Add VMs of other people: each has one drive of each kind."""
    for name, kind in (("lvm", "lvm"), ("krbd", "rbd")):
        options = {"krbd": 1} if kind == "rbd" else {}
        place = cluster.directory / name
        cluster.storages[name] = Storage(name, kind, place, content="images", options=options)
    cluster.storages["share"].options = {"snapshot-as-volume-chain": 1}
    for vmid in range(200, 200 + count):
        machine = cheap(vmid, cluster.directory / str(vmid), cluster.volumes, lambda: "9.2.0")
        drives = {key: text.format(vmid=vmid) for key, text in DRIVES.items()}
        vm = Vm(vmid, cluster.nodes[vmid % 2], machine, cluster.volumes)
        vm.config = {"name": f"vm{vmid}", "machine": "pc-q35-9.2", "scsihw": "virtio-scsi-pci"}
        vm.config |= drives
        vm.pending = {"scsi0": f"{drives['scsi0']},ssd=1"}
        cluster.vms[vmid] = vm


def grant(config: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    options = ["--config", str(config), "--apply", "--with-advice"]
    assert run_cli(["proxmox", "init", *options]) == 0
    capsys.readouterr()


def advise(config: Path, *more: str) -> int:
    state = str(config.parent / "state")
    return run_cli(["advise", "--config", str(config), "--state", state, "--vms", *more])


def findings(row: dict[str, object]) -> str:
    return "; ".join(str(one["text"]) for one in row["findings"])  # type: ignore[attr-defined] # JSON


def test_200_vms_are_audited_with_few_paced_requests_and_nothing_is_changed(
    api: RunningApi, granted: Path, paused: list[float], monkeypatch: Patch, capsys: Captured
) -> None:
    grant(granted, monkeypatch, capsys)
    fill(api.cluster, 200)
    own = replace(api.cluster.vms[200], vmid=999, config={"description": description("a" * 32)})
    api.cluster.vms[999] = own
    api.calls.clear()
    assert advise(granted, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert {call.partition(" ")[0] for call in api.calls} == {"GET"}
    assert len(api.calls) == 3 + 200 + 1
    assert {row["vmid"] for row in data["vms"]} == {*range(200, 400)}
    assert len(paused) >= 200
    assert min(paused[-200:]) >= 0.1
    assert len(data["disks"]) == 200 * 6
    assert data["not_read"] == []
    by_slot = {row["slot"]: row for row in data["disks"] if row["vmid"] == 201}
    assert set(by_slot) == {"scsi0", "scsi1", "virtio2", "virtio15", "sata0", "ide0"}
    assert by_slot["scsi0"]["effective"] == {
        "bus": "scsi",
        "format": "raw",
        "cache": "none",
        "aio": "io_uring",
        "iothread": "0",
        "discard": "0",
        "scsihw": "virtio-scsi-pci",
    }
    assert "discard is off on thin storage" in findings(by_slot["scsi0"])
    assert "in use only after the VM was stopped" in findings(by_slot["scsi0"])
    assert "cache=unsafe ignores flushes" in findings(by_slot["scsi1"])
    assert "iothread=1 has no effect" in findings(by_slot["scsi1"])
    assert by_slot["scsi1"]["commands"] == [
        "qm set 201 --scsihw virtio-scsi-single",
        "qm set 201 --scsi1 thin:vm-201-disk-1,discard=on,iothread=1,size=1T",
    ]
    assert "aio=io_uring on lvm can hang" in findings(by_slot["virtio2"])
    assert by_slot["virtio2"]["effective"]["iothread"] == "1"
    assert "the VM does not start" in findings(by_slot["virtio15"])
    assert "needs machine version 10.0" in findings(by_slot["virtio15"])
    assert "aio=io_uring on krbd can hang" in findings(by_slot["sata0"])
    assert "all writes are lost" in findings(by_slot["sata0"])
    assert "emulated controller ide" in findings(by_slot["ide0"])
    assert by_slot["ide0"]["storage"] == ""


def test_without_the_right_the_audit_names_the_command_that_grants_it(
    api: RunningApi, granted: Path, paused: list[float], capsys: Captured
) -> None:
    fill(api.cluster, 2)
    assert advise(granted) == 6
    err = capsys.readouterr().err
    assert "the token lacks /vms: VM.Audit; /storage: Datastore.Audit" in err
    assert not [call for call in api.calls if "/qemu/" in call]
    assert run_cli(init_of(err, granted)) == 0
    assert advise(granted) == 0


def test_only_the_clusters_driver_has_vms_to_audit(tmp_path: Path, capsys: Captured) -> None:
    options = ["--driver", "simulated", "--state", str(tmp_path)]
    assert run_cli(["advise", *options, "--vms"]) == 2
    assert "use --driver proxmox" in capsys.readouterr().err


def lack(api: RunningApi, member: str) -> None:
    """Have the list of guests lack a member of VM 202."""
    listed = api.cluster.get_cluster_resources

    def lacking(who: str, **more: str) -> list[dict[str, object]]:
        rows = listed(who, **more)
        return [row | {member: None} if row.get("vmid") == 202 else row for row in rows]

    api.cluster.get_cluster_resources = lacking  # type: ignore[method-assign] # of one cluster


SILENT = {
    "no node": (lambda api: lack(api, "node"), {202}),
    "no number": (lambda api: lack(api, "vmid"), {202}),
    "no storages": (
        lambda api: api.faults.add("status", "GET", "/storage", times=9, text="got timeout"),
        set(),
    ),
    "left": (lambda api: setattr(api.cluster.vms[201], "node", "gone"), {201}),
    "node off": (lambda api: setattr(api.cluster.all_nodes["pve2"], "online", False), {201, 203}),
} | {
    str(status): (
        lambda api, status=status: api.faults.add(
            "status", "GET", "/qemu/202/pending", times=9, status=status, text="got timeout"
        ),
        {202},
    )
    for status in (500, 501, 503, 595, 596, 599)
}


@pytest.mark.parametrize("why", SILENT)
def test_vms_that_cannot_be_read_are_named_and_the_others_are_audited(
    api: RunningApi,
    granted: Path,
    paused: list[float],
    monkeypatch: Patch,
    capsys: Captured,
    why: str,
) -> None:
    grant(granted, monkeypatch, capsys)
    fill(api.cluster, 4)
    happens, unread = SILENT[why]
    happens(api)
    assert advise(granted) == 0
    out = capsys.readouterr().out
    for vmid in range(200, 204):
        assert (f"### VM {vmid} (vm{vmid}), scsi0" in out, f"Not read: VM {vmid}: " in out) == (
            vmid not in unread,
            vmid in unread,
        )
    assert "Not visible through the API" in out
    assert ("Not read: storages: GET /storage: got timeout" in out) == (why == "no storages")
    assert "does not exist" not in out


def test_orphans_on_the_other_nodes_are_listed_and_the_check_of_a_node_needs_no_other(
    api: RunningApi, granted: Path, paused: list[float], capsys: Captured
) -> None:
    fill(api.cluster, 2)
    for vmid, mark in ((200, "a" * 32), (201, "b" * 32)):
        api.cluster.vms[vmid].config = {"description": description(mark)}
        api.cluster.pools["bench"].add(vmid)
    api.cluster.all_nodes["pve2"].online = False
    api.faults.add("status", "GET", "/nodes/pve1/storage/thin/content", times=99, text="hangs")
    found = findings_of_check(granted, capsys)
    assert found["benchmark VMs"][1].startswith("VM 200 on pve1")
    assert found["storage local"][0]
    assert found["storage fast"][0]
    assert run_cli(["cleanup", "--orphans", "--config", str(granted)]) == 0
    captured = capsys.readouterr()
    assert "VM 200 on pve1" in captured.out
    assert "vmid=201" in captured.err
    assert "volumes not listed" in captured.err


def test_a_storage_is_accepted_on_the_nodes_that_answer_and_the_others_are_named(
    api: RunningApi, granted: Path, paused: list[float], capsys: Captured
) -> None:
    text = granted.read_text("utf-8").replace(
        "host: 127.0.0.1", "host: 127.0.0.1\n  nodes: [pve1, pve2]"
    )
    granted.write_text(text, "utf-8")
    api.faults.add("status", "GET", "/storage", times=1, status=500, text="got timeout")
    assert run_cli(["storage", "accept", "local", "--config", str(granted)]) == 6
    captured = capsys.readouterr()
    assert "pve1: not accepted: " in captured.out
    assert "pve2: nothing to accept" in captured.out
    api.cluster.all_nodes["pve2"].online = False
    assert run_cli(["plan", "--config", str(granted)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("on local, 100.0 GiB free") == 1
    assert 'event="free space not checked" node=pve2' in captured.err
