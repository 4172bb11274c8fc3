"""Plugging and unplugging, each step proved: what is asked for is not yet what is.

An option that cannot be changed live is accepted and stays pending; a volume may be in two slots
at once; an unplug may end after its error. So each step is one call for one slot, followed by a
look at what is pending and what is in force.
"""

from __future__ import annotations

from typing import Any

from pvebench.drivers.proxmox.drive import (
    UNUSED,
    parse_drive,
    test_slots,
)
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.storages import MARK
from pvebench.drivers.proxmox.vm import BenchVm
from pvebench.errors import NotOurs, SwitchFailed


def plug(vm: BenchVm, slot: str, text: str) -> str:
    """Put a disk into a slot; return the slot's value in force.

    The volume must be in no other slot: nothing but this check would stop Proxmox from giving it
    to the guest twice.

    Raises:
        SwitchFailed: refused, or accepted but not in force. What was left pending is taken back.
    """
    volid, _ = parse_drive(text)
    taken = [other for other, held in test_slots(vm.config()).items() if held == volid]
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


def _in_force(vm: BenchVm, slot: str, volid: str) -> str:
    waiting = vm.pending()
    if slot in waiting:
        raise SwitchFailed(f"{slot} is only pending: {waiting[slot]}")
    value = str(vm.config().get(slot, ""))
    if parse_drive(value)[0] != volid:
        raise SwitchFailed(f"{slot} holds {value or 'nothing'}, not {volid}")
    return value


def unplug(vm: BenchVm, slot: str) -> None:
    """Take the disk out of a slot and prove that it is out; its volume is kept as unused.

    Raises:
        SwitchFailed: it could not be taken out. The VM must be power-cycled: a controller that
            stayed behind would give its old options to the next disk.
    """
    volid = test_slots(vm.config()).get(slot)
    if volid is None:
        return
    _refuse_foreign(volid)
    try:
        vm.change(f"unplug {slot}", delete=slot)
    except Rejected as error:
        raise SwitchFailed(
            f"VM {vm.vmid}: {slot} could not be unplugged: {error.reason}",
            cause="the guest is hung or still uses the disk",
            next_step="the VM is restarted for the next run",
            evidence=error.evidence,
        ) from error
    if slot in vm.pending() or slot in vm.config():
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
    _take_back(vm, list(vm.pending()))
    slots = test_slots(vm.config())
    for volid in slots.values():
        _refuse_foreign(volid)
    if slots:
        vm.change("take the test disk out", delete=",".join(slots))
    left = [*vm.pending(), *test_slots(vm.config())]
    if left:
        raise SwitchFailed(f"VM {vm.vmid}: {', '.join(left)} cannot be cleared")


def reshape(vm: BenchVm, **options: Any) -> None:
    """Give a stopped VM other options, such as memory or scsihw, and prove them.

    Raises:
        SwitchFailed: they are not in force afterwards.
    """
    config = vm.config()
    different = {
        key: value for key, value in options.items() if str(config.get(key, "")) != str(value)
    }
    if not different:
        return
    vm.change("reshape", **different)
    config = vm.config()
    wrong = [key for key, value in different.items() if str(config.get(key, "")) != str(value)]
    if wrong:
        raise SwitchFailed(f"VM {vm.vmid}: {', '.join(wrong)} is not what was asked for")


def _take_back(vm: BenchVm, keys: list[str]) -> None:
    waiting = vm.pending()
    wanted = [key for key in keys if key in waiting and not UNUSED.match(key)]
    if wanted:
        vm.change("take back", revert=",".join(wanted))


def _refuse_foreign(volid: str) -> None:
    if MARK not in volid:
        raise NotOurs(
            f"volume {volid} is left alone: its name is not one of ours",
            cause="somebody gave the benchmark VM a disk",
            next_step="take it out of that VM",
        )
