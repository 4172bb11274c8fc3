"""Backup, restore, move and snapshots of the plugged disk during a run, as tasks of its node.

Everything is undone: archives carry the VM's marker in their notes and are in the journal before
they exist; snapshots and moved volumes belong to the VM. Proxmox limits a backup's bandwidth only
for administrators (Sys.Modify), so the size of the volume and the end of the run limit it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.api.tasks import TaskKilled, runs_task
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm
from pvebench.drivers.proxmox.vm.drive import ISO_SLOT, OperationTargets, parse_drive, vmstate_bytes
from pvebench.drivers.proxmox.vm.hotplug import Plugged, block_counters
from pvebench.drivers.proxmox.vm.vm_copies import (
    BACKUP,
    LOCK_MINUTES,
    VmSnapshots,
    expect_archive,
    notes,
    own_archives,
    try_to_remove,
)
from pvebench.drivers.proxmox.vm.vm_create import NodeContext, RestoredVm
from pvebench.drivers.proxmox.vm.vm_volumes import space_of
from pvebench.errors import Busy, NoSpace, OperationFailed, OperationUnfinished, SwitchFailed
from pvebench.model.ports import Progress
from pvebench.model.rules import Operations
from pvebench.model.storage_use import lacking
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import COPIES, NEIGHBOR, SNAPSHOT_OPERATIONS, SNAPSHOT_RAM

_LOOK_SECONDS: Final = 1.0
"""Interval of looks: each is two requests to the node."""
_CANCEL_SECONDS: Final = 600.0
_STOPPABLE: Final = frozenset(COPIES)
"""Operations that Proxmox undoes if their task is stopped."""


class DiskOperation:
    """`model.ports.Operation` of a node.

    Args:
        plugged: the disk in use.
        target_rate: maximum bytes per second of a move; 0: that of the targets.
    """

    bounds: Sequence[float] = ()
    look_seconds = _LOOK_SECONDS

    def __init__(
        self,
        context: NodeContext,
        vm: BenchVm,
        plugged: Plugged,
        *,
        name: str,
        targets: OperationTargets,
        target_rate: int,
    ) -> None:
        self._context, self._vm, self._plugged, self._name = context, vm, plugged, name
        self._api, self._clock, self._targets = context.api, context.clock, targets
        self._rate = target_rate or targets.move_rate
        self._snapshots = VmSnapshots(vm)
        self._restored: RestoredVm | None = None
        self._upid = ""
        self._ended = False
        self._failure: OperationFailed | None = None
        self._bytes = self._operations = 0

    @property
    def _volid(self) -> str:
        return self._plugged.plug.volume.volid

    @property
    def _storage(self) -> str:
        return self._volid.partition(":")[0]

    def prepare(self) -> None:
        self._vm.require_unlocked(self._name)
        self._require_space()
        self._steps[self._name][0]()

    @property
    def _steps(self) -> dict[str, tuple[Callable[[], object], Callable[[], str]]]:
        """Operation -> functions that prepare it, and that begin it and return its task."""
        snapshots, volid, nothing = self._snapshots, self._volid, str
        backup = self._prepare_backup, self._back_up
        return {
            "backup": backup,
            "backup-fleecing": backup,
            "move": (nothing, self._move),
            "restore": (self._prepare_restore, self._restore),
            "snapshot": (nothing, lambda: snapshots.begin(volid)),
            SNAPSHOT_RAM: (nothing, lambda: snapshots.begin(volid, vmstate=1)),
            "delete-snapshot": (
                lambda: snapshots.take_temporary(volid),
                lambda: snapshots.begin_removal(volid),
            ),
            NEIGHBOR: (nothing, nothing),  # the runner lets it work
        }

    def _require_space(self) -> None:
        """Require space on each storage for all that the operation creates. Raises NoSpace."""
        rules = Operations(targets=self._targets.on(self._storage), saved_memory=vmstate_bytes)
        need = rules.space(
            self._name,
            self._storage,
            volume_bytes=self._plugged.plug.volume.size_bytes,
            memory_bytes=int(self._vm.recent_config().values.get("memory", 0)) * MIB,
        )
        node, storages = self._context.node, self._context.storages.values()
        floors = {storage.id: storage.min_free or 0 for storage in storages}
        rows = {row["storage"]: row for row in self._api.get(f"/nodes/{node}/storage")}
        spaces = {to: space_of(rows.get(to, {}), to, node, floors.get(to, 0)) for to in need}
        for reason in lacking(need, spaces).values():
            raise NoSpace(reason, next_step="free space, or reduce volume.size of the pack")

    def _prepare_backup(self) -> None:
        if runs_task(self._api, self._context.node, BACKUP):
            raise Busy(
                f"{self._name}: another backup runs on {self._context.node}",
                cause="a backup job started",
                next_step="no action needed; pvebench retries later",
            )
        self._include_in_backups()

    def _prepare_restore(self) -> None:
        """Back the VM up, before the load, and create the VM to restore to."""
        self._prepare_backup()
        self._upid = self._back_up()
        self._vm.tasks.wait(self._upid, what="backup for the restore", seconds=_CANCEL_SECONDS)
        self._upid = ""
        iso, _ = parse_drive(str(self._vm.verify_owner().values[ISO_SLOT]))
        self._restored = RestoredVm(self._context, iso)

    def _restore(self) -> str:
        path = f"/nodes/{self._context.node}/storage/{self._targets.backup_storage}/content"
        archives = own_archives(self._api, path, str(self._vm.vmid), self._vm.mark)
        if self._restored is None or not archives:
            raise OperationFailed(f"restore: VM {self._vm.vmid} has no backup on the storage")
        return self._restored.begin(archives[-1], self._storage)

    def _include_in_backups(self) -> None:
        """Set the disk's option `backup`, which is off so that no backup job reads the disk."""
        slot = self._plugged.slot
        text = str(self._vm.recent_config().values.get(slot, "")).replace("backup=0", "backup=1")
        self._vm.change(f"include {slot} in backups", **{slot: text})
        seen = self._vm.verify_owner()
        if slot in seen.waiting or parse_drive(str(seen.values.get(slot)))[1].get("backup") == "0":
            raise SwitchFailed(f"VM {self._vm.vmid}: {slot} not included in backups")

    def begin(self) -> None:
        self._vm.recent_config()  # it is still pvebench's
        self._upid = self._steps[self._name][1]()

    def _back_up(self) -> str:
        storage = self._targets.backup_storage
        size = self._plugged.plug.volume.size_bytes
        expect_archive(self._vm, storage, size)
        options: dict[str, Any] = {
            "notification-mode": "legacy-sendmail",
            "notes-template": notes(self._vm.mark),
        }
        if self._name == "backup-fleecing":
            options["fleecing"] = f"enabled=1,storage={self._targets.fleecing_storage}"
        return self._vm.tasks.begin(
            lambda: self._api.post(
                f"/nodes/{self._context.node}/vzdump",
                vmid=self._vm.vmid,
                storage=storage,
                mode="snapshot",
                compress="zstd",
                remove=0,  # older backups stay, whatever the storage's retention is
                lockwait=LOCK_MINUTES,
                **options,
            ),
            kind=BACKUP,
        )

    def _move(self) -> str:
        limit = {"bwlimit": max(1, self._rate // KIB)} if self._rate else {}
        target: dict[str, Any] = {"disk": self._plugged.slot, **limit}
        target["storage"] = self._targets.move_storage
        path = f"{self._vm.path}/move_disk"
        return self._vm.tasks.begin(lambda: self._api.post(path, **target), kind="qmmove")

    def look(self) -> Progress:
        if self._upid and not self._ended and self._has_ended():
            self._ended = True
            if self._name in _STOPPABLE:
                self._bytes = self._plugged.plug.volume.size_bytes
        is_read = self._count()
        return Progress(
            operations=self._operations,
            latencies=(),
            bytes=self._bytes,
            ended=self._ended,
            is_read=is_read or self._name in SNAPSHOT_OPERATIONS,
        )

    def _count(self) -> bool:
        """Read the completed I/O; return whether QEMU reports it now."""
        status = self._vm.status()
        if self.blocks_monitor(status):
            return False
        counters = block_counters(status, self._plugged.slot)
        self._operations = counters.operations + counters.flush_operations
        return True

    def blocks_monitor(self, status: Mapping[str, Any]) -> bool:
        """Return whether the running operation is why a VM's status has no counters.

        A busy monitor of QEMU: the node then reports a running VM without counters (`vmstatus` in
        PVE/QemuServer.pm). Only an internal snapshot stops the VM's I/O meanwhile.
        """
        runs = bool(self._upid) and not self._ended
        return runs and status.get("qmpstatus") == "running" and not status.get("blockstat")

    def _has_ended(self) -> bool:
        try:
            return self._vm.tasks.look(self._upid, what=self._name) is not None
        except (Rejected, Busy) as error:
            self._ended = True
            raise OperationFailed(
                f"{self._name} failed: {error.reason}",
                cause=error.cause,
                next_step=error.next_step,
                evidence=error.evidence,
            ) from error

    def cancel(self) -> None:
        """End it, and remove what it created. Raises DriverError: later calls try again.

        An archive that cannot be removed yet blocks nothing: its record stays in the journal.
        """
        self.stop()
        if self._upid:
            self._wait()
            self._upid = ""
            self._vm.verify_owner()  # the task changed the configuration
        if self._name in SNAPSHOT_OPERATIONS:
            self._snapshots.remove(self._volid, temporary=True)
        if self._restored is not None:
            self._restored.remove()
        if self._name in ("backup", "backup-fleecing", "restore"):
            try_to_remove(self._vm)
        if failure := self._failure:
            self._failure = None
            raise failure

    def stop(self) -> None:
        """Request the end of a task that runs and can be stopped. Raises DriverError."""
        if self._upid and not self._ended and self._name in _STOPPABLE:
            self._vm.tasks.stop(self._upid)

    def _wait(self) -> None:
        for _ in attempts(self._clock, seconds=_CANCEL_SECONDS, pause=_LOOK_SECONDS):
            try:
                self._ended = self._ended or self._has_ended()
            except OperationFailed as error:
                # A stopped task fails, and one that is killed leaves what it did.
                if self._name not in _STOPPABLE or isinstance(error.__cause__, TaskKilled):
                    self._failure = error
                return
            if self._ended:
                return
        raise OperationUnfinished(
            f"{self._name} did not end within {_CANCEL_SECONDS:.0f} s after the run",
            evidence=self._upid,
        )
