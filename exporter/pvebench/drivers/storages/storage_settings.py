"""Section `storages` of the settings, for drivers on this machine."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, StrictInt, StrictStr, model_validator

from pvebench.drivers.driver import (
    DriverContext,
    DriverSettings,
    Finding,
    MeasuredStorage,
    attempt,
    budget_of,
)
from pvebench.drivers.linux.block_devices import flushes_ignored, mount_of
from pvebench.drivers.linux.drive_wear import wear_below
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import MARK, Storage, StorageOptions, instance_id, is_bound
from pvebench.drivers.storages.directory import (
    existing,
    identify_directory,
    require_directory,
    require_disk,
    size_at,
)
from pvebench.drivers.storages.server_link import ServerLink
from pvebench.errors import FaultFailed
from pvebench.fields import FilePath, Slug, Strict, WriteBudget
from pvebench.model.disk import HostCache
from pvebench.model.ports import Guard, StorageFunctions
from pvebench.model.space import Space, SpaceNeed
from pvebench.model.units import SECTOR
from pvebench.model.volume import Identity
from pvebench.model.workload import Case
from pvebench.model.write_cost import Wear

# --- faults of a storage, by commands of its settings only
#
# A command begins the fault, waits, ends it and exits. It has its own session, so that it ends the
# fault even if pvebench is killed before.


class FaultCommand:
    """A `pvebench.model.ports.Fault` by a command. Only one runs at a time."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._command = list(command)
        self._waiting: threading.Thread | None = None
        self._exit_code = 0
        self._seconds = 0.0

    def begin(self) -> None:
        """Start the command. See `Fault.begin`."""
        if self._waiting is not None and self._waiting.is_alive():
            raise FaultFailed(
                f"fault {self._name} is still active",
                cause="its command of an earlier run has not ended",
            )
        begun = time.monotonic()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise FaultFailed(
                f"cannot begin fault {self._name}: {self._command[0]}: {error.strerror}",
                cause="the program is missing, or this user cannot execute it",
            ) from error
        self._waiting = threading.Thread(target=self._wait, args=(process, begun), daemon=True)
        self._waiting.start()

    def _wait(self, process: subprocess.Popen[bytes], begun: float) -> None:
        self._exit_code = process.wait()
        self._seconds = time.monotonic() - begun

    def lasted(self) -> float | None:
        """Return the command's duration. See `Fault.lasted`."""
        if self._waiting is None or self._waiting.is_alive():
            return None
        if self._exit_code:
            raise FaultFailed(
                f"command of fault {self._name} ended with exit code {self._exit_code}",
                cause="it could not begin or end the fault; the storage may still be affected",
            )
        return self._seconds


if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(KINDS)]  # the registry has the only list


_CEPH_NAME: Final = r"^[A-Za-z0-9_.][A-Za-z0-9_.-]*$"
"""Excludes options of `rbd`, and separators in POOL/IMAGE."""


_DATASET: Final = r"^[A-Za-z][A-Za-z0-9_.:-]{0,99}(/[A-Za-z0-9_.:-]{1,99}){0,9}$"


class StorageSettings(Strict):
    """Settings of one storage. `drivers.storages.KINDS` has the keys of each kind.

    Attributes:
        kind: `dir`: a directory on any host file system; `loop`: loop devices over files in a
            directory; `block`: a whole device, whose content is destroyed; `nbd`, `nfs`: a server
            that QEMU accesses over the network; `rbd`: a pool of a Ceph cluster, likewise;
            `lvmthin`, `zfs`: a thin pool or dataset for each volume; or the kind of a plug-in.
        path: the directory or the device.
        write_budget: maximum bytes written to it in 24 hours; `off`: no limit. Default: 5% of its
            size, at least 10 GiB.
        server, port: of the server; `socket`: its UNIX socket instead.
        export: the NBD export, or the directory on the NFS server.
        pool: of the Ceph cluster; `conf`: its configuration file, `user` without `client.`:
            /etc/ceph/ceph.conf and admin by default.
        vgname: LVM volume group; thin pools are created in its free space.
        dataset: ZFS dataset, below which datasets and zvols are created.
        options: options of the kind of a plug-in.
        faults: name -> command that causes this fault of the storage while a workload with that
            `fault` runs, and ends it before it exits. Empty: no fault is ever caused.
        link_bits_per_second: capacity of the network to the server. For a `dir` or `block` on a
            server (mounted CIFS or NFS, iSCSI), set `server` and `port` to measure round trips.
    """

    kind: KindName = "dir"
    path: FilePath | None = None
    write_budget: WriteBudget | None = None
    server: StrictStr = ""
    port: int = Field(default=0, ge=0, le=65535)
    socket: FilePath | None = None
    export: StrictStr = ""
    pool: StrictStr = Field(default="", pattern=_CEPH_NAME)
    conf: FilePath | None = None
    user: StrictStr = Field(default="", pattern=_CEPH_NAME)
    vgname: StrictStr = Field(default="", pattern=r"^[A-Za-z0-9_+.][A-Za-z0-9_+.-]{0,126}$")
    dataset: StrictStr = Field(default="", pattern=_DATASET)
    options: dict[Slug, StrictStr] = Field(default_factory=dict)
    faults: dict[Slug, Annotated[list[StrictStr], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    link_bits_per_second: StrictInt = Field(default=0, ge=1)

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> StorageSettings:
        kind = KINDS[self.kind]
        present = self.model_fields_set - {"kind", "faults", "write_budget", "options"}
        if missing := kind.required - present:
            raise ValueError(f"a storage of kind {self.kind} needs {', '.join(sorted(missing))}")
        if extra := present - kind.required - kind.optional:
            raise ValueError(f"a storage of kind {self.kind} has no {', '.join(sorted(extra))}")
        if unknown := set(self.options) - kind.options:
            raise ValueError(f"options: kind {self.kind} has no {', '.join(sorted(unknown))}")
        if kind.either and sum(bool(getattr(self, key)) for key in kind.either) != 1:
            raise ValueError(
                f"a storage of kind {self.kind} needs either {' or '.join(kind.either)}"
            )
        if len({bool(getattr(self, key)) for key in kind.together}) > 1:
            raise ValueError("set server and port together: 445 is CIFS, 2049 NFS, 3260 iSCSI")
        return self


class LocalSettings(DriverSettings):
    """Settings of a driver on this machine.

    Attributes:
        storages: id -> storage. Empty: one directory storage `local` below `state`.
    """

    storages: dict[Slug, StorageSettings] = Field(default_factory=dict)

    def active_storages(self) -> dict[str, StorageSettings]:
        """Return the configured storages, or the default one if there are none."""
        if self.storages:
            return dict(self.storages)
        return {"local": StorageSettings(kind="dir", path=self.default_storage)}

    @property
    def default_storage(self) -> Path:
        """The only path that a run creates, on the file system of the results."""
        return self.state / "storage"


def local_storages(settings: LocalSettings, node: str | None) -> dict[str, MeasuredStorage]:
    """Return the capabilities of each storage; there is only one node."""
    del node
    return {
        name: MeasuredStorage(
            holds=KINDS[entry.kind].holds,
            budget_bytes=budget_of(entry.write_budget, size_at(entry.path)),
        )
        for name, entry in settings.active_storages().items()
    }


def cached_storages(settings: LocalSettings, node: str | None) -> dict[str, MeasuredStorage]:
    """Return the storages as `local_storages`, those on ZFS with its cache."""
    paths = {name: entry.path for name, entry in settings.active_storages().items()}
    return {
        name: replace(storage, holds=replace(storage.holds, host_cache=HostCache.ARC))
        if _is_on_zfs(paths[name])
        else storage
        for name, storage in local_storages(settings, node).items()
    }


def _is_on_zfs(path: Path | None) -> bool:
    try:
        mount = None if path is None else mount_of(existing(path))
    except OSError:  # `require_paths` reports it
        return False
    return mount is not None and mount.type == "zfs"


def make_storages(settings: LocalSettings, place: DriverContext, vm: int = 1) -> dict[str, Storage]:
    """Return the storages; nothing is created yet.

    Args:
        vm: number of the VM; each has volumes of its own, on the kinds that can hold several.
    """
    return {
        name: KINDS[options.kind].make(
            replace(options, owner=f"{options.owner}-vm{vm}") if vm > 1 else options, place.journal
        )
        for name, options in storage_options(settings).items()
        if vm <= KINDS[options.kind].holds.vms
    }


def storage_options(settings: LocalSettings) -> dict[str, StorageOptions]:
    """Return the options of each storage."""
    # Two instances may share a directory; their volumes must not share a name.
    owner = instance_id(settings.state)
    return {
        name: _options(settings, name, entry, owner)
        for name, entry in settings.active_storages().items()
    }


def _options(
    settings: LocalSettings, name: str, entry: StorageSettings, owner: str = ""
) -> StorageOptions:
    return StorageOptions(
        name=name,
        kind=entry.kind,
        owner=owner,
        server=entry.server,
        port=entry.port,
        path=str(entry.path.absolute()) if entry.path else "",
        own_path=entry.path == settings.default_storage,
        socket=str(entry.socket.absolute()) if entry.socket else "",
        export=entry.export,
        pool=entry.pool or entry.vgname or entry.dataset,
        conf=str(entry.conf.absolute()) if entry.conf else "",
        user=entry.user,
        options=dict(entry.options),
    )


def guards_of(settings: LocalSettings, storages: Mapping[str, Storage]) -> list[Guard]:
    """Return the guards of storages with activity of their own, one for each kind."""
    kinds: dict[str, dict[str, Storage]] = {}
    for name, entry in settings.active_storages().items():
        if name in storages:
            kinds.setdefault(entry.kind, {})[name] = storages[name]
    guards = ((KINDS[kind].guard, own) for kind, own in kinds.items())
    return [guard(own) for guard, own in guards if guard is not None]


def networks_of(settings: LocalSettings) -> dict[str, ServerLink]:
    """Return the network to each storage with a server."""
    return {
        name: ServerLink(
            server=entry.server,
            port=entry.port or KINDS[entry.kind].port,
            link_bits_per_second=entry.link_bits_per_second,
        )
        for name, entry in settings.active_storages().items()
        if entry.server or entry.link_bits_per_second
    }


def faults_of(settings: LocalSettings) -> dict[tuple[str, str], FaultCommand]:
    """Return (storage, name) -> fault that may be caused."""
    return {
        (storage, name): FaultCommand(name, command)
        for storage, entry in settings.active_storages().items()
        for name, command in entry.faults.items()
    }


def storage_functions(settings: LocalSettings) -> StorageFunctions:
    """Return what this machine knows of its storages."""
    return StorageFunctions(
        identify=lambda name: identities_of(settings)[name](),
        networks=networks_of(settings),
        faults=faults_of(settings),
    )


def check_networks(settings: LocalSettings) -> Iterator[Finding]:
    """Yield whether each server with round trips answers."""
    for name, link in networks_of(settings).items():
        if not link.server:
            continue
        where, seconds = f"{link.server}:{link.port}", link.round_trip()
        if seconds is None:
            yield f"network {name}", False, f"{where} does not answer; check the server and port"
        else:
            yield f"network {name}", True, f"{where} answers within {seconds * 1e3:.3f} ms"


def check_storages(settings: LocalSettings) -> Iterator[Finding]:
    """Yield the state of each storage that can be checked before a run."""
    for name, entry in settings.active_storages().items():
        look = KINDS[entry.kind].look
        if look is not None:
            yield attempt(f"storage {name}", partial(look, _options(settings, name, entry)))
        if entry.path and (cause := flushes_ignored(existing(entry.path))):
            yield (
                f"flushes on {name}",
                None,
                f"ignored by {cause}; a power loss loses flushed writes",
            )


def require_paths(settings: LocalSettings) -> None:
    """Raise VolumeError if a directory is missing or a path in memory. For `pvebench plan`."""
    for name, entry in settings.active_storages().items():
        if KINDS[entry.kind].identify is identify_directory:
            require_directory(_options(settings, name, entry))
        elif entry.path:
            require_disk(_options(settings, name, entry))


def spaces_of(settings: LocalSettings) -> dict[tuple[str, str], Space]:
    """Return (node, storage) -> free space, for storages in directories of this machine."""
    state = settings.state
    prefix = f"{MARK}{instance_id(state)}-" if is_bound(state) else ""
    spaces = {}
    for name, entry in settings.active_storages().items():
        if entry.path is None or KINDS[entry.kind].identify is not identify_directory:
            continue
        directory = existing(entry.path)
        own = directory.glob(f"{prefix}*") if prefix else ()
        used = sum(file.stat().st_blocks * SECTOR for file in own)
        free = shutil.disk_usage(directory).free + used
        spaces[settings.node, name] = Space(free=free, where=f"in {directory}", held=used)
    return spaces


def wear_of(settings: LocalSettings) -> dict[tuple[str, str], Wear | str]:
    """Return (node, storage) -> wear of the drives below its path, or why it is unknown."""
    paths = {
        name: storage_settings.path
        for name, storage_settings in settings.active_storages().items()
        if storage_settings.path
    }
    return {(settings.node, name): wear_below(existing(path)) for name, path in paths.items()}


def identities_of(settings: LocalSettings) -> dict[str, Callable[[], Identity]]:
    """Return storage -> function that returns its current identity."""
    return {
        name: partial(KINDS[entry.kind].identify, _options(settings, name, entry))
        for name, entry in settings.active_storages().items()
    }


def space_needed(settings: LocalSettings, cases: Sequence[Case]) -> dict[str, int]:
    """Return storage -> maximum bytes that the cases need."""
    storages = local_storages(settings, settings.node)
    return (
        SpaceNeed({name: storage.holds for name, storage in storages.items()}).add(*cases).total()
    )
