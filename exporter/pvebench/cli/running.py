"""`pvebench serve` and `pvebench run`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
import structlog

from pvebench.cli.choice import assignments, intervals_of
from pvebench.cli.console import make_console
from pvebench.cli.crew import Crew, make_crew
from pvebench.cli.guarding import Manners
from pvebench.cli.instance import (
    StopClock,
    StoreSource,
    make_clock,
    make_sites,
    opened_store,
)
from pvebench.cli.options import read_settings, selection_options, settings_options
from pvebench.cli.planned import planned_cases
from pvebench.cli.progress import ProgressLines, make_progress
from pvebench.cli.reload import Configuration, Reloader
from pvebench.cli.tidying import Tidier
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import CycleIncomplete
from pvebench.judging import Feed, Keeper
from pvebench.metrics import Page
from pvebench.metrics.live import (
    collect_build,
    collect_config,
    collect_database,
    collect_scheduler,
)
from pvebench.metrics.storages import collect_storages
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.plan import Assignment
from pvebench.scheduler import Worker
from pvebench.scheduler.guards import Turns
from pvebench.store import Store
from pvebench.web import Board, WebServer
from pvebench.web import listen as open_socket
from pvebench.web.app import make_app

log = structlog.get_logger()


@click.command()
@settings_options
@selection_options
@click.option("--listen", help="Address of /metrics, as 127.0.0.1:9620.")
@click.option("--cycles", type=click.IntRange(min=1), help="End after so many cycles.")
def serve(cycles: int | None, **options: Any) -> None:
    """Measure for ever and serve the results: pages at /, Prometheus metrics at /metrics.

    Changed settings and packs are taken over between two runs, by themselves or on SIGHUP.
    """
    load = _loader(options)
    _measure(load, options["config"], cycles=cycles, web=True)


@click.command()
@settings_options
@selection_options
@click.option(
    "--cycles", type=click.IntRange(min=1), default=1, show_default=True, help="How many cycles."
)
def run(cycles: int, **options: Any) -> None:
    """Measure some cycles now, without a server."""
    _measure(_loader(options), options["config"], cycles=cycles, web=False)


def _loader(options: dict[str, Any]) -> Callable[[], Configuration]:
    """Return what reads settings and packs as the command line asked for them."""
    chosen = {key: options[key] for key in ("scale", "only", "skip")}
    rest = {key: value for key, value in options.items() if key not in chosen}

    def load() -> Configuration:
        settings = read_settings(**rest)
        return Configuration(settings, assignments(settings, **chosen))

    return load


def _measure(
    load: Callable[[], Configuration], config: Path | None, *, cycles: int | None, web: bool
) -> None:
    first = load()
    settings = first.settings
    console = make_console()
    with ExitStack() as stack:
        # The port first: a name that is taken must not cost a guest's boot.
        opened = open_socket(settings.listen) if web else None
        if opened is not None:
            stack.callback(opened.close)
        state, store = stack.enter_context(opened_store(settings))
        clock = make_clock(settings, endless=cycles is None)
        stack.enter_context(_stopping(clock))
        relay = _Relay()
        board = Board(store, planned_cases(first.given))
        reloader = Reloader(config, first, load=load, apply=relay.reload)
        # A counted cycle is what was asked for when it was started, to its end.
        tidier = Tidier(store, lambda: reloader.current.settings, clock.now)

        def look_after() -> None:
            reloader.check()
            tidier.check()

        between = look_after if cycles is None else _nothing
        stack.enter_context(_reloading(reloader.ask if cycles is None else _nothing))
        sites = make_sites(settings, state, store.journal, clock, console.print)
        manners = Manners(settings, state, store, clock, Turns(clock.monotonic))

        def make(site: Site, mine: list[Assignment], look: Callable[[Worker], None]) -> Worker:
            return Worker(
                site=site, assignments=mine, store=store, observer=relay, cycles=cycles,
                guards=manners.guards(site), between=look,
            )  # fmt: skip

        crew = make_crew(sites, first.given, make=make, between=between, stop=clock.stop)
        page = _page(reloader, store, crew, clock, manners)
        keeper = Keeper(Feed(store), load_known_issues(*settings.known_issues), told=page.judged)
        progress = make_progress(console, crew.statuses)
        relay.connect(progress, page, crew, board, keeper)
        if opened is not None:
            # Read all of it once now, before anything is measured.
            board.content()
            app = make_app(
                page=page, statuses=crew.statuses, ready=lambda: True, board=board, now=clock.now,
                verdicts=lambda: keeper.current,
            )  # fmt: skip
            stack.enter_context(keeper)
            stack.enter_context(WebServer(app, opened))
            console.print(f"results on http://{settings.listen}/")
            console.print(f"metrics on http://{settings.listen}/metrics")
        stack.enter_context(progress)
        crew.run()
    _conclude(crew)


def _nothing() -> None:
    pass


class _Relay:
    """What is told of a finished run, and of new settings: progress, page, crew, board, judging."""

    def __init__(self) -> None:
        self._parts: tuple[ProgressLines, Page, Crew, Board, Keeper] | None = None

    def connect(
        self, progress: ProgressLines, page: Page, crew: Crew, board: Board, keeper: Keeper
    ) -> None:
        self._parts = progress, page, crew, board, keeper

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        if self._parts is not None:
            self._parts[0].phase(case, phase, seconds)

    def finished(self, run: Run) -> None:
        if self._parts is not None:
            progress, page, _, _, keeper = self._parts
            progress.finished(run)
            page.refresh(run.case.key)
            keeper.nudge()

    def reload(self, configuration: Configuration) -> None:
        if self._parts is not None:
            _, page, crew, board, _ = self._parts
            crew.assign(configuration.given)
            board.plan(planned_cases(configuration.given))
            page.refresh()


def _page(reloader: Reloader, store: Store, crew: Crew, clock: StopClock, manners: Manners) -> Page:
    source = StoreSource(
        store, lambda: reloader.current.settings,
        lambda: intervals_of(reloader.current.given), clock.now,
    )  # fmt: skip
    page = Page(
        source,
        live={
            "build": collect_build,
            "config": lambda families: collect_config(reloader.state, families),
            "scheduler": lambda families: collect_scheduler(crew.statuses(), families),
            "storages": lambda families: collect_storages(manners.storages(), families),
            "database": lambda families: collect_database(store.path, families),
        },
        now=clock.now,
    )
    page.refresh()
    return page


@contextmanager
def _reloading(ask: Callable[[], None]) -> Iterator[None]:
    """While inside, SIGHUP asks for a reload."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: ask())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def _stopping(clock: StopClock) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM stop the clock, and so every wait."""

    def stop(number: int, _: FrameType | None) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        clock.stop()

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(crew: Crew) -> None:
    """Say how the cycles went: the last run of each case counts.

    Raises:
        CycleIncomplete: not every case ended ok.
    """
    outcomes = crew.outcomes()
    bad = [str(outcome) for outcome in outcomes if not outcome.good]
    click.echo(f"{len(outcomes) - len(bad)} of {len(outcomes)} cases ok")
    if bad:
        raise CycleIncomplete(
            f"{len(bad)} of {len(outcomes)} cases are not ok ({', '.join(sorted(set(bad)))})",
            next_step="see the reasons: pvebench results --not-ok, with the same --state",
        )
