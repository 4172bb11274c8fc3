"""Start of pvebench: lock its state, open its store, undo what a crash left, connect the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from pvebench.config import Settings
from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.driver import DriverContext, StopClock
from pvebench.model.ports import Journal, Site
from pvebench.model.units import MIB

if TYPE_CHECKING:
    from pvebench.store.state_directory import StateDirectory
    from pvebench.store.store import Store

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
