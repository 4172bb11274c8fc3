"""VMs of pvebench that no journal knows: found by pool, tag and mark together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.keeping import KEPT
from pvebench.drivers.proxmox.marks import mark_of
from pvebench.drivers.proxmox.storages import MARK
from pvebench.drivers.proxmox.vm import BenchVm, Place
from pvebench.errors import AccessDenied, NotOurs
from pvebench.model.ports import Clock, Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A VM that some pvebench made.

    Attributes:
        volumes: of that VM, with our mark in their names.
        kept: it was set aside by this instance, by choice.
    """

    node: str
    vmid: int
    status: str
    mark: str
    volumes: tuple[str, ...]
    kept: bool = False

    @property
    def text(self) -> str:
        """One line about it."""
        held = ", ".join(self.volumes) or "no volumes"
        why = ", kept by choice" if self.kept else ""
        return f"VM {self.vmid} on {self.node}, {self.status}{why}, with {held}"

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def find_strays(
    api: Api, *, pool: str, known: Collection[str], kept: Collection[str] = ()
) -> list[Stray]:
    """Return the VMs of `pool` that carry a mark of pvebench which is not in `known`.

    Args:
        kept: marks of VMs that were set aside.
    """
    found = []
    for member in api.get(f"/pools/{pool}")["members"]:
        if member.get("type") != "qemu":
            continue
        node, vmid = str(member["node"]), int(member["vmid"])
        try:
            config = api.get(f"/nodes/{node}/qemu/{vmid}/config", current=1)
            status = str(api.get(f"/nodes/{node}/qemu/{vmid}/status/current")["status"])
        except (AccessDenied, Rejected):
            continue  # gone meanwhile
        mark = mark_of(config)
        if mark and mark not in known:
            volumes = _volumes(api, node, vmid)
            found.append(
                Stray(node=node, vmid=vmid, status=status, mark=mark, volumes=volumes,
                      kept=mark in kept)
            )  # fmt: skip
    return found


def _volumes(api: Api, node: str, vmid: int) -> tuple[str, ...]:
    names: list[str] = []
    for storage in api.get(f"/nodes/{node}/storage", content="images", enabled=1):
        path = f"/nodes/{node}/storage/{storage['storage']}/content"
        entries = api.get(path, content="images", vmid=vmid)
        names += [str(entry["volid"]) for entry in entries if MARK in str(entry["volid"])]
    return tuple(sorted(names))


def remove_stray(api: Api, stray: Stray, *, pool: str, clock: Clock, journal: Journal) -> str:
    """Remove it with its volumes, forget that it was kept; return a line about it.

    Raises:
        NotOurs: it changed since it was found. Others as `BenchVm.destroy`.
    """
    place = Place(node=stray.node, pool=pool, vmids=(stray.vmid, stray.vmid))
    vm = BenchVm(api, clock, place, stray.vmid, stray.mark)
    vm.learn()
    vm.destroy()
    for number, kind, details in journal.pending():
        if kind == KEPT and details["mark"] == stray.mark:
            journal.close(number)
    return f"removed VM {stray.vmid} on {stray.node} with its volumes"


def choose(strays: Collection[Stray], vmid: int) -> Stray:
    """Return the stray with that number.

    Raises:
        NotOurs: there is none: nothing else is ever removed.
    """
    for stray in strays:
        if stray.vmid == vmid:
            return stray
    raise NotOurs(
        f"VM {vmid} is left alone: it is not among those that were found",
        next_step="see the list: pvebench sweep",
    )
