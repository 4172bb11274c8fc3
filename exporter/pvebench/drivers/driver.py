"""Interface of drivers to the rest of pvebench, for plans and for runs.

A driver is one package with a `DRIVER`, and its line in `drivers.DRIVERS`. Slow imports belong to
the module of its `ENGINE`, which is imported when the driver is used.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from pvebench.drivers.clocks import SystemClock
from pvebench.errors import GuestImageError, PvebenchError
from pvebench.fields import FilePath, Slug, Strict, WriteBudget
from pvebench.files import RUNTIME
from pvebench.guest.build import build_image, needs_build
from pvebench.guest.image import GuestImage, default_directory, load_image
from pvebench.model.ports import Clock, Journal, Site
from pvebench.model.rules import Rows, StorageKind
from pvebench.model.storage_use import Space, Wear, default_budget
from pvebench.model.volume import Identity
from pvebench.model.workload import Case

# --- Answer of `Engine.read_vms`: VMs and storages of a cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedVm:
    """A VM.

    Attributes:
        config: key -> current value.
        pending: key -> value that waits for a cold start; empty: it is removed.
    """

    node: str
    vmid: int
    name: str
    config: Mapping[str, str]
    pending: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCluster:
    """What the token may see.

    Attributes:
        storages: ID -> its options; `type` is always there. Empty: they could not be read.
        names: ID of a storage -> its names in packs.
        unread: what could not be read, with the reason.
    """

    vms: tuple[AuditedVm, ...]
    storages: Mapping[str, Mapping[str, str]]
    names: Mapping[str, tuple[str, ...]]
    unread: tuple[str, ...] = ()

    def absence(self, storage: str, node: str) -> str:
        """Return why the VMs of a node cannot use a storage; empty: they can."""
        row = self.storages.get(storage)
        if row is None:
            return "does not exist, or the token cannot see it" if self.storages else ""
        if row.get("disable") == "1":
            return "is disabled"
        nodes = row.get("nodes", node).replace(" ", "").split(",")
        return "" if node in nodes else f"is not available on node {node}"


Finding = tuple[str, bool | None, str]
"""Name of a check, whether it passed (None: unknown), and its result."""


def default_state() -> Path:
    """Return `$XDG_STATE_HOME/pvebench`, or `~/.local/state/pvebench`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pvebench"


def default_node() -> str:
    """Return this machine's short host name, as Proxmox names its nodes."""
    return socket.gethostname().partition(".")[0] or "localhost"


class DriverSettings(Strict):
    """Settings of every driver; a driver's own model adds its keys.

    Attributes:
        node: the label `node` of every result.
        state: directory of results, locks and sockets; one instance at a time.
        guest_image: directory of the guest image. None: the cache directory.
    """

    node: Slug = Field(default_factory=default_node)
    state: FilePath = Field(default_factory=default_state)
    guest_image: FilePath | None = None

    @property
    def runtime(self) -> Path:
        """Directory of the sockets and logs of this instance's VMs."""
        return self.state / RUNTIME

    @property
    def image_directory(self) -> Path:
        """Directory of the guest image."""
        return self.guest_image or default_directory()

    def changes_for(self, node: str) -> dict[str, Any]:
        """Return the changes of the settings that leave `node` as the only measured node."""
        return {"node": node}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStorage:
    """Storage that a driver can measure.

    Attributes:
        holds: its capabilities; the name is the displayed type.
        shared: whether several nodes share its disks, so that only one node at a time uses it.
        budget_bytes: maximum bytes written in 24 hours; None: no limit.
        floor_bytes: bytes that must stay free; None: no limit.
    """

    holds: StorageKind
    shared: bool = False
    budget_bytes: int | None = None
    floor_bytes: int | None = None


def budget_of(setting: WriteBudget | None, size_bytes: int | None) -> int | None:
    """Return a storage's write budget in bytes per 24 hours; None: no limit.

    Args:
        setting: 0: no limit; None: not set.
        size_bytes: size of the storage; None: unknown.
    """
    return default_budget(size_bytes) if setting is None else setting or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Description of a driver. It imports quickly, for `pvebench plan`.

    The functions get the whole settings, which have the keys of every driver.

    Attributes:
        settings: its keys in the settings file.
        engine: module of its `ENGINE`.
        storages: (settings, node) -> storage id -> storage, for those of the node; node None: of
            any node.
        wear: settings -> (node, storage) -> wear of its drives, or why it is unknown.
        spaces: settings -> (node, storage) -> free space, where it is known; raises PvebenchError.
        require: raises VolumeError if a storage of this machine is missing.
        nodes: settings -> measured nodes, each with its own worker.
        rows: cases that it can run.
        simulated: whether every number is simulated.
    """

    settings: type[DriverSettings]
    engine: str
    storages: Callable[[Any, str | None], Mapping[str, MeasuredStorage]]
    wear: Callable[[Any], Mapping[tuple[str, str], Wear | str]] = lambda _: {}
    spaces: Callable[[Any], Mapping[tuple[str, str], Space]] = lambda _: {}
    require: Callable[[Any], None] = lambda _: None
    nodes: Callable[[Any], tuple[str, ...]] = lambda settings: (settings.node,)
    rows: Rows = Rows.BOTH
    simulated: bool = False


class StopClock(Clock, Protocol):
    """Clock whose waits can be ended."""

    def stop(self) -> None:
        """End every current and later wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverContext:
    """Environment that an instance provides to a driver.

    Attributes:
        runtime: directory for sockets and jobs.
        say: prints one line for the user.
    """

    runtime: Path
    journal: Journal
    clock: StopClock
    say: Callable[[str], None]


class Orphan(Protocol):
    """Object that a pvebench created, and why it may be one that nothing else removes."""

    @property
    def text(self) -> str:
        """Description in one line."""

    def as_data(self) -> dict[str, Any]:
        """Return it as data for JSON."""


class OrphanFinder(Protocol):
    """Finder of orphans of a lost state directory, and with it of a lost journal."""

    def find(self, journal: Journal) -> Sequence[Orphan]:
        """Return the existing objects that the journal does not contain."""

    def remove(self, journal: Journal, number: int) -> str:
        """Remove one of the results of `find`; return a line about it.

        Raises NotOwned: none of them has that number.
        """


class Engine(Protocol):
    """Functions of a driver. `settings` have its keys; it has no state.

    Only `sites` must be implemented; the defaults are those of a driver that changes nothing.

    Attributes:
        boot_limit: maximum seconds from power-on until the guest answers; 0: unknown.
    """

    boot_limit: float = 0.0

    def make_clock(self, *, endless: bool) -> StopClock:
        """Return the clock of all its sites."""
        del endless
        return SystemClock()

    def sites(self, settings: Any, place: DriverContext) -> list[Site]:
        """Return the measured nodes, after the leftovers of a crash were undone."""
        ...

    def undo(self, settings: Any, journal: Journal) -> list[str]:
        """Undo the journal entries that a killed process left open; return a line for each."""
        return []

    def kept(self, journal: Journal) -> list[str]:
        """Return a line about each object that stays on purpose when pvebench ends."""
        return []

    def check(self, settings: Any, cases: Sequence[Case]) -> Iterator[Finding]:
        """Yield whether the requirements of `cases` are met. Changes nothing."""
        return iter(())

    def identities(self, settings: Any) -> Mapping[tuple[str, str], Callable[[], Identity]]:
        """Return (node, storage) -> function that returns its identity; empty: not known.

        Raises DriverError: by the returned function; the storage is missing or does not answer.
        """
        return {}

    def clocks(self, settings: Any) -> Iterator[tuple[str, float | None]]:
        """Yield each other machine and the time of its clock, in seconds since 1970; None: unknown.

        Raises DriverError: the machine cannot be reached.
        """
        return iter(())

    def read_vms(self, settings: Any) -> AuditedCluster | None:
        """Return all VMs of the cluster, for an audit; None: the driver has no cluster.

        Raises AccessDenied: the token may not see them. Others as a request.
        """
        return None

    def orphan_finder(self, settings: Any) -> OrphanFinder | None:
        """Return the finder of orphans; None: the driver cannot leave any."""
        return None


def guest_image(settings: DriverSettings, place: DriverContext) -> GuestImage:
    """Return the guest image; build it if it is missing."""
    return build_image(settings.image_directory, say=place.say)


def image_summary(settings: DriverSettings) -> str:
    """Return the state of the guest image. Raises GuestImageError, ToolsMissing."""
    if settings.image_directory.is_file():
        step = "remove guest_image from the settings; a Windows image is guest.image of a pack"
        raise GuestImageError(f"guest_image {settings.guest_image} is a file", next_step=step)
    if needs_build(settings.image_directory):
        return f"the first run builds it in {settings.image_directory}"
    return f"{load_image(settings.image_directory).digest[:12]} in {settings.image_directory}"


def attempt(name: str, look: Callable[[], str]) -> Finding:
    """Return the result of `look`, or its error as a failed check."""
    try:
        return name, True, look()
    except PvebenchError as error:
        return name, False, str(error)
