"""Making a benchmark VM: the guest's image, a free number, what the VM is in Proxmox's words.

The mark and the journal come before the call, the tag after it.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.api.privileges import missing_rights, privileges_in
from pvebench.drivers.proxmox.api.pve_version import version_number
from pvebench.drivers.proxmox.api.tasks import Tasks
from pvebench.drivers.proxmox.vm.bench_vm import (
    CHANGE_SECONDS,
    CLAIM_SECONDS,
    KIND,
    TAG,
    BenchVm,
    VmPlace,
    description,
    node_time,
)
from pvebench.drivers.proxmox.vm.drive import ISO_SLOT
from pvebench.errors import AccessDenied, DriverError, GuestImageError, NotOwned
from pvebench.guest import GuestImage
from pvebench.guest.image import file_digest
from pvebench.model.disk import ScsiHw
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB


def make_vm(
    api: Api,
    clock: Clock,
    place: VmPlace,
    journal: Journal,
    *,
    options: Mapping[str, Any],
    iso: str,
) -> tuple[BenchVm, int]:
    """Make a VM with a number that is free in the range; return it and its journal entry.

    Raises:
        NotOurs: every number of the range is taken. Others as `Connection` and `Tasks.run`.
    """
    first, last = place.vmids
    for vmid in range(first, last + 1):
        if not is_free(api, vmid):
            continue
        vm = BenchVm(api, clock, place, vmid, secrets.token_hex(16))
        details = {"node": place.node, "pool": place.pool, "vmid": str(vmid), "mark": vm.mark}
        entry = journal.open(KIND, details)
        try:
            claim = node_time(api, place.node, clock) + CLAIM_SECONDS
            _create(api, vm, place, {**options, ISO_SLOT: f"{iso},media=cdrom"}, claim)
        except Rejected as error:
            if "already exists" in error.text:
                journal.close(entry)
                continue  # somebody was quicker
            with contextlib.suppress(DriverError):
                if is_free(api, vmid):  # else the refusal was of something else: it is undone later
                    journal.close(entry)
            raise
        _tag(vm, journal, entry)
        return vm, entry
    raise NotOwned(
        f"all VM numbers from {first} to {last} are taken",
        next_step="give another range in the settings, or see what is there: pvebench check",
    )


def refuse_without_rights(api: Api, pool: str) -> None:
    """After a refusal look whether the right that was missing is there; else nothing is asked.

    A VM that may not be looked at seems to be gone: each case would make another one.

    Raises:
        AccessDenied: it is missing still, so nothing is to be made or started.
    """
    if not api.refused:
        return
    table = api.get("/access/permissions")
    missing = missing_rights(table, pool=pool, major=version_number(api)[0])
    if found := [one for one in missing if privileges_in(one) & api.refused]:
        raise AccessDenied(
            f"the token lacks {'; '.join(found)}",
            cause="its role or its user's was changed, or the cluster was upgraded",
            next_step="pvebench proxmox init --apply gives what is missing",
        )
    api.refused.clear()


def is_free(api: Api, vmid: int) -> bool:
    """Return whether no VM or container of the cluster has this number; nothing is reserved."""
    try:
        api.get("/cluster/nextid", vmid=vmid)
    except Rejected:
        return False
    return True


def _create(
    api: Api, vm: BenchVm, place: VmPlace, options: Mapping[str, Any], claim: float
) -> None:
    vm.learn()
    vm._tasks.run(  # noqa: SLF001 # the VM's own birth
        lambda: api.post(
            f"/nodes/{place.node}/qemu",
            vmid=vm.vmid,
            pool=place.pool,
            description=description(vm.mark, claim=claim),
            **options,
        ),
        kind="qmcreate",
        what=f"VM {vm.vmid}: create",
        seconds=CHANGE_SECONDS,
    )


def _tag(vm: BenchVm, journal: Journal, entry: int) -> None:
    """Tag a new VM; if that fails, take the VM back, or leave it to the journal.

    Only after it was made: with rights through the pool alone, version 9.2 refuses tags before.
    """
    try:
        vm.change("tag", tags=TAG)
    except DriverError:
        with contextlib.suppress(DriverError):
            vm.destroy()
            journal.close(entry)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class VmOptions:
    """What the benchmark VM is, beside what scenarios say.

    Attributes:
        iso_storage: where the guest's image is kept; its content must allow `iso`.
        cpu: CPU type; `host` hides nothing from the guest.
        machine: machine type; empty: the newest that the node has.
        keep: it stays, switched off, with its filled volumes from one start to the next.
        kvm: False only where nested virtualisation is missing; results carry accel=tcg.
    """

    iso_storage: str
    cpu: str = "host"
    machine: str = ""
    kvm: bool = True
    keep: bool = False


def vm_options(node: str, given: VmOptions, machine: Machine) -> dict[str, Any]:
    """Return the options that a new VM is made with: no network, no disk but the guest's image."""
    options: dict[str, Any] = {
        "name": f"pvebench-{node}",
        "ostype": "l26",
        "memory": machine.memory_bytes // MIB,
        "balloon": 0,
        **cpu_options(given, machine),
        "cpu": given.cpu,
        "machine": given.machine or None,
        "scsihw": str(ScsiHw.SINGLE),
        # Both versions know the older name; a freeze in mid-run would be measured.
        "agent": "enabled=1,freeze-fs-on-backup=0",
        "hotplug": "disk",
        "boot": "order=ide2",
        "serial0": "socket",
        "vga": "serial0",
        "tablet": 0,
        "onboot": 0,
    }
    if not given.kvm:
        options["kvm"] = 0
    return {key: value for key, value in options.items() if value is not None}


def cpu_options(given: VmOptions, machine: Machine) -> dict[str, int]:
    """Return how many CPUs the VM has: without KVM there is room for two, but `vcpus` are plugged.

    Proxmox makes it `-smp VCPUS,…,maxcpus=CORES`, with or without `hotplug: cpu`
    (`config_to_command` in PVE/QemuServer.pm). Why there must be room: `cpus_option` in
    drivers/qemu/machine.py.
    """
    if given.kvm:
        return {"cores": machine.cpus}
    return {"cores": max(2, machine.cpus), "vcpus": machine.cpus}


_UPLOAD_SECONDS: Final = 600.0
_SEEN_SECONDS: Final = 20.0
"""How long a file that is uploaded may take to be listed, whole."""
_ONE_AT_A_TIME: Final = threading.Lock()
"""On a storage that several nodes share, a second upload would write over the first one's file."""


def iso_name(image: GuestImage) -> str:
    """Return the image's name on the storage: another content has another name."""
    return f"pvebench-guest-{file_digest(image.iso)[:16]}.iso"


def find_iso(api: Api, node: str, storage: str, image: GuestImage) -> str:
    """Return the image's volid if it is on the storage, whole; else an empty string.

    The API tells no digests, so the name carries one; a file cut off has another size.
    """
    wanted, size = f"{storage}:iso/{iso_name(image)}", image.iso.stat().st_size
    for entry in api.get(f"/nodes/{node}/storage/{storage}/content", content="iso"):
        if entry["volid"] == wanted and int(entry.get("size", 0)) == size:
            return wanted
    return ""


def upload_iso(api: Api, node: str, storage: str, image: GuestImage, clock: Clock) -> str:
    """Return the volid of the image on the storage, uploading it where it is missing.

    Raises:
        GuestImageError: it is not there after the upload. Others as `Connection` and `Tasks.run`.
    """
    with _ONE_AT_A_TIME:
        return find_iso(api, node, storage, image) or _upload(api, node, storage, image, clock)


def _upload(api: Api, node: str, storage: str, image: GuestImage, clock: Clock) -> str:
    tasks = Tasks(api, node, clock)
    tasks.learn()
    content = _Named(image.iso.read_bytes(), iso_name(image))
    # The server wants these parts in this order, the file last.
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
    deadline = clock.monotonic() + _SEEN_SECONDS
    while not (found := find_iso(api, node, storage, image)):
        if clock.monotonic() > deadline:
            raise GuestImageError(
                f"the guest image is not on storage {storage} of {node} after its upload",
                next_step="look at the storage's content; its type and content `iso` must be "
                "enabled",
            )
        clock.sleep(1.0)
    return found


class _Named(io.BytesIO):
    """Bytes that proxmoxer sends under `name`."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name
