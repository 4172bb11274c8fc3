"""A running pvebench, put together from its settings: every concrete room meets here."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.driver import StopClock
from pvebench.errors import Interrupted, PvebenchError
from pvebench.metrics import Page, Snapshot
from pvebench.metrics.live import (
    collect_address,
    collect_api,
    collect_build,
    collect_config,
    collect_database,
    collect_notified,
    collect_scheduler,
    collect_storages,
)
from pvebench.metrics.snapshot import snapshot_of
from pvebench.model.definition import Definition
from pvebench.model.ports import Site
from pvebench.model.run import Outcome, Run
from pvebench.model.status import Phase, Statuses
from pvebench.model.workload import Case
from pvebench.report.text import without_secrets
from pvebench.runner import RunObserver
from pvebench.scheduler import Worker
from pvebench.scheduler.case_matrix import Assignment
from pvebench.scheduler.guards import Turns
from pvebench.service.housekeeping import Configuration, Reloader, Tidier
from pvebench.service.lifecycle import Supervisor, answering
from pvebench.service.notifications import make_courier
from pvebench.service.selection import intervals_of, make_sites, opened_store, wall_slots
from pvebench.service.workers import GuardFactory, make_crew
from pvebench.store.current import PlannedCase, Results
from pvebench.verdicts import Feed, Verdicts, VerdictService
from pvebench.verdicts.summary import cycle_end_lines
from pvebench.web import Access, StartupApp, WebServer
from pvebench.web import listen as open_socket
from pvebench.web.server import make_app

log = structlog.get_logger()


class Screen(Protocol):
    """Where the person is who started the instance."""

    def say(self, line: str) -> None:
        """Show a line."""

    def progress(self, statuses: Statuses) -> AbstractContextManager[RunObserver]:
        """Show, while inside, what the workers do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an instance is started for.

    Attributes:
        load: reads settings and packs anew; raises ConfigError.
        config: the settings file, if there is one.
        cycles: how many; None: without end.
        web: whether pages and metrics are served.
    """

    load: Callable[[], Configuration]
    config: Path | None
    cycles: int | None
    web: bool


def measure(request: Request, screen: Screen) -> list[Outcome]:
    """Run an instance to its end; return how the last run of each case ended.

    Raises:
        Interrupted: a stop was requested. PvebenchError: what ended a worker, or the start.
    """
    first = request.load()
    settings = first.settings
    if request.cycles is not None:  # a service measures what is there, and tries the rest again
        driver_of(settings.driver).require(settings)
    doorway = StartupApp()
    supervisor = Supervisor()

    def say(line: str) -> None:
        screen.say(line)
        doorway.say(line)
        supervisor.status(line)

    with ExitStack() as stack:
        # The port first: a name that is taken must not cost a guest's boot.
        opened = open_socket(settings.listen) if request.web else None
        access = access_of(settings) if request.web else Access()
        if opened is not None:
            stack.callback(opened.close)
        clock = engine_of(settings.driver).make_clock(endless=request.cycles is None)
        reloader = Reloader(request.config, first, load=request.load)
        # Before the state directory says whose it is: whoever reads it there may send a signal.
        stack.enter_context(
            answering(
                {
                    signal.SIGINT: clock.stop,
                    signal.SIGTERM: clock.stop,
                    # A counted cycle is what was asked for when it was started, to its end.
                    signal.SIGHUP: _nothing if request.cycles else reloader.ask,
                }
            )
        )
        state, store = stack.enter_context(opened_store(settings))
        if opened is not None:
            # Answers from now on: the first start builds the guest's image, for minutes.
            server = stack.enter_context(WebServer(doorway, opened, access))
            # The start may take minutes and says what it is at: ready is who can be asked.
            stack.enter_context(supervisor.told_ready(lambda: server.turns))
        sites = make_sites(settings, state, store.journal, clock, say)
        manners = GuardFactory(settings, state, store, clock, Turns(clock.monotonic))
        results = Results(store, planned_cases(first.given))
        instance = Instance(sites, results, clock, reloader, manners, cycles=request.cycles)
        if request.web:
            stack.enter_context(instance.opened_to(doorway))
            say(f"results on {access.scheme}://{settings.listen}/")
            say(f"metrics on {access.scheme}://{settings.listen}/metrics")
        instance.run(screen)
    return instance.crew.outcomes()


def access_of(settings: Settings) -> Access:
    """Return by what names and under which rules clients come in. Raises ConfigError."""
    return Access(settings.listen, names=settings.host_names, file=settings.web_config_file)


def _nothing() -> None:
    pass


def _ignored(_: str) -> None:
    pass


class Instance:
    """The parts of a running pvebench: workers write to the results, all others read them.

    Args:
        cycles: how many; None: without end, and changed settings are taken over.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        results: Results,
        clock: StopClock,
        reloader: Reloader,
        manners: GuardFactory,
        *,
        cycles: int | None,
    ) -> None:
        self._results = results
        self._clock = clock
        self._reloader = reloader
        self._manners = manners
        self._cycles = cycles
        self._tidier = Tidier(results, self._settings, clock.now)
        self._progress: RunObserver | None = None
        self._say: Callable[[str], None] = _ignored
        given = reloader.current.given
        self.crew = make_crew(
            sites,
            given,
            make=self._worker,
            between=_nothing if cycles else self._look_after,
            stop=clock.stop,
        )
        self._teller, self._courier = make_courier(
            results, self._settings, self.crew.statuses, clock
        )
        self._page = self._make_page(sites)
        issues = load_known_issues(*self._settings().known_issues)
        self._keeper = VerdictService(
            Feed(results),
            issues,
            kept=results.store.changes,
            told=self._take_verdicts,
            failed=self._page.judged,
        )
        results.listen(self._page.refresh)
        results.listen(lambda _: self._keeper.nudge())

    def run(self, screen: Screen) -> None:
        """Run all workers to their end; raises what `Crew.run` raises."""
        self._say = screen.say
        with screen.progress(self.crew.statuses) as self._progress, self._telling():
            self.crew.run()
        if self._cycles is not None:
            for status in self.crew.statuses():
                self._tell_of(status.node)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """While inside, an endless service delivers messages; that it fell is the last one."""
        if self._cycles is not None:
            yield
            return
        with self._courier:
            try:
                yield
            except Interrupted:
                raise
            except PvebenchError as error:
                self._courier.fell(without_secrets(str(error)))
                raise

    def _take_verdicts(self, verdicts: Verdicts) -> None:
        """Show new verdicts, and have an endless service tell what is new in them."""
        self._page.judged(verdicts)
        if self._cycles is None:
            self._teller.judged(verdicts)
            self._courier.wake()

    def opened_to(self, doorway: StartupApp) -> AbstractContextManager[VerdictService]:
        """Give the pages to those who wait at the door; while inside, results are judged."""
        app = make_app(
            page=self._page,
            statuses=self.crew.statuses,
            results=self._results,
            now=self._clock.now,
            verdicts=lambda: self._keeper.current,
        )
        doorway.open_to(app)
        return self._keeper

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """Tell that a case is in a phase that takes so many seconds."""
        if self._progress is not None:
            self._progress.phase(case, phase, seconds)

    def finished(self, run: Run) -> None:
        """Tell that a run ended and is stored."""
        if self._progress is not None:
            self._progress.finished(run)
        status = next(one for one in self.crew.statuses() if one.node == run.case.scenario.node)
        cycle = status.cycle
        # An endless service says it once: later the page does.
        if cycle is None or self._cycles is not None or cycle.number > 1:
            return
        if cycle.done >= cycle.planned:
            self._tell_of(status.node)

    def _tell_of(self, node: str) -> None:
        """Say what was found on a node."""
        scheduled = self._cycles is None
        try:
            for line in cycle_end_lines(
                self._results.now, node, self._clock.now(), scheduled=scheduled
            ):
                self._say(line)
        except Exception:
            # It is derived: whatever ails it, the measuring goes on.
            log.exception("what was found could not be told")

    def _look_after(self) -> None:
        """Do what is done between two runs of an endless service."""
        changed = self._reloader.check()
        if changed is not None:
            self.crew.assign(changed.given)
            self._results.plan(planned_cases(changed.given))
        self._tidier.check()

    def _address(self) -> str:
        """Return where people reach the page, as far as the settings know."""
        settings = self._settings()
        return settings.external_url or f"{access_of(settings).scheme}://{settings.listen}"

    def _settings(self) -> Settings:
        return self._reloader.current.settings

    def _worker(
        self, site: Site, mine: list[Assignment], between: Callable[[Worker], None]
    ) -> Worker:
        return Worker(
            site=site,
            assignments=mine,
            results=self._results,
            observer=self,
            cycles=self._cycles,
            guards=self._manners.guards(site),
            between=between,
        )

    def _make_page(self, sites: Sequence[Site]) -> Page:
        traffic = {site.node: site.traffic for site in sites if site.traffic is not None}
        page = Page(
            self._snapshot,
            live={
                "build": collect_build,
                "config": lambda families: collect_config(self._reloader.state, families),
                "scheduler": lambda families: collect_scheduler(self.crew.statuses(), families),
                "storages": lambda families: collect_storages(self._manners.storages(), families),
                "api": lambda families: collect_api(traffic, families),
                "address": lambda families: collect_address(self._address(), families),
                "notify": lambda families: collect_notified(self._courier.states, families),
                "database": lambda families: collect_database(self._results.store.path, families),
            },
            now=self._clock.now,
        )
        page.refresh()
        page.judged(Verdicts())  # that nothing has been judged yet is an answer too
        return page

    def _snapshot(self) -> Snapshot:
        settings = self._settings()
        return snapshot_of(
            self._results.now,
            now=self._clock.now(),
            max_age_seconds=settings.max_age,
            wall=wall_slots(settings),
        )


def planned_cases(given: list[Assignment]) -> list[PlannedCase]:
    """Return every case of all packs once, with the shortest of its intervals."""
    intervals = intervals_of(given)
    cases = {case.key: case for assignment in given for case in assignment.matrix.cases}
    return [
        PlannedCase(key=key, definition=Definition.of(case), every_seconds=intervals[key])
        for key, case in cases.items()
    ]
