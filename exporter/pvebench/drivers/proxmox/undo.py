"""After a crash: undo what the journal says was begun. Touches only what carries our mark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.keeping import set_aside
from pvebench.drivers.proxmox.making import is_free
from pvebench.drivers.proxmox.vm import KIND, BenchVm, Place
from pvebench.errors import AccessDenied, DriverError, HypervisorGone, NotOurs
from pvebench.model.ports import Clock, Journal

_BIRTH_SECONDS: Final = 60.0
"""How long a VM that was being made at the crash may take to become visible."""


def undo_pending(
    journal: Journal, api: Api, clock: Clock, *, node: str, keep: bool = False, clean: bool = False
) -> list[str]:
    """Undo every open change on a node; return a line about each.

    What cannot be undone yet, because the node is away or a backup holds the VM, stays open and is
    said; it is tried again at the next start.

    Args:
        keep: a VM with filled volumes is set aside with them instead of removed.
        clean: the VM was used until now, not left by a crash.
    """
    lines = []
    for number, kind, details in journal.pending():
        if kind != KIND or details["node"] != node:
            continue  # another driver's or worker's business
        try:
            vm = _found(api, clock, details)
            kept = vm and keep and set_aside(vm, journal, details, clean=clean)
            lines.append(kept or _destroy(vm, details))
        except NotOurs as error:
            lines.append(str(error))
        except DriverError as error:
            lines.append(f"could not remove VM {details['vmid']} yet: {error}")
            continue
        journal.close(number)
    return lines


def _found(api: Api, clock: Clock, details: Mapping[str, str]) -> BenchVm | None:
    """Return the VM of a journal entry, ours beyond doubt; None: it is gone."""
    vmid = int(details["vmid"])
    place = Place(node=details["node"], pool=details["pool"], vmids=(vmid, vmid))
    vm = BenchVm(api, clock, place, vmid, details["mark"])
    deadline = clock.monotonic() + _BIRTH_SECONDS
    while not _is_born(vm):
        if is_free(api, vmid):
            return None
        if clock.monotonic() > deadline:
            raise NotOurs(f"VM {vmid} is left alone: it is not in our pool, or cannot be seen")
        clock.sleep(2.0)
    vm.learn()
    return vm


def _destroy(vm: BenchVm | None, details: Mapping[str, str]) -> str:
    if vm is None:
        return f"VM {details['vmid']} is gone already"
    vm.destroy()
    return f"removed VM {vm.vmid} with its volumes"


def _is_born(vm: BenchVm) -> bool:
    """Whether the VM can be seen and is whole; one that is still being made is neither."""
    try:
        if vm.config().get("lock") == "create":
            return False
        vm.prove_ours()
    except (HypervisorGone, AccessDenied, Rejected):
        return False
    return True
