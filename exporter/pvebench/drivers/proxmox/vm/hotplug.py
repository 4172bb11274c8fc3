"""Plugging and unplugging, each step proved: what is asked for is not yet what is.

What a plugged disk really is: by Proxmox's word, QEMU's and the guest's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.agent import AgentGuest
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, Configuration
from pvebench.drivers.proxmox.vm.drive import UNUSED, parse_drive, read_back, test_slots
from pvebench.errors import (
    GuestTimeout,
    HypervisorGone,
    NotOwned,
    OutputUnreadable,
    SwitchFailed,
    VolumeError,
)
from pvebench.model.disk import Disk
from pvebench.model.volume import Attachment, BlockCounters, Plug


def plug(vm: BenchVm, slot: str, text: str) -> Configuration:
    """Put a disk into a slot; return the configuration with it.

    The volume must be in no other slot: nothing but this check would stop Proxmox from giving it
    to the guest twice.

    Raises:
        SwitchFailed: refused, or accepted but not in force. What was left pending is taken back.
    """
    volid, _ = parse_drive(text)
    slots = test_slots(vm.lately().values)
    taken = [other for other, held in slots.items() if held == volid]
    if taken:
        raise SwitchFailed(f"{volid} is still plugged in as {taken[0]}")
    try:
        vm.change(f"plug {slot}", **{slot: text})
        return _in_force(vm, slot, volid)
    except (Rejected, SwitchFailed) as error:
        _take_back(vm, [slot])
        raise SwitchFailed(
            f"VM {vm.vmid}: {slot} could not be plugged: {error.reason}",
            cause="QEMU refuses these options, or the slot is in use by a half-gone disk",
            evidence=error.evidence,
        ) from error


def _in_force(vm: BenchVm, slot: str, volid: str) -> Configuration:
    found = vm.prove_ours()
    if slot in found.waiting:
        raise SwitchFailed(f"{slot} is only pending: {found.waiting[slot]}")
    value = str(found.values.get(slot, ""))
    if parse_drive(value)[0] != volid:
        raise SwitchFailed(f"{slot} holds {value or 'nothing'}, not {volid}")
    return found


def unplug(vm: BenchVm, slot: str) -> None:
    """Take the disk out of a slot and prove that it is out; its volume is kept as unused.

    Raises:
        SwitchFailed: it could not be taken out. The VM must be power-cycled: a controller that
            stayed behind would give its old options to the next disk.
    """
    volid = test_slots(vm.prove_ours().values).get(slot)
    if volid is None:
        return
    _refuse_foreign(vm, volid)
    try:
        vm.change(f"unplug {slot}", delete=slot)
    except Rejected as error:
        raise SwitchFailed(
            f"VM {vm.vmid}: {slot} could not be unplugged: {error.reason}",
            cause="the guest is hung or still uses the disk",
            next_step="the VM is restarted for the next run",
            evidence=error.evidence,
        ) from error
    found = vm.prove_ours()
    if slot in found.waiting or slot in found.values:
        raise SwitchFailed(
            f"VM {vm.vmid}: {slot} is still there after its unplug",
            next_step="the VM is restarted for the next run",
        )


def clear(vm: BenchVm) -> None:
    """Take every test disk out of a stopped VM and drop what is pending.

    Raises:
        SwitchFailed: the configuration is not clean afterwards.
        NotOurs: somebody gave our VM a disk of theirs.
    """
    _take_back(vm, list(vm.prove_ours().waiting))
    slots = test_slots(vm.lately().values)
    for volid in slots.values():
        _refuse_foreign(vm, volid)
    if slots:
        vm.change("take the test disk out", delete=",".join(slots))
    seen = vm.lately()
    left = [*seen.waiting, *test_slots(seen.values)]
    if left:
        raise SwitchFailed(f"VM {vm.vmid}: {', '.join(left)} cannot be cleared")


def reshape(vm: BenchVm, **options: Any) -> None:
    """Give a stopped VM other options, such as memory or scsihw, and prove them.

    Raises:
        SwitchFailed: they are not in force afterwards.
    """
    different = _different(vm.lately(), options)
    if not different:
        return
    vm.change("reshape", **different)
    if wrong := _different(vm.prove_ours(), different):
        raise SwitchFailed(f"VM {vm.vmid}: {', '.join(wrong)} is not what was asked for")


def _different(seen: Configuration, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in options.items() if str(seen.values.get(key, "")) != str(value)
    }


def _take_back(vm: BenchVm, keys: list[str]) -> None:
    waiting = vm.lately().waiting
    wanted = [key for key in keys if key in waiting and not UNUSED.match(key)]
    if wanted:
        vm.change("take back", revert=",".join(wanted))


def _refuse_foreign(vm: BenchVm, volid: str) -> None:
    if not vm.owns(volid):
        raise NotOwned(
            f"volume {volid} in VM {vm.vmid} is left alone: its name is not one of ours",
            cause="somebody gave the benchmark VM a disk",
            next_step="take it out of that VM",
        )


_SEEN_SECONDS: Final = 20.0
"""How long the guest may take to see a disk that QEMU has."""
_FIND: Final = """\
end=$(($(date +%s) + $0))
until /usr/bin/pvebench-disk "$1"; do
    [ "$(date +%s)" -lt "$end" ] || exit 1
    sleep 0.1 2>/dev/null || sleep 1
done
"""
"""For /bin/sh: seconds, serial number. Waits in the guest: each question costs a call."""
UNVERIFIED: Final = ("aio", "preallocation")
"""QEMU tells its aio nowhere; how much of a file is allocated is the storage's own business."""


@dataclass(frozen=True, slots=True)
class Plugged:
    """The test disk that is in the VM now.

    Attributes:
        slot: where it is.
        serial: what the guest knows it by.
        seen: the configuration with it.
    """

    plug: Plug
    slot: str
    serial: str
    seen: Configuration


def look(vm: BenchVm, guest: AgentGuest, plugged: Plugged, *, volume_format: str) -> Attachment:
    """Return the plugged disk as it is.

    Args:
        volume_format: as the storage tells it.

    Raises:
        SwitchFailed: QEMU does not have it. GuestSilent: the guest does not see it.
    """
    slot, config = plugged.slot, plugged.seen.values
    seen = find_in_guest(guest, plugged.serial)
    if slot not in vm.status().get("blockstat", {}):
        raise SwitchFailed(f"QEMU of VM {vm.vmid} has no disk in {slot}")
    effective = read_back(
        slot,
        str(config.get(slot, "")),
        scsihw=str(config.get("scsihw", "lsi")),
        volume_format=volume_format,
    )
    effective["size_bytes"] = seen.get("size_bytes", "")
    effective["cache"] = _seen_cache(effective["cache"], plugged.plug.disk, seen)
    threads = vm.monitor("info iothreads")
    effective["iothread"] = _seen_iothread(effective["iothread"], slot, threads)
    raw = {"config": dict(config), "iothreads": threads, "guest": seen}
    return Attachment(
        device=seen["device"],
        effective=effective,
        unverified=UNVERIFIED,
        raw=json.dumps(raw, indent=1, sort_keys=True),
    )


def find_in_guest(guest: AgentGuest, serial: str) -> dict[str, str]:
    """Wait until the guest has the disk; return what it says of it (`device=…` words).

    Raises:
        GuestSilent: it does not see it.
    """
    argv = ["/bin/sh", "-c", _FIND, f"{_SEEN_SECONDS:.0f}", serial]
    done = guest.run(argv, timeout=2 * _SEEN_SECONDS)
    if done.exit_code:
        raise GuestTimeout(
            f"the guest does not see the disk with serial {serial} within {_SEEN_SECONDS:.0f} s"
        )
    words = [word.partition("=") for word in done.stdout.decode("utf-8", "replace").split()]
    found = {name: value for name, _, value in words}
    if not found.get("device"):
        raise OutputUnreadable(
            f"what the guest says of the disk is not understood: {done.stdout[:80]!r}",
            cause="the program in the guest image that looks for it is damaged, or another one",
            next_step="rebuild the image: pvebench guest build --force",
        )
    return found


def _seen_cache(configured: str, disk: Disk, seen: Mapping[str, str]) -> str:
    """Return the cache mode, if what the guest sees of it agrees with what is configured."""
    sees = "write-back" if disk.cache.write_cache else "write-through"
    if seen.get("write_cache") == sees:
        return configured
    return f"{configured}, but the guest sees {seen.get('write_cache')}"


def _seen_iothread(configured: str, slot: str, text: str | None) -> str:
    """Return whether the disk has an I/O thread, by QEMU's own word where it may be asked."""
    if text is None:
        return configured
    names = (f"iothread-{slot}:", f"iothread-virtio{slot}:")
    return str(int(any(name in text for name in names)))


def stopped_by_storage(status: Mapping[str, Any]) -> VolumeError | None:
    """Return the error of a VM that QEMU stopped because a write found no room; None: it did not.

    Its agent is silent then, and its disk cannot be unplugged.
    """
    if status.get("qmpstatus") != "io-error":
        return None
    return VolumeError(
        f"QEMU has stopped VM {status.get('vmid', '')}: the storage of its disk takes no more data "
        "(io-error)",
        cause="the storage is full; thin pools and sparse files are promised more than there is",
        next_step="make room on it, or make volume.size or the scale of the pack smaller",
    )


def block_counters(status: Mapping[str, Any], slot: str) -> BlockCounters:
    """Return QEMU's counters of the disk in `slot` from an answer of status/current.

    Raises:
        HypervisorGone: QEMU does not say. VolumeError: it has stopped the VM, see there.
    """
    if (full := stopped_by_storage(status)) is not None:
        raise full
    mine = status.get("blockstat", {}).get(slot)
    if mine is None:
        raise HypervisorGone(
            f"QEMU tells nothing of {slot} (status {status.get('qmpstatus')})",
            cause="the VM was stopped, or its monitor is busy",
        )
    return BlockCounters(
        read_operations=int(mine["rd_operations"]),
        write_operations=int(mine["wr_operations"]),
        flush_operations=int(mine["flush_operations"]),
        read_bytes=int(mine["rd_bytes"]),
        write_bytes=int(mine["wr_bytes"]),
        unmap_operations=int(mine.get("unmap_operations", 0)),
    )
