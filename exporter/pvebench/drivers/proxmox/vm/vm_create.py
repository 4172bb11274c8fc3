"""Creation of a benchmark VM: guest image, free VM ID, VM options.

The marker and the journal entry precede the call; the tag follows it. A VM with another system is
a clone of a template, which is only read.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Forbidden, Rejected
from pvebench.drivers.proxmox.api.tasks import Tasks, newest_task, runs_task, tasks_of
from pvebench.drivers.proxmox.vm.bench_vm import (
    CHANGE_SECONDS,
    KIND,
    TAG,
    BenchVm,
    NodeAccess,
    node_time,
    pool_members,
)
from pvebench.drivers.proxmox.vm.description import CLAIM_SECONDS, description
from pvebench.drivers.proxmox.vm.drive import ISO_SLOT, ClusterStorage
from pvebench.drivers.proxmox.vm.template import CLONE, Template
from pvebench.errors import Busy, DriverError, GuestImageError, NotOwned
from pvebench.guest.image import GuestImage, file_digest
from pvebench.log import log
from pvebench.model.disk import ScsiHw
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext(NodeAccess):
    """Access to a node that is measured.

    Attributes:
        storages: name in packs -> cluster storage.
    """

    image: GuestImage
    storages: Mapping[str, ClusterStorage]


CREATION: Final = "qmcreate"
"""Type of the task of a creation; the VM has its marker and its pool when it ends."""


def make_vm(
    access: NodeAccess, options: Mapping[str, Any], iso: str = "", template: Template | None = None
) -> tuple[BenchVm, int]:
    """Create a VM with a free ID of the range; return it and its journal entry.

    Args:
        iso: volid of the guest image that a new VM boots.
        template: clone it instead, then set the options.

    Raises NotOwned: every ID of the range is taken. Others as `Api` and `Tasks.run`.
    """
    api, node, journal = access.api, access.node, access.journal
    for vmid in free_ids(api, access.vmids):
        vm = BenchVm(access, vmid, secrets.token_hex(16))
        details = {"node": node, "pool": access.pool, "vmid": str(vmid), "mark": vm.mark}
        if template:
            details["template"] = str(template.vmid)
        details["newest"] = newest_task(api, node, *creation_of(details))
        entry = journal.open(KIND, details)
        try:
            claim = node_time(api, node, access.clock) + CLAIM_SECONDS
            if template:
                template.clone(vm, description(vm.mark, claim=claim, system=template.disks))
            else:
                _create(vm, {**options, ISO_SLOT: f"{iso},media=cdrom"}, claim)
        except Rejected as error:
            if "already exists" in error.text:
                journal.close(entry)
                continue  # the ID was taken in between
            with contextlib.suppress(DriverError):
                if is_free(api, vmid):  # else the VM exists: it is removed later
                    journal.close(entry)
            raise
        _tag(vm, entry, options if template else {})
        return vm, entry
    raise no_free_id(access)


def creation_of(details: Mapping[str, str]) -> tuple[str, str]:
    """Return type and ID of the task that creates the VM of a journal entry."""
    template = details.get("template", "")
    return (CLONE, template) if template else (CREATION, details["vmid"])


def free_ids(api: Api, vmids: tuple[int, int]) -> Iterator[int]:
    """Yield the IDs of the range that no VM or container of the cluster has."""
    first, last = vmids
    return (vmid for vmid in range(first, last + 1) if is_free(api, vmid))


def no_free_id(access: NodeAccess) -> NotOwned:
    """Return the error if every ID of the range is taken."""
    first, last = access.vmids
    return NotOwned(
        f"no free VM ID from {first} to {last}",
        next_step="set another range in vmids, or run `pvebench cleanup --orphans`",
    )


def is_free(api: Api, vmid: int) -> bool:
    """Return whether no VM or container of the cluster has this ID; nothing is reserved."""
    try:
        api.get("/cluster/nextid", vmid=vmid)
    except Rejected:
        return False
    return True


def _create(vm: BenchVm, options: Mapping[str, Any], claim: float) -> None:
    vm.tasks.run(
        lambda: vm.access.api.post(
            f"/nodes/{vm.access.node}/qemu",
            vmid=vm.vmid,
            pool=vm.access.pool,
            description=description(vm.mark, claim=claim),
            **options,
        ),
        kind=CREATION,
        what=f"VM {vm.vmid}: create",
        seconds=CHANGE_SECONDS,
    )


def _tag(vm: BenchVm, entry: int, options: Mapping[str, Any]) -> None:
    """Tag a new VM and set a clone's options; if that fails, remove it, or leave it to the journal.

    The tag is set after creation: with pool rights alone, version 9.2 rejects tags during it.
    """
    try:
        vm.change("tag", tags=TAG, **options)
    except DriverError:
        with contextlib.suppress(DriverError):
            vm.destroy()
            if is_free(vm.access.api, vm.vmid):  # else a clone may still begin or run
                vm.access.journal.close(entry)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class VmOptions:
    """VM options that scenarios do not set.

    Attributes:
        iso_storage: storage of the guest image; its content must include `iso`.
        cpu: CPU type; `host` exposes all features to the guest.
        machine: machine type; empty: the node's newest.
        keep: keep the VM, switched off, with its filled volumes between starts.
        kvm: False only without nested virtualization; results have accel=tcg.
        number: 1: the benchmark VM of the node; others run beside it, and are never kept.
    """

    iso_storage: str
    cpu: str = "host"
    machine: str = ""
    kvm: bool = True
    keep: bool = False
    number: int = 1


def vm_options(node: str, configured: VmOptions, machine: Machine) -> dict[str, Any]:
    """Return the options of a new VM: no network, no disk except the guest image."""
    options: dict[str, Any] = {
        "name": f"pvebench-{node}" + f"-vm{configured.number}" * (configured.number > 1),
        "ostype": "l26",
        "memory": machine.memory_bytes // MIB,
        "balloon": 0,
        **cpu_options(configured, machine),
        "cpu": configured.cpu,
        "machine": configured.machine or None,
        "scsihw": str(ScsiHw.SINGLE),
        # Both versions support the older name. A file system freeze would distort a run.
        "agent": "enabled=1,freeze-fs-on-backup=0",
        "hotplug": "disk",
        "boot": "order=ide2",
        "serial0": "socket",
        "vga": "serial0",
        "tablet": 0,
        "onboot": 0,
    }
    if not configured.kvm:
        options["kvm"] = 0
    return {key: value for key, value in options.items() if value is not None}


def clone_options(node: str, configured: VmOptions, machine: Machine) -> dict[str, Any]:
    """Return the options of a clone that replace those of its template; its others stay."""
    names = ("name", "memory", "balloon", "agent", "hotplug", "onboot", "cores", "vcpus", "kvm")
    options = vm_options(node, configured, machine)
    fixed = {"sockets": 1, "protection": 0}
    return {**fixed, **{name: options[name] for name in names if name in options}}


def cpu_options(configured: VmOptions, machine: Machine) -> dict[str, int]:
    """Return the CPU options: without KVM at least two `cores`, of which `vcpus` are plugged.

    Proxmox translates them to `-smp VCPUS,…,maxcpus=CORES`, with or without `hotplug: cpu`
    (`config_to_command` in PVE/QemuServer.pm). `cpus_option` in drivers/qemu/machine.py gives the
    reason for the minimum.
    """
    if configured.kvm:
        return {"cores": machine.cpus}
    return {"cores": max(2, machine.cpus), "vcpus": machine.cpus}


_UPLOAD_SECONDS: Final = 600.0
_SEEN_SECONDS: Final = 20.0
"""Time within which an uploaded file must be listed completely, seconds."""
_ONE_AT_A_TIME: Final = threading.Lock()
"""Upload lock: on a shared storage a second upload would overwrite the first one's file."""


def iso_name(image: GuestImage) -> str:
    """Return the image's name on the storage; different content has a different name."""
    return f"pvebench-guest-{file_digest(image.iso)[:16]}.iso"


def find_iso(api: Api, node: str, storage: str, image: GuestImage) -> str:
    """Return the image's volid if the storage has it completely, else an empty string.

    The API reports no digests, so the name contains one; a truncated file has another size.
    """
    volid, size = f"{storage}:iso/{iso_name(image)}", image.iso.stat().st_size
    for entry in api.get(f"/nodes/{node}/storage/{storage}/content", content="iso"):
        if entry["volid"] == volid and int(entry.get("size", 0)) == size:
            return volid
    return ""


def upload_iso(access: NodeAccess, storage: str, image: GuestImage) -> str:
    """Return the volid of the image on the storage; upload it if missing.

    Raises GuestImageError: it is missing after the upload. Others as `Api` and `Tasks.run`.
    """
    with _ONE_AT_A_TIME:
        volid = find_iso(access.api, access.node, storage, image)
        return volid or _upload(access, storage, image)


def _upload(access: NodeAccess, storage: str, image: GuestImage) -> str:
    api, node, clock = access.api, access.node, access.clock
    content = _Named(image.iso.read_bytes(), iso_name(image))
    # The server requires these parts in this order, the file last.
    parts = {
        "content": "iso",
        "checksum-algorithm": "sha256",
        "checksum": file_digest(image.iso),
        "filename": content,
    }
    Tasks(api, node, clock).run(
        lambda: api.post(
            f"/nodes/{node}/storage/{storage}/upload", seconds=_UPLOAD_SECONDS, **parts
        ),
        kind="imgcopy",
        what=f"upload of the guest image to {storage}",
        seconds=_UPLOAD_SECONDS,
    )
    for _ in attempts(clock, seconds=_SEEN_SECONDS, pause=1.0):
        if volid := find_iso(api, node, storage, image):
            return volid
    raise GuestImageError(
        f"guest image not found on storage {storage} of {node} after its upload",
        next_step="check the storage's content; content type `iso` must be enabled",
    )


class _Named(io.BytesIO):
    """Bytes that proxmoxer sends under `name`."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


# --- Restored VM of an operation

_EMPTY_VM: Final = {"name": "pvebench-restore", "ostype": "l26", "memory": 64}
"""Those of the backup replace them."""
RESTORE: Final = "qmrestore"
"""Type of the task of a restore."""


class RestoredVm:
    """A second VM that a backup of the benchmark VM is restored to. It never starts.

    It is created empty, in the pool and with a marker of its own, before Proxmox restores over it:
    after a restore that fails or is stopped, Proxmox leaves a new VM outside the pool, where the
    token may not remove it. An existing one stays in the pool, but has an empty configuration,
    without marker, from the start of the restore to its end (`restore_vma_archive` in
    PVE/QemuServer.pm).

    Args:
        iso: volid of the guest image.
    """

    def __init__(self, access: NodeAccess, iso: str) -> None:
        self._journal = access.journal
        self._vm: BenchVm | None
        self._vm, self._entry = make_vm(access, _EMPTY_VM, iso)
        entries = {number: details for number, _, details in self._journal.pending()}
        self._newest = entries[self._entry].get("newest", "")

    def begin(self, archive: str, storage: str) -> str:
        """Begin to restore an archive to a storage; return the task. Raises DriverError."""
        if self._vm is None:
            return ""
        vm = self._vm
        vm.verify_owner()  # `force` overwrites it
        return vm.tasks.begin(
            lambda: vm.access.api.post(
                f"/nodes/{vm.access.node}/qemu",
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
            mark_again(self._vm, self._newest)
            self._vm.destroy()
            self._journal.close(self._entry)
        except NotOwned as error:
            log.warning("VM of a restore not removed", reason=error.reason)
        self._vm = None


_EMPTY: Final = {"memory": "128"}
"""Configuration of a VM that is restored, or whose restore has failed."""
_USER: Final = 7
"""Index of user and token in a UPID (`upid_encode` of PVE/Tools.pm)."""


def mark_again(vm: BenchVm, newest: str) -> None:
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
    digest, api = config.pop("digest", None), vm.access.api
    if config != _EMPTY or vm.vmid not in pool_members(api, vm.access.pool):
        return
    if not was_restored(vm, newest):
        return
    if runs_task(api, vm.access.node, RESTORE, str(vm.vmid)):
        raise Busy(
            f"VM {vm.vmid} is still restored",
            next_step="no action needed; pvebench removes it after that",
        )
    api.put(f"{vm.path}/config", description=description(vm.mark), digest=digest)


def was_restored(vm: BenchVm, newest: str) -> bool:
    """Return whether the latest task of a VM ID is a restore by the user that created its VM.

    Args:
        newest: the latest creation of a VM with this ID before pvebench's own, from the journal.
    """
    tasks = tasks_of(vm.access.api, vm.access.node, vmid=vm.vmid)
    created = [str(task["upid"]) for task in tasks if task["type"] == CREATION][-1:]
    if not created or created == [newest] or tasks[-1]["type"] != RESTORE:
        return False
    return created[0].split(":")[_USER] == str(tasks[-1]["upid"]).split(":")[_USER]
