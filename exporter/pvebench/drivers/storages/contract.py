"""What a storage is to the drivers that make test volumes on it themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pvebench.model.disk import Disk
from pvebench.model.scenario import Scenario
from pvebench.model.volume import Volume

MARK: Final = "pvebench-test-"
"""Every volume's name starts so; nothing else is ever changed or removed."""

Node = dict[str, Any]
"""A block node as blockdev-add takes it, without its name and its cache flags."""


class Storage(Protocol):
    """The volumes of one storage. Owned by one worker thread."""

    def create(self, scenario: Scenario) -> Volume:
        """Return a new volume for the scenario; one that was there under its name is replaced.

        Raises:
            NoSpace: the storage could not hold it when it is full.
            VolumeError: it could not be made.
        """

    def remove(self, volume: Volume) -> None:
        """Remove a volume; one that is gone already is fine."""

    def check(self, volume: Volume) -> None:
        """Look whether the volume is still what `create` made; asked before each use.

        Raises:
            VolumeError: it is something else now, or not pvebench's alone. Nothing was written.
        """

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return the block node that opens the volume, below the one that knows its format."""

    def drop_caches(self, volume: Volume) -> int | None:
        """As `Hypervisor.drop_caches`."""

    def opened(self, volume: Volume) -> str:
        """Return the path under which QEMU has the volume open; empty: not as a file."""

    def close(self) -> None:
        """Give back what the storage itself holds (base images), after its volumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """A lab storage as the settings describe it. What a kind does not use is empty.

    Attributes:
        path: directory (`dir`, `loop`) or device (`block`).
        server, port, socket, export: of an `nbd` or `nfs` server.
        pool, conf, user: of a Ceph cluster (`rbd`); without the last two, Ceph's own defaults.
        own_path: whether a run makes the path if it is missing: below the state directory.
        owner: the instance's id: tells the volumes of instances apart that share a place.
    """

    name: str
    kind: str
    owner: str
    path: str = ""
    own_path: bool = False
    server: str = ""
    port: int = 0
    socket: str = ""
    export: str = ""
    pool: str = ""
    conf: str = ""
    user: str = ""


Undo = Callable[[Mapping[str, str]], str]
