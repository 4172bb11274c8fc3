"""Verified hot-plug and unplug of test disks.

A plugged disk is read back from Proxmox, QEMU and the guest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, VmConfig
from pvebench.drivers.proxmox.vm.drive import UNUSED, is_moved, parse_drive, read_back, test_slots
from pvebench.drivers.vm_lifecycle import find_in_guest, unverified
from pvebench.errors import HypervisorGone, SwitchFailed, VolumeError
from pvebench.model.disk import Disk
from pvebench.model.guest import Guest
from pvebench.model.volume import Attachment, BlockCounters, Plug


def plug(vm: BenchVm, slot: str, text: str) -> VmConfig:
    """Plug a disk into a slot; return the configuration with it.

    The volume must not be in another slot: Proxmox would attach it twice.

    Raises:
        SwitchFailed: rejected, or accepted but not effective. Pending changes are reverted.
        Busy: the VM is locked, which may also be the reason for a rejection.
    """
    volid, _ = parse_drive(text)
    slots = test_slots(vm.recent_config().values)
    taken = [other for other, plugged in slots.items() if plugged == volid]
    if taken:
        raise SwitchFailed(f"{volid} still plugged in as {taken[0]}")
    try:
        vm.change(f"plug {slot}", **{slot: text})
        return _effective(vm, slot, volid)
    except (Rejected, SwitchFailed) as error:
        vm.require_unlocked(f"plug {slot}")
        _revert(vm, [slot])
        raise SwitchFailed(
            f"VM {vm.vmid}: plugging {slot} failed: {error.reason}",
            cause="QEMU rejects these options, or an incompletely removed disk uses the slot",
            evidence=error.evidence,
        ) from error


def _effective(vm: BenchVm, slot: str, volid: str) -> VmConfig:
    config = vm.verify_owner()
    if slot in config.waiting:
        raise SwitchFailed(f"{slot} not applied, only pending: {config.waiting[slot]}")
    value = str(config.values.get(slot, ""))
    if parse_drive(value)[0] != volid:
        raise SwitchFailed(
            f"disk mismatch in {slot}: requested {volid}, found {value or 'nothing'}"
        )
    return config


def unplug(vm: BenchVm, slot: str) -> None:
    """Unplug the disk of a slot and verify that it is gone; its volume becomes unused.

    Raises:
        SwitchFailed: it could not be unplugged. The VM must be power-cycled: a remaining controller
            would give its old options to the next disk.
    """
    judged = vm.recent_config()
    volid = test_slots(judged.values).get(slot)
    if volid is None:
        return
    moved = is_moved(judged.values[slot], vm.vmid)
    if not moved:
        vm.refuse_foreign([volid])
    try:
        # A moved volume is freed at once: without its slot, nothing shows whose it is.
        vm.change(f"unplug {slot}", judged, delete=slot, force=1 if moved else None)
    except Rejected as error:
        vm.require_unlocked(f"unplug {slot}")
        raise SwitchFailed(
            f"VM {vm.vmid}: unplugging {slot} failed: {error.reason}",
            cause="the guest hangs or still uses the disk",
            evidence=error.evidence,
        ) from error
    seen = vm.verify_owner()
    if slot in seen.waiting or slot in seen.values:
        raise SwitchFailed(f"VM {vm.vmid}: {slot} still present after unplug")


def clear(vm: BenchVm) -> None:
    """Detach every test disk of a stopped VM and revert pending changes.

    Raises:
        SwitchFailed: disks or pending changes remain.
        ForeignDisk: the VM has a disk that pvebench did not create.
    """
    _revert(vm, list(vm.verify_owner().waiting))
    config = vm.recent_config().values
    moved = [slot for slot in test_slots(config) if is_moved(config[slot], vm.vmid)]
    if moved:
        vm.change("free the moved disk", delete=",".join(moved), force=1)
    slots = test_slots(vm.recent_config().values)
    vm.refuse_foreign(slots.values())
    if slots:
        vm.change("detach the test disk", delete=",".join(slots))
    seen = vm.recent_config()
    remaining = [*seen.waiting, *test_slots(seen.values)]
    if remaining:
        raise SwitchFailed(f"VM {vm.vmid}: {', '.join(remaining)} not cleared")


def reshape(vm: BenchVm, **options: Any) -> None:
    """Set options of a stopped VM, such as memory or scsihw, and verify them.

    Raises SwitchFailed: they are not effective afterwards.
    """
    different = _different(vm.recent_config(), options)
    if not different:
        return
    vm.change("reshape", **different)
    if wrong := _different(vm.verify_owner(), different):
        raise SwitchFailed(f"VM {vm.vmid}: option not applied: {', '.join(wrong)}")


def _different(seen: VmConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in options.items() if str(seen.values.get(key, "")) != str(value)
    }


def _revert(vm: BenchVm, keys: list[str]) -> None:
    waiting = vm.recent_config().waiting
    pending = [key for key in keys if key in waiting and not UNUSED.match(key)]
    if pending:
        vm.change("revert", revert=",".join(pending))


SEEN_SECONDS: Final = 20.0
"""Time within which the guest must detect a disk of QEMU, seconds."""
UNVERIFIED: Final = ("aio", "preallocation")
"""Options without read-back: QEMU does not report aio, and Proxmox does not report allocation."""


@dataclass(slots=True)
class Plugged:
    """Test disk that is plugged into the VM.

    Attributes:
        slot: its slot.
        serial: its serial number in the guest.
        seen: configuration with it.
        devices: numbers of the node's block devices below its volume; empty: unknown.
    """

    plug: Plug
    slot: str
    serial: str
    seen: VmConfig
    devices: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The slot, for errors."""
        return self.slot


def look(
    vm: BenchVm, guest: Guest, plugged: Plugged, *, volume_format: str, storage: Mapping[str, str]
) -> Attachment:
    """Read back the plugged disk.

    Args:
        volume_format: as the storage reports it.
        storage: as `drive.effective`.

    Raises SwitchFailed: QEMU does not have it. GuestTimeout: the guest does not detect it.
    """
    slot, config = plugged.slot, plugged.seen.values
    seen = find_in_guest(guest, plugged.serial, seconds=SEEN_SECONDS)
    if slot not in vm.status().get("blockstat", {}):
        raise SwitchFailed(f"no disk in {slot} in QEMU of VM {vm.vmid}")
    effective = read_back(
        slot,
        str(config.get(slot, "")),
        scsihw=str(config.get("scsihw", "lsi")),
        volume_format=volume_format,
        storage=storage,
    )
    effective["size_bytes"] = seen.get("size_bytes", "")
    effective["cache"] = _seen_cache(effective["cache"], plugged.plug.disk, seen)
    threads = vm.monitor("info iothreads")
    effective["iothread"] = _seen_iothread(effective["iothread"], slot, threads)
    raw = {"config": dict(config), "iothreads": threads, "guest": seen}
    return Attachment(
        device=seen["device"],
        effective=effective,
        unverified=unverified(seen, UNVERIFIED),
        raw=json.dumps(raw, indent=1, sort_keys=True),
    )


def _seen_cache(configured: str, disk: Disk, seen: Mapping[str, str]) -> str:
    """Return the cache mode, with the guest's view if it differs from the configuration."""
    expected = "write-back" if disk.cache.write_cache else "write-through"
    if seen.get("write_cache", expected) == expected:
        return configured
    return f"{configured}, but the guest sees {seen.get('write_cache')}"


def _seen_iothread(configured: str, slot: str, text: str | None) -> str:
    """Return whether the disk has an I/O thread, from QEMU if the token may use the monitor."""
    if text is None:
        return configured
    names = (f"iothread-{slot}:", f"iothread-virtio{slot}:")
    return str(int(any(name in text for name in names)))


def stopped_by_storage(status: Mapping[str, Any]) -> VolumeError | None:
    """Return the error of a VM that QEMU stopped because a write found no space; None: not stopped.

    Its agent does not respond then, and its disk cannot be unplugged.
    """
    if status.get("qmpstatus") != "io-error":
        return None
    return VolumeError(
        f"QEMU stopped VM {status.get('vmid', '')}: the storage of its disk rejects writes "
        "(io-error)",
        cause="the storage is full; thin pools and sparse files can be overcommitted",
        next_step="free space on it, or reduce volume.size or the scale of the pack",
    )


def block_counters(status: Mapping[str, Any], slot: str) -> BlockCounters:
    """Return QEMU's counters of the disk in `slot` from a response of status/current.

    Raises HypervisorGone: QEMU does not report them. VolumeError: see `stopped_by_storage`.
    """
    if (full := stopped_by_storage(status)) is not None:
        raise full
    counters = status.get("blockstat", {}).get(slot)
    if counters is None:
        raise HypervisorGone(
            f"QEMU does not report {slot} (status {status.get('qmpstatus')})",
            cause="the VM was stopped, or its monitor is busy",
        )
    return BlockCounters.of_qemu(counters)
