"""The `/metrics` exposition: text rendered when a result changes, a live part for every scrape.

Lines instead of objects of prometheus_client, which takes more than a second for 50,000 series: a
line is formatted when its result changes, not for every scrape.

A collector that raises loses only its own part: its last text stays, and its success is 0. With
prometheus_client alone the whole exposition would be lost.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from pvebench.errors import PvebenchError
from pvebench.log import log
from pvebench.metrics import state_metrics
from pvebench.metrics.result_collectors import (
    CASE_COLLECTORS,
    DEFINITION_COLLECTORS,
    SUMMARY_COLLECTORS,
    Snapshot,
    collect_settings,
    shown,
)
from pvebench.metrics.verdict_collectors import collect_gates, collect_verdicts
from pvebench.model.figure import Metric
from pvebench.verdicts.node_verdicts import Verdicts

# --- Samples as lines of text, which are equal in the plain format and in OpenMetrics.

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_PLAIN_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Families:
    """Samples as lines of text, by metric in the order of first use."""

    def __init__(self) -> None:
        self.lines: dict[str, tuple[Metric, list[str]]] = {}

    def add(
        self, metric: Metric, labels: Mapping[str, str], value: float, suffix: str = ""
    ) -> None:
        """Add one sample. Labels that the metric does not have are ignored.

        Args:
            suffix: of the name, for a part of a histogram; `_bucket` has the label `le`.

        Raises:
            KeyError: a label of the metric is missing.
        """
        names = (*metric.labels, "le") if suffix == "_bucket" else metric.labels
        pairs = [label_text(name, labels[name]) for name in sorted(names)]
        where = f"{{{','.join(pairs)}}}" if pairs else ""
        name = f"{metric.name}{suffix}" if suffix else metric.exposed
        text = floatToGoString(value)  # type: ignore[no-untyped-call] # library
        self.lines.setdefault(metric.name, (metric, []))[1].append(f"{name}{where} {text}\n")

    def add_histogram(
        self, metric: Metric, labels: Mapping[str, str], counts: Mapping[str, float], total: float
    ) -> None:
        """Add one histogram; labels as in `add`.

        Args:
            counts: upper bound -> count of its bucket alone, in the order of the bounds.
            total: sum of all values.
        """
        count = 0.0
        for bound, count in zip(counts, accumulate(counts.values()), strict=True):
            self.add(metric, {**labels, "le": bound}, count, "_bucket")
        self.add(metric, labels, count, "_count")
        self.add(metric, labels, total, "_sum")


def label_text(name: str, value: str) -> str:
    """Return a label as both formats write it."""
    return f'{name}="{value.translate(_ESCAPES)}"'


def text_of(parts: Iterable[Families], *, opened: bool = False) -> str:
    """Return the families of all parts as text; see `family_texts`."""
    families: dict[str, tuple[Metric, list[str]]] = {}
    for part in parts:
        for name, (metric, lines) in part.lines.items():
            families.setdefault(name, (metric, []))[1].extend(lines)
    return "".join(family_texts(families.values(), opened=opened))


def family_texts(
    families: Iterable[tuple[Metric, Collection[str]]], *, opened: bool
) -> Iterator[str]:
    """Yield the samples of each family after a single head, as both formats require.

    Args:
        opened: whether to return OpenMetrics, without its end mark.
    """
    for metric, lines in families:
        if lines:
            yield "".join([head_of(metric, opened=opened), *lines])


def head_of(metric: Metric, *, opened: bool) -> str:
    """Return the lines before the samples of a family."""
    if opened:
        name, text = metric.name, metric.help.translate(_ESCAPES)
    else:
        name = metric.exposed if metric.kind == "counter" else metric.name
        text = metric.help.translate(_PLAIN_HELP_ESCAPES)
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n"


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
