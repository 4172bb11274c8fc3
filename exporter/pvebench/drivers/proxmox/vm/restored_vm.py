"""A second VM that a backup of the benchmark VM is restored to. It never starts.

It is created empty, in the pool and with a marker of its own, before Proxmox restores over it:
after a restore that fails or is stopped, Proxmox leaves a new VM outside the pool, where the token
may not remove it. An existing one stays in the pool, but has an empty configuration, without
marker, from the start of the restore to its end (`restore_vma_archive` in PVE/QemuServer.pm).
"""

from __future__ import annotations

from typing import Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Forbidden, Rejected
from pvebench.drivers.proxmox.api.tasks import runs_task, start_of
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, VmPlace, pool_members
from pvebench.drivers.proxmox.vm.description import description
from pvebench.drivers.proxmox.vm.vm_create import CREATION, NodeContext, make_vm
from pvebench.errors import Busy, NotOwned
from pvebench.log import log

_OPTIONS: Final = {"name": "pvebench-restore", "ostype": "l26", "memory": 64}
"""Those of the backup replace them."""
RESTORE: Final = "qmrestore"
"""Type of the task of a restore."""
_TASKS: Final = 50


class RestoredVm:
    """Second VM of one operation; `iso` is the volid of the guest image."""

    def __init__(self, context: NodeContext, iso: str) -> None:
        self._api, self._place, self._journal = context.api, context.place, context.journal
        self._vm: BenchVm | None
        self._vm, self._entry = make_vm(
            self._api, context.clock, self._place, self._journal, options=_OPTIONS, iso=iso
        )
        entries = {number: details for number, _, details in self._journal.pending()}
        self._newest = entries[self._entry].get("newest", "")

    def begin(self, archive: str, storage: str) -> str:
        """Begin to restore an archive to a storage; return the task. Raises DriverError."""
        if self._vm is None:
            return ""
        vm = self._vm
        vm.verify_owner()  # `force` overwrites it
        return vm.tasks.begin(
            lambda: self._api.post(
                f"/nodes/{self._place.node}/qemu",
                vmid=vm.vmid,
                archive=archive,
                storage=storage,
                force=1,
                unique=1,
                description=description(vm.mark),
            ),
            kind=RESTORE,
        )

    def remove(self) -> None:
        """Remove it. Raises DriverError: not possible at present, and the journal has it."""
        if self._vm is None:
            return
        try:
            mark_again(self._api, self._vm, self._place, self._newest)
            self._vm.destroy(self._journal)
            self._journal.close(self._entry)
        except NotOwned as error:
            log.warning("VM of a restore not removed", reason=error.reason)
        self._vm = None


_EMPTY: Final = {"memory": "128"}
"""Configuration of a VM that is restored, or whose restore has failed."""
_USER: Final = 7
"""Index of user and token in a UPID (`upid_encode` of PVE/Tools.pm)."""


def mark_again(api: Api, vm: BenchVm, place: VmPlace, newest: str) -> None:
    """Write the marker again to the VM that a failed restore of pvebench left; change no other VM.

    The proof is its empty configuration in the pool, and `was_restored`. A VM that cannot be read
    is not changed.

    Args:
        newest: as of `was_restored`.

    Raises Busy: it is still restored. Others as `Api`.
    """
    try:
        config = dict(vm.read().values)
    except (Forbidden, Rejected):
        return
    digest = config.pop("digest", None)
    if config != _EMPTY or vm.vmid not in pool_members(api, place.pool):
        return
    if not was_restored(api, place.node, vm.vmid, newest):
        return
    if runs_task(api, place.node, RESTORE, str(vm.vmid)):
        raise Busy(
            f"VM {vm.vmid} is still restored",
            next_step="no action needed; pvebench removes it after that",
        )
    api.put(f"{vm.path}/config", description=description(vm.mark), digest=digest)


def was_restored(api: Api, node: str, vmid: int, newest: str) -> bool:
    """Return whether the latest task of a VM ID is a restore by the user that created its VM.

    Args:
        newest: the latest creation of a VM with this ID before pvebench's own, from the journal.
    """
    rows = api.get(f"/nodes/{node}/tasks", source="all", vmid=vmid, limit=_TASKS)
    tasks = sorted(rows, key=start_of)
    created = [str(task["upid"]) for task in tasks if task["type"] == CREATION][-1:]
    if not created or created == [newest] or tasks[-1]["type"] != RESTORE:
        return False
    return created[0].split(":")[_USER] == str(tasks[-1]["upid"]).split(":")[_USER]
