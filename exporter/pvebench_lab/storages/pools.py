"""Storages that create a thin pool or a ZFS dataset for each volume, with the options of the pack.

The ownership marker is in the object's name, and in a tag of LVM or a property of ZFS, which the
command that creates the object also sets. Only an object with both is removed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import Field, StrictStr

from pvebench.drivers.clocks import SystemClock, attempts
from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import (
    MARK,
    Kind,
    Node,
    Storage,
    StorageContext,
    StorageSettings,
)
from pvebench.drivers.storages.own_files import drop_page_cache
from pvebench.errors import VolumeError
from pvebench.model.disk import (
    POOL_OPTIONS,
    Compression,
    Disk,
    Format,
    HostCache,
    PrimaryCache,
    Sync,
)
from pvebench.model.ports import Journal
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.storage_use import Space
from pvebench.model.units import KIB
from pvebench.model.volume import Volume

_SECONDS: Final = 120.0
_BUSY_SECONDS: Final = 10.0
"""Time limit for udev, which opens a new device, and links it."""


class LvmSettings(StorageSettings):
    """Keys of kind `lvmthin`.

    Attributes:
        vgname: LVM volume group; thin pools are created in its free space.
    """

    vgname: StrictStr = Field(pattern=r"^[A-Za-z0-9_+.][A-Za-z0-9_+.-]{0,126}$")


class ZfsSettings(StorageSettings):
    """Keys of kind `zfs`.

    Attributes:
        dataset: ZFS dataset, below which datasets and zvols are created.
    """

    dataset: StrictStr = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_.:-]{0,99}(/[A-Za-z0-9_.:-]{1,99}){0,9}$"
    )


class PoolStorage(Storage):
    """Volumes with a pool or dataset of their own, named `PARENT/OBJECT`, of LVM or ZFS."""

    def __init__(
        self,
        manager: Lvm | Zfs,
        context: StorageContext[LvmSettings | ZfsSettings],
        journal: Journal,
    ) -> None:
        self._manager = manager
        self._name, self._owner = context.name, context.owner
        self._parent = getattr(context.settings, manager.key)
        self._journal = journal
        self._created: dict[str, tuple[str, str, int]] = {}
        """Path -> name, identity, and number of the journal entry."""

    def create(self, scenario: Scenario) -> Volume:
        manager, parent, size = self._manager, self._parent, scenario.volume_bytes
        name = f"{parent}/{MARK}{self._owner}-{scenario.volume}"
        manager.remove(name, self._owner)  # leftover of a crash: the name contains this id
        space = Space(free=manager.free_bytes(parent), where=f"in {parent}")
        space.require(self._name, size)
        entry = self._journal.open(manager.kind, {"name": name, "owner": self._owner})
        try:
            path = str(manager.create(name, self._owner, scenario.disk, size))
            self._created[path] = name, manager.identity(name), entry
        except VolumeError:
            manager.remove(name, self._owner)
            self._journal.close(entry)
            raise
        return Volume.of(scenario, path)

    def remove(self, volume: Volume) -> None:
        if volume.volid in self._created:
            name, _, entry = self._created[volume.volid]
            self._manager.remove(name, self._owner)
            self._journal.close(entry)
            del self._created[volume.volid]

    def check(self, volume: Volume) -> None:
        name, identity, _ = self._created[volume.volid]
        if self._manager.identity(name) != identity:
            raise VolumeError(
                f"{name} was replaced; not changed",
                cause="removed, replaced or renamed outside pvebench during its use",
                next_step="inspect it, then restart pvebench",
            )

    def effective(self, volume: Volume) -> dict[str, str]:
        """Return option of the pool -> value that the system reports. Raises VolumeError."""
        return self._manager.effective(self._created[volume.volid][0])

    def node(self, volume: Volume, disk: Disk) -> Node:
        driver = "host_device" if Path(volume.volid).is_block_device() else "file"
        return {"driver": driver, "filename": volume.volid, "aio": str(disk.aio)}

    def drop_caches(self, volume: Volume) -> int | None:
        """Drop the page cache; the ARC stays."""
        return drop_page_cache(Path(volume.volid))


def _undo(manager: Lvm | Zfs, details: Mapping[str, str]) -> str:
    """Undo a journal entry of a manager's kind; return a line about it."""
    manager.remove(details["name"], details["owner"])
    return f"removed {manager.kind} {details['name']}"


def _parts(name: str) -> tuple[str, str]:
    parent, _, own = name.rpartition("/")
    return parent, own


# --- LVM-thin: a thin pool `OBJECT-pool` with the only volume `OBJECT`

_CHUNK: Final = 64 * KIB
_COLUMNS: Final = ("lv_name", "lv_uuid", "lv_tags", "pool_lv", "chunk_size")


class Lvm:
    """Thin pools in the free space of a volume group. Methods raise VolumeError."""

    kind = "thin-pool"
    key = "vgname"

    def uuid(self, parent: str) -> str:
        return _group(parent)["vg_uuid"]

    def free_bytes(self, parent: str) -> int:
        return int(_group(parent)["vg_free"])

    def create(self, name: str, owner: str, disk: Disk, size_bytes: int) -> Path:
        group, volume = _parts(name)
        chunk = disk.thin_chunk or _CHUNK
        size = f"{-(-size_bytes // chunk) * chunk}B"
        create = ("lvcreate", "--yes", "--quiet", "--addtag", MARK + owner)
        pool = ("--type", "thin-pool", "--size", size, "--chunksize", f"{chunk}B", "--zero", "y")
        # Without a spare of the metadata, which would stay in the volume group.
        _run(*create, *pool, "--poolmetadataspare", "n", "--name", f"{volume}-pool", group)
        thin = ("--thin", "--virtualsize", f"{size_bytes}B", "--name", volume)
        _run(*create, *thin, f"{name}-pool")
        return Path("/dev") / name

    def identity(self, name: str) -> str:
        return _logical_volumes(name).get(_parts(name)[1], {}).get("lv_uuid", "")

    def effective(self, name: str) -> dict[str, str]:
        return {"thin_chunk": _logical_volumes(name)[f"{_parts(name)[1]}-pool"]["chunk_size"]}

    def remove(self, name: str, owner: str) -> None:
        group, pool = _parts(f"{name}-pool")
        values = _logical_volumes(name).values()
        within = [row for row in values if pool in (row["lv_name"], row["pool_lv"])]
        for row in within:
            if MARK + owner not in row["lv_tags"].split(",") or MARK not in pool:
                raise _not_own(f"{group}/{row['lv_name']}")
        if within:
            _run("lvremove", "--yes", "--quiet", f"{name}-pool")


def _logical_volumes(name: str) -> dict[str, dict[str, str]]:
    """Return the logical volumes of the group in `name`, by their names."""
    listed = _report("lvs", _COLUMNS, _parts(name)[0])
    return {row["lv_name"]: row for row in listed}


def _group(name: str) -> dict[str, str]:
    return _report("vgs", ("vg_uuid", "vg_free"), name)[0]


def _report(program: str, columns: tuple[str, ...], group: str) -> list[dict[str, str]]:
    """Return rows of column -> text, sizes in bytes."""
    form = ("--noheadings", "--separator", "|", "--units", "b", "--nosuffix", "--options")
    lines = _run(program, *form, ",".join(columns), group).splitlines()
    rows = [line.strip().split("|") for line in lines]
    if {*map(len, rows)} - {len(columns)}:
        raise VolumeError(f"unexpected output of {program}", evidence="\n".join(lines)[:2000])
    return [dict(zip(columns, row, strict=True)) for row in rows]


# --- ZFS: a zvol, or a dataset with the file `OBJECT.raw`

OWNER_PROPERTY: Final = "pvebench:instance"
_BLOCK: Final = 16 * KIB
_READ_BACK: Final = ("sync", "primarycache", "compression", "volblocksize", "recordsize")
_ABSENT: Final = "dataset does not exist"
_BUSY: Final = "dataset is busy"
_ZVOLS: Final = Path("/dev/zvol")


class Zfs:
    """Zvols and datasets below a dataset. Methods raise VolumeError."""

    kind = key = "dataset"

    def uuid(self, parent: str) -> str:
        return _dataset(parent)["guid"]

    def free_bytes(self, parent: str) -> int:
        return int(_dataset(parent)["available"])

    def create(self, name: str, owner: str, disk: Disk, size_bytes: int) -> Path:
        values = {
            OWNER_PROPERTY: owner,
            "sync": disk.sync or Sync.STANDARD,
            "primarycache": disk.primarycache or PrimaryCache.ALL,
            "compression": disk.compression or Compression.LZ4,
            "recordsize" if disk.recordsize else "volblocksize": str(
                disk.recordsize or disk.volblocksize or _BLOCK
            ),
        }
        options = [word for key, value in values.items() for word in ("-o", f"{key}={value}")]
        if disk.recordsize:
            _run("zfs", "create", *options, name)
            return _make_file(name, size_bytes)
        _run("zfs", "create", *options, "-V", str(size_bytes), name)
        path = _ZVOLS / name
        _wait(path.exists, f"{path} did not appear", "udev does not run")
        return path

    def identity(self, name: str) -> str:
        return _get(name, "guid").get("guid", "")

    def effective(self, name: str) -> dict[str, str]:
        return _get(name, *_READ_BACK)

    def remove(self, name: str, owner: str) -> None:
        _dataset(_parts(name)[0])  # below a pool that is not imported, nothing exists
        destroyed = partial(_destroyed, name, owner)
        _wait(destroyed, f"{name} is still in use", "another program uses it")


def _destroyed(name: str, owner: str) -> bool:
    """Destroy an own dataset without its snapshots and children, which are those of others."""
    known = _get(name, "guid", OWNER_PROPERTY)
    if known and (known.get(OWNER_PROPERTY) != owner or MARK not in _parts(name)[1]):
        raise _not_own(name)
    return not known or _run("zfs", "destroy", name, expected=_BUSY) != _BUSY


def _make_file(name: str, size_bytes: int) -> Path:
    mounted = Path(_get(name, "mountpoint")["mountpoint"])
    if not mounted.is_mount():
        raise VolumeError(
            f"{name} is not mounted",
            cause="its parent has no mount point, or this is a container",
            next_step=f"set one with `zfs set mountpoint=… {_parts(name)[0]}`",
        )
    path = mounted / f"{_parts(name)[1]}.raw"
    with path.open("xb") as file:
        os.ftruncate(file.fileno(), size_bytes)
    return path


def _get(name: str, *properties: str) -> dict[str, str]:
    """Return property -> value, for those that the dataset has; empty: there is none."""
    command = ("zfs", "get", "-H", "-p", "-o", "property,value", ",".join(properties), name)
    pairs = (line.split("\t", 1) for line in _run(*command, expected=_ABSENT).splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1 and pair[1] not in ("", "-")}


def _dataset(name: str) -> dict[str, str]:
    if known := _get(name, "guid", "available"):
        return known
    raise VolumeError(
        f"ZFS has no dataset {name}",
        cause="the pool is not imported, or the name is misspelled",
        next_step=f"create it with `zfs create {name}`",
    )


def _wait(done: Callable[[], bool], problem: str, cause: str) -> None:
    for _ in attempts(SystemClock(), seconds=_BUSY_SECONDS, pause=0.1):
        if done():
            return
    raise VolumeError(problem, cause=cause)


def _not_own(name: str) -> VolumeError:
    return VolumeError(
        f"{name} not changed: no ownership marker of pvebench",
        cause="it was created outside pvebench",
        next_step="inspect it; remove it if you don't need it",
    )


def _run(*command: str, expected: str = "") -> str:
    """Run a program of LVM or ZFS; return its output, or `expected` if its error contains that.

    Raises:
        VolumeError: it is missing or fails.
    """
    try:
        done = run_program(command, seconds=_SECONDS)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise VolumeError(
            f"`{' '.join(command)}` failed: {error}",
            cause="lvm2 or zfsutils-linux is not installed, or a disk does not respond",
        ) from error
    if not done.returncode:
        return done.stdout
    if expected and expected in done.stderr:
        return expected
    raise VolumeError(
        f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}",
        cause="LVM and ZFS need root, or the volume group or dataset is missing",
        evidence=done.stderr,
    )


def _kind(manager: Lvm | Zfs, settings: type[StorageSettings], name: str, **more: Any) -> Kind:
    return Kind(
        holds=StorageKind(
            name=name,
            formats=frozenset({Format.RAW}),
            no_container="containers on pools that pvebench creates are not supported",
            **more,
        ),
        settings=settings,
        make=partial(PoolStorage, manager),
        identify=lambda context: {
            "type": name,
            "uuid": manager.uuid(getattr(context.settings, manager.key)),
        },
        undo={manager.kind: partial(_undo, manager)},
    )


LVMTHIN: Final = _kind(Lvm(), LvmSettings, "lvmthin", pool_options=frozenset({"thin_chunk"}))
ZFS: Final = _kind(
    Zfs(),
    ZfsSettings,
    "zfs",
    pool_options=frozenset(POOL_OPTIONS) - {"thin_chunk"},
    host_cache=HostCache.ARC,
)
