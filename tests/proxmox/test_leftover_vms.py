"""Tasks that Proxmox kills: 5 s after a stop, it undoes nothing, and what it leaves is named.

Seen on the real code of 9.2.11: a killed vzdump leaves `lock: backup` and, in `dump/` of its
storage, the data that was written and a directory. The API lists neither. A killed qmmove leaves
its volume, a killed qmrestore `lock: create`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pve.server import RunningApi
from pve.site import MACHINE, Site, scenario
from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox.vm import leftover_vms, vm_copies
from pvebench.drivers.proxmox.vm.operations_under_load import DiskOperation
from pvebench.errors import Busy, OperationFailed
from pvebench.model.disk import Format
from pvebench.model.ports import REMAINS
from testing.prepared_cluster import api, config, granted
from testing.stores import TemporaryStore

__all__ = ["api", "config", "granted"]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm_copies, "SEARCH_SECONDS", 1.0)
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    monkeypatch.setattr(leftover_vms, "_LOCK_SECONDS", 1.0)


def begin(site: Site, name: str, kind: str) -> DiskOperation:
    """Begin an operation whose worker ignores TERM."""
    site.plug(scenario(kind=Format.QCOW2))
    one = site.node.operate(name, 0)
    one.prepare()
    site.cluster.seconds = 60.0
    site.cluster.tasks.deaf = {kind}
    one.begin()
    return one


def remaining(site: Site) -> list[str]:
    return [details["text"] for _, kind, details in site.store.journal.pending() if kind == REMAINS]


def written(site: Site) -> list[str]:
    dump = site.cluster.storages["local"].directory / "pve1/dump"
    return sorted(str(path) for path in dump.iterdir())


def test_a_killed_backup_fails_its_run_and_names_files_and_lock(allowed: Site) -> None:
    one = begin(allowed, "backup", "vzdump")
    with pytest.raises(OperationFailed, match=r"backup failed: .* killed"):
        one.cancel()
    (text,) = remaining(allowed)
    directory, data = written(allowed)
    assert re.search(r"/vzdump-qemu-9000-.*\.tmp\Z", directory)
    assert re.search(r"/vzdump-qemu-9000-.*\.vma\.dat\Z", data)
    assert data in text
    assert directory in text
    assert "on pve1" in text
    assert "up to 64.0 MiB" in text
    assert "run `qm unlock 9000`" in text
    one.cancel()  # a second one raises nothing, and names nothing twice
    assert len(remaining(allowed)) == 1


@pytest.mark.parametrize(
    "status",
    [
        "unable to read tail (got 0 bytes)",
        "unable to open file - No such file or directory",
        "unable to get last line from task log - Input/output error",
    ],
)
def test_a_backup_whose_node_crashed_is_a_killed_one(allowed: Site, status: str) -> None:
    """The crash lost its log, so its exit status is another (`upid_read_status`)."""
    one = begin(allowed, "backup", "vzdump")
    allowed.cluster.tasks.killed_status = status
    with pytest.raises(OperationFailed, match=r"backup failed: .* killed") as failed:
        one.cancel()
    assert "the node crashed" in failed.value.cause
    (text,) = remaining(allowed)
    assert "dump/vzdump-qemu-9000-*.vma.dat (up to 64.0 MiB)" in text
    assert "run `qm unlock 9000`" in text


def test_a_task_that_its_node_has_lost_is_a_killed_one(allowed: Site) -> None:
    one = begin(allowed, "move", "qmmove")
    one.stop()
    allowed.cluster.idle()
    allowed.cluster.tasks.all.clear()
    with pytest.raises(OperationFailed, match=r"move failed: .* no such task; it was killed"):
        one.cancel()


def test_of_a_killed_backup_to_a_backup_server_only_the_lock_is_named() -> None:
    line = "INFO: creating Proxmox Backup Server archive 'vm/9000/2026-11-28T10:00:00Z'"
    details = {"node": "pve1", "vmid": "9000", "storage": "pbs"}
    assert vm_copies._left_by(vm_copies._NAMED.search(line), details) == (
        "a backup of VM 9000 to storage pbs on pve1 was killed; if the VM is still locked, run "
        "`qm unlock 9000`"
    )


@pytest.mark.parametrize(
    ("name", "kind", "lock"),
    [
        ("snapshot-ram", "qmsnapshot", "snapshot"),
        ("delete-snapshot", "qmdelsnapshot", "snapshot-delete"),
    ],
)
def test_a_killed_snapshot_fails_its_run_and_its_vm_is_removed_after_the_command(
    allowed: Site, name: str, kind: str, lock: str
) -> None:
    one = begin(allowed, name, kind)
    (task,) = [task for task in allowed.cluster.tasks.all if (task.kind, task.end) == (kind, None)]
    task.stopped.set()
    allowed.cluster.idle()
    with pytest.raises(OperationFailed, match=rf"{name} failed: .* killed"):
        one.look()
    with pytest.raises(Busy, match=rf"locked \({lock}\)") as locked:
        one.cancel()
    assert "run qm unlock 9000" in locked.value.next_step
    del allowed.cluster.vms[9000].config["lock"]
    assert "removed VM 9000 with its volumes" in allowed.undo()
    assert allowed.cluster.volumes.owned(9000) == []
    assert allowed.store.journal.pending() == []


def test_a_killed_removal_is_named_with_the_command_until_the_number_is_free(allowed: Site) -> None:
    allowed.node.boot(MACHINE)
    allowed.cluster.tasks.deaf = {"qmdestroy"}
    allowed.cluster.seconds = 60.0
    api = allowed.connect()
    allowed.cluster.vms[9000].stop()
    allowed.cluster.tasks.find(api.delete("/nodes/pve1/qemu/9000")).stopped.set()
    allowed.cluster.idle()
    for _ in range(2):
        (line,) = allowed.undo()
        assert "VM 9000 on pve1 is locked (destroyed)" in line
        assert "run `qm destroy 9000 --skiplock` on pve1 as root" in line
    allowed.cluster.vms.clear()
    allowed.cluster.pools["bench"].clear()
    assert allowed.undo() == ["VM 9000 already gone"]


def test_until_it_is_unlocked_the_vm_is_named_with_the_command(allowed: Site) -> None:
    with pytest.raises(OperationFailed):
        begin(allowed, "backup", "vzdump").cancel()
    with pytest.raises(Busy) as locked:
        allowed.node.detach()
    assert "run qm unlock 9000" in locked.value.next_step
    (line,) = allowed.undo()
    assert "VM is locked (backup)" in line
    assert "run qm unlock 9000" in line
    del allowed.cluster.vms[9000].config["lock"]
    assert "removed VM 9000 with its volumes" in allowed.undo()
    assert len(remaining(allowed)) == 1  # the files are still there
    assert len(written(allowed)) == 2


def test_a_backup_that_was_killed_after_a_crash_is_named_too(allowed: Site) -> None:
    """pvebench was killed, then an administrator stopped the task."""
    begin(allowed, "backup", "vzdump")
    (task,) = [task for task in allowed.cluster.tasks.all if task.kind == "vzdump"]
    task.stopped.set()
    allowed.cluster.idle()
    allowed.undo()
    assert written(allowed)[1] in "".join(remaining(allowed))
    allowed.undo()
    assert len(remaining(allowed)) == 1


def test_a_backup_that_ends_in_time_leaves_only_its_log(allowed: Site) -> None:
    one = begin(allowed, "backup", "qmmove")
    one.cancel()
    assert remaining(allowed) == []
    (log,) = written(allowed)
    assert log.endswith(".log")


def test_a_killed_move_fails_its_run_and_its_volume_is_named_until_a_person_confirms(
    allowed: Site,
) -> None:
    one = begin(allowed, "move", "qmmove")
    with pytest.raises(OperationFailed, match=r"move failed: .* killed"):
        one.cancel()
    allowed.node.shutdown()
    (left,) = allowed.cluster.volumes.owned(9000)
    (text,) = remaining(allowed)
    assert f"{left} on pve1" in text
    assert "pvesm free" in text
    allowed.node = allowed.driver("pve1")
    allowed.node.boot(MACHINE)
    allowed.node.shutdown()
    assert len(remaining(allowed)) == 1


def test_a_killed_restore_is_named_with_the_command_and_removed_after_it(allowed: Site) -> None:
    one = begin(allowed, "restore", "qmrestore")
    (second,) = [vm for vm in allowed.cluster.vms.values() if vm.vmid != allowed.node.vmid]
    with pytest.raises(OperationFailed, match=r"restore failed: .* killed"):
        one.cancel()
    assert second.config["lock"] == "create"
    for _ in range(2):
        lines = "\n".join(allowed.undo())
        assert f"VM {second.vmid} on pve1 is locked (create)" in lines
        assert f"run `qm unlock {second.vmid}` on pve1" in lines
        assert second.vmid in allowed.cluster.vms
    del second.config["lock"]
    allowed.undo()
    assert allowed.cluster.vms == {}
    assert allowed.store.journal.pending() == []


def recorded(config: Path, kind: str, details: Mapping[str, str]) -> int:
    store = TemporaryStore(config.parent / "state/pvebench.db", simulated=False)
    number = store.journal.open(kind, details)
    store.close()
    return number


def test_cleanup_lists_what_remains_until_a_person_confirms_it(
    api: RunningApi, granted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["cleanup", "--config", str(granted)]) == 0
    other = recorded(granted, "proxmox-kept", {"node": "pve1", "vmid": "9000"})
    number = recorded(granted, REMAINS, {"text": "/x/dump/a.vma.dat on pve1"})
    command = ["cleanup", "--config", str(granted)]
    for _ in range(2):
        capsys.readouterr()
        assert run_cli(command) == 6
        out = capsys.readouterr().out
        assert "/x/dump/a.vma.dat on pve1" in out
        assert f"run `pvebench cleanup --confirm {number}`" in out
    assert run_cli(["doctor", "--config", str(granted), "--timeout", "5"]) != 0
    assert "/x/dump/a.vma.dat on pve1" in capsys.readouterr().out
    assert run_cli([*command, "--confirm", str(other)]) == 6
    assert f"journal entry {other} is not one to confirm" in capsys.readouterr().err
    assert run_cli([*command, "--confirm", str(number)]) == 0
    capsys.readouterr()
    assert run_cli(command) == 0
    assert "a.vma.dat" not in capsys.readouterr().out
