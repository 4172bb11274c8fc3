"""Undo of open journal entries of the drivers on this machine; `proxmox/` has its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import Undo, is_own
from pvebench.errors import PvebenchError
from pvebench.model.ports import Journal
from pvebench.plugins import Registry
from pvebench.sanitize import printable

VM_KIND: Final = "vm"
UNDO: Final = Registry[Any]("undo", callable, {VM_KIND: "pvebench.drivers.qemu.machine:undo_vm"})
"""Kind of a journal entry -> function that undoes it. Drivers share a state directory, so each
undoes the entries of all; each storage kind has its own in `storages.KINDS`."""


def undo_local(
    journal: Journal, more: Mapping[str, Undo] | None = None, *, instance: str, runtime: Path
) -> list[str]:
    """Undo every open change, VMs first, then newest first; return a line about each.

    An entry is only a hint. The ownership of what is ended or removed is verified at that moment:
    a name by the instance's id in it, a VM by its process and its directory below `runtime`. An
    object of another instance is not changed, and reported once. Entries that cannot be undone
    stay open for the next start.

    Args:
        more: kind -> function, for kinds that need the settings, such as a machine over ssh.
        instance: id of this instance.
        runtime: parent of the directories of this instance's VMs.
    """
    undo = _handlers(runtime, more or {})
    # A volume that a leftover QEMU still has open could not be removed completely.
    pending = sorted(journal.pending(), key=lambda entry: entry[1] != VM_KIND)
    lines = []
    for number, kind, details in pending:
        if kind not in undo:
            continue  # another driver's
        line, done = _undo_one(undo[kind], number, kind, details, instance)
        lines.append(printable(line))
        if done:
            journal.close(number)
    return lines


def _handlers(runtime: Path, more: Mapping[str, Undo]) -> dict[str, Undo]:
    # Own kinds of entries come first: a plug-in replaces none of them.
    kinds = reversed([*KINDS.values()])
    storages = {name: undo for kind in kinds for name, undo in kind.undo.items()}
    return {**storages, **UNDO, VM_KIND: partial(UNDO[VM_KIND], runtime), **more}


def _undo_one(
    undo: Undo, number: int, kind: str, details: Mapping[str, str], instance: str
) -> tuple[str, bool]:
    """Return a line about an entry, and whether it is closed."""
    try:
        if not is_own(details, instance):
            return f"{kind} {dict(details)} not changed: another instance created it", True
        return undo(details), True
    except (KeyError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        return (
            f"{kind} not changed: journal entry {number} is damaged, {what}; "
            "find the object and remove it by hand"
        ), True
    except (PvebenchError, OSError) as error:
        return f"undo of {kind} {dict(details)} failed, will be retried: {error}", False
