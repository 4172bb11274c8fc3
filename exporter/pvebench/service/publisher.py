"""What a service publishes: web UI, metrics, verdicts, notifications. `run` imports none of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from socket import socket
from types import MappingProxyType
from typing import Self

from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers.driver import StopClock
from pvebench.errors import Interrupted, PvebenchError
from pvebench.metrics.collector_io import Families, snapshot_of
from pvebench.metrics.exposition import (
    Page,
    collect_address,
    collect_api,
    collect_build,
    collect_config,
    collect_database,
    collect_notified,
    collect_scheduler,
    collect_storages,
)
from pvebench.model.ports import Site
from pvebench.model.status import Statuses
from pvebench.notify.planner import node_activities
from pvebench.notify.sender import NotificationSender
from pvebench.provision.scrape import Targets
from pvebench.report.value_text import without_secrets
from pvebench.service.housekeeping import Reloader
from pvebench.service.workers import GuardFactory, Supervisor
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.request_filter import Access
from pvebench.web.server import StartupApp, WebServer, add_reload, make_app
from pvebench.web.server import listen as open_socket
from pvebench.web.tls_and_users import exposure, scheme_of


@dataclass(frozen=True, slots=True)
class Front:
    """The port of a service: it reports the progress of the startup, then serves the web UI."""

    settings: Settings
    listener: socket
    access: Access
    startup: StartupApp

    @classmethod
    @contextmanager
    def open(cls, settings: Settings) -> Iterator[Self]:
        """Open the port within the context. Raises ConfigError and PortInUse."""
        with open_socket(settings.listen) as listener:
            access = Access(
                settings.listen,
                names=settings.host_names,
                file=settings.web_config_file,
                scrapers=settings.scrape_addresses,
            )
            yield cls(settings, listener, access, StartupApp())

    @contextmanager
    def responding(self, supervisor: Supervisor) -> Iterator[None]:
        """Respond within the context, before the end of a startup that may take minutes.

        A server that responds and reports its progress is ready.
        """
        with (
            WebServer(self.startup, self.listener, self.access) as server,
            supervisor.report_ready(lambda: server.turns),
        ):
            yield

    def addresses(self) -> Iterator[str]:
        """Return sentences with the addresses of web UI and metrics."""
        listen = self.settings.listen
        for name, path in (("results", "/"), ("metrics", self.settings.metrics_path)):
            yield f"{name} on {self.access.scheme}://{listen}{path}"
        if warning := exposure(listen, self.settings.web_config_file):
            yield warning


def page_of(
    results: LiveResults,
    settings: Callable[[], Settings],
    statuses: Statuses = list,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    live: Mapping[str, Callable[[Families], None]] = MappingProxyType({}),
) -> Page:
    """Return the metrics page; `live` are further collectors, of what measures."""
    page = Page(
        lambda: snapshot_of(
            results.now, now=now(), max_age_seconds=settings().max_age, wall=settings().wall
        ),
        live={
            "build": collect_build,
            "scheduler": lambda families: collect_scheduler(statuses(), families),
            "database": lambda families: collect_database(results.store.path, families),
            **live,
        },
        now=now,
    )
    page.refresh()
    return page


def show_stored(
    results: LiveResults,
    settings: Settings,
    say: Callable[[str], object],
    *,
    statuses: Statuses = list,
    note: Callable[[], str] = str,
) -> None:
    """Serve stored results until Ctrl-C: web UI, API and /metrics. Raises as `Front.open`."""
    page = page_of(results, lambda: settings, statuses)
    issues = load_known_issues(*settings.known_issues)
    service = VerdictService(results, issues, on_update=page.judged)
    app = make_app(
        page=page, statuses=statuses, results=results, verdicts=lambda: service.current, note=note
    )
    with Front.open(settings) as front:
        say("judging the results …")
        service.judge()  # before the first page: it never shows results without a verdict
        with WebServer(app, front.listener, front.access):
            say(next(front.addresses()))
            threading.Event().wait()


class Publisher:
    """Publication of results while workers write them.

    Args:
        endless: whether the instance runs without end; only then it sends notifications.
    """

    def __init__(
        self,
        results: LiveResults,
        reloader: Reloader,
        clock: StopClock,
        statuses: Statuses,
        *,
        sites: Sequence[Site],
        guards: GuardFactory,
        endless: bool,
    ) -> None:
        self._results = results
        self._reloader = reloader
        self._clock = clock
        self._statuses = statuses
        self._guards = guards
        self._endless = endless
        self._sender = NotificationSender(
            results.store, self._settings, lambda: node_activities(results.now, statuses()), clock
        )
        self._page = self._make_page(sites)
        self._verdicts = VerdictService(
            results,
            load_known_issues(*self._settings().known_issues),
            kept=results.store.changes,
            on_update=self._publish_verdicts,
        )
        results.listen(lambda run: self._page.refresh(None if run is None else run.case_key))
        results.listen(lambda _: self._verdicts.nudge())

    @contextmanager
    def notifying(self) -> Iterator[None]:
        """Deliver notifications of an endless service within the context; its failure is last."""
        if not self._endless:
            yield
            return
        with self._sender:
            try:
                yield
            except Interrupted:
                raise
            except PvebenchError as error:
                self._sender.report_exit(without_secrets(str(error)))
                raise

    @contextmanager
    def serving(self, startup: StartupApp) -> Iterator[None]:
        """Replace the startup application by the web UI; results are judged in the context."""
        settings = self._settings()
        app = make_app(
            page=self._page,
            statuses=self._statuses,
            results=self._results,
            now=self._clock.now,
            verdicts=lambda: self._verdicts.current,
            scraped=Targets(
                addresses=(), site=settings.site or "", metrics_path=settings.metrics_path
            ),
        )
        if self._endless:
            add_reload(app, self._reloader.ask)
        startup.forward_to(app)
        with self._verdicts:
            yield

    def _publish_verdicts(self, verdicts: Verdicts) -> None:
        """Publish verdicts; an endless service also queues notifications of the news in them."""
        self._page.judged(verdicts)
        if self._endless and not verdicts.failed:
            self._sender.judged(verdicts)

    def _make_page(self, sites: Sequence[Site]) -> Page:
        traffic = {site.node: site.traffic for site in sites if site.traffic is not None}
        page = page_of(
            self._results,
            self._settings,
            self._statuses,
            now=self._clock.now,
            live={
                "config": lambda families: collect_config(self._reloader.state, families),
                "storages": lambda families: collect_storages(
                    self._guards.storages(self._results.now.costs), families
                ),
                "api": lambda families: collect_api(traffic, families),
                "address": lambda families: collect_address(self._address(), families),
                "notify": lambda families: collect_notified(self._sender.counts, families),
            },
        )
        page.judged(Verdicts())  # an empty verdict is published too
        return page

    def _address(self) -> str:
        """Return the URL of the web UI, as far as the settings determine it."""
        settings = self._settings()
        return settings.external_url or f"{scheme_of(settings.web_config_file)}://{settings.listen}"

    def _settings(self) -> Settings:
        return self._reloader.current.settings
