"""Making a benchmark VM: a free number, the mark, the journal before the call, the tag after it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.drive import ISO_SLOT
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.marks import description
from pvebench.drivers.proxmox.vm import CHANGE_SECONDS, KIND, TAG, BenchVm, Place
from pvebench.errors import DriverError, NotOurs
from pvebench.model.ports import Clock, Journal


def make_vm(
    api: Api, clock: Clock, place: Place, journal: Journal, *, options: Mapping[str, Any], iso: str
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
            _create(api, vm, place, {**options, ISO_SLOT: f"{iso},media=cdrom"})
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
    raise NotOurs(
        f"all VM numbers from {first} to {last} are taken",
        next_step="give another range in the settings, or see what is there: pvebench check",
    )


def is_free(api: Api, vmid: int) -> bool:
    """Return whether no VM or container of the cluster has this number; nothing is reserved."""
    try:
        api.get("/cluster/nextid", vmid=vmid)
    except Rejected:
        return False
    return True


def _create(api: Api, vm: BenchVm, place: Place, options: Mapping[str, Any]) -> None:
    vm.learn()
    vm._tasks.run(  # noqa: SLF001 # the VM's own birth
        lambda: api.post(
            f"/nodes/{place.node}/qemu", vmid=vm.vmid, pool=place.pool,
            description=description(vm.mark), **options,
        ),
        kind="qmcreate", what=f"VM {vm.vmid}: create", seconds=CHANGE_SECONDS,
    )  # fmt: skip


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
