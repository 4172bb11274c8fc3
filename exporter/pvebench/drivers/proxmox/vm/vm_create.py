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
    VmPlace,
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
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Access of one worker thread to a node, for VMs and containers.

    Attributes:
        storages: name in packs -> cluster storage.
    """

    api: Api
    place: VmPlace
    image: GuestImage
    journal: Journal
    clock: Clock
    storages: Mapping[str, ClusterStorage]

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.place.node


CREATION: Final = "qmcreate"
"""Type of the task of a creation; the VM has its marker and its pool when it ends."""


def make_vm(
    api: Api,
    clock: Clock,
    place: VmPlace,
    journal: Journal,
    *,
    options: Mapping[str, Any],
    iso: str = "",
    template: Template | None = None,
) -> tuple[BenchVm, int]:
    """Create a VM with a free ID of the range; return it and its journal entry.

    Args:
        iso: volid of the guest image that a new VM boots.
        template: clone it instead, then set the options.

    Raises NotOwned: every ID of the range is taken. Others as `Api` and `Tasks.run`.
    """
    for vmid in free_ids(api, place):
        vm = BenchVm(api, clock, place, vmid, secrets.token_hex(16))
        details = {"node": place.node, "pool": place.pool, "vmid": str(vmid), "mark": vm.mark}
        if template:
            details["template"] = str(template.vmid)
        details["newest"] = newest_task(api, place.node, *creation_of(details))
        entry = journal.open(KIND, details)
        try:
            claim = node_time(api, place.node, clock) + CLAIM_SECONDS
            if template:
                words = description(vm.mark, claim=claim, system=template.disks)
                template.clone(api, clock, vm, place.pool, words)
            else:
                _create(api, vm, place, {**options, ISO_SLOT: f"{iso},media=cdrom"}, claim)
        except Rejected as error:
            if "already exists" in error.text:
                journal.close(entry)
                continue  # the ID was taken in between
            with contextlib.suppress(DriverError):
                if is_free(api, vmid):  # else the VM exists: it is removed later
                    journal.close(entry)
            raise
        _tag(api, vm, journal, entry, options if template else {})
        return vm, entry
    raise no_free_id(place)


def creation_of(details: Mapping[str, str]) -> tuple[str, str]:
    """Return type and ID of the task that creates the VM of a journal entry."""
    template = details.get("template", "")
    return (CLONE, template) if template else (CREATION, details["vmid"])


def free_ids(api: Api, place: VmPlace) -> Iterator[int]:
    """Yield the IDs of the range that no VM or container of the cluster has."""
    first, last = place.vmids
    return (vmid for vmid in range(first, last + 1) if is_free(api, vmid))


def no_free_id(place: VmPlace) -> NotOwned:
    """Return the error if every ID of the range is taken."""
    first, last = place.vmids
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


def _create(
    api: Api, vm: BenchVm, place: VmPlace, options: Mapping[str, Any], claim: float
) -> None:
    vm.tasks.learn()
    vm.tasks.run(
        lambda: api.post(
            f"/nodes/{place.node}/qemu",
            vmid=vm.vmid,
            pool=place.pool,
            description=description(vm.mark, claim=claim),
            **options,
        ),
        kind=CREATION,
        what=f"VM {vm.vmid}: create",
        seconds=CHANGE_SECONDS,
    )


def _tag(api: Api, vm: BenchVm, journal: Journal, entry: int, options: Mapping[str, Any]) -> None:
    """Tag a new VM and set a clone's options; if that fails, remove it, or leave it to the journal.

    The tag is set after creation: with pool rights alone, version 9.2 rejects tags during it.
    """
    try:
        vm.change("tag", tags=TAG, **options)
    except DriverError:
        with contextlib.suppress(DriverError):
            vm.destroy(journal)
            if is_free(api, vm.vmid):  # else a clone may still begin or run
                journal.close(entry)
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


def upload_iso(api: Api, node: str, storage: str, image: GuestImage, clock: Clock) -> str:
    """Return the volid of the image on the storage; upload it if missing.

    Raises GuestImageError: it is missing after the upload. Others as `Api` and `Tasks.run`.
    """
    with _ONE_AT_A_TIME:
        return find_iso(api, node, storage, image) or _upload(api, node, storage, image, clock)


def _upload(api: Api, node: str, storage: str, image: GuestImage, clock: Clock) -> str:
    tasks = Tasks(api, node, clock)
    tasks.learn()
    content = _Named(image.iso.read_bytes(), iso_name(image))
    # The server requires these parts in this order, the file last.
    parts = {
        "content": "iso",
        "checksum-algorithm": "sha256",
        "checksum": file_digest(image.iso),
        "filename": content,
    }
    tasks.run(
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

    def __init__(self, context: NodeContext, iso: str) -> None:
        self._api, self._place, self._journal = context.api, context.place, context.journal
        self._vm: BenchVm | None
        self._vm, self._entry = make_vm(
            self._api, context.clock, self._place, self._journal, options=_EMPTY_VM, iso=iso
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
    tasks = tasks_of(api, node, vmid=vmid)
    created = [str(task["upid"]) for task in tasks if task["type"] == CREATION][-1:]
    if not created or created == [newest] or tasks[-1]["type"] != RESTORE:
        return False
    return created[0].split(":")[_USER] == str(tasks[-1]["upid"]).split(":")[_USER]
