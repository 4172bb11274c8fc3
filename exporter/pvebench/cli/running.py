"""`pvebench serve` and `pvebench run`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import click
import structlog

from pvebench.cli.choice import assignments, intervals_of
from pvebench.cli.console import make_console
from pvebench.cli.instance import (
    StopClock,
    StoreSource,
    make_clock,
    make_site,
    opened_store,
)
from pvebench.cli.options import read_settings, selection_options, settings_options
from pvebench.cli.planned import planned_cases
from pvebench.cli.progress import ProgressLines, make_progress
from pvebench.config import Settings
from pvebench.errors import CycleIncomplete
from pvebench.metrics import Page
from pvebench.metrics.live import collect_build, collect_database, collect_scheduler
from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.plan import Assignment
from pvebench.scheduler import Worker
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
def serve(
    listen: str | None, cycles: int | None, scale: float, only: tuple[str, ...],
    skip: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Measure for ever and serve the results on /metrics."""
    settings = read_settings(listen=listen, **options)
    given = assignments(settings, scale=scale, only=only, skip=skip)
    _measure(settings, given, cycles=cycles, web=True)


@click.command()
@settings_options
@selection_options
@click.option(
    "--cycles", type=click.IntRange(min=1), default=1, show_default=True, help="How many cycles."
)
def run(
    cycles: int, scale: float, only: tuple[str, ...], skip: tuple[str, ...], **options: Any
) -> None:
    """Measure some cycles now, without a server."""
    settings = read_settings(**options)
    given = assignments(settings, scale=scale, only=only, skip=skip)
    _measure(settings, given, cycles=cycles, web=False)


def _measure(settings: Settings, given: list[Assignment], *, cycles: int | None, web: bool) -> None:
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
        site = make_site(settings, state, store.journal, clock, console.print)
        worker = Worker(site=site, assignments=given, store=store, observer=relay, cycles=cycles)
        page = _page(settings, given, store, worker)
        progress = make_progress(console, lambda: worker.status)
        relay.connect(progress, page)
        if opened is not None:
            board = Board(store, planned_cases(given))
            # Read all of it once now, before anything is measured.
            board.content()
            app = make_app(
                page=page, statuses=lambda: [worker.status], ready=lambda: True,
                board=board, now=clock.now,
            )  # fmt: skip
            stack.enter_context(WebServer(app, opened))
            console.print(f"results on http://{settings.listen}/")
            console.print(f"metrics on http://{settings.listen}/metrics")
        stack.enter_context(progress)
        worker.run()
    _conclude(worker)


class _Relay:
    """The worker's observer: progress for people, then the metrics page."""

    def __init__(self) -> None:
        self._progress: ProgressLines | None = None
        self._page: Page | None = None

    def connect(self, progress: ProgressLines, page: Page) -> None:
        self._progress, self._page = progress, page

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        if self._progress is not None:
            self._progress.phase(case, phase, seconds)

    def finished(self, run: Run) -> None:
        if self._progress is not None and self._page is not None:
            self._progress.finished(run)
            self._page.refresh()


def _page(settings: Settings, given: list[Assignment], store: Store, worker: Worker) -> Page:
    source = StoreSource(store, settings, intervals_of(given))
    page = Page(
        source,
        live={
            "build": collect_build,
            "scheduler": lambda families: collect_scheduler([worker.status], families),
            "database": lambda families: collect_database(store.path, families),
        },
    )
    page.refresh()
    return page


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


def _conclude(worker: Worker) -> None:
    """Say how the cycles went: the last run of each case counts.

    Raises:
        CycleIncomplete: not every case ended ok.
    """
    outcomes = list(worker.outcomes.values())
    bad = [str(outcome) for outcome in outcomes if not outcome.good]
    click.echo(f"{len(outcomes) - len(bad)} of {len(outcomes)} cases ok")
    if bad:
        raise CycleIncomplete(
            f"{len(bad)} of {len(outcomes)} cases are not ok ({', '.join(sorted(set(bad)))})",
            next_step="see the reasons: pvebench results --not-ok, with the same --state",
        )
