"""Which packs and cases an instance runs."""

from __future__ import annotations

from collections.abc import Iterable

from pvebench.config import Pack, Settings, load_pack
from pvebench.config.proxmox import ProxmoxSettings
from pvebench.drivers.proxmox.storages import storage_kind
from pvebench.errors import ConfigError, Problem
from pvebench.model.rules import STORAGE_KINDS, StorageKind
from pvebench.plan import Assignment, Matrix, Rows, check_slugs, expand, select


def section(settings: Settings) -> ProxmoxSettings:
    """Return the section `proxmox`.

    Raises:
        ConfigError: there is none.
    """
    if settings.proxmox is None:
        message = "driver proxmox wants a section `proxmox` in the settings; see docs/proxmox.md"
        raise ConfigError([Problem("settings", 0, 0, message)])
    return settings.proxmox


def storage_kinds(settings: Settings, node: str) -> dict[str, StorageKind]:
    """Return storage id -> what it can hold, for the storages that `node` has."""
    if settings.driver == "proxmox":
        given = section(settings)
        return {
            name: storage_kind(entry.type, major=given.version)
            for name, entry in given.storages.items()
            if not entry.nodes or node in entry.nodes
        }
    return {name: STORAGE_KINDS[entry.kind] for name, entry in settings.storages_in_force().items()}


def rows_of(settings: Settings) -> Rows:
    """Return which rows can be run: pvebench is on the node itself only in the lab."""
    return {"host": Rows.HOST, "proxmox": Rows.VM}.get(settings.driver, Rows.BOTH)


def assignments(
    settings: Settings,
    *,
    scale: float = 1.0,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
) -> list[Assignment]:
    """Return the packs of `settings` on each node, expanded and selected.

    Raises:
        ConfigError: a pack is wrong, or two of them mean different things by one slug.
    """
    packs = [load_pack(path, scale=scale) for path in settings.packs]
    every = settings.proxmox.storages if settings.proxmox else ()
    found: list[tuple[Pack, Matrix]] = []
    for node in settings.nodes_in_force():
        kinds = storage_kinds(settings, node)
        here = [
            (pack, expand(pack, node=node, storages=kinds, elsewhere=every, rows=rows_of(settings)))
            for pack in packs
        ]
        here = [(pack, select(matrix, only=only, skip=skip)) for pack, matrix in here]
        check_slugs(here)
        found += [(pack, matrix) for pack, matrix in here if matrix.cases]
    if not found:
        message = "no case matches --only and --skip; see what there is: pvebench plan"
        raise ConfigError([Problem("command line", 0, 0, message)])
    return [Assignment(pack, matrix) for pack, matrix in found]


def intervals_of(given: list[Assignment]) -> dict[str, float]:
    """Return case key -> seconds between its runs, over all packs; the shortest wins."""
    found: dict[str, float] = {}
    for assignment in given:
        for case in assignment.matrix.cases:
            every = assignment.pack.every_seconds
            found[case.key] = min(every, found.get(case.key, every))
    return found


def volume_bytes(given: Iterable[Assignment]) -> dict[str, int]:
    """Return storage -> bytes of all volumes that the cases need there when they are full."""
    volumes = {
        (case.scenario.storage, case.scenario.volume): case.scenario.volume_bytes
        * (2 if case.scenario.disk.backing else 1)
        for entry in given
        for case in entry.matrix.cases
    }
    found: dict[str, int] = {}
    for (storage, _), size in volumes.items():
        found[storage] = found.get(storage, 0) + size
    return found
