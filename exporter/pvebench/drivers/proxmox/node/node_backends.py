"""Backends beside the VM of a node that plug-ins add, such as containers. They work over SSH."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from pvebench.drivers.driver import Finding
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import readable
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.vm.vm_create import NodeContext
from pvebench.model.disk import Bus
from pvebench.model.ports import Backend, Guard, Journal, VolumeSource
from pvebench.model.scenario import Scenario
from pvebench.model.workload import Case
from pvebench.plugins import Registry

if TYPE_CHECKING:
    from pvebench.drivers.proxmox.node.node_ssh import NodeSsh  # its errors are those of all kinds

LEFT_HERE: Final = "left by a crash; the next start or `pvebench cleanup` removes it"
"""Why a guest in the journal of this instance is an orphan."""


class NodeBackend(Backend, VolumeSource, Protocol):
    """Guests of a node that are no VMs. Owned by one worker thread."""

    @property
    def vmid(self) -> int:
        """ID of the running guest; 0: none."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the node's block devices below the volume in use; empty: unknown."""

    def needs_bytes(self, scenario: Scenario) -> int:
        """Return the bytes that the volume of `scenario` still needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanGuest:
    """`drivers.driver.Orphan`: VM, or guest of a backend, that some pvebench created.

    Attributes:
        mark: its ownership marker.
        why: reason in this instance's journal, or its use by another instance; empty: none.
    """

    node: str
    vmid: int
    mark: str
    status: str
    why: str = ""

    kind: ClassVar[str]
    """Its name in messages."""

    @property
    def held(self) -> str:
        """What is removed with it."""
        return "its volumes"

    @property
    def text(self) -> str:
        """One line about it."""
        why = f", {self.why}" if self.why else ""
        where = f"{self.kind} {self.vmid} on {self.node}, {self.status}{why}"
        return readable(f"{where}, with {self.held}")

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBackendKind:
    """Kind of backend of the cases of one bus on a node.

    Attributes:
        bus: that of its cases.
        journal_kind: kind of its journal entries, which have the key `node`.
        script: for `node.sh`: functions, then the requests that they answer.
        make: returns the backend; nothing is created yet.
        guard: returns a guard of its cases.
        check: yields whether the requirements of the cases of a node are met; changes nothing.
        undo: undoes the open journal entries of a node by its name; returns a line about each.
        find_orphans: returns the marked guests of a node by its name; raises as `NodeSsh.ask`.
        remove_orphan: removes a result of it, and its journal entries; returns a line about it.
    """

    bus: Bus
    journal_kind: str
    script: str
    make: Callable[[NodeSsh, NodeContext, ProxmoxSettings], NodeBackend]
    guard: Callable[[NodeSsh], Guard]
    check: Callable[[NodeSsh | None, Api, ProxmoxSettings, Sequence[Case]], Iterator[Finding]]
    undo: Callable[[NodeSsh | None, str, Journal], list[str]]
    find_orphans: Callable[[NodeSsh, str, Journal], Sequence[OrphanGuest]]
    remove_orphan: Callable[[NodeSsh, OrphanGuest, Journal], str]


NODE_BACKENDS: Final = Registry[NodeBackendKind](
    "node_backends", lambda plugin: isinstance(plugin, NodeBackendKind), {}
)
"""Name -> kind of backend beside the VM of a node."""
