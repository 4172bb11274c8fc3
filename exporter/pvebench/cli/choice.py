"""Which packs and cases an instance runs."""

from __future__ import annotations

from pvebench.config import Pack, Settings, load_pack
from pvebench.errors import ConfigError, Problem
from pvebench.model.rules import STORAGE_KINDS, StorageKind
from pvebench.plan import Assignment, Matrix, check_slugs, expand, select


def storage_kinds(settings: Settings) -> dict[str, StorageKind]:
    """Return storage id -> what it can hold."""
    return {name: STORAGE_KINDS[entry.kind] for name, entry in settings.storages_in_force().items()}


def assignments(
    settings: Settings,
    *,
    scale: float = 1.0,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
) -> list[Assignment]:
    """Return the packs of `settings`, expanded and selected.

    Raises:
        ConfigError: a pack is wrong, or two of them mean different things by one slug.
    """
    found: list[tuple[Pack, Matrix]] = []
    for path in settings.packs:
        pack = load_pack(path, scale=scale)
        matrix = expand(
            pack, node=settings.node, storages=storage_kinds(settings),
            vm=settings.driver != "host",
        )  # fmt: skip
        found.append((pack, select(matrix, only=only, skip=skip)))
    check_slugs(found)
    found = [(pack, matrix) for pack, matrix in found if matrix.cases]
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
