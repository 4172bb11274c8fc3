"""Undo journal of the drivers that work on this machine: what to call for each kind of entry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.storages import UNDO
from pvebench.drivers.storages.contract import Undo, is_own
from pvebench.errors import PvebenchError
from pvebench.model.ports import Journal

VM_KIND: Final = "vm"
_VM: Final = "pvebench.drivers.qemu.machine:undo_vm"
HANDLERS: Final = {
    "scratch": "pvebench.drivers.host.this_machine:undo_scratch",
    "device-setting": "pvebench.drivers.host.device_tuning:undo_setting",
    "container": "pvebench.drivers.lxc.container:undo_container",
    "container-root": "pvebench.drivers.lxc.container:undo_root",
}
"""Kind of a journal entry -> what undoes it. Drivers share a state directory, so each undoes what
the other left; the kinds of storages are in `storages.UNDO`."""


def undo_pending(
    journal: Journal, more: Mapping[str, Undo] | None = None, *, instance: str, runtime: Path
) -> list[str]:
    """Undo every open change, VMs first, then newest first; return a line about each.

    An entry is a hint where to look. What is ended or removed is proved to be this instance's at
    that moment: a name by the instance's id in it, a VM by its process and by its directory below
    `runtime`. What is not is left alone, and reported once. What cannot be undone stays open for
    the next start.

    Args:
        more: undoes kinds that need the settings, such as a machine reached by ssh.
        instance: id of this instance.
        runtime: where this instance's VMs have their directories.
    """
    undo = _handlers(runtime, more or {})
    # A volume that a left-over QEMU still has open could not be removed completely.
    pending = sorted(journal.pending(), key=lambda entry: entry[1] != VM_KIND)
    lines = []
    for number, kind, details in pending:
        if kind not in undo:
            continue  # another driver's
        line, done = _undo_one(undo[kind], number, kind, details, instance)
        lines.append(line)
        if done:
            journal.close(number)
    return lines


def _handlers(runtime: Path, more: Mapping[str, Undo]) -> dict[str, Undo]:
    return {
        VM_KIND: partial(_function(_VM), runtime),
        **{kind: _function(name) for kind, name in HANDLERS.items()},
        **UNDO,
        **more,
    }


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _undo_one(
    undo: Undo, number: int, kind: str, details: Mapping[str, str], instance: str
) -> tuple[str, bool]:
    """Return a line about an entry, and whether it is closed."""
    try:
        if not is_own(details, instance):
            return f"left {kind} {dict(details)} alone: another instance made it", True
        return undo(details), True
    except KeyError as error:
        return (
            f"left {kind} alone: journal entry {number} is damaged, it has no {error}; "
            "look for what it may have been, and remove it by hand"
        ), True
    except (PvebenchError, OSError) as error:
        return f"could not undo {kind} {dict(details)} yet: {error}", False
