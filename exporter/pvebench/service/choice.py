"""What the settings choose: packs and cases to run, and what the wall shows."""

from __future__ import annotations

from pvebench.config import Pack, Settings, load_pack
from pvebench.drivers import driver_of
from pvebench.errors import ConfigError, Problem
from pvebench.model.wall import WallSlot
from pvebench.plan import Assignment, Matrix, check_slugs, expand, select


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
        StoreError: which storages are measured cannot be read.
    """
    packs = [load_pack(path, scale=scale) for path in settings.packs]
    driver = driver_of(settings.driver)
    every = driver.storages(settings, None)
    found: list[tuple[Pack, Matrix]] = []
    identities = _identities(settings)
    for node in settings.nodes_in_force():
        kinds = {name: one.holds for name, one in driver.storages(settings, node).items()}
        here = [
            (
                pack,
                expand(
                    pack,
                    node=node,
                    storages=kinds,
                    elsewhere=every,
                    identities=identities.get(node),
                    rows=driver.rows,
                ),
            )
            for pack in packs
        ]
        here = [(pack, select(matrix, only=only, skip=skip)) for pack, matrix in here]
        check_slugs(here)
        found += [(pack, matrix) for pack, matrix in here if matrix.cases]
    if not found:
        if only or skip:
            message = "no case matches --only and --skip; see what there is: pvebench plan"
            raise ConfigError([Problem("command line", 0, 0, message)])
        nodes = ", ".join(settings.nodes_in_force())
        message = f"no storage that the packs measure is on {nodes}, which is all that is measured"
        remedy = "add a node, or mend `nodes` of the storages; or name another storage in a pack"
        raise ConfigError([Problem("settings", 0, 0, message)], next_step=remedy)
    return [Assignment(pack, matrix) for pack, matrix in found]


def _identities(settings: Settings) -> dict[str, dict[str, str]]:
    """Return node -> storage -> `Scenario.identity`, for those that were accepted as another."""
    database = settings.state / "pvebench.db"
    if not database.exists():
        return {}
    from pvebench.store import identities_at  # noqa: PLC0415 # a first plan need not wait for it

    with identities_at(database) as records:
        nodes = settings.nodes_in_force() if records else ()
        return {node: records.tokens(node) for node in nodes if records}


def intervals_of(given: list[Assignment]) -> dict[str, float]:
    """Return case key -> seconds between its runs, over all packs; the shortest wins."""
    found: dict[str, float] = {}
    for assignment in given:
        for case in assignment.matrix.cases:
            every = assignment.pack.every_seconds
            found[case.key] = min(every, found.get(case.key, every))
    return found


def wall_slots(settings: Settings) -> list[WallSlot]:
    """Return what the settings choose for the wall."""
    return [WallSlot(**dict(slot)) for slot in settings.wall]
