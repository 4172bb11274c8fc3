"""The nodes that the settings name, with the store and the undoing that go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pvebench.config import Pack, Settings, load_pack
from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.driver import StopClock, Workplace
from pvebench.errors import ConfigError, Problem
from pvebench.metrics.snapshot import WallSlot
from pvebench.model.ports import Journal, Site
from pvebench.model.units import MIB
from pvebench.scheduler.case_matrix import Assignment, Matrix, check_slugs, expand, select
from pvebench.store import StateDirectory, Store

# --- What the settings choose: packs and cases to run, and what the wall shows.


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


CHECKED_BYTES: Final = 256 * MIB
"""A smaller database is looked at whole at each start, in about a second; a larger one only by the
service, between two runs."""


@contextmanager
def opened_store(settings: Settings) -> Iterator[tuple[StateDirectory, Store]]:
    """Take the state directory for this process alone and open its database."""
    with StateDirectory(settings.state.absolute(), exclusive=True) as state:
        store = Store(state.database, simulated=driver_of(settings.driver).simulated)
        try:
            if state.database.stat().st_size < CHECKED_BYTES:
                store.check()
            yield state, store
        finally:
            store.close()


def make_sites(
    settings: Settings,
    state: StateDirectory,
    journal: Journal,
    clock: StopClock,
    say: Callable[[str], None],
) -> list[Site]:
    """Return the nodes that the settings name, with everything of a crashed run undone."""
    engine = engine_of(settings.driver)
    for line in engine.undo(settings, journal):
        say(f"after an unclean end: {line}")
    place = Workplace(runtime=state.runtime, journal=journal, clock=clock, say=say)
    return engine.sites(settings, place)
