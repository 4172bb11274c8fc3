"""Who made a volume: each instance has a random id, which the names of its volumes carry.

The id is in a file beside the database, not in it: a database that is put back elsewhere does
not make its new owner the owner of what the old one made. Two hosts with equal paths that share
a directory have two ids, so neither takes the other's volumes for its own leftovers.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from pvebench.errors import NotWritable
from pvebench.model.disk import Disk
from pvebench.model.scenario import Scenario
from pvebench.model.volume import Volume

# --- What a storage is to the drivers that make test volumes on it themselves.

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


_FILE: Final = "instance"
_BYTES: Final = 8
_ID: Final = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")


def instance_id(state: Path) -> str:
    """Return the id of the instance with this state directory, made when it is first asked for.

    Raises:
        NotWritable: it cannot be read, made, or is no id.
    """
    path = state / _FILE
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as opened:
            found = opened.read(64).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotWritable(
            f"the instance's id in {path} cannot be read or made: {error.strerror}",
            next_step="mend the permissions of the state directory",
        ) from error
    if not _ID.fullmatch(found):
        raise NotWritable(
            f"{path} does not hold an instance's id",
            cause="it was damaged or edited",
            next_step="remove it: a new id is made, and volumes with the old one are left alone",
        )
    return found


def _make(path: Path) -> None:
    """Write a new id: whole or not at all, also when the machine stops meanwhile."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(_BYTES)}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def is_own(details: Mapping[str, str], instance: str) -> bool:
    """Tell whether a journal entry may be acted upon: the name in it carries this instance's id.

    An entry without a name (a VM, a device's setting) is proved by what undoes it.
    """
    if "path" not in details and "name" not in details:
        return True
    name = Path(details.get("path") or details["name"]).name
    return name.startswith(f"{MARK}{instance}-")
