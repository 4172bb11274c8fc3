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
from typing import Annotated, Any, Final

from pydantic import Field

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
from pvebench.drivers.storages.contract import (
    MARK,
    Kind,
    Storage,
    StorageContext,
    StorageSettings,
    instance_id,
    is_bound,
)
from pvebench.drivers.storages.directory import (
    DirectorySettings,
    PathSettings,
    existing,
    path_of,
    require_directory,
    require_disk,
    size_at,
)
from pvebench.drivers.storages.server_link import LinkSettings, ServerLink
from pvebench.errors import FaultFailed
from pvebench.fields import ByKind, Slug, resolve_paths
from pvebench.model.disk import HostCache
from pvebench.model.environment import storage_fact
from pvebench.model.ports import Guard, StorageFunctions
from pvebench.model.storage_use import Space, Wear
from pvebench.model.units import SECTOR
from pvebench.model.volume import Identity

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


_BY_KIND: Final = ByKind("dir", lambda: {name: kind.settings for name, kind in KINDS.items()})


class LocalSettings(DriverSettings):
    """Settings of a driver on this machine.

    Attributes:
        storages: id -> storage. Empty: one directory storage `local` below `state`.
    """

    storages: dict[Slug, Annotated[StorageSettings, _BY_KIND]] = Field(default_factory=dict)

    def active_storages(self) -> dict[str, StorageSettings]:
        """Return the configured storages, or the default one if there are none."""
        if self.storages:
            return dict(self.storages)
        keys = {"kind": "dir", "path": self.default_storage}
        return {"local": KINDS["dir"].settings.model_validate(keys)}

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
            budget_bytes=budget_of(entry.write_budget, size_at(path_of(entry))),
        )
        for name, entry in settings.active_storages().items()
    }


def cached_storages(settings: LocalSettings, node: str | None) -> dict[str, MeasuredStorage]:
    """Return the storages as `local_storages`, those on ZFS with its cache."""
    paths = {name: path_of(entry) for name, entry in settings.active_storages().items()}
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
    contexts = storage_contexts(settings, instance_id(settings.state))
    return {
        name: kind.make(
            replace(context, owner=f"{context.owner}-vm{vm}") if vm > 1 else context, place.journal
        )
        for name, (kind, context) in contexts.items()
        if vm <= kind.holds.vms
    }


def storage_contexts(
    settings: LocalSettings, owner: str = ""
) -> dict[str, tuple[Kind, StorageContext[Any]]]:
    """Return storage -> its kind and context.

    Args:
        owner: id of the instance: two may share a directory, but no name of a volume.
    """
    return {
        name: (
            KINDS[entry.kind],
            StorageContext(
                name=name,
                settings=resolve_paths(entry, Path.cwd()),
                own_path=path_of(entry) == settings.default_storage,
                owner=owner,
            ),
        )
        for name, entry in settings.active_storages().items()
    }


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
    links = {
        name: entry.link()
        for name, entry in settings.active_storages().items()
        if isinstance(entry, LinkSettings)
    }
    return {name: link for name, link in links.items() if link != ServerLink()}


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
    for name, (kind, context) in storage_contexts(settings).items():
        if kind.look is not None:
            yield attempt(f"storage {name}", partial(kind.look, context))
    for name, cause in _unflushed(settings):
        yield f"flushes on {name}", None, f"ignored by {cause}; a power loss loses flushed writes"


def flush_facts(settings: LocalSettings) -> dict[str, str]:
    """Return a fact for each storage whose options ignore flushes, now."""
    causes = _unflushed(settings)
    return {storage_fact(name, "flushes"): f"ignored by {cause}" for name, cause in causes}


def _unflushed(settings: LocalSettings) -> Iterator[tuple[str, str]]:
    for name, (_, context) in storage_contexts(settings).items():
        path = path_of(context.settings)
        if path and (cause := flushes_ignored(existing(path))):
            yield name, cause


def require_paths(settings: LocalSettings) -> None:
    """Raise VolumeError if a directory is missing or a path in memory. For `pvebench plan`."""
    for _, context in storage_contexts(settings).values():
        if isinstance(context.settings, DirectorySettings):
            require_directory(context)
        elif isinstance(context.settings, PathSettings):
            require_disk(context)


def spaces_of(settings: LocalSettings) -> dict[tuple[str, str], Space]:
    """Return (node, storage) -> free space, for storages in directories of this machine."""
    state = settings.state
    prefix = f"{MARK}{instance_id(state)}-" if is_bound(state) else ""
    spaces = {}
    for name, entry in settings.active_storages().items():
        if not isinstance(entry, DirectorySettings):
            continue
        directory = existing(entry.path)
        own = directory.glob(f"{prefix}*") if prefix else ()
        used = sum(file.stat().st_blocks * SECTOR for file in own)
        free = shutil.disk_usage(directory).free + used
        spaces[settings.node, name] = Space(free=free, where=f"in {directory}", held=used)
    return spaces


def wear_of(settings: LocalSettings) -> dict[tuple[str, str], Wear | str]:
    """Return (node, storage) -> wear of the drives below its path, or why it is unknown."""
    paths = {name: path_of(entry) for name, entry in settings.active_storages().items()}
    return {
        (settings.node, name): wear_below(existing(path)) for name, path in paths.items() if path
    }


def identities_of(settings: LocalSettings) -> dict[str, Callable[[], Identity]]:
    """Return storage -> function that returns its current identity."""
    return {
        name: partial(kind.identify, context)
        for name, (kind, context) in storage_contexts(settings).items()
    }
