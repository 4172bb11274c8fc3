"""Undo of benchmark VMs in the journal of a pvebench that is not running: left by a crash, or kept.

A storage frees a volume only for its administrators. So filled volumes are kept with the VM that
owns them, switched off, without its test disk. The journal names the VM, the VM's description its
filled volumes; both must agree. pvebench changes only VMs with its ownership marker.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Forbidden, Rejected
from pvebench.drivers.proxmox.api.tasks import SEARCH_SECONDS, newest_task, runs_task
from pvebench.drivers.proxmox.vm import hotplug
from pvebench.drivers.proxmox.vm.bench_vm import KIND, BenchVm, ForeignDisk, NodeAccess
from pvebench.drivers.proxmox.vm.description import filled_of
from pvebench.drivers.proxmox.vm.drive import ISO_SLOT, parse_drive
from pvebench.drivers.proxmox.vm.vm_copies import close_lost, remove_archives
from pvebench.drivers.proxmox.vm.vm_create import creation_of, is_free, mark_again, was_restored
from pvebench.errors import AccessDenied, Busy, HypervisorGone, NotOwned, PvebenchError
from pvebench.log import log
from pvebench.model.ports import Journal, of_kinds

KEPT: Final = "proxmox-kept"
"""Kind of a journal entry of a kept VM. Only `cleanup --orphans` removes it."""
_BIRTH_SECONDS: Final = 60.0
"""Time within which a VM that was being created at the crash must become visible, seconds."""
_KEYS: Final = frozenset({"node", "vmid", "pool", "mark"})
"""Keys of a complete journal entry."""
_VMID: Final = re.compile(r"[0-9]{1,9}")
_LOCK_SECONDS: Final = 60.0
"""Maximum wait for a backup or snapshot before its VM is left to a later attempt, seconds."""


def undo_vms(
    access: NodeAccess,
    *,
    keep: bool = False,
    clean: bool = False,
    concerns: Callable[[int], bool] = lambda _: True,
) -> list[str]:
    """Undo every open change on a node; return a line about each.

    Changes that cannot be undone yet, because the node is unreachable, a backup locks the VM or the
    VM has a foreign disk, are reported and stay open; pvebench retries periodically and at the next
    start.

    Args:
        concerns: whether to undo the changes of the VM with an ID: others may be in use.
        keep: keep a VM with filled volumes instead of removing it.
        clean: the VM was in use until now, not left by a crash.
    """

    def undo(details: Mapping[str, str]) -> Iterator[str]:
        if (vm := _locate(access, details)) is None:
            yield f"VM {details['vmid']} already gone"
            return
        _wait_for_lock(vm)
        yield from remove_archives(vm)
        kept = keep_vm(vm, details, clean=clean) if keep else None
        yield kept or f"removed VM {vm.vmid} with its volumes{vm.destroy()}"

    journal = access.journal
    lines = undo_guests(
        journal,
        KIND,
        undo,
        node=access.node,
        what="VM {vmid}",
        keys=_KEYS,
        concerns=lambda _, details: concerns(int(details["vmid"])),
    )
    marks = {details.get("mark", "") for _, details in of_kinds(journal, KIND, KEPT)}
    return lines + close_lost(journal, access.node, marks)


def undo_guests(
    journal: Journal,
    kind: str,
    undo: Callable[[Mapping[str, str]], Iterator[str]],
    *,
    node: str,
    what: str,
    keys: Collection[str] = ("node", "mark"),
    concerns: Callable[[int, Mapping[str, str]], bool],
) -> list[str]:
    """Undo every entry of a kind on a node; return lines about each. Entries of failures stay open.

    Args:
        undo: yields lines about the guest of an entry, which is removed then.
        what: the guest in messages, with keys of its entry in braces.
        keys: those of a complete entry, beside `vmid`.
        concerns: whether to undo an entry, of number and details: it may be in use.
    """
    lines = []
    for number, details in of_kinds(journal, kind):
        if missing := missing_keys(details, keys):
            lines.append(_damaged_line(what.partition(" ")[0], number, missing))
            journal.close(number)
            continue
        if details["node"] != node or not concerns(number, details):
            continue  # entry of another worker, or of a guest in use
        try:
            lines.extend(undo(details))
        except ForeignDisk as error:
            lines.append(str(error))
            continue
        except NotOwned as error:
            lines.append(str(error))
        except PvebenchError as error:  # such as a missing key file; others are still undone
            lines.append(f"could not remove {what.format_map(details)} yet: {error}")
            continue
        journal.close(number)
    return lines


def missing_keys(details: Mapping[str, str], keys: Collection[str]) -> set[str]:
    """Return the keys that a journal entry lacks; a VM ID that is no number counts as missing."""
    missing = set(keys) - details.keys()
    return missing if _VMID.fullmatch(details.get("vmid", "")) else missing | {"vmid"}


def _damaged_line(what: str, number: int, missing: Collection[str]) -> str:
    """Return a line about a journal entry without these keys."""
    return (
        f"{what} not removed: journal entry {number} is damaged, it lacks "
        f"{' and '.join(sorted(missing))}; check the pool and remove the {what} manually"
    )


def _locate(access: NodeAccess, details: Mapping[str, str]) -> BenchVm | None:
    """Return the VM of a journal entry, with its ownership verified; None: it is gone.

    If pvebench was killed while it requested the VM, neither VM nor task may be visible yet.

    Raises Busy: it is still created. NotOwned: a VM that is not proved to be pvebench's has its ID.
    """
    api, clock, vmid = access.api, access.clock, int(details["vmid"])
    access = replace(access, node=_node_now(api, details), pool=details["pool"])
    vm = BenchVm(access, vmid, details["mark"])
    of_vm = details["node"], *creation_of(details)
    deadline = clock.monotonic() + _BIRTH_SECONDS
    appears = clock.monotonic() + SEARCH_SECONDS
    while not _is_born(vm, details):
        # The configuration exists before the task does, so the task is looked for first.
        # A task about a template may be a clone by another user.
        clone = "template" in details
        requested = not clone and newest_task(api, *of_vm) != details.get("newest", "")
        if is_free(api, vmid) and (requested or clock.monotonic() > appears):
            return None
        if clock.monotonic() > deadline:
            if was_restored(vm, details.get("newest", "")):
                _refuse_unseen(vm)
            _refuse_unborn(vm, creating=runs_task(api, *of_vm))
        clock.sleep(2.0)
    return vm


def _refuse_unborn(vm: BenchVm, *, creating: bool) -> NoReturn:
    """Raise Busy if the VM is still created or restored, else NotOwned."""
    with contextlib.suppress(HypervisorGone, Forbidden, Rejected):
        vm.require_unlocked("remove")
    if creating:
        raise Busy(f"VM {vm.vmid} is still created")
    raise NotOwned(
        f"VM {vm.vmid} not changed: not in the pool or not visible",
        next_step="if a crash of the node interrupted its creation or removal (lock create or "
        f"destroyed without description, or lock clone with {vm.mark} in it), remove it on the "
        "node as root, with the option --skiplock of qm",
    )


def _refuse_unseen(vm: BenchVm) -> None:
    """Raise an error if the VM is not visible, or locked by what was killed.

    It is reported until its ID is free.
    """
    node = vm.access.node
    try:
        lock = vm.read().values.get("lock")
    except (HypervisorGone, Forbidden, Rejected) as error:
        raise AccessDenied(
            f"VM {vm.vmid} on {node} is not visible after a restore by pvebench",
            cause=f"it was removed from pool {vm.access.pool}",
            next_step=f"run `qm config {vm.vmid}` there as root; if its description is empty or "
            f"has {vm.mark}, run `qm destroy {vm.vmid}`",
        ) from error
    if lock:
        removed = lock == "destroyed"
        command = f"qm destroy {vm.vmid} --skiplock" if removed else f"qm unlock {vm.vmid}"
        raise Busy(
            f"VM {vm.vmid} on {node} is locked ({lock})",
            cause=f"a {'removal' if removed else 'restore'} by pvebench was killed",
            next_step=f"run `{command}` on {node} as root; pvebench then removes the rest",
        )


def _node_now(api: Api, details: Mapping[str, str]) -> str:
    """Return the VM's current node: an administrator or HA may have migrated it."""
    vmid = int(details["vmid"])
    with contextlib.suppress(AccessDenied, Rejected):  # the pool is not visible
        for member in api.get(f"/pools/{details['pool']}")["members"]:
            if member.get("vmid") == vmid and "node" in member:
                return str(member["node"])
    return details["node"]


def _wait_for_lock(vm: BenchVm) -> None:
    """Wait a limited time for a lock on the VM to end; later calls report a remaining lock."""
    for _ in attempts(vm.access.clock, seconds=_LOCK_SECONDS, pause=2.0):
        if not vm.read().values.get("lock"):
            return


def _is_born(vm: BenchVm, details: Mapping[str, str]) -> bool:
    """Return whether the VM is visible and completely created.

    Raises AccessDenied: the token may not see any VM of the pool.
    """
    try:
        if (lock := vm.read().values.get("lock")) in ("create", "clone"):
            return False
        if lock == "destroyed":  # the last step of a removal (`destroy_vm` in PVE/API2/Qemu.pm)
            _refuse_unseen(vm)
        mark_again(vm, details.get("newest", ""))
        vm.verify_owner()
    except (HypervisorGone, Forbidden, Rejected):
        return False
    return True


_OF_SETTINGS: Final = ("cpu", "machine", "kvm", "vcpus")
"""VM options that the settings may have changed; options of scenarios are set at boot."""


def keep_vm(vm: BenchVm, details: Mapping[str, str], *, clean: bool) -> str | None:
    """Switch the VM off and record it as kept; return a line about it, None if nothing is filled.

    Args:
        details: of the VM's own journal entry, which the caller closes.
        clean: the VM was in use until now. Otherwise it must be running: if it stopped with its
            node, filled data in the node's memory may be lost.

    Raises:
        As `BenchVm.change`.
    """
    filled = filled_of(vm.verify_owner().values)
    if not filled or not (clean or vm.status().get("status") == "running"):
        return None
    if vm.has_snapshots():  # what is written since the newest one is not known at the next start
        return None
    vm.stop()
    hotplug.clear(vm)
    vm.access.journal.open(KEPT, details)
    held = ", ".join(sorted(volume.volid for volume in filled))
    return f"kept VM {vm.vmid} on {details['node']}, switched off, with {held}"


def find_kept(access: NodeAccess, template: int = 0) -> tuple[BenchVm, Callable[[], None]] | None:
    """Return the kept VM of the node, and a function to call once it is in use.

    Args:
        template: ID of the VM that it must be a clone of; 0: it boots the guest image.

    A VM that is gone or no longer owned is not changed, and its entry is closed.

    Raises DriverError: the VM's state is unknown at present.
    """
    journal = access.journal
    for number, details in of_kinds(journal, KEPT):
        if missing_keys(details, _KEYS):
            continue
        if (details["node"], details["pool"]) != (access.node, access.pool):
            continue
        if details.get("template", "0") != str(template):
            continue
        vm = BenchVm(access, int(details["vmid"]), details["mark"])
        try:
            vm.verify_owner()
        except (HypervisorGone, NotOwned) as error:
            log.warning("kept VM cannot be reused", reason=error.reason)
            if _node_now(access.api, details) != access.node:  # it is removed on its new node
                journal.open(KIND, details)
            journal.close(number)
            continue
        return vm, partial(_in_use, journal, number, details)
    return None


def _in_use(journal: Journal, number: int, details: Mapping[str, str]) -> None:
    journal.open(KIND, details)
    journal.close(number)


def fit(vm: BenchVm, options: Mapping[str, Any], iso: str) -> None:
    """Switch the VM off and apply the current settings and guest image, which no clone has."""
    vm.stop()
    hotplug.clear(vm)
    if not iso:
        return
    config = vm.recent_config().values
    target = {key: options[key] for key in _OF_SETTINGS if key in options}
    changed = {key: value for key, value in target.items() if str(config.get(key)) != str(value)}
    if parse_drive(str(config.get(ISO_SLOT, "")))[0] != iso:
        changed[ISO_SLOT] = f"{iso},media=cdrom"
    obsolete = [key for key in _OF_SETTINGS if key in config and key not in target]
    if obsolete:
        changed["delete"] = ",".join(obsolete)
    if changed:
        vm.change("apply the settings", **changed)
