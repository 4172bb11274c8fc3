"""What a driver is to the rest of pvebench: what a plan needs to know, and what a run does with it.

A driver is one folder with a `DRIVER`, and its line in `drivers.DRIVERS`. What is heavy to import
stands behind the `ENGINE` of another module of the folder, imported when the driver is used.
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
from pvebench.errors import PvebenchError
from pvebench.fields import FilePath, Slug, Strict
from pvebench.files import RUNTIME
from pvebench.guest import GuestImage, build_image, default_directory, load_image, to_be_built
from pvebench.model.ports import Clock, Journal, Site
from pvebench.model.rules import Rows, StorageKind
from pvebench.model.volume import Identity
from pvebench.model.workload import Case

Finding = tuple[str, bool | None, str]
"""What was checked, whether it is fine (None: not known), and what was found."""


def default_state() -> Path:
    """Return `$XDG_STATE_HOME/pvebench`, or `~/.local/state/pvebench`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pvebench"


def default_node() -> str:
    """Return this machine's short host name, as Proxmox names its nodes."""
    return socket.gethostname().partition(".")[0].lower() or "localhost"


class DriverSettings(Strict):
    """What the settings tell every driver; a driver's own model adds its keys.

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
        """Where the guest's image is."""
        return self.guest_image or default_directory()

    def changes_for(self, node: str) -> dict[str, Any]:
        """Return what is to be changed so that `node` is the only one that is measured."""
        return {"node": node}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStorage:
    """One storage that a driver can measure.

    Attributes:
        holds: what a volume on it can be; its name is the type that is shown.
        shared: several nodes write to the same disks: measured from one node at a time.
        budget_bytes: that may be written in a calendar month; None: no limit.
        floor_bytes: that must stay free; None: no limit.
    """

    holds: StorageKind
    shared: bool = False
    budget_bytes: int | None = None
    floor_bytes: int | None = None


def own_node(settings: DriverSettings) -> tuple[str, ...]:
    """Return the one node of the settings."""
    return (settings.node,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What is known of a driver before it is used. Light to import: `pvebench plan` reads it.

    The functions are given the whole settings, which have the keys of every driver.

    Attributes:
        settings: its keys in the settings file.
        engine: module whose `ENGINE` does its work.
        storages: (settings, node) -> storage id -> what it is, for those that the node has; for
            node None: that any node has.
        require: raises VolumeError if a storage of this machine is missing.
        nodes: settings -> the nodes that are measured, each by a worker of its own.
        rows: which rows it can run.
        simulated: whether every number is invented.
    """

    settings: type[DriverSettings]
    engine: str
    storages: Callable[[Any, str | None], Mapping[str, MeasuredStorage]]
    require: Callable[[Any], None] = lambda _: None
    nodes: Callable[[Any], tuple[str, ...]] = own_node
    rows: Rows = Rows.BOTH
    simulated: bool = False


class StopClock(Clock, Protocol):
    """A clock whose waits can all be ended at once."""

    def stop(self) -> None:
        """End every present and later wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What an instance gives to a driver.

    Attributes:
        runtime: directory for sockets and jobs.
        say: gets one line for people.
    """

    runtime: Path
    journal: Journal
    clock: StopClock
    say: Callable[[str], None]


class Leftover(Protocol):
    """Something that some pvebench made and no journal knows."""

    @property
    def text(self) -> str:
        """One line about it."""

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""


class Sweeper(Protocol):
    """Finds what is left when the state directory, and with it the journal, is lost."""

    def find(self, journal: Journal) -> Sequence[Leftover]:
        """Return what is there and the journal does not know."""

    def remove(self, journal: Journal, number: int) -> str:
        """Remove one of those that `find` found; return a line about it.

        Raises:
            NotOurs: there is none of that number among them.
        """


class Engine(Protocol):
    """What a driver does. `settings` have its keys; it has no state of its own.

    Only `sites` must be written; the others are here as a driver has them that changes nothing.
    """

    def make_clock(self, *, endless: bool) -> StopClock:
        """Return the clock of all its sites."""
        del endless
        return SystemClock()

    def sites(self, settings: Any, place: Workplace) -> list[Site]:
        """Return the nodes that are measured; what a crash left is undone already."""
        ...

    def undo(self, settings: Any, journal: Journal) -> list[str]:
        """Undo what a killed process left open in the journal; return a line about each thing."""
        return []

    def kept(self, journal: Journal) -> list[str]:
        """Return a line about each thing that stays by choice when pvebench ends."""
        return []

    def check(self, settings: Any, cases: Sequence[Case]) -> Iterator[Finding]:
        """Yield whether everything is there that a run of `cases` needs. Changes nothing."""
        return iter(())

    def identities(self, settings: Any) -> Mapping[tuple[str, str], Callable[[], Identity]]:
        """Return (node, storage) -> what returns which storage it is now; empty: not known.

        Raises:
            DriverError: by what is returned; it is missing or does not answer.
        """
        return {}

    def clocks(self, settings: Any) -> Iterator[tuple[str, float | None]]:
        """Yield each other machine with a clock, and its seconds since 1970; None: it is not told.

        Raises:
            DriverError: it cannot be asked.
        """
        return iter(())

    def sweeper(self, settings: Any) -> Sweeper | None:
        """Return what finds things that no journal knows; None: there can be none."""
        return None


def guest_image(settings: DriverSettings, place: Workplace) -> GuestImage:
    """Return the guest's image, built if it is not there yet."""
    return build_image(settings.image_directory, say=place.say)


def image_word(settings: DriverSettings) -> str:
    """Return a word about the guest's image. Raises GuestImageError, ToolsMissing."""
    if to_be_built(settings.image_directory):
        return f"the first run builds it in {settings.image_directory}"
    return f"{load_image(settings.image_directory).digest[:12]} in {settings.image_directory}"


def attempt(name: str, look: Callable[[], str]) -> Finding:
    """Return what `look` finds, or what it raises as a bad finding."""
    try:
        return name, True, look()
    except PvebenchError as error:
        return name, False, str(error)


def volume_bytes(cases: Sequence[Case]) -> dict[str, int]:
    """Return storage -> bytes of all volumes that the cases need there when they are full."""
    volumes = {
        (case.scenario.storage, case.scenario.volume): case.scenario.volume_bytes
        * (2 if case.scenario.disk.backing else 1)
        for case in cases
    }
    found: dict[str, int] = {}
    for (storage, _), size in volumes.items():
        found[storage] = found.get(storage, 0) + size
    return found
