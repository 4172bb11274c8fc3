"""Observations about an instance and its monitoring, for `pvebench doctor`. Nothing is changed.

Each part is independent: its failure does not affect the others. A failed check is an observation
too.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pvebench.config import Settings
from pvebench.diagnostics.check import findings
from pvebench.diagnostics.outgoing import Observation, Severity, check_notifications
from pvebench.diagnostics.pipeline import (
    NUMBER,
    fetch,
    newest_in_grafana,
    newest_in_prometheus,
    query_prometheus,
    read_exposition,
)
from pvebench.drivers import engine_of
from pvebench.errors import PvebenchError
from pvebench.fields import host_and_port
from pvebench.files import read_own
from pvebench.metrics import state_metrics
from pvebench.model.ports import REMAINS
from pvebench.model.units import MIB, count_text, show_bytes
from pvebench.plugins import Registry
from pvebench.service.housekeeping import EVERY_SECONDS
from pvebench.service.startup import CHECKED_BYTES
from pvebench.store.backups import backups_of
from pvebench.store.state_directory import WEB_FILE, holder_of, summarize_store
from pvebench.web.tls_and_users import scheme_of

# --- The parts, which run in parallel.

PAGE_SECONDS: Final = 120.0
"""Maximum age of metrics: each scrape creates them, so older ones are stale or clocks differ."""
PROGRESS_SECONDS: Final = 6 * 3600.0
"""More than any case takes; a waiting worker also shows progress."""
LEAST_FREE: Final = MIB
"""Free bytes that a run with its evidence may need."""
CLOCK_SECONDS: Final = 30.0
"""More than synchronized clocks ever differ."""
ADDRESS_SECONDS: Final = 20.0
"""Limit for the address of one receiver; the checking process starts slowly on a busy machine."""
_SEVERITIES: Final = {True: Severity.OK, False: Severity.CRITICAL, None: Severity.UNKNOWN}
WATCHDOG: Final = "PVEBenchWatchdog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Addresses of the monitoring; empty: unknown.

    Attributes:
        exporter_login, grafana_login: HTTP headers.
    """

    exporter: str = ""
    prometheus: str = ""
    grafana: str = ""
    exporter_login: Mapping[str, str]
    grafana_login: Mapping[str, str]


OBSERVERS: Final = Registry[Callable[[Settings], Iterator[Observation]]]("observers", callable, {})
"""Name of a part of another package -> function that yields its observations."""


def diagnose(settings: Settings, servers: Servers, *, seconds: float) -> list[Observation]:
    """Return all observations, the most urgent first, then the most important.

    Args:
        seconds: limit of each part; all run in parallel.
    """
    parts: dict[str, Callable[[], Iterator[Observation]]] = {
        "database": partial(_database, settings),
        "leftovers": partial(leftovers, settings),
        "configuration": partial(_prerequisites, settings),
        "clock": partial(_clocks, settings),
        "service": partial(_service, settings, servers),
        "Prometheus": partial(_prometheus, servers),
        "alerts": partial(_alerts, servers),
        "notifications": partial(_notifications, settings, servers),
        **{name: partial(observe, settings) for name, observe in OBSERVERS.items()},
        "Grafana": partial(_grafana, servers),
    }
    threads = [_CheckThread(name, observe) for name, observe in parts.items()]
    deadline = time.monotonic() + seconds
    results = [thread.result(deadline - time.monotonic(), seconds) for thread in threads]
    order = list(Severity)
    return sorted(chain.from_iterable(results), key=lambda entry: order.index(entry.severity))


class _CheckThread(threading.Thread):
    """One part, in a daemon thread."""

    def __init__(self, name: str, observe: Callable[[], Iterator[Observation]]) -> None:
        super().__init__(name=name, daemon=True)
        self._about, self._observe = name, observe
        self._observations: list[Observation] = []
        self.start()

    def run(self) -> None:
        try:
            for entry in self._observe():
                self._observations.append(entry)
        except PvebenchError as error:
            self._observations.append(Observation(self._about, Severity.CRITICAL, str(error)))
        except OSError as error:
            self._observations.append(Observation(self._about, Severity.UNKNOWN, str(error)))
        except Exception as error:  # noqa: BLE001 # an internal error must not hide a problem
            text = f"internal error: {type(error).__name__}: {error}"
            self._observations.append(Observation(self._about, Severity.UNKNOWN, text[:300]))

    def result(self, left: float, limit: float) -> list[Observation]:
        """Return the observations after at most `left` seconds; `limit` is for the message."""
        self.join(max(0.0, left))
        if not self.is_alive():
            return self._observations
        text = f"no answer within {limit:.0f} s; wait longer with --timeout"
        return [*self._observations, Observation(self._about, Severity.UNKNOWN, text)]


def _prerequisites(settings: Settings) -> Iterator[Observation]:
    for name, good, text in findings(settings):
        yield Observation(name, _SEVERITIES[good], text)


def _database(settings: Settings) -> Iterator[Observation]:
    path = settings.database
    summary = summarize_store(path, most_bytes=CHECKED_BYTES)
    if summary is None:
        yield Observation("database", Severity.OK, f"the first start creates {path}")
        return
    size = show_bytes(summary.size_bytes)
    if summary.sound is False:
        restore = "stop pvebench, then restore a backup with `pvebench restore`"
        yield Observation("database", Severity.CRITICAL, f"{path} ({size}) is damaged; {restore}")
    elif summary.sound is None:
        text = f"{path} ({size}) is too large to check here; a running serve checks it daily"
        yield Observation("database", Severity.UNKNOWN, text)
    else:
        upgrade = "" if summary.current else "; the next start upgrades its schema"
        if problem := _unwritable(settings.state):
            yield Observation("state directory", Severity.CRITICAL, problem)
        yield Observation("database", Severity.OK, f"{path} ({size}) is intact{upgrade}")
    yield _backups(settings)


def _unwritable(state: Path) -> str:
    """Return why the file system cannot take a result; empty if it can. Nothing is written."""
    system = os.statvfs(state)
    free = system.f_bavail * system.f_frsize
    if system.f_flag & os.ST_RDONLY:
        return f"the file system of {state} is read-only; remount it"
    return f"{show_bytes(free)} free in {state}; free some space" if free < LEAST_FREE else ""


def _backups(settings: Settings) -> Observation:
    backups = backups_of(settings.database)
    if not settings.keep_backups:
        text = "disabled; set keep_backups above 0 to be able to restore the database"
        return Observation("backups", Severity.WARNING, text)
    if not backups:
        text = "none yet; a running serve creates one daily"
        return Observation("backups", Severity.WARNING, text)
    age = (datetime.now(UTC) - backups[0].made).total_seconds()
    text = f"{len(backups)}, newest {backups[0].made:%Y-%m-%d %H:%M} UTC"
    if not 0 <= age < 2 * EVERY_SECONDS:
        text = f"{text}; a running serve creates one daily"
        return Observation("backups", Severity.WARNING, text)
    return Observation("backups", Severity.OK, text)


def leftovers(settings: Settings) -> Iterator[Observation]:
    """Yield an observation of what the state's journal has open, for `doctor` and `status`."""
    summary = summarize_store(settings.database, most_bytes=0)
    holder = holder_of(settings.state)
    entries = summary.pending if summary else ()
    for text in (text for kind, text in entries if kind == REMAINS):
        yield Observation("leftovers", Severity.WARNING, f"{text}; then run `pvebench cleanup`")
    pending = sum(kind != REMAINS for kind, _ in entries)
    if not entries:
        yield Observation("leftovers", Severity.OK, "the journal has no pending entries")
    elif pending and holder:
        text = f"{pending} journal entries in use by process {holder}"
        yield Observation("leftovers", Severity.OK, text)
    elif pending:
        count = count_text(pending, "leftover")
        text = f"{count} of a killed process; run `pvebench cleanup`, or start pvebench"
        yield Observation("leftovers", Severity.CRITICAL, text)


def _clocks(settings: Settings) -> Iterator[Observation]:
    compared = False
    for name, moment in engine_of(settings.driver).clocks(settings):
        compared = True
        if moment is None:
            text = f"time of {name} unknown: it is off, or the token lacks Sys.Audit on /nodes"
            yield Observation("clock", Severity.UNKNOWN, text)
            continue
        ahead = moment - time.time()
        text = f"{name} is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        if abs(ahead) > CLOCK_SECONDS:
            action = f"{text}; synchronize both with NTP (timedatectl, chronyc tracking)"
            yield Observation("clock", Severity.CRITICAL, action)
        else:
            yield Observation("clock", Severity.OK, text)
    if not compared:
        text = f"driver {settings.driver} has no other machine's clock to compare with"
        yield Observation("clock", Severity.UNKNOWN, text)


def _service(settings: Settings, servers: Servers) -> Iterator[Observation]:
    holder = holder_of(settings.state)
    if not holder and not servers.exporter:
        text = f"not running in {settings.state}; start `pvebench serve` with the same settings"
        yield Observation("service", Severity.WARNING, text)
        return
    address = servers.exporter or exporter_address(settings)
    created, page = read_exposition(address, servers.exporter_login)
    age = time.time() - created
    if abs(age) > PAGE_SECONDS:
        text = f"metrics are {age:.0f} s old; check its clock, and proxies that cache"
        yield Observation("service", Severity.CRITICAL, text)
    else:
        process = f"process {holder}" if holder else "a process of another machine"
        yield Observation("service", Severity.OK, f"{process} serves current metrics")
    yield from _page_problems(page)
    text = fetch(f"{address}/api/v1/status", "pvebench", "", headers=servers.exporter_login)
    for part, fault in json.loads(text).get("faults", {}).items():
        yield Observation(part, Severity.CRITICAL, fault)


def exporter_address(settings: Settings) -> str:
    """Return the URL of the instance of these settings, for use on this machine."""
    listen = settings.listen
    with suppress(OSError):  # an instance may have been started with another --listen
        listen = (holder_of(settings.state) and read_own(settings.state / WEB_FILE)) or listen
    host, port = host_and_port(listen)
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104 # read, not bound
    return f"{scheme_of(settings.web_config_file)}://{here}:{port}"


def _page_problems(page: str) -> Iterator[Observation]:
    """Yield the problems that an instance's own metrics show."""
    if re.search(rf"^{state_metrics.CONFIG_RELOAD_SUCCESS.exposed} 0", page, re.MULTILINE):
        text = "configuration reload failed; see its log, or run `pvebench check`"
        yield Observation("reload", Severity.CRITICAL, text)
    success = rf'^{state_metrics.COLLECTOR_SUCCESS.exposed}\{{collector="(\w+)"\}} 0'
    for name in re.findall(success, page, re.MULTILINE):
        text = f"collector {name} failed; see the log of pvebench"
        yield Observation("metrics", Severity.CRITICAL, text)
    progress = rf'^{state_metrics.SCHEDULER_PROGRESS.exposed}\{{node="([^"]+)"\}} {NUMBER}$'
    for node, moment in re.findall(progress, page, re.MULTILINE):
        age = time.time() - float(moment)
        if age > PROGRESS_SECONDS:
            text = f"scheduler on {node} stalled for {age / 3600:.0f} h; check the web UI and log"
            yield Observation("progress", Severity.CRITICAL, text)


def _prometheus(servers: Servers) -> Iterator[Observation]:
    if not servers.prometheus:
        text = "not checked; pass its address: --prometheus http://127.0.0.1:9690"
        yield Observation("Prometheus", Severity.UNKNOWN, text)
        return
    moment = newest_in_prometheus(servers.prometheus, time.time() - PAGE_SECONDS)
    if moment is None:
        text = (
            f"{servers.prometheus} has no samples of the last {PAGE_SECONDS:.0f} s; after a start, "
            f"wait for a scrape; then check the job pvebench at {servers.prometheus}/targets"
        )
        yield Observation("Prometheus", Severity.CRITICAL, text)
        return
    age = max(0.0, time.time() - moment)
    yield Observation("Prometheus", Severity.OK, f"newest samples are {age:.0f} s old")


def _alerts(servers: Servers) -> Iterator[Observation]:
    if not servers.prometheus:
        text = "not checked; pass the address of Prometheus with --prometheus"
        yield Observation("alerts", Severity.UNKNOWN, text)
        return
    rules = _rules(query_prometheus(servers.prometheus, "/api/v1/rules?type=alert"))
    own = {name: state for name, state in rules.items() if name.startswith("PVEBench")}
    if not own:
        text = "Prometheus has no alerts of pvebench; load prometheus/rules/*.yml (rule_files)"
        yield Observation("alerts", Severity.CRITICAL, text)
        return
    if own.get(WATCHDOG) != "firing":
        text = f"{WATCHDOG} does not fire: Prometheus has just started, or its rules do not run"
        yield Observation("alerts", Severity.WARNING, text)
    alertmanagers = _alertmanagers(servers)
    if not alertmanagers:
        text = f"{len(own)} alert rules, but no Alertmanager; set alerting.alertmanagers"
        yield Observation("alerts", Severity.WARNING, text)
        return
    text = f"{len(own)} alerts, sent to {count_text(alertmanagers, 'Alertmanager')}"
    yield Observation("alerts", Severity.OK, text)
    text = f"routes not checked; run `amtool config routes test alertname={WATCHDOG}`"
    yield Observation("receivers", Severity.UNKNOWN, text)


def _alertmanagers(servers: Servers) -> int:
    """Return the number of Alertmanagers that Prometheus sends alerts to."""
    data = query_prometheus(servers.prometheus, "/api/v1/alertmanagers")
    active = data.get("activeAlertmanagers") if isinstance(data, dict) else None
    return len(active) if isinstance(active, list) else 0


def _notifications(settings: Settings, servers: Servers) -> Iterator[Observation]:
    if settings.notify is not None:
        yield from check_notifications(settings, seconds=ADDRESS_SECONDS)
    elif not servers.prometheus:
        text = "notify is not set; check for an Alertmanager with --prometheus"
        yield Observation("notifications", Severity.UNKNOWN, text)
    elif _alertmanagers(servers):
        text = "notify is not set, but an Alertmanager receives alerts"
        yield Observation("notifications", Severity.OK, text)
    else:
        text = (
            "changes are not reported: notify is not set and there is no Alertmanager; see "
            "docs/notifications.md"
        )
        yield Observation("notifications", Severity.WARNING, text)


def _rules(data: Any) -> dict[str, str]:
    """Return alert name -> state."""
    groups = data.get("groups", []) if isinstance(data, dict) else []
    return {
        str(rule.get("name")): str(rule.get("state"))
        for group in groups
        for rule in group.get("rules", [])
    }


def _grafana(servers: Servers) -> Iterator[Observation]:
    if not servers.grafana:
        text = "not checked; pass its address: --grafana http://127.0.0.1:9692"
        yield Observation("Grafana", Severity.UNKNOWN, text)
        return
    moment = newest_in_grafana(servers.grafana, time.time() - PAGE_SECONDS, servers.grafana_login)
    if moment is None:
        text = "its data source has no recent samples; provision the data source again"
        yield Observation("Grafana", Severity.CRITICAL, text)
        return
    yield Observation("Grafana", Severity.OK, "its data source has recent samples")
