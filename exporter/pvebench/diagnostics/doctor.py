"""Everything that can be looked at of an instance, for `pvebench doctor`. Nothing is changed.

Each part stands alone: what one finds, or cannot, keeps no other from looking. What a part cannot
see is an observation too.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final

from pvebench.analysis.verdict import count_text
from pvebench.config import Settings
from pvebench.config.settings import NotifyTarget
from pvebench.diagnostics.check import findings
from pvebench.diagnostics.pipeline import asked, exported, in_grafana, in_prometheus
from pvebench.drivers import engine_of
from pvebench.errors import ConfigError, PvebenchError
from pvebench.files import is_open
from pvebench.metrics import catalog
from pvebench.model.units import show_bytes
from pvebench.notify.delivery import check_address as look_at_address
from pvebench.notify.messages import show_time
from pvebench.notify.sender import address_of
from pvebench.service.housekeeping import EVERY_SECONDS
from pvebench.service.instance import access_of
from pvebench.service.selection import CHECKED_BYTES
from pvebench.store import (
    QueuedMessage,
    TargetCounts,
    backups_of,
    damaged_blocks_at,
    holder_of,
    outbox_at,
    summarize_store,
)
from pvebench.verdicts import NUMBERS

# --- What `pvebench doctor` says of one thing that it looked at.


class Severity(StrEnum):
    """What was seen, the most urgent first."""

    CRITICAL = "critical"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was looked at; `found` says what to do where that is known."""

    about: str
    sight: Severity
    found: str


# --- Whether messages to people would arrive, as far as that shows without sending one.

_TRY = "to try it: pvebench notify --test"


def check_notifications(settings: Settings, *, seconds: float) -> Iterator[Observation]:
    """Yield what is seen of each target of `notify`: its address, and what waits for it.

    Args:
        seconds: that looking at one address may take.

    Raises:
        StoreError: what waits cannot be read.
    """
    targets = settings.notify.to if settings.notify else ()
    for target in targets:
        fault = _address_seen(target, seconds)
        if fault is not None:
            yield Observation(f"notify {target.name}", *fault)
    path = settings.state / "pvebench.db"
    seen = summarize_store(path, most_bytes=0)
    if seen is not None and not seen.current:
        text = "what waits is not read: the database is of another version"
        yield Observation("notifications", Severity.UNKNOWN, text)
        return
    with outbox_at(path) if seen else nullcontext() as outbox:
        counts, queued = (outbox.counts(), outbox.queued()) if outbox else ({}, [])
    for target in targets:
        waiting = [one for one in queued if one.target == target.name]
        became = counts.get(target.name, TargetCounts())
        found = _waiting_seen(waiting) if waiting else _counts_seen(became)
        yield Observation(f"notify {target.name}", *found)


def _address_seen(target: NotifyTarget, seconds: float) -> tuple[Severity, str] | None:
    """Return what is wrong with an address; None: nothing that shows."""
    try:
        address = address_of(target)
    except ConfigError as error:
        # The environment is this command's own, not the service's.
        sight = Severity.UNKNOWN if target.url_env else Severity.CRITICAL
        return sight, str(error)
    except OSError as error:
        return Severity.CRITICAL, f"{target.url_file} cannot be read: {error.strerror}"
    sent = look_at_address(address, seconds=seconds)
    if sent.reason:
        return Severity.CRITICAL if sent.hopeless else Severity.UNKNOWN, sent.reason
    if target.url_file is not None and is_open(target.url_file):
        text = f"everybody can read its address: chmod o= {target.url_file}"
        return Severity.CRITICAL, text
    return None


def _waiting_seen(waiting: Sequence[QueuedMessage]) -> tuple[Severity, str]:
    oldest = waiting[0]
    text = f"{count_text(len(waiting), 'message')} for it, the oldest of {show_time(oldest.made)}, "
    if not oldest.attempts:
        return Severity.WARNING, f"{text}not tried yet: a running pvebench serve does"
    why = oldest.reason or "the last attempt was cut off"
    tries = count_text(oldest.attempts, "attempt")
    return Severity.CRITICAL, f"{text}after {tries}: {why}; {_TRY}"


def _counts_seen(counts: TargetCounts) -> tuple[Severity, str]:
    if counts.given_up is not None and counts.given_up > (counts.last or 0.0):
        text = f"the newest message was given up, {show_time(counts.given_up)}; {_TRY}"
        return Severity.CRITICAL, text
    if counts.last is None:
        return Severity.OK, f"nothing was to be told yet; {_TRY}"
    return Severity.OK, f"{counts.sent} sent, the last one {show_time(counts.last)}"


PAGE_SECONDS: Final = 120.0
"""A page is made for every scrape: an older one is no longer made, or the clocks differ."""
PROGRESS_SECONDS: Final = 6 * 3600.0
"""Longer than any case takes; a worker that waits also shows progress."""
CLOCK_SECONDS: Final = 30.0
"""More than clocks that are kept in step ever differ."""
LOOKED_SECONDS: Final = 20.0
"""For the address of one target; a busy machine is slow to start the process that knows them."""
_SIGHTS: Final = {True: Severity.OK, False: Severity.CRITICAL, None: Severity.UNKNOWN}
WATCHDOG: Final = "PVEBenchWatchdog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the others are; an empty address: nobody said.

    Attributes:
        exporter_login, grafana_login: headers.
    """

    exporter: str = ""
    prometheus: str = ""
    grafana: str = ""
    exporter_login: Mapping[str, str]
    grafana_login: Mapping[str, str]


def diagnose(settings: Settings, places: Places, *, seconds: float) -> list[Observation]:
    """Return what was seen, the most urgent first; of what is as urgent, the most important.

    Args:
        seconds: for each part; all look at the same time.
    """
    parts: dict[str, Callable[[], Iterator[Observation]]] = {
        "database": partial(_database, settings),
        "derived blocks": partial(_blocks, settings),
        "leftovers": partial(_leftovers, settings),
        "configuration": partial(_needs, settings),
        "clock": partial(_clocks, settings),
        "service": partial(_service, settings, places),
        "Prometheus": partial(_prometheus, places),
        "alerts": partial(_alerts, places),
        "notifications": partial(_notifications, settings, places),
        "Grafana": partial(_grafana, places),
    }
    looking = [(name, _CheckThread(name, look)) for name, look in parts.items()]
    ends = time.monotonic() + seconds
    found = [one for _, look in looking for one in look.seen(ends - time.monotonic(), seconds)]
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.sight))


class _CheckThread(threading.Thread):
    """One part, in a thread that nobody has to wait for."""

    def __init__(self, name: str, look: Callable[[], Iterator[Observation]]) -> None:
        super().__init__(name=name, daemon=True)
        self._about, self._look = name, look
        self._found: list[Observation] = []
        self.start()

    def run(self) -> None:
        try:
            for one in self._look():
                self._found.append(one)
        except PvebenchError as error:
            self._found.append(Observation(self._about, Severity.CRITICAL, str(error)))
        except OSError as error:
            self._found.append(Observation(self._about, Severity.UNKNOWN, str(error)))
        except Exception as error:  # noqa: BLE001 # a fault of ours must not look like all is well
            text = f"looking ended by a fault of pvebench itself ({type(error).__name__}: {error})"
            self._found.append(Observation(self._about, Severity.UNKNOWN, text[:300]))

    def seen(self, left: float, given: float) -> list[Observation]:
        self.join(max(0.0, left))
        if not self.is_alive():
            return self._found
        late = f"no answer within {given:.0f} s; --timeout waits longer"
        return [*self._found, Observation(self._about, Severity.UNKNOWN, late)]


def _needs(settings: Settings) -> Iterator[Observation]:
    for name, good, text in findings(settings):
        yield Observation(name, _SIGHTS[good], text)


def _database(settings: Settings) -> Iterator[Observation]:
    path = settings.state / "pvebench.db"
    seen = summarize_store(path, most_bytes=CHECKED_BYTES)
    if seen is None:
        yield Observation("database", Severity.OK, f"{path} will be made by the first start")
        return
    size = show_bytes(seen.size_bytes)
    if seen.sound is False:
        restore = "end pvebench and put a copy in its place: pvebench restore"
        yield Observation("database", Severity.CRITICAL, f"{path} ({size}) is damaged; {restore}")
    elif seen.sound is None:
        text = f"{path} ({size}) is not looked through here; a running serve does so daily"
        yield Observation("database", Severity.UNKNOWN, text)
    else:
        layout = "" if seen.current else "; of another version: the next start brings it up to date"
        yield Observation("database", Severity.OK, f"{path} ({size}) is sound{layout}")
    yield _copies(settings)


def _blocks(settings: Settings) -> Iterator[Observation]:
    path = settings.state / "pvebench.db"
    seen = summarize_store(path, most_bytes=0)
    if seen is None:
        return
    if not seen.current:
        text = "not checked: the database has the layout of another version"
        yield Observation("derived blocks", Severity.UNKNOWN, text)
    elif damaged := damaged_blocks_at(path, NUMBERS):
        text = (
            f"damaged: {', '.join(map(str, damaged))}; no result is lost, pvebench reads their "
            "runs from the rows; serve replaces them at its start and daily; check the disk"
        )
        yield Observation("derived blocks", Severity.CRITICAL, text)
    else:
        yield Observation("derived blocks", Severity.OK, "none is damaged")


def _copies(settings: Settings) -> Observation:
    copies = backups_of(settings.state / "pvebench.db")
    if not settings.keep_backups:
        text = "none is made: set keep_backups to more than 0 to be able to go back"
        return Observation("copies", Severity.WARNING, text)
    if not copies:
        return Observation(
            "copies", Severity.WARNING, "there is none yet; a running serve makes one daily"
        )
    age = (datetime.now(UTC) - copies[0].made).total_seconds()
    text = f"{len(copies)}, the newest of {copies[0].made:%Y-%m-%d %H:%M} UTC"
    if not 0 <= age < 2 * EVERY_SECONDS:
        return Observation("copies", Severity.WARNING, f"{text}; a running serve makes one daily")
    return Observation("copies", Severity.OK, text)


def _leftovers(settings: Settings) -> Iterator[Observation]:
    seen = summarize_store(settings.state / "pvebench.db", most_bytes=0)
    holder = holder_of(settings.state)
    if seen is None or not seen.pending:
        yield Observation("leftovers", Severity.OK, "the journal has nothing to be undone")
    elif holder:
        text = f"{seen.pending} things are in use by process {holder}"
        yield Observation("leftovers", Severity.OK, text)
    else:
        text = (
            f"a process that was killed left {seen.pending} things: pvebench cleanup, or start it"
        )
        yield Observation("leftovers", Severity.CRITICAL, text)


def _clocks(settings: Settings) -> Iterator[Observation]:
    none = True
    for name, there in engine_of(settings.driver).clocks(settings):
        none = False
        if there is None:
            text = f"{name} does not tell its time: the token lacks Sys.Audit on /nodes/{name}"
            yield Observation("clock", Severity.UNKNOWN, text)
            continue
        ahead = there - time.time()
        text = f"{name} is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        if abs(ahead) > CLOCK_SECONDS:
            mend = f"{text}; let NTP keep both in step (timedatectl, chronyc tracking)"
            yield Observation("clock", Severity.CRITICAL, mend)
        else:
            yield Observation("clock", Severity.OK, text)
    if none:
        text = f"driver {settings.driver} has no other machine's clock to compare with"
        yield Observation("clock", Severity.UNKNOWN, text)


def _service(settings: Settings, places: Places) -> Iterator[Observation]:
    holder = holder_of(settings.state)
    if not holder and not places.exporter:
        text = f"nobody uses {settings.state}: start it with pvebench serve"
        yield Observation("service", Severity.WARNING, text)
        return
    made, page = exported(places.exporter or exporter_address(settings), places.exporter_login)
    age = time.time() - made
    if abs(age) > PAGE_SECONDS:
        text = f"its page is {age:.0f} s old: its clock is another, or a proxy keeps old pages"
        yield Observation("service", Severity.CRITICAL, text)
    else:
        yield Observation("service", Severity.OK, f"process {holder or 'elsewhere'} makes pages")
    yield from _told_by(page)


def exporter_address(settings: Settings) -> str:
    """Return where the instance of these settings is reached from this machine."""
    host, _, port = settings.listen.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(host, host)  # noqa: S104 # what is listened on
    return f"{access_of(settings).scheme}://{here}:{port}"


def _told_by(page: str) -> Iterator[Observation]:
    """Yield what an instance's own page says of it."""
    if re.search(rf"^{catalog.CONFIG_RELOAD_SUCCESS.exposed} 0", page, re.MULTILINE):
        text = "the changed settings are not used: its log says why; pvebench check finds the place"
        yield Observation("reload", Severity.CRITICAL, text)
    success = rf'^{catalog.COLLECTOR_SUCCESS.exposed}\{{collector="(\w+)"\}} 0'
    for name in re.findall(success, page, re.MULTILINE):
        yield Observation(
            "page", Severity.CRITICAL, f"its part {name} is missing or old: its log says why"
        )
    progress = rf'^{catalog.SCHEDULER_PROGRESS.exposed}\{{node="([^"]+)"\}} (\d[\d.e+]*)$'
    for node, moment in re.findall(progress, page, re.MULTILINE):
        age = time.time() - float(moment)
        if age > PROGRESS_SECONDS:
            text = f"nothing has moved on {node} for {age / 3600:.0f} h: look at its page and log"
            yield Observation("progress", Severity.CRITICAL, text)


def _prometheus(places: Places) -> Iterator[Observation]:
    if not places.prometheus:
        text = "no address was given: --prometheus http://127.0.0.1:9690"
        yield Observation("Prometheus", Severity.UNKNOWN, text)
        return
    moment = in_prometheus(places.prometheus, time.time() - PAGE_SECONDS)
    if moment is None:
        text = (
            f"{places.prometheus} has no page of the last {PAGE_SECONDS:.0f} s: look at "
            f"{places.prometheus}/targets; the job is pvebench"
        )
        yield Observation("Prometheus", Severity.CRITICAL, text)
        return
    age = time.time() - moment
    yield Observation("Prometheus", Severity.OK, f"it has a page that is {max(0.0, age):.0f} s old")


def _alerts(places: Places) -> Iterator[Observation]:
    if not places.prometheus:
        text = "the way of alerts begins at Prometheus: --prometheus"
        yield Observation("alerts", Severity.UNKNOWN, text)
        return
    rules = _rules(asked(places.prometheus, "/api/v1/rules?type=alert"))
    mine = {name: state for name, state in rules.items() if name.startswith("PVEBench")}
    if not mine:
        text = "Prometheus has no alert of pvebench: load prometheus/rules/*.yml (rule_files)"
        yield Observation("alerts", Severity.CRITICAL, text)
        return
    if mine.get(WATCHDOG) != "firing":
        text = f"{WATCHDOG} does not fire: Prometheus has just begun, or its rules do not run"
        yield Observation("alerts", Severity.WARNING, text)
    takers = _alertmanagers(places)
    if not takers:
        text = f"{len(mine)} alerts, but no Alertmanager takes them: alerting.alertmanagers"
        yield Observation("alerts", Severity.WARNING, text)
        return
    yield Observation("alerts", Severity.OK, f"{len(mine)} alerts go to {takers} Alertmanager")
    text = "who gets them is Alertmanager's own: amtool config routes test alertname=" + WATCHDOG
    yield Observation("receivers", Severity.UNKNOWN, text)


def _alertmanagers(places: Places) -> int:
    """Return to how many Alertmanagers Prometheus sends alerts."""
    data = asked(places.prometheus, "/api/v1/alertmanagers")
    takers = data.get("activeAlertmanagers") if isinstance(data, dict) else None
    return len(takers) if isinstance(takers, list) else 0


def _notifications(settings: Settings, places: Places) -> Iterator[Observation]:
    if settings.notify is not None:
        yield from check_notifications(settings, seconds=LOOKED_SECONDS)
    elif not places.prometheus:
        text = "no notify in the settings; whether an Alertmanager is told shows --prometheus"
        yield Observation("notifications", Severity.UNKNOWN, text)
    elif _alertmanagers(places):
        text = "no notify in the settings, but an Alertmanager is told"
        yield Observation("notifications", Severity.OK, text)
    else:
        text = (
            "nobody is told of a change: there is no notify in the settings and no Alertmanager; "
            "docs/notifications.md has both"
        )
        yield Observation("notifications", Severity.WARNING, text)


def _rules(data: Any) -> dict[str, str]:
    """Return alert -> its state."""
    groups = data.get("groups", []) if isinstance(data, dict) else []
    return {
        str(rule.get("name")): str(rule.get("state"))
        for group in groups
        for rule in group.get("rules", [])
    }


def _grafana(places: Places) -> Iterator[Observation]:
    if not places.grafana:
        text = "no address was given: --grafana http://127.0.0.1:9692"
        yield Observation("Grafana", Severity.UNKNOWN, text)
        return
    moment = in_grafana(places.grafana, time.time() - PAGE_SECONDS, places.grafana_login)
    if moment is None:
        text = "its data source leads to a Prometheus that has no new page: provision it anew"
        yield Observation("Grafana", Severity.CRITICAL, text)
        return
    yield Observation("Grafana", Severity.OK, "its data source has a new page")
