"""Start of pvebench: packs and cases that the settings select, the locked store, the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pvebench.config import Pack, Settings, load_pack
from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.driver import DriverContext, StopClock
from pvebench.errors import ConfigError, NoSpace, Problem, PvebenchError
from pvebench.model.ports import Journal, Site
from pvebench.model.storage_use import NodeStorage, Space, SpaceNeed, unfit
from pvebench.model.units import MIB, show_bytes
from pvebench.scheduler.pacing import PacedPacks, WriteBudgets, pace
from pvebench.scheduler.plan import (
    Assignment,
    ExcludedCase,
    Matrix,
    check_slugs,
    expand,
    make_plan,
    select,
)

if TYPE_CHECKING:
    from pvebench.store.state_directory import StateDirectory
    from pvebench.store.store import Store

# --- Packs and cases to run.


def assignments(
    settings: Settings,
    *,
    scale: float = 1.0,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
) -> list[Assignment]:
    """Return the packs of `settings` on each node, expanded and selected.

    Raises:
        ConfigError: a pack is wrong, or two packs use one slug for different definitions.
        StoreError: the accepted identities of storages cannot be read.
    """
    packs = [load_pack(path, scale=scale) for path in settings.packs]
    driver = driver_of(settings.driver)
    all_storages = driver.storages(settings, None)
    selected: list[tuple[Pack, Matrix]] = []
    identities = _identities(settings)
    for node in settings.measured_nodes():
        storages = driver.storages(settings, node)
        kinds = {name: storage.holds for name, storage in storages.items()}
        on_node = [
            (
                pack,
                expand(
                    pack,
                    node=node,
                    storages=kinds,
                    elsewhere=all_storages,
                    identities=identities.get(node),
                    rows=driver.rows,
                ),
            )
            for pack in packs
        ]
        on_node = [(pack, select(matrix, only=only, skip=skip)) for pack, matrix in on_node]
        check_slugs(on_node)
        selected += [(pack, matrix) for pack, matrix in on_node if matrix.cases]
    if not selected:
        if only or skip:
            raise ConfigError.of_options(
                "no case matches --only and --skip; list the cases with `pvebench plan`"
            )
        nodes = ", ".join(settings.measured_nodes())
        message = f"no storage of the packs is on a measured node ({nodes})"
        remedy = "add a node, correct `nodes` of the storages, or use another storage in a pack"
        raise ConfigError([Problem("settings", 0, 0, message)], next_step=remedy)
    return [Assignment(pack, matrix) for pack, matrix in selected]


def _identities(settings: Settings) -> dict[str, dict[str, str]]:
    """Return node -> storage -> `Scenario.identity`, for storages with an accepted new device."""
    if not settings.database.exists():
        return {}
    from pvebench.store.state_directory import stored_at  # noqa: PLC0415 # slow import, unneeded for a first plan

    with stored_at(settings.database) as stored:
        nodes = settings.measured_nodes() if stored else ()
        return {node: stored.identities.tokens(node) for node in nodes if stored}


@dataclass(frozen=True, slots=True)
class FittingCases:
    """Cases of a pack that fit into the free space, for `plan`, `check` and `run` alike.

    Attributes:
        assignment: without the others, which are among its exclusions.
        lacking: exclusions for lack of space.
        need: storage -> maximum bytes of a cycle.
        spaces: storages with known free space.
    """

    assignment: Assignment
    lacking: Sequence[ExcludedCase]
    need: Mapping[str, int]
    spaces: Mapping[str, Space]

    @property
    def text(self) -> str:
        """Need and free space of each storage."""
        texts = {name: [space.text] for name, space in self.spaces.items()}
        return "; ".join(
            ", ".join([f"{show_bytes(size)} on {name}", *texts.get(name, [])])
            for name, size in sorted(self.need.items())
        )


def fitting(settings: Settings, assigned: Sequence[Assignment]) -> tuple[list[FittingCases], str]:
    """Return the cases of each pack that fit, and why free space is unknown; empty: it is known.

    Raises:
        NoSpace: no case of a pack fits.
    """
    driver, unknown = driver_of(settings.driver), ""
    try:
        spaces = driver.spaces(settings)
    except PvebenchError as error:
        spaces, unknown = {}, error.reason
    return [_fit(settings, entry, spaces) for entry in assigned], unknown


def _fit(
    settings: Settings, entry: Assignment, spaces: Mapping[NodeStorage, Space]
) -> FittingCases:
    measured_storages = driver_of(settings.driver).storages(settings, entry.node)
    storages = {name: storage.holds for name, storage in measured_storages.items()}
    here = {name: space for (node, name), space in spaces.items() if node == entry.node}
    pack, matrix = entry.pack, entry.matrix
    ordered = make_plan(matrix, seed=pack.seed).cases
    reasons = unfit(ordered, here, storages)
    cases = tuple(case for case in matrix.cases if case.slug not in reasons)
    if not cases:
        raise NoSpace(
            f"no case of pack {pack.name} fits: {next(iter(reasons.values()))}",
            next_step="free space, or reduce volume.size or the scale of the pack",
        )
    lacking = [ExcludedCase(slug, reason) for slug, reason in reasons.items()]
    fit = replace(matrix, cases=cases, excluded=(*matrix.excluded, *lacking))
    need = SpaceNeed(storages).add(*cases).total()
    return FittingCases(replace(entry, matrix=fit), lacking, need, here)


def intervals_of(assignments: list[Assignment]) -> dict[str, float]:
    """Return case key -> seconds between its runs; of several packs the shortest interval."""
    intervals: dict[str, float] = {}
    for assignment in assignments:
        for case in assignment.matrix.cases:
            every = assignment.pack.every_seconds
            intervals[case.key] = min(every, intervals.get(case.key, every))
    return intervals


def budgets_of(settings: Settings) -> WriteBudgets:
    """Return the write budgets of the storages."""
    storages = {
        (node, name): storage
        for node in settings.measured_nodes()
        for name, storage in driver_of(settings.driver).storages(settings, node).items()
    }
    return WriteBudgets(
        limits={
            at: measured_storage.budget_bytes
            for at, measured_storage in storages.items()
            if measured_storage.budget_bytes
        },
        shared=frozenset(
            name for (_, name), measured_storage in storages.items() if measured_storage.shared
        ),
        targets={
            at: measured_storage.holds.operations.targets
            for at, measured_storage in storages.items()
        },
    )


def paced(settings: Settings, assigned: Sequence[Assignment]) -> PacedPacks:
    """Return the packs within their write budgets, from stored runs or else from upper limits.

    Raises:
        StoreError: the stored runs cannot be read.
    """
    per_run: dict[NodeStorage, float] = {}
    wear = dict(driver_of(settings.driver).wear(settings))
    if settings.database.exists():
        from pvebench.store.state_directory import stored_at  # noqa: PLC0415 # as above

        with stored_at(settings.database) as stored:
            per_run, measured = stored.writes() if stored else ({}, {})
        wear |= measured
    return pace(assigned, budgets_of(settings), per_run, wear)


# --- The locked store and the nodes.


CHECKED_BYTES: Final = 256 * MIB
"""A smaller database is checked completely at each start, in about a second; a larger one only by
the service, between two runs."""


@contextmanager
def locked_store(
    settings: Settings, *, adopt: bool = False
) -> Iterator[tuple[StateDirectory, Store]]:
    """Lock the state directory for this process and open its database."""
    from pvebench.store.state_directory import StateDirectory  # noqa: PLC0415 # `plan` opens no store
    from pvebench.store.store import Store  # noqa: PLC0415 # `plan` opens no store

    simulated = driver_of(settings.driver).simulated
    with (
        StateDirectory(settings.state.absolute(), exclusive=True, adopt=adopt) as state,
        closing(Store(state.database, simulated=simulated)) as store,
    ):
        if state.database.stat().st_size < CHECKED_BYTES:
            store.check()
        yield state, store


def make_sites(
    settings: Settings,
    state: StateDirectory,
    journal: Journal,
    clock: StopClock,
    say: Callable[[str], None],
) -> list[Site]:
    """Return the nodes of the settings, after removing leftovers of a crashed run."""
    engine = engine_of(settings.driver)
    for line in engine.undo(settings, journal):
        say(f"cleanup after a crash: {line}")
    place = DriverContext(runtime=state.runtime, journal=journal, clock=clock, say=say)
    return engine.sites(settings, place)
