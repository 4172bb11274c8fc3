"""A running pvebench, assembled from its settings; the only module that joins all packages."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from pvebench.config import Settings
from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.driver import StopClock
from pvebench.errors import ToolsMissing
from pvebench.files import write_own
from pvebench.log import log
from pvebench.model.definition import Definition
from pvebench.model.ports import Site
from pvebench.model.run import Outcome, Run
from pvebench.model.status import Statuses
from pvebench.model.storage_use import WriteCost, cost_lines
from pvebench.model.units import show_bytes
from pvebench.plugins import Registry
from pvebench.scheduler.guards import Turns
from pvebench.scheduler.pacing import pace
from pvebench.scheduler.plan import Assignment
from pvebench.scheduler.worker import Worker
from pvebench.service.housekeeping import Configuration, DatabaseMaintenance, Reloader
from pvebench.service.startup import budgets_of, fitting, intervals_of, locked_store, make_sites
from pvebench.service.workers import GuardFactory, Supervisor, WorkerPool, handle_signals
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.store.state_directory import WEB_FILE
from pvebench.store.store import Store
from pvebench.verdicts.fastest_text import cycle_end_lines

if TYPE_CHECKING:
    from pvebench.service.publisher import Front, Publisher
    from pvebench.web.server import StartupApp


class Screen(Protocol):
    """Output for the user who started the instance."""

    def say(self, line: str) -> None:
        """Show a line."""

    def progress(self, statuses: Statuses) -> AbstractContextManager[Callable[[Run], None]]:
        """Show the workers' progress within the context; the result shows a finished run."""


def measure(
    first: Configuration,
    screen: Screen,
    *,
    load: Callable[[], Configuration],
    config: Path | None,
    cycles: int | None,
    web: bool,
) -> list[Outcome]:
    """Run an instance to its end; return the outcome of each case's last run.

    Args:
        first: settings and packs at the start; `load` reads them again, or raises ConfigError.
        config: the settings file, if there is one.
        cycles: number of cycles; None: endless.
        web: whether to serve web UI and metrics.

    Raises:
        Interrupted: a stop was requested. PvebenchError: a worker or the start failed.
    """
    settings = first.settings
    if cycles is not None:  # a service runs what it can, and retries the rest
        driver_of(settings.driver).require(settings)
        first = _fitting(first, screen.say)
    supervisor = Supervisor()

    with ExitStack() as stack:
        # The port comes first: a port in use must not cost a guest's boot.
        front = stack.enter_context(_front_of(settings)) if web else None

        def say(line: str) -> None:
            screen.say(line)
            if front is not None:
                front.startup.say(line)
            supervisor.status(line)

        clock = engine_of(settings.driver).make_clock(endless=cycles is None)
        reloader = Reloader(config, first, load=load)
        # Before the state directory shows the process ID: its readers may send a signal.
        stack.enter_context(
            handle_signals(
                {
                    signal.SIGINT: clock.stop,
                    signal.SIGTERM: clock.stop,
                    # A limited number of cycles uses the initial configuration to its end.
                    signal.SIGHUP: _nothing if cycles else reloader.ask,
                }
            )
        )
        state, store = stack.enter_context(locked_store(settings))
        write_own(state.path / WEB_FILE, "" if front is None else settings.listen)
        stack.callback((state.path / WEB_FILE).unlink, missing_ok=True)
        if front is not None:
            # From now on: the first start builds the guest image, for minutes.
            stack.enter_context(front.responding(supervisor))
        stack.enter_context(fleet_of(settings, store))
        sites = make_sites(settings, state, store.journal, clock, say)
        guards = GuardFactory(
            settings,
            state,
            store,
            clock,
            Turns(clock.monotonic),
            budgets=budgets_of(settings),
            endless=cycles is None,
        )
        results = LiveResults(store, planned_cases(first.assignments))
        instance = Instance(sites, results, clock, reloader, guards, screen=screen, cycles=cycles)
        if front is not None:
            stack.enter_context(instance.publish(sites, front.startup))
            for line in front.addresses():
                say(line)
        for line in instance.cost_lines():
            say(line)
        instance.run()
    return instance.pool.outcomes()


def _fitting(all_cases: Configuration, say: Callable[[str], None]) -> Configuration:
    """Return the configuration without cases that do not fit, as `pvebench plan` shows it.

    A service keeps them: each is skipped until it fits.
    """
    fits, _ = fitting(all_cases.settings, all_cases.assignments)
    for case in (case for fit in fits for case in fit.lacking):
        say(f"excluded {case.slug}: {case.reason}")
    return replace(all_cases, assignments=[fit.assignment for fit in fits])


def _front_of(settings: Settings) -> AbstractContextManager[Front]:
    """Return the context in which the port of a service is open."""
    # Without a service, the web server and what it serves are not loaded: they double the start.
    from pvebench.service.publisher import Front  # noqa: PLC0415 # see above

    return Front.open(settings)


def fleet_of(settings: Settings, store: Store) -> AbstractContextManager[object]:
    """Return the context in which results are sent to the hub. Raises StoreError."""
    is_set = settings.fleet is not None
    if not is_set and not store.in_fleet:
        return nullcontext()
    # A site without a fleet loads nothing of it.
    if "fleet" not in SERVICES:
        raise ToolsMissing(
            f"{'`fleet` is set' if is_set else 'results wait for the hub of a fleet'}, "
            "but package pvebench_fleet is not installed",
            next_step="reinstall pvebench" + ", or remove `fleet` from the settings" * is_set,
        )
    return SERVICES["fleet"](settings, store)


SERVICES: Final = Registry[Callable[[Settings, Store], AbstractContextManager[object]]](
    "services", callable, {}
)
"""Name -> function that returns a context in which an instance does more, such as sending."""


def _nothing() -> None:
    pass


def _ignored(_: object) -> None:
    pass


class Instance:
    """The parts of a running pvebench: workers write results, all other parts read them.

    Args:
        cycles: number of cycles; None: endless, with reload of changed settings.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        results: LiveResults,
        clock: StopClock,
        reloader: Reloader,
        guards: GuardFactory,
        *,
        screen: Screen,
        cycles: int | None,
    ) -> None:
        self._screen, self._say = screen, screen.say
        self._results = results
        self._clock = clock
        self._reloader = reloader
        self._guards = guards
        self._cycles = cycles
        self._maintenance = DatabaseMaintenance(results, self._settings, clock.now)
        self._next_pace = 0
        self._show: Callable[[Run], None] = _ignored
        self.pool = WorkerPool(
            sites,
            self._paced(),
            make=self._worker,
            between=_nothing if cycles else self._between_runs,
            stop=clock.stop,
        )
        self._publisher: Publisher | None = None

    def run(self) -> None:
        """Run all workers to their end; raises the errors of `WorkerPool.run`."""
        sending = self._publisher.notifying() if self._publisher else nullcontext()
        with self._screen.progress(self.pool.statuses) as self._show, sending:
            self.pool.run()
        if self._cycles is not None:
            for status in self.pool.statuses():
                self._print_summary(status.node)

    def publish(self, sites: Sequence[Site], startup: StartupApp) -> AbstractContextManager[None]:
        """Return the context in which web UI and metrics replace the startup application."""
        from pvebench.service.publisher import Publisher  # noqa: PLC0415 # as above

        self._publisher = Publisher(
            self._results,
            self._reloader,
            self._clock,
            self.pool.statuses,
            sites=sites,
            guards=self._guards,
            endless=self._cycles is None,
        )
        return self._publisher.serving(startup)

    def _finished(self, run: Run) -> None:
        """Report that a run ended and is stored."""
        self._show(run)
        node = run.case.scenario.node
        cycle = next(status for status in self.pool.statuses() if status.node == node).cycle
        # An endless service prints the summary once; later the web UI shows it.
        if cycle is None or self._cycles is not None or cycle.number > 1:
            return
        if cycle.done >= cycle.planned:
            self._print_summary(node)

    def _print_summary(self, node: str) -> None:
        """Print a summary of the results on a node."""
        statuses = self.pool.statuses() if self._cycles is None else ()
        try:
            for line in cycle_end_lines(self._results.now, node, statuses, self._clock.now()):
                self._say(line)
        except Exception:
            # The summary is derived data: its failure must not stop the measurements.
            log.exception("result summary failed")

    def _between_runs(self) -> None:
        """Reload settings and maintain the database, between two runs of an endless service."""
        changed = self._reloader.check()
        if changed is not None:
            self._say(f"applied new settings: packs {', '.join(self._reloader.state.packs)}")
        if changed is not None or self._results.now.totals.runs >= self._next_pace:
            known = set(self.cost_lines())
            self.pool.assign(self._paced())
            longer = [cost for cost in self._results.now.costs if cost.longer]
            for line in set(cost_lines(tuple(longer))) - known:
                self._say(line)
        self._maintenance.check()

    def _paced(self) -> list[Assignment]:
        """Return the packs with intervals within the write budgets; publish both and the cost.

        It is called again after each pass over the cases, with the bytes that it wrote.
        """
        assigned = self._reloader.current.assignments
        per_run, measured = self._results.store.writes()
        wear = {**driver_of(self._settings().driver).wear(self._settings()), **measured}
        paced = pace(assigned, self._guards.budgets, per_run, wear)
        cases = planned_cases(paced.assignments)
        invented = driver_of(self._settings().driver).simulated and not self._guards.budgets.limits
        self._results.plan(cases, () if invented else paced.costs)
        self._next_pace = self._results.now.totals.runs + len(cases)
        return paced.assignments

    def cost_lines(self) -> tuple[str, ...]:
        """Return what measuring writes, and a warning for each exceeded budget of a `run`."""
        costs = self._results.now.costs
        if self._cycles is None:
            return cost_lines(costs)
        return (*cost_lines(costs, once=True), *filter(None, map(self._warning, costs)))

    def _warning(self, cost: WriteCost) -> str:
        written = self._guards.counted(cost.node, cost.storage) + cost.cycle_bytes
        if cost.budget_bytes is None or written <= cost.budget_bytes:
            return ""
        limit = f"{show_bytes(cost.budget_bytes)} a day, which only `serve` keeps"
        return f"warning: this may exceed the write budget of {cost.storage}: {limit}"

    def _settings(self) -> Settings:
        return self._reloader.current.settings

    def _worker(
        self, site: Site, assignments: list[Assignment], between: Callable[[Worker], None]
    ) -> Worker:
        return Worker(
            site=replace(site, storages=replace(site.storages, copies=self._guards.budgets.copies)),
            assignments=assignments,
            results=self._results,
            notify=self._finished,
            cycles=self._cycles,
            guards=self._guards.guards(site),
            between=between,
        )


def planned_cases(assignments: list[Assignment]) -> list[PlannedCase]:
    """Return every case of all packs once, with the shortest of its intervals."""
    intervals = intervals_of(assignments)
    cases = {case.key: case for assignment in assignments for case in assignment.matrix.cases}
    return [
        PlannedCase(key=key, definition=Definition.of(case), every_seconds=intervals[key])
        for key, case in cases.items()
    ]
