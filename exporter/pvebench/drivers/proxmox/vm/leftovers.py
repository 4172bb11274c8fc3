"""Benchmark VMs that outlive a start: left by a crash, kept by choice, or known to no journal.

A storage frees a volume only for its administrators, so where volumes stay filled, the VM that
owns them stays with them: switched off, its test disk taken out. The journal says which VM that
is, the VM's own description which of its volumes are filled; neither is believed without the
other. Only what carries our mark is touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import structlog

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected, spoken
from pvebench.drivers.proxmox.vm import hotplug
from pvebench.drivers.proxmox.vm.bench_vm import (
    KIND,
    BenchVm,
    VmPlace,
    filled_of,
    mark_of,
    named_volumes,
)
from pvebench.drivers.proxmox.vm.drive import ISO_SLOT, held_volumes, parse_drive
from pvebench.drivers.proxmox.vm.vm_create import is_free
from pvebench.errors import AccessDenied, DriverError, HypervisorGone, NotOwned
from pvebench.model.ports import Clock, Journal

_BIRTH_SECONDS: Final = 60.0
"""How long a VM that was being made at the crash may take to become visible."""
_KEYS: Final = frozenset({"node", "vmid", "pool", "mark"})
"""What an entry has that was written whole."""
_LOCK_SECONDS: Final = 60.0
"""How long a backup or snapshot is waited for before its VM is left to a later try."""


def undo_pending(
    journal: Journal,
    api: Api,
    clock: Clock,
    *,
    node: str,
    keep: bool = False,
    clean: bool = False,
    but: int = 0,
) -> list[str]:
    """Undo every open change on a node; return a line about each.

    What cannot be undone yet, because the node is away or a backup holds the VM, stays open and is
    said; it is tried again now and then, and at the next start.

    Args:
        but: number of a VM that is in use.
        keep: a VM with filled volumes is set aside with them instead of removed.
        clean: the VM was used until now, not left by a crash.
    """
    lines = []
    for number, kind, details in journal.pending():
        if kind != KIND:
            continue  # another driver's business
        if missing := _KEYS - details.keys():
            lines.append(
                f"left a VM alone: journal entry {number} is damaged, it has no "
                f"{' or '.join(sorted(missing))}; look at the pool, and remove it by hand"
            )
            journal.close(number)
            continue
        if details["node"] != node or details["vmid"] == str(but):
            continue  # another worker's business
        try:
            vm = _found(api, clock, details)
            if vm is not None:
                _wait_for_lock(vm, clock)
            kept = vm and keep and set_aside(vm, journal, details, clean=clean)
            lines.append(kept or _destroy(vm, details))
        except NotOwned as error:
            lines.append(str(error))
        except DriverError as error:
            lines.append(f"could not remove VM {details['vmid']} yet: {error}")
            continue
        journal.close(number)
    return lines


def _found(api: Api, clock: Clock, details: Mapping[str, str]) -> BenchVm | None:
    """Return the VM of a journal entry, ours beyond doubt; None: it is gone."""
    vmid = int(details["vmid"])
    node = _node_now(api, details)
    place = VmPlace(node=node, pool=details["pool"], vmids=(vmid, vmid))
    vm = BenchVm(api, clock, place, vmid, details["mark"])
    deadline = clock.monotonic() + _BIRTH_SECONDS
    while not _is_born(vm):
        if is_free(api, vmid):
            return None
        if clock.monotonic() > deadline:
            raise NotOwned(f"VM {vmid} is left alone: it is not in our pool, or cannot be seen")
        clock.sleep(2.0)
    vm.learn()
    return vm


def _node_now(api: Api, details: Mapping[str, str]) -> str:
    """Return where the VM is: an admin, or HA, may have migrated it from where it was made."""
    vmid = int(details["vmid"])
    with contextlib.suppress(AccessDenied, Rejected):  # not even the pool can be seen
        for member in api.get(f"/pools/{details['pool']}")["members"]:
            if member.get("vmid") == vmid and "node" in member:
                return str(member["node"])
    return details["node"]


def _wait_for_lock(vm: BenchVm, clock: Clock) -> None:
    """Give somebody's work on the VM a moment to end; what follows says if it did not."""
    deadline = clock.monotonic() + _LOCK_SECONDS
    while vm.read().values.get("lock") and clock.monotonic() < deadline:
        clock.sleep(2.0)


def _destroy(vm: BenchVm | None, details: Mapping[str, str]) -> str:
    if vm is None:
        return f"VM {details['vmid']} is gone already"
    vm.destroy()
    return f"removed VM {vm.vmid} with its volumes"


def _is_born(vm: BenchVm) -> bool:
    """Whether the VM can be seen and is whole; one that is still being made is neither."""
    try:
        if vm.read().values.get("lock") == "create":
            return False
        vm.prove_ours()
    except (HypervisorGone, AccessDenied, Rejected):
        return False
    return True


log = structlog.get_logger()

KEPT: Final = "proxmox-kept"
"""Kind of a journal entry that names a VM which is to stay. Nothing undoes it but `sweep`."""
_WHY: Final = {
    KEPT: "kept by choice",
    KIND: "left when a pvebench was killed here: the next start, or pvebench cleanup, removes it",
}
_OF_SETTINGS: Final = ("cpu", "machine", "kvm", "vcpus")
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
    filled = filled_of(vm.prove_ours().values)
    if not filled or not (clean or vm.status().get("status") == "running"):
        return None
    vm.stop()
    hotplug.clear(vm)
    journal.open(KEPT, details)
    held = ", ".join(sorted(one.volid for one in filled))
    return f"VM {vm.vmid} on {details['node']} is kept, switched off, with {held}"


def find_kept(
    api: Api, clock: Clock, place: VmPlace, journal: Journal
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
        except (HypervisorGone, NotOwned) as error:
            log.warning("a VM that was kept cannot be used again", reason=error.reason)
            if _node_now(api, details) != place.node:  # it is removed where it was moved to
                journal.open(KIND, details)
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
    hotplug.clear(vm)
    config = vm.lately().values
    wanted = {key: options[key] for key in _OF_SETTINGS if key in options}
    changed = {key: value for key, value in wanted.items() if str(config.get(key)) != str(value)}
    if parse_drive(str(config.get(ISO_SLOT, "")))[0] != iso:
        changed[ISO_SLOT] = f"{iso},media=cdrom"
    gone = [key for key in _OF_SETTINGS if key in config and key not in wanted]
    if gone:
        changed["delete"] = ",".join(gone)
    if changed:
        vm.change("fit to the settings", **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanVm:
    """A VM that some pvebench made.

    Attributes:
        volumes: that its configuration names, or whose names carry its mark.
        why: what this instance's journal says of it; empty: nothing.
    """

    node: str
    vmid: int
    status: str
    mark: str
    volumes: tuple[str, ...]
    why: str = ""

    @property
    def text(self) -> str:
        """One line about it."""
        held = ", ".join(self.volumes) or "no volumes"
        why = f", {self.why}" if self.why else ""
        return spoken(f"VM {self.vmid} on {self.node}, {self.status}{why}, with {held}")

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def journalled(journal: Journal) -> dict[str, str]:
    """Return mark -> why it is there, of each VM that the journal of a stopped instance names."""
    return {details["mark"]: _WHY[kind] for _, kind, details in journal.pending() if kind in _WHY}


def find_orphans(api: Api, *, pool: str, known: Mapping[str, str]) -> list[OrphanVm]:
    """Return the VMs of `pool` that carry a mark of pvebench.

    Args:
        known: mark -> what is said of it.
    """
    found = []
    for member in api.get(f"/pools/{pool}")["members"]:
        if member.get("type") != "qemu" or not {"node", "vmid"} <= set(member):
            continue
        node, vmid = str(member["node"]), int(member["vmid"])
        try:
            config = api.get(f"/nodes/{node}/qemu/{vmid}/config", current=1)
            status = str(api.get(f"/nodes/{node}/qemu/{vmid}/status/current")["status"])
        except (AccessDenied, Rejected):
            continue  # gone meanwhile
        mark = mark_of(config)
        if mark:
            volumes = _volumes(api, node, vmid, config)
            found.append(
                OrphanVm(
                    node=node,
                    vmid=vmid,
                    status=status,
                    mark=mark,
                    volumes=volumes,
                    why=known.get(mark, ""),
                )
            )
    return found


def _volumes(api: Api, node: str, vmid: int, config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(held_volumes(config) | named_volumes(api, node, vmid, mark_of(config))))


def remove_orphan(api: Api, stray: OrphanVm, *, pool: str, clock: Clock, journal: Journal) -> str:
    """Remove it with its volumes, forget what the journal says of it; return a line about it.

    Raises:
        NotOurs: it changed since it was found. Others as `BenchVm.destroy`.
    """
    place = VmPlace(node=stray.node, pool=pool, vmids=(stray.vmid, stray.vmid))
    vm = BenchVm(api, clock, place, stray.vmid, stray.mark)
    vm.learn()
    vm.destroy()
    for number, kind, details in journal.pending():
        if kind in _WHY and details["mark"] == stray.mark:
            journal.close(number)
    return f"removed VM {stray.vmid} on {stray.node} with its volumes"


def choose(strays: Collection[OrphanVm], vmid: int) -> OrphanVm:
    """Return the stray with that number.

    Raises:
        NotOurs: there is none: nothing else is ever removed.
    """
    for stray in strays:
        if stray.vmid == vmid:
            return stray
    raise NotOwned(
        f"VM {vmid} is left alone: it is not among those that were found",
        next_step="see the list: pvebench cleanup --orphans",
    )
