"""A simulated instance behind its web server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.applications import Starlette

from pvebench.metrics import Page
from pvebench.store import define
from pvebench.web import Board, PlannedCase, WebServer, listen
from pvebench.web.app import make_app
from support.packs import Simulation
from support.prometheus import free_port


def board_of(simulation: Simulation) -> Board:
    """Return a board that knows the simulation's packs."""
    planned = [
        PlannedCase(
            key=case.key, definition=define(case), every_seconds=assignment.pack.every_seconds
        )
        for assignment in simulation.worker._assignments
        for case in assignment.matrix.cases
    ]
    return Board(simulation.store, planned)


def app_of(
    simulation: Simulation, *, page: Page | None = None, board: Board | None = None
) -> Starlette:
    """Return the application in simulated time; /metrics works only if a page is given."""
    return make_app(
        page=page or Page.__new__(Page), statuses=lambda: [simulation.worker.status],
        ready=lambda: True, board=board or board_of(simulation), now=simulation.world.clock.now,
    )  # fmt: skip


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """Serve an application while inside; gives its address, without a slash at the end."""
    where = f"127.0.0.1:{free_port()}"
    with WebServer(app, listen(where)):
        yield f"http://{where}"
