"""`pvebench serve` and `pvebench run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

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
from pvebench.cli.progress import make_progress
from pvebench.cli.relay import Relay
from pvebench.cli.reload import Configuration, Reloader
from pvebench.cli.signals import reloading, stopping
from pvebench.cli.tidying import Tidier
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import CycleIncomplete
from pvebench.judging import Feed, Keeper
from pvebench.metrics import Page
from pvebench.metrics.live import (
    collect_api,
    collect_build,
    collect_config,
    collect_database,
    collect_scheduler,
)
from pvebench.metrics.storages import collect_storages
from pvebench.model.ports import Site
from pvebench.model.traffic import Traffic
from pvebench.plan import Assignment
from pvebench.scheduler import Worker
from pvebench.scheduler.guards import Turns
from pvebench.store import Store
from pvebench.web import Board, Doorway, WebServer
from pvebench.web import listen as open_socket
from pvebench.web.app import make_app


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
    doorway = Doorway()

    def say(line: str) -> None:
        console.print(line)
        doorway.say(line)

    with ExitStack() as stack:
        # The port first: a name that is taken must not cost a guest's boot.
        opened = open_socket(settings.listen) if web else None
        if opened is not None:
            stack.callback(opened.close)
        state, store = stack.enter_context(opened_store(settings))
        if opened is not None:
            # Answers from now on: the first start builds the guest's image, for minutes.
            stack.enter_context(WebServer(doorway, opened))
        clock = make_clock(settings, endless=cycles is None)
        stack.enter_context(stopping(clock.stop))
        relay = Relay()
        board = Board(store, planned_cases(first.given))
        reloader = Reloader(config, first, load=load, apply=relay.reload)
        # A counted cycle is what was asked for when it was started, to its end.
        between = _nothing if cycles else _look_after(reloader, store, clock)
        stack.enter_context(reloading(_nothing if cycles else reloader.ask))
        sites = make_sites(settings, state, store.journal, clock, say)
        manners = Manners(settings, state, store, clock, Turns(clock.monotonic))

        def make(site: Site, mine: list[Assignment], look: Callable[[Worker], None]) -> Worker:
            return Worker(
                site=site, assignments=mine, store=store, observer=relay, cycles=cycles,
                guards=manners.guards(site), between=look,
            )  # fmt: skip

        crew = make_crew(sites, first.given, make=make, between=between, stop=clock.stop)
        traffic = {site.node: site.traffic for site in sites if site.traffic is not None}
        page = _page(reloader, store, crew, clock, manners, traffic)
        keeper = Keeper(Feed(store), load_known_issues(*settings.known_issues), told=page.judged)
        progress = make_progress(console, crew.statuses)
        relay.connect(progress, page, crew, board, keeper)
        if web:
            # Read all of it once now, before anything is measured.
            board.content()
            stack.enter_context(keeper)
            doorway.open_to(
                make_app(
                    page=page, statuses=crew.statuses, board=board, now=clock.now,
                    verdicts=lambda: keeper.current,
                )
            )  # fmt: skip
            say(f"results on http://{settings.listen}/")
            say(f"metrics on http://{settings.listen}/metrics")
        stack.enter_context(progress)
        crew.run()
    _conclude(crew)


def _look_after(reloader: Reloader, store: Store, clock: StopClock) -> Callable[[], None]:
    """Return what is done between two runs of an endless service."""
    tidier = Tidier(store, lambda: reloader.current.settings, clock.now)

    def look_after() -> None:
        reloader.check()
        tidier.check()

    return look_after


def _nothing() -> None:
    pass


def _page(
    reloader: Reloader, store: Store, crew: Crew, clock: StopClock, manners: Manners,
    traffic: Mapping[str, Traffic],
) -> Page:  # fmt: skip
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
            "api": lambda families: collect_api(traffic, families),
            "database": lambda families: collect_database(store.path, families),
        },
        now=clock.now,
    )
    page.refresh()
    return page


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
