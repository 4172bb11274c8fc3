"""Interface of storages, and the instance id in the names of their volumes.

The random id is in a file next to the database, not in it: an instance that restores a database of
another one does not own the other's volumes. Two hosts with equal paths that share a directory
have two ids, so neither removes the other's volumes as leftovers.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import Field, StrictStr

from pvebench.errors import AlreadyRunning, DriverError, NotWritable
from pvebench.fields import Slug, Strict, WriteBudget
from pvebench.files import read_own, write_own
from pvebench.log import log
from pvebench.model.disk import Disk
from pvebench.model.ports import Guard, Journal
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.volume import Identity, Volume

# --- interface of storages to the drivers that create test volumes

MARK: Final = "pvebench-test-"
"""Ownership marker at the start of each volume's name; nothing else is changed or removed."""

Node = dict[str, Any]
"""A block node for blockdev-add, without its name and its cache flags."""


class Storage(Protocol):
    """Volumes of one storage. Owned by one worker thread."""

    def create(self, scenario: Scenario) -> Volume:
        """Create a volume for the scenario; replace an existing one of the same name.

        Raises:
            NoSpace: the storage has no space for the full volume.
            VolumeError: it could not be created.
        """

    def remove(self, volume: Volume) -> None:
        """Remove a volume, if it exists. Default: it stays."""
        return

    def check(self, volume: Volume) -> None:
        """Verify that the volume is still the one of `create`; called before each use.

        Default: nothing is known of it. Raises VolumeError: it was replaced, or others use it.
        Nothing was written.
        """
        return

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return the block node that opens the volume, below the node of its format."""

    def drop_caches(self, volume: Volume) -> int | None:
        """As `Hypervisor.drop_caches`. Default: the caches are not visible from here."""
        return None

    def opened(self, volume: Volume) -> str:
        """Return the path with which QEMU opens the volume; empty: QEMU uses a socket."""
        return volume.volid if volume.local else ""

    def close(self) -> None:
        """Release the storage's own objects (base images), after its volumes. Default: none."""
        return


def release(storages: Mapping[str, Storage], volumes: Iterable[Volume]) -> None:
    """Remove volumes, then release the storages; what remains is in the journal, and logged."""
    ends: list[Callable[[], None]] = [
        *(partial(storages[volume.storage].remove, volume) for volume in volumes),
        *(storage.close for storage in storages.values()),
    ]
    for end in ends:
        try:
            end()
        except DriverError as error:
            log.warning("cleanup incomplete, retried at the next start", reason=error.reason)


@runtime_checkable
class SnapshotStorage(Protocol):
    """Storage that can give its volumes snapshots."""

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """As `VmFunctions.take_snapshots`. Raises NoSpace, VolumeError."""

    def below(self, volume: Volume, disk: Disk) -> list[Node]:
        """Return the block nodes that open the volume's snapshots, newest first."""

    def add_file(
        self,
        volume: Volume,
        disk: Disk,
        label: str,
        *,
        overlay: bool = False,
        full: bool = False,
        size_bytes: int = 0,
    ) -> Node:
        """Create another file for an operation, and return the node that opens it.

        It is raw, or an empty overlay on the volume. Raises as `create`.

        Args:
            full: fill it with random data, which stays in no cache.
            size_bytes: 0: that of the volume.
        """

    def require_space(self, size_bytes: int) -> None:
        """Raise NoSpace if files of that size do not fit."""

    def remove_files(self, volume: Volume) -> None:
        """Remove the files of `add_file`, if there are any."""


@runtime_checkable
class PooledStorage(Protocol):
    """Storage that creates a pool or dataset for each volume, with options of the disk."""

    def effective(self, volume: Volume) -> dict[str, str]:
        """Return the effective options of a volume's pool."""


def pool_options(storage: Storage, volume: Volume) -> dict[str, str]:
    """Return the effective options of a volume's pool; other storages have none."""
    return storage.effective(volume) if isinstance(storage, PooledStorage) else {}


class StorageSettings(Strict):
    """Keys of every storage on this machine. Each kind has a model with its own keys.

    Attributes:
        kind: name of the kind; default: `dir`.
        write_budget: maximum bytes written to it in 24 hours; `off`: no limit. Default: 5% of its
            size, at least 10 GiB.
        faults: name -> command that causes this fault of the storage while a workload with that
            `fault` runs, and ends it before it exits. Empty: no fault is ever caused.
    """

    kind: StrictStr
    write_budget: WriteBudget | None = None
    faults: dict[Slug, Annotated[list[StrictStr], Field(min_length=1)]] = Field(
        default_factory=dict
    )


SettingsT_co = TypeVar("SettingsT_co", bound=StorageSettings, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageContext(Generic[SettingsT_co]):
    """Settings of one storage, and what depends on the instance.

    Attributes:
        settings: model of the kind, with absolute paths.
        own_path: whether a run creates a missing path, which is below the state directory.
        owner: the instance's id, which distinguishes volumes of instances that share a storage.
    """

    name: str
    settings: SettingsT_co
    own_path: bool = False
    owner: str = ""


Undo = Callable[[Mapping[str, str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of storage.

    Attributes:
        holds: its capabilities, for the planner.
        settings: its keys. Derived from `DirectorySettings`, plans check the directory and its
            free space; from `PathSettings`, that the path is on a disk.
        make: returns a storage of this kind.
        undo: kind of a journal entry -> function that undoes it and returns a line about it.
        identify: returns the current identity; raises DriverError: it is missing.
        look: returns a line about the storage for `pvebench check`, or raises PvebenchError;
            None: no check.
        guard: returns the guard of all storages of this kind; None: they have no activity of
            their own.
    """

    holds: StorageKind
    settings: type[StorageSettings]
    make: Callable[[StorageContext[Any], Journal], Storage]
    identify: Callable[[StorageContext[Any]], Identity]
    undo: Mapping[str, Undo] = field(default_factory=dict)
    look: Callable[[StorageContext[Any]], str] | None = None
    guard: Callable[[Mapping[str, Any]], Guard] | None = None


_FILE: Final = "instance"
_BYTES: Final = 8
_ID: Final = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")
_MACHINE_ID: Final = Path("/etc/machine-id")
_MACHINE: Final = re.compile(r"[0-9a-f]{32}")


def instance_id(state: Path) -> str:
    """Return the id of the instance with this state directory; create it at the first call.

    Raises NotWritable: it cannot be read or created, or is invalid.
    """
    return _id_and_machine(state)[0]


def is_bound(state: Path) -> bool:
    """Return whether the instance with this state directory has an id."""
    return (state / _FILE).exists()


def bound_id(state: Path, *, adopt: bool) -> str:
    """Return the instance's id, which belongs to one machine; bind a new one to this machine.

    Args:
        adopt: whether to bind the id of another machine to this one.

    Raises AlreadyRunning: it belongs to another machine. NotWritable: as `instance_id`.
    """
    instance, bound = _id_and_machine(state)
    here = machine_token()
    if not here or bound == here:
        return instance
    if bound and not adopt:
        raise AlreadyRunning(
            f"state directory {state} belongs to another machine; nothing was changed",
            cause="it was copied, moved or restored, and the original may still be running",
            next_step="if the original no longer runs, run `pvebench cleanup --adopt`",
        )
    with _id_errors(state / _FILE):
        write_own(state / _FILE, f"{instance} {here}\n")
    return instance


def machine_token() -> str:
    """Return a digest of this machine's id, which machine-id(5) keeps confidential; empty: none."""
    try:
        machine = _MACHINE_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    digest = hashlib.sha256(f"pvebench {machine}".encode()).hexdigest()
    return digest[: 2 * _BYTES] if _MACHINE.fullmatch(machine) else ""


def _id_and_machine(state: Path) -> tuple[str, str]:
    path = state / _FILE
    with _id_errors(path):
        if not path.exists():
            write_own(path, f"{secrets.token_hex(_BYTES)}\n")
        content = read_own(path).strip()
    instance, _, machine = content.partition(" ")
    if not _ID.fullmatch(instance) or (machine and not _ID.fullmatch(machine)):
        raise NotWritable(
            f"{path} does not contain a valid instance id",
            cause="it was damaged or edited",
            next_step="remove it; pvebench creates a new id and does not change volumes of the old",
        )
    return instance, machine


@contextlib.contextmanager
def _id_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritable(
            f"cannot read or create the instance id in {path}: {error.strerror}",
            next_step="fix the permissions of the state directory",
        ) from error


def is_own(details: Mapping[str, str], instance: str) -> bool:
    """Return whether the name in a journal entry contains this instance's id.

    The ownership of an entry without a name (a VM, a device's setting) is verified by the function
    that undoes it.
    """
    if "path" not in details and "name" not in details:
        return True
    name = Path(details.get("path") or details["name"]).name
    return name.startswith(f"{MARK}{instance}-")


def part_of(node: Node, offset: int, size: int) -> Node:
    """Return a node with `size` bytes from `offset` of another node."""
    return {"driver": "raw", "offset": offset, "size": size, "file": node}
