"""The `/metrics` exposition: text rendered when a result changes, a live part for every scrape.

A collector that raises loses only its own part: its last text stays, and its success is 0. With
prometheus_client alone the whole exposition would be lost.
"""

from __future__ import annotations

import platform
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from pvebench import __version__
from pvebench.errors import PvebenchError
from pvebench.log import log
from pvebench.metrics import state_metrics
from pvebench.metrics.collector_io import Families, Snapshot, family_texts, shown, text_of
from pvebench.metrics.collectors import (
    CASE_COLLECTORS,
    DEFINITION_COLLECTORS,
    SUMMARY_COLLECTORS,
    collect_gates,
    collect_settings,
    collect_verdicts,
)
from pvebench.model.definition import Definition, workload_text
from pvebench.model.figure import Metric
from pvebench.model.ports import API_METHODS, Traffic
from pvebench.model.status import ConfigState, State, StorageState, WorkerStatus
from pvebench.model.storage_use import Wear, WriteCost
from pvebench.model.workload import Case
from pvebench.store.outbox import ReceiverCounts
from pvebench.verdicts.node_verdicts import Verdicts

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


def collect_storages(states: Iterable[StorageState], families: Families) -> None:
    """Add the written and free bytes and their limits."""
    for state in states:
        labels = {"node": state.node, "storage": state.storage}
        values = (
            (state_metrics.DAY_WRITTEN, state.written_bytes),
            *_planned(state.cost),
            (state_metrics.WRITE_BUDGET, state.budget_bytes),
            (state_metrics.STORAGE_FREE, state.free_bytes),
            (state_metrics.STORAGE_FLOOR, state.floor_bytes),
        )
        info = {**labels, "type": state.type, "shared": str(state.shared).lower()}
        families.add(state_metrics.STORAGE_INFO, info, 1)
        if state.budget_bytes:
            families.add(
                state_metrics.BUDGET_USED, labels, state.counted_bytes / state.budget_bytes
            )
        for metric, value in values:
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


# --- Text of the results and of a scrape.

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LEVEL: Final = 1
"""Compression level: output a half larger than at the best level, but many times faster."""
_GZIP: Final = 16 + zlib.MAX_WBITS

Part = tuple[str, str]
"""Collector, and key of the case that it was called for; empty: all."""


class _Begin:
    """The text of a scrape up to its live part, and a gzip stream of it; until a part changes."""

    def __init__(self, texts: Iterable[str]) -> None:
        # By family: it stays in the processor's cache until it is compressed.
        self._texts = [text.encode() for text in texts]

    @cached_property
    def _stream(self) -> tuple[bytes, zlib._Compress]:
        stream = zlib.compressobj(LEVEL, wbits=_GZIP)
        return b"".join(map(stream.compress, self._texts)), stream

    def with_end(self, end: bytes, *, compress: bool) -> bytes:
        """Return the text and its end, compressed or not."""
        if not compress:
            return b"".join([*self._texts, end])
        begin, stream = self._stream
        stream = stream.copy()
        return b"".join([begin, stream.compress(end), stream.flush()])


class Page:
    """`/metrics`. `refresh` is called when a result changes; `render` for every scrape.

    Args:
        source: returns the current results; the caller must call `refresh` after changes.
        live: name -> collector that runs for every scrape.
        now: current time, to compute the age of results.
    """

    def __init__(
        self,
        source: Callable[[], Snapshot],
        live: Mapping[str, Callable[[Families], None]],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._live = dict(live)
        self._now = now
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self._lock = threading.RLock()
        self._families: dict[str, tuple[Metric, dict[Part, str]]] = {}
        self._success: dict[str, dict[str, bool]] = {}
        self._seconds: dict[str, float] = {}
        self._begins: dict[bool, _Begin] = {}
        self._latest: Snapshot | None = None
        self._defined: object = None
        self._next_expiry = float("inf")

    def refresh(self, case_key: str | None = None) -> None:
        """Update the results of one case or of all."""
        # One update at a time: an older snapshot after a newer one would decrease counters.
        with self._lock:
            self._show(self._source(), case_key)

    def judged(self, verdicts: Verdicts) -> None:
        """Update verdicts, gates and the comparison of configurations."""
        self._put("verdicts", partial(collect_verdicts, verdicts), current=not verdicts.failed)
        snapshot = self._source()
        self._put("gates", partial(collect_gates, verdicts, snapshot))
        # Slow, so not done for every result.
        self._put("settings", partial(collect_settings, snapshot))

    def _show(self, snapshot: Snapshot, case_key: str | None = None) -> None:
        """Render the text of one case or of all, and of the summary. The caller holds the lock."""
        records = {
            record.key: record for record in snapshot.records if case_key in {None, record.key}
        }
        for name, collect in CASE_COLLECTORS.items():
            known = self._success.setdefault(name, {})
            for key in ({*known} if case_key is None else {case_key}) - records.keys():
                known.pop(key, None)
                self._replace((name, key), Families())
            for key, record in records.items():
                self._put(name, partial(collect, replace(snapshot, records=[record])), key)
        defined = (
            snapshot.wall,
            [(case_record.definition, case_record.good is None) for case_record in shown(snapshot)],
        )
        for name, collect in SUMMARY_COLLECTORS.items():
            if name not in DEFINITION_COLLECTORS or defined != self._defined:
                self._put(name, partial(collect, snapshot))
        self._defined = defined
        self._latest, self._next_expiry = snapshot, _first_expiry(snapshot)

    def _put(
        self, name: str, collect: Callable[[Families], None], key: str = "", *, current: bool = True
    ) -> None:
        """Update a part, of one case or of all; keep its last text if the collector fails.

        Args:
            current: whether what it collects is up to date.
        """
        families, success, seconds = _collected(name, collect)
        with self._lock:
            self._success.setdefault(name, {})[key] = success and current
            self._seconds[name] = seconds
            if success:
                self._replace((name, key), families)

    def _replace(self, part: Part, families: Families) -> None:
        for name, (_, texts) in self._families.items():
            if name not in families.lines:
                texts.pop(part, None)
        for name, (metric, lines) in families.lines.items():
            self._families.setdefault(name, (metric, {}))[1][part] = "".join(lines)
        self._begins.clear()

    def render(self, *, accept: str = "", compress: bool = False) -> tuple[bytes, str]:
        """Return the whole exposition and its content type."""
        opened = "application/openmetrics-text" in accept
        with self._lock:
            now = self._now()
            if now.timestamp() > self._next_expiry and self._latest is not None:
                # Results have become too old since they were rendered.
                self._show(replace(self._latest, now=now))
            if opened not in self._begins:
                families = ((metric, texts.values()) for metric, texts in self._families.values())
                self._begins[opened] = _Begin(family_texts(families, opened=opened))
            begin = self._begins[opened]
            health = {
                name: (all(of_cases.values()), self._seconds[name])
                for name, of_cases in self._success.items()
                if of_cases
            }
        end = text_of(self._live_parts(health), opened=opened).encode()
        # The library's text of OpenMetrics ends with its end mark.
        rendered = openmetrics.generate_latest if opened else generate_latest
        body = begin.with_end(end + rendered(self._process), compress=compress)
        return body, OPENMETRICS if opened else PLAIN

    def _live_parts(self, health: Mapping[str, tuple[bool, float]]) -> Iterable[Families]:
        """Yield the text of the live collectors, then the health of all."""
        every = dict(health)
        for name, collect in self._live.items():
            families, success, seconds = _collected(name, collect)
            every[name] = success, seconds
            yield families
        yield _health_families(every)


def _first_expiry(snapshot: Snapshot) -> float:
    """Return the Unix time when the first of the shown records becomes too old."""
    runs = (run for record in snapshot.records for run in (record.last, record.good) if run)
    future = (run.finished.timestamp() + snapshot.max_age_seconds for run in runs)
    now = snapshot.now.timestamp()
    return min((at for at in future if at >= now), default=float("inf"))


def _collected(name: str, collect: Callable[[Families], None]) -> tuple[Families, bool, float]:
    """Run a collector; return its families, whether it succeeded, and its duration in seconds."""
    families, begun, success = Families(), time.perf_counter(), False
    try:
        collect(families)
        success = True
    except PvebenchError as error:
        log.warning("metric collector failed", collector=name, reason=error.reason)
    except Exception:
        # Any exception: one broken collector must not empty the exposition.
        log.exception("metric collector failed", collector=name)
    return families if success else Families(), success, time.perf_counter() - begun


def _health_families(health: Mapping[str, tuple[bool, float]]) -> Families:
    families = Families()
    families.add(state_metrics.EXPOSITION_TIMESTAMP, {}, time.time())
    for name, (success, seconds) in health.items():
        families.add(state_metrics.COLLECTOR_SUCCESS, {"collector": name}, success)
        families.add(state_metrics.COLLECTOR_DURATION, {"collector": name}, seconds)
    return families
