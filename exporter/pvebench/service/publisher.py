"""What a service publishes: web UI, metrics, verdicts, notifications. `run` imports none of it."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from socket import socket
from types import MappingProxyType
from typing import Self

from pvebench import __version__
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers.driver import StopClock
from pvebench.errors import Interrupted, PvebenchError
from pvebench.metrics import state_metrics
from pvebench.metrics.exposition import Families, Page
from pvebench.metrics.result_collectors import snapshot_of
from pvebench.model.definition import Definition, workload_text
from pvebench.model.figure import Metric
from pvebench.model.ports import API_METHODS, Site, Traffic
from pvebench.model.status import State, Statuses, WorkerStatus
from pvebench.model.storage_use import Wear, WriteCost
from pvebench.model.workload import Case
from pvebench.notify.planner import node_activities
from pvebench.notify.sender import NotificationSender
from pvebench.provision.scrape import Targets
from pvebench.report.value_text import without_secrets
from pvebench.service.housekeeping import ConfigState, Reloader
from pvebench.service.workers import GuardFactory, Supervisor
from pvebench.store.live_results import LiveResults
from pvebench.store.outbox import ReceiverCounts
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.endpoints import Pages
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
        for name, path in (("results", "/"), ("metrics", "/metrics")):
            yield f"{name} on {self.access.scheme}://{listen}{path}"
        if warning := exposure(listen, self.settings.web_config_file):
            yield warning


# --- Collectors that run for every scrape: settings, scheduler, API, database.


def collect_config(state: ConfigState, families: Families) -> None:
    """Add the active settings and the success of the last reload."""
    labels = {"digest": state.digest, "packs": ",".join(state.packs)}
    families.add(state_metrics.CONFIG_INFO, labels, 1)
    families.add(state_metrics.CONFIG_RELOAD_SUCCESS, {}, state.successful)
    families.add(state_metrics.CONFIG_RELOAD_TIMESTAMP, {}, state.loaded.timestamp())


def collect_build(families: Families) -> None:
    """Add the versions of pvebench and Python."""
    labels = {"version": __version__, "python_version": platform.python_version()}
    families.add(state_metrics.BUILD_INFO, labels, 1)


def collect_address(url: str, families: Families) -> None:
    """Add the address of the web UI."""
    families.add(state_metrics.WEB_INFO, {"url": url}, 1)


def collect_scheduler(statuses: Sequence[WorkerStatus], families: Families) -> None:
    """Add the state of each worker, its current and next case, and the progress of its cycle."""
    now = datetime.now(UTC)
    for status in statuses:
        labels = {"node": status.node}
        for state in State:
            families.add(
                state_metrics.SCHEDULER_STATE,
                {**labels, "state": str(state)},
                state is status.state,
            )
        families.add(state_metrics.SCHEDULER_PROGRESS, labels, status.progressed.timestamp())
        if status.case is not None:
            families.add(state_metrics.CURRENT_RUN, labels | _named(status.case), 1)
        for case, start in list(zip(status.upcoming, status.expected_starts(now), strict=True))[:1]:
            families.add(state_metrics.NEXT_RUN, labels | _named(case), start.timestamp())
        if status.hold is not None:
            families.add(state_metrics.HOLD, {**labels, "reason": str(status.hold.kind)}, 1)
        for fact, version in status.pending:
            families.add(
                state_metrics.PENDING_INFO, {**labels, "fact": fact, "version": version}, 1
            )
        _collect_cycle(status, labels, families)


def _named(case: Case) -> dict[str, str]:
    """Return a case as people read it; its scenario and workload are on other metrics."""
    return {"storage": case.scenario.storage, "title": workload_text(Definition.of(case))}


def _collect_cycle(status: WorkerStatus, labels: dict[str, str], families: Families) -> None:
    cycle = status.cycle
    if cycle is None:
        return
    families.add(state_metrics.QUEUE_LENGTH, labels, cycle.planned - cycle.done)
    families.add(state_metrics.CYCLE_PROGRESS, labels, cycle.done / max(1, cycle.planned))
    families.add(state_metrics.CYCLE_START, labels, cycle.started.timestamp())
    families.add(state_metrics.CYCLE_EXPECTED_END, labels, cycle.expected_end.timestamp())


def collect_api(traffic: Mapping[str, Traffic], families: Families) -> None:
    """Add the requests, failures and tasks of each node's API."""
    for node, counts in traffic.items():
        families.add(state_metrics.API_TASKS, {"node": node}, counts.tasks)
        for operation in API_METHODS:
            labels = {"node": node, "operation": operation}
            families.add(state_metrics.API_REQUESTS, labels, counts.requests[operation])
            families.add(state_metrics.API_FAILURES, labels, counts.failures[operation])


def collect_database(path: Path, families: Families) -> None:
    """Add the size of the results database."""
    families.add(state_metrics.DATABASE_SIZE, {}, path.stat().st_size)


# --- Storages: write budgets and free space.


def collect_storages(guards: GuardFactory, costs: Iterable[WriteCost], families: Families) -> None:
    """Add the written and free bytes of each storage on each node, and their limits."""
    now, planned = guards.clock.now(), {(cost.node, cost.storage): cost for cost in costs}
    for node in guards.settings.measured_nodes():
        for name, storage in guards.measured(node).items():
            labels, budget = (
                {"node": node, "storage": name},
                guards.budgets.limits.get((node, name)),
            )
            shared = str(storage.shared).lower()
            info = {**labels, "type": storage.holds.name, "shared": shared}
            families.add(state_metrics.STORAGE_INFO, info, 1)
            if budget:
                used = guards.counted(node, name) / budget
                families.add(state_metrics.BUDGET_USED, labels, used)
            for metric, value in (
                (state_metrics.DAY_WRITTEN, guards.store.written_bytes(name, now, node=node)),
                *_planned(planned.get((node, name))),
                (state_metrics.WRITE_BUDGET, budget),
                (state_metrics.STORAGE_FREE, guards.free.get(node, {}).get(name)),
                (state_metrics.STORAGE_FLOOR, storage.floor_bytes),
            ):
                if value is not None:
                    families.add(metric, labels, value)


def _planned(cost: WriteCost | None) -> Iterator[tuple[Metric, float | None]]:
    if cost is not None:
        yield state_metrics.DAY_PLANNED, cost.day_bytes
        yield state_metrics.DRIVE_WEAR, cost.wear.used if isinstance(cost.wear, Wear) else None
        yield state_metrics.YEAR_WEAR, cost.year_wear


def collect_notified(receivers: Mapping[str, ReceiverCounts], families: Families) -> None:
    """Add the queued, sent and dropped notifications and the time of the last delivery."""
    for name, counts in receivers.items():
        labels = {"receiver": name}
        families.add(state_metrics.NOTIFICATIONS_QUEUED, labels, counts.queued)
        families.add(state_metrics.NOTIFICATIONS_SENT, labels, counts.sent)
        families.add(state_metrics.NOTIFICATIONS_DROPPED, labels, counts.dropped)
        families.add(state_metrics.NOTIFICATION_FAILURES, labels, counts.failures)
        if counts.last is not None:
            families.add(state_metrics.NOTIFICATION_SUCCESS, labels, counts.last)


# --- Metrics page, stored results, results while workers write them.


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
    app = make_app(page, Pages(results, statuses, verdicts=lambda: service.current, note=note))
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
        pages = Pages(
            self._results, self._statuses, self._clock.now, lambda: self._verdicts.current
        )
        app = make_app(self._page, pages, Targets(addresses=(), site=settings.site or ""))
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
                    self._guards, self._results.now.costs, families
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
