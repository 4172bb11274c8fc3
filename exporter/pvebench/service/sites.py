"""The nodes that the settings name, with the store and the undoing that go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pvebench.config import Settings
from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.driver import StopClock, Workplace
from pvebench.model.ports import Journal, Site
from pvebench.model.units import MIB
from pvebench.store import StateDirectory, Store

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
