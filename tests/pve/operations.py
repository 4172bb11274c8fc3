"""Snapshots, backups and moves of VMs, as tasks of the node.

Witness: PVE/AbstractConfig.pm (pve-guest-common 6.0.2), PVE/API2/Qemu.pm, PVE/QemuConfig.pm and
PVE/QemuServer.pm (qemu-server 9.2.6), PVE/API2/VZDump.pm and PVE/VZDump.pm (pve-manager 9.2.11),
PVE/API2/Storage/Content.pm (pve-storage 9.1.7); refusals as in the recordings `snap.create`,
`mv.small` and `read.token.vzdump`.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pve.access import Access
from pve.drives import SLOT, UNUSED, parse, render
from pve.refusals import Refused, failure
from pve.storage import Volumes
from pve.tasks import Killed, Task, TaskFailure, Tasks
from pve.vms import Vm

Drives = dict[str, tuple[str, dict[str, str]]]


@dataclass
class Snapshot:
    """A VM's configuration and the content of its volumes at some moment."""

    config: dict[str, Any]
    content: dict[str, bytes]
    parent: str
    description: str
    state: str = ""


class OperationCalls:
    """What a cluster answers about snapshots, backups and moves.

    Attributes:
        seconds: how long a backup, a move or a removal of a snapshot takes.
        backups, moves: parameters of each that has begun.
        archived: archive -> options of its VM, and slot -> volume and options of its disks.
        states: storage and bytes of each volume with a VM's memory.
    """

    tasks: Tasks
    volumes_on: dict[str, Volumes]
    access: Access

    def __post_init__(self) -> None:
        self.seconds = 0.2
        self.backups: list[dict[str, Any]] = []
        self.moves: list[dict[str, Any]] = []
        self.archived: dict[str, tuple[dict[str, Any], Drives]] = {}
        self.states: list[tuple[str, int]] = []
        self._snapshots: dict[int, dict[str, Snapshot]] = {}
        self._vzdump = threading.Lock()

    def vm(self, node: str, vmid: str | int) -> Vm:
        raise NotImplementedError

    def snapshots(self, vmid: int) -> dict[str, Snapshot]:
        return self._snapshots.setdefault(vmid, {})

    @contextmanager
    def _locked(self, vm: Vm, lock: str) -> Iterator[None]:
        with vm.locked():
            vm.refuse_lock()
            vm.config["lock"] = lock
        try:
            yield
        except Killed:
            raise
        except BaseException:
            vm.config.pop("lock", None)
            raise
        vm.config.pop("lock", None)

    def _work(self, task: Task, seconds: float) -> None:
        """Take so long, or end as a worker does that is stopped."""
        if task.stopped.wait(seconds):
            if task.kind in self.tasks.deaf:
                raise Killed
            raise TaskFailure("interrupted by signal")

    # --- snapshots -------------------------------------------------------------------------

    def get_nodes_qemu_snapshot(self, who: str, node: str, vmid: str) -> list[dict[str, Any]]:
        vm = self.vm(node, vmid)
        rows: list[dict[str, Any]] = [
            {"name": name, "description": one.description, "snaptime": 1, "vmstate": 0}
            | ({"parent": one.parent} if one.parent else {})
            for name, one in self.snapshots(vm.vmid).items()
        ]
        return [*rows, {"name": "current", "description": "You are here!", "digest": vm.digest}]

    def post_nodes_qemu_snapshot(
        self,
        who: str,
        node: str,
        vmid: str,
        snapname: str,
        description: str = "",
        vmstate: Any = 0,
        **_: Any,
    ) -> str:
        vm = self.vm(node, vmid)
        with_memory = str(vmstate) == "1"

        def take(task: Task) -> None:
            if snapname in self.snapshots(vm.vmid):
                raise TaskFailure(f"snapshot name '{snapname}' already used")
            held = _attached(vm)
            if not all(vm.volumes.has_snapshots(volid) for volid in held):
                raise TaskFailure("snapshot feature is not available")
            with self._locked(vm, "snapshot"):
                content = {volid: vm.volumes.path(volid).read_bytes() for volid in held}
                config = {k: v for k, v in vm.config.items() if _is_copied(k)}
                parent = str(vm.config.get("parent", ""))
                taken = Snapshot(config, content, parent, description)
                self.snapshots(vm.vmid)[snapname] = taken  # before anything else is written
                if with_memory:
                    self._save_memory(task, vm, taken, snapname)
                vm.config["parent"] = snapname
                for volid in held:
                    vm.held.setdefault(volid, set()).add(snapname)

        return self.tasks.run(node, "qmsnapshot", vmid, who, take)

    def _save_memory(self, task: Task, vm: Vm, taken: Snapshot, snapname: str) -> None:
        """Write the memory of a running VM to a volume (`__snapshot_save_vmstate`)."""
        if not vm.machine.alive():
            return
        storage = next(iter(taken.content)).partition(":")[0]
        size = (2 * int(vm.config["memory"]) + 500) << 20
        taken.state = vm.volumes.allocate(
            storage, vm.vmid, f"vm-{vm.vmid}-state-{snapname}.raw", size, "raw"
        )
        self.states.append((storage, size))
        self._work(task, self.seconds)

    def delete_nodes_qemu_snapshot_snapname(
        self, who: str, node: str, vmid: str, snapname: str, **_: Any
    ) -> str:
        vm = self.vm(node, vmid)

        def remove(task: Task) -> None:
            gone = self.snapshots(vm.vmid).get(snapname)
            if gone is None:
                raise TaskFailure(f"snapshot '{snapname}' does not exist")
            with self._locked(vm, "snapshot-delete"):
                self._work(task, self.seconds)
                if gone.state:
                    vm.volumes.free(gone.state)
                del self.snapshots(vm.vmid)[snapname]
                for names in vm.held.values():
                    names.discard(snapname)
                for one in self.snapshots(vm.vmid).values():
                    one.parent = gone.parent if one.parent == snapname else one.parent
                if vm.config.get("parent") == snapname:
                    vm.config.pop("parent")

        return self.tasks.run(node, "qmdelsnapshot", vmid, who, remove)

    def post_nodes_qemu_snapshot_rollback(
        self, who: str, node: str, vmid: str, snapname: str, **_: Any
    ) -> str:
        vm = self.vm(node, vmid)

        def roll_back(task: Task) -> None:
            one = self.snapshots(vm.vmid).get(snapname)
            if one is None:
                raise TaskFailure(f"snapshot '{snapname}' does not exist")
            children = [n for n, s in self.snapshots(vm.vmid).items() if s.parent == snapname]
            for volid in one.content:
                if any(volid in self.snapshots(vm.vmid)[name].content for name in children):
                    raise TaskFailure(
                        f"can't rollback, '{snapname}' is not most recent snapshot on '{volid}'"
                    )
            vm.refuse_lock()
            vm.machine.stop()
            with self._locked(vm, "rollback"):
                for volid, content in one.content.items():
                    vm.volumes.path(volid).write_bytes(content)
                kept = {k: v for k, v in vm.config.items() if UNUSED.match(k) or k == "description"}
                for volid in set(_attached(vm)) - set(one.content):
                    index = next(n for n in range(256) if f"unused{n}" not in kept)
                    kept[f"unused{index}"] = volid
                vm.config = {**kept, **one.config, "parent": snapname}
                vm.pending, vm.dropped = {}, set()

        return self.tasks.run(node, "qmrollback", vmid, who, roll_back)

    # --- backups ---------------------------------------------------------------------------

    def post_nodes_vzdump(
        self,
        who: str,
        node: str,
        vmid: str,
        storage: str = "local",
        notes_template: str = "",
        fleecing: str = "",
        **options: Any,
    ) -> str:
        for key in ("bwlimit", "ionice", "performance"):
            if key in options:
                self.access.need(who, "/", ["Sys.Modify"])
        if fleecing:
            target = dict(part.split("=") for part in fleecing.split(","))["storage"]
            self.access.need(who, f"/storage/{target}", ["Datastore.AllocateSpace"])
        self.access.need(who, f"/storage/{storage}", ["Datastore.AllocateSpace"])
        volumes = self.volumes_on[node]
        request = {"vmid": vmid, "storage": storage, "fleecing": fleecing, **options}

        def back_up(task: Task) -> None:
            wait = 60 * int(options.get("lockwait") or 180)
            if not self._vzdump.acquire(timeout=min(wait, 0.1)):
                raise TaskFailure("can't acquire lock '/var/run/vzdump.lock' - got timeout")
            try:
                if "VM.Backup" not in self.access.rights(who, f"/vms/{vmid}"):
                    task.log.append(f"ERROR: Backup of VM {vmid} failed - Permission check failed")
                    raise TaskFailure("job errors")
                self.backups.append(request)
                vm = self.vm(node, vmid)
                disks = [volid for volid in _attached(vm) if vm.backs_up(volid)]
                if not disks:
                    raise TaskFailure("job errors")
                with self._locked(vm, "backup"):
                    stamp = time.strftime("%Y_%m_%d-%H_%M_%S") + f"_{len(self.backups)}"
                    name = f"vzdump-qemu-{vmid}-{stamp}.vma.zst"
                    target = volumes.dump(storage, name)
                    task.log.append(f"INFO: creating vzdump archive '{target}'")
                    task.log.append("INFO: starting backup via QMP command")
                    self._copy(task, target)
                    size = sum(volumes.size(volid) for volid in disks)
                    kept = volumes.keep_backup(storage, int(vmid), name, size, notes_template)
                    self.archived[kept] = _archived(vm, disks)
            finally:
                self._vzdump.release()

        return self.tasks.run(node, "vzdump", vmid, who, back_up)

    def _copy(self, task: Task, target: Path) -> None:
        """Write what a backup has beside its archive until the end (`exec_backup_task`)."""
        data, directory = target.with_suffix(".dat"), target.with_suffix("").with_suffix(".tmp")
        directory.mkdir()
        data.write_bytes(b"VMA")
        try:
            self._work(task, self.seconds)
        except TaskFailure:
            data.unlink()
            directory.rmdir()
            target.with_suffix("").with_suffix(".log").write_text("\n".join(task.log))
            raise
        data.unlink()
        directory.rmdir()

    def delete_nodes_storage_content_volume(
        self, who: str, node: str, storage: str, volume: str, **_: Any
    ) -> str:
        volumes = self.volumes_on[node]
        owner, form = volumes.owner(volume), volumes.format(volume)
        if form.startswith("vma") and owner:
            self.access.need(who, f"/storage/{storage}", ["Datastore.AllocateSpace"])
            self.access.need(who, f"/vms/{owner}", ["VM.Backup"])
        else:
            self.access.need(who, f"/storage/{storage}", ["Datastore.Allocate"])

        def remove(task: Task) -> None:
            volumes.free(volume)

        subject = f"{owner}@{storage}" if owner else storage
        return self.tasks.run(node, "imgdel", subject, who, remove)

    def restore(
        self, who: str, node: str, vmid: int, archive: str, storage: str, **options: Any
    ) -> str:
        """Restore over a VM, as `create_vm` with `archive` and `force` does.

        As soon as the header is read, the configuration is an empty one without lock and
        description, until the end (`restore_vma_archive` in PVE/QemuServer.pm of 9.2.6). What fails
        leaves that; without `force`, outside the pool. Disks that the backup does not include are
        comments after that.
        """
        volumes = self.volumes_on[node]
        self.access.need(who, f"/storage/{storage}", ["Datastore.AllocateSpace"])
        self.access.need(who, f"/storage/{archive.partition(':')[0]}", ["Datastore.AllocateSpace"])
        self.access.need(who, f"/vms/{volumes.owner(archive)}", ["VM.Backup"])
        if options.get("force") != "1":
            raise failure(f"unable to restore VM {vmid} - VM {vmid} already exists")
        vm = self.vm(node, vmid)
        vm.refuse_lock()
        if vm.running:
            raise failure(f"unable to restore VM {vmid} - vm is running")
        vm.config["lock"] = "create"
        source, kept = self.archived[archive]
        forms = {
            slot: "raw" if storage == "thin" else volumes.format(volid)
            for slot, (volid, _) in kept.items()
        }
        sizes = {slot: volumes.size(volid) for slot, (volid, _) in kept.items()}

        def restore(task: Task) -> None:
            vm.config = {"memory": "128"}
            try:
                self._work(task, self.seconds)
            except Killed:
                vm.config["lock"] = "create"
                raise
            disks = {}
            for slot, (_, parts) in kept.items():
                name = volumes.next_name(storage, vmid, forms[slot])
                new = volumes.allocate(storage, vmid, name, sizes[slot], forms[slot])
                disks[slot] = render(new, parts)
            vm.config = {**source, **disks, "description": options["description"]}

        return self.tasks.run(node, "qmrestore", str(vmid), who, restore)

    # --- moves and tasks -------------------------------------------------------------------

    def post_nodes_qemu_move_disk(
        self, who: str, node: str, vmid: str, disk: str, storage: str, **options: Any
    ) -> str:
        self.access.need(who, f"/vms/{vmid}", ["VM.Config.Disk"])
        self.access.need(who, f"/storage/{storage}", ["Datastore.AllocateSpace"])
        vm = self.vm(node, vmid)
        if disk not in vm.config:
            raise failure(f"disk '{disk}' does not exist")
        volid, parts = parse(str(vm.config[disk]))
        if volid.partition(":")[0] == storage:
            raise failure("you can't move to the same storage with same format")
        self.moves.append({"disk": disk, "storage": storage, **options})

        def move(task: Task) -> None:
            with vm.locked():
                vm.refuse_lock()
                form = "raw" if storage == "thin" else vm.volumes.format(volid)
                size = vm.volumes.size(volid)
                name = vm.volumes.next_name(storage, vm.vmid, form)
                new = vm.volumes.allocate(storage, vm.vmid, name, size, form)
                try:
                    self._work(task, self.seconds)
                except TaskFailure as error:
                    vm.volumes.free(new)
                    raise TaskFailure(f"storage migration failed: {error}") from error
                if form == vm.volumes.format(volid):
                    shutil.copyfile(vm.volumes.path(volid), vm.volumes.path(new))
                vm.config[disk] = render(new, parts)
                vm.retain(volid)

        return self.tasks.run(node, "qmmove", vmid, who, move)

    def delete_nodes_tasks_upid(self, who: str, node: str, upid: str) -> None:
        task = self.tasks.find(upid)
        if task.user != who:
            self.access.need(who, f"/nodes/{node}", ["Sys.Modify"])
        if task.end is not None:
            raise Refused(400, "Parameter verification failed.", errors={"upid": "no such task"})
        task.stopped.set()


def _archived(vm: Vm, disks: list[str]) -> tuple[dict[str, Any], Drives]:
    """Return what an archive has of a VM: its options, and the disks that it includes."""
    drives = {key: parse(str(value)) for key, value in vm.config.items() if SLOT.match(key)}
    left_out = [key for key, (_, parts) in drives.items() if parts.get("media") != "cdrom"]
    options = {k: v for k, v in vm.config.items() if _is_copied(k) and k not in left_out}
    return options, {key: drive for key, drive in drives.items() if drive[0] in disks}


def _attached(vm: Vm) -> list[str]:
    return [
        parse(str(value))[0]
        for key, value in vm.config.items()
        if SLOT.match(key) and "media=cdrom" not in str(value)
    ]


def _is_copied(key: str) -> bool:
    """Return whether a snapshot keeps an option (`__snapshot_copy_config`)."""
    return key not in ("lock", "digest", "description", "parent") and not UNUSED.match(key)
