"""A simulated instance behind its web server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp

from pvebench.metrics.exposition import Page
from pvebench.model.definition import Definition
from pvebench.model.disk import Disk
from pvebench.model.status import Phase, State
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.endpoints import Pages
from pvebench.web.server import WebServer, listen, make_app
from testing.faulty_node import Fault
from testing.prometheus import free_port
from testing.simulations import Simulation, simulate


def results_of(simulation: Simulation) -> LiveResults:
    """Return the simulation's results, which know its packs."""
    simulation.results.plan(
        PlannedCase(
            key=case.key,
            definition=Definition.of(case),
            every_seconds=assignment.pack.every_seconds,
        )
        for assignment in simulation.worker.assignments
        for case in assignment.matrix.cases
    )
    return simulation.results


def app_of(
    simulation: Simulation,
    *,
    page: Page | None = None,
    results: LiveResults | None = None,
    verdicts: Callable[[], Verdicts] = Verdicts,
    note: Callable[[], str] = str,
) -> Starlette:
    """Return the application in simulated time; /metrics works only if a page is given."""
    pages = Pages(
        results or results_of(simulation),
        lambda: [simulation.worker.status],
        simulation.world.clock.now,
        verdicts,
        note,
    )
    return make_app(page or Page.__new__(Page), pages)


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an application while inside; gives its address, without a slash at the end."""
    where = f"127.0.0.1:{free_port()}"
    with WebServer(app, listen(where)):
        yield f"http://{where}"


def lively(
    directory: Path,
    *,
    upgrade: int = 80,
    end: int = 150,
    cost: Callable[[Disk], float] = lambda _: 1.0,
) -> Simulation:
    """Return a simulation with a history, failures, an upgrade, and a case being measured.

    Args:
        upgrade: after how many runs another kernel is there.
        end: how many runs there are.
        cost: what the upgrade multiplies a disk's IOPS with.
    """
    simulation = simulate(
        directory, cycles=None, faults={Fault.TOOL_FAILS: 0.02, Fault.WRONG_CACHE: 0.03}
    )
    worker, world = simulation.worker, simulation.world
    while simulation.store.totals().runs < upgrade:
        world.clock.sleep(worker.step())
    world.facts = {**world.facts, "kernel": "simulated-2"}
    world.shift = cost
    world.power_off()
    while simulation.store.totals().runs < end or len(worker.status.upcoming) < 5:
        world.clock.sleep(worker.step())
    # Between two steps nothing runs: put the next case into the middle of its window.
    case, *rest = worker.status.upcoming
    now = world.clock.now()
    worker.status = replace(
        worker.status,
        state=State.RUNNING,
        case=case,
        phase=Phase.MEASURE,
        phase_seconds=8.0,
        since=now,
        upcoming=tuple(rest),
    )
    world.clock.sleep(5.0)
    return simulation


@dataclass
class Instance:
    """A served simulation that stands in the middle of a case."""

    simulation: Simulation
    address: str
