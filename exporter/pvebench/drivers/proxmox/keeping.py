"""Volumes that stay filled from one start of pvebench to the next, by the user's choice.

A storage frees a volume only for its administrators, so the VM that owns the volumes stays with
them: switched off, its test disk taken out. The journal says which VM that is, the VM's own
description which of its volumes are filled; neither is believed without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from pvebench.drivers.proxmox import switching
from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.drive import ISO_SLOT, parse_drive
from pvebench.drivers.proxmox.marks import filled_of
from pvebench.drivers.proxmox.vm import KIND, BenchVm, Place
from pvebench.errors import HypervisorGone, NotOurs
from pvebench.model.ports import Clock, Journal

log = structlog.get_logger()

KEPT: Final = "proxmox-kept"
"""Kind of a journal entry that names a VM which is to stay. Nothing undoes it but `sweep`."""
_OF_SETTINGS: Final = ("cpu", "machine", "kvm")
"""Options of the VM that the settings may have changed meanwhile; scenarios' own come at boot."""


def set_aside(
    vm: BenchVm, journal: Journal, details: Mapping[str, str], *, clean: bool
) -> str | None:
    """Switch the VM off and note that it stays; return a line about it, None if nothing is filled.

    Args:
        details: of the VM's own journal entry, which the caller closes.
        clean: it was used until now. Otherwise it must be found running: one that went down
            with its node may have lost what the node's memory held of the fill.

    Raises:
        As `BenchVm.change`.
    """
    filled = filled_of(vm.prove_ours())
    if not filled or not (clean or vm.status().get("status") == "running"):
        return None
    vm.stop()
    switching.clear(vm)
    journal.open(KEPT, details)
    held = ", ".join(sorted(one.volid for one in filled))
    return f"VM {vm.vmid} on {details['node']} is kept, switched off, with {held}"


def find_kept(
    api: Api, clock: Clock, place: Place, journal: Journal
) -> tuple[BenchVm, Callable[[], None]] | None:
    """Return the VM that was set aside on the node, and what is to be called when it is in use.

    One that is gone, or somebody else's by now, is left alone and forgotten.

    Raises:
        DriverError: it cannot be told now.
    """
    for number, kind, details in journal.pending():
        if kind != KEPT or (details["node"], details["pool"]) != (place.node, place.pool):
            continue
        vm = BenchVm(api, clock, place, int(details["vmid"]), details["mark"])
        try:
            vm.prove_ours()
        except (HypervisorGone, NotOurs) as error:
            log.warning("a VM that was kept cannot be used again", reason=error.reason)
            journal.close(number)
            continue
        vm.learn()
        return vm, partial(_in_use, journal, number, details)
    return None


def _in_use(journal: Journal, number: int, details: Mapping[str, str]) -> None:
    journal.open(KIND, details)
    journal.close(number)


def fit(vm: BenchVm, options: Mapping[str, Any], iso: str) -> None:
    """Switch the VM off and give it what the settings and the guest's image say today."""
    vm.stop()
    switching.clear(vm)
    config = vm.config()
    wanted = {key: options[key] for key in _OF_SETTINGS if key in options}
    changed = {key: value for key, value in wanted.items() if str(config.get(key)) != str(value)}
    if parse_drive(str(config.get(ISO_SLOT, "")))[0] != iso:
        changed[ISO_SLOT] = f"{iso},media=cdrom"
    gone = [key for key in _OF_SETTINGS if key in config and key not in wanted]
    if gone:
        changed["delete"] = ",".join(gone)
    if changed:
        vm.change("fit to the settings", **changed)
