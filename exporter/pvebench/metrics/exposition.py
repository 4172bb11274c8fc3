"""The `/metrics` exposition: cached text of each case, and a small live part for every scrape.

A collector that raises loses only its own part; with prometheus_client alone it would lose the
whole exposition. All parts are concatenated, compressed or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric as Family

from pvebench.errors import PvebenchError
from pvebench.log import log
from pvebench.metrics import catalog
from pvebench.metrics.results import (
    CASE_COLLECTORS,
    DEFINITION_COLLECTORS,
    SUMMARY_COLLECTORS,
    Collector,
    collect_gates,
    collect_settings,
    collect_verdicts,
)
from pvebench.metrics.snapshot import Snapshot
from pvebench.metrics.text_format import (
    EOF,
    Families,
    Piece,
    Text,
    deflate,
    gzip_stream,
    render,
    render_pieces,
)
from pvebench.store import CaseRecord
from pvebench.verdicts import Verdicts

# --- text cache of many cases ---
#
# Cases are cached in shards, so that one changed case costs little: only this case is rendered, and
# only its shard is joined and compressed again.

SHARD_CASES: Final = 64
"""Cases per shard: few enough to compress in milliseconds, enough for a good compression ratio."""


@dataclass(slots=True)
class _Shard:
    cases: dict[str, Mapping[str, Piece]] = field(default_factory=dict)
    joined: dict[str, bytes] = field(default_factory=dict)
    deflated: dict[str, bytes] = field(default_factory=dict)

    def forget(self) -> None:
        self.joined.clear()
        self.deflated.clear()

    def text(self, family: str) -> bytes:
        if family not in self.joined:
            pieces = (case[family].samples for case in self.cases.values() if family in case)
            self.joined[family] = b"".join(pieces)
        return self.joined[family]

    def compressed(self, family: str) -> bytes:
        if family not in self.deflated:
            text = self.text(family)
            self.deflated[family] = deflate(text) if text else text
        return self.deflated[family]


class Shards:
    """Cached text of the families of all cases, by case key."""

    def __init__(self) -> None:
        self._shards: list[_Shard] = []
        self._place: dict[str, _Shard] = {}
        self._heads: dict[str, Text] = {}
        self._deflated_heads: dict[str, Text] = {}

    def put(self, key: str, pieces: Mapping[str, Piece]) -> None:
        """Set the text of a case; no pieces for a case that is no longer exposed."""
        shard = self._place.get(key)
        if shard is None:
            if not self._shards or len(self._shards[-1].cases) >= SHARD_CASES:
                self._shards.append(_Shard())
            shard = self._place[key] = self._shards[-1]
        shard.cases[key] = pieces
        shard.forget()
        for family, piece in pieces.items():
            if family not in self._heads:
                self._heads[family] = piece.head
                self._deflated_heads[family] = piece.head.deflated()

    def parts(self, *, opened: bool, compress: bool) -> list[bytes]:
        """Return the whole text in parts to concatenate.

        With `compress` each part is deflated; the parts are the same.
        """
        heads = self._deflated_heads if compress else self._heads
        parts: list[bytes] = []
        for family, head in heads.items():
            samples = [
                shard.compressed(family) if compress else shard.text(family)
                for shard in self._shards
            ]
            if any(samples):
                parts += [head.choose(opened=opened), *samples]
        return parts


_FAILED: Final = "metric collector failed"
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


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
        self._process = ProcessCollector(registry=None)
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._shards = Shards()
        self._records: dict[str, CaseRecord] = {}
        self._summary: dict[str, tuple[Text, Text]] = {}
        self._latest: Snapshot | None = None
        self._health: dict[str, tuple[bool, float]] = {}
        self._failing: dict[str, set[str]] = {}
        self._next_expiry = float("inf")

    def refresh(self, case_key: str | None = None) -> None:
        """Update the results of one case or of all; keep the old ones if that fails."""
        # One update at a time: an older snapshot after a newer one would decrease counters.
        with self._reading:
            self._take(self._source(), case_key)

    def _take(self, snapshot: Snapshot, case_key: str | None) -> None:
        with self._lock:
            old = set(self._records) if case_key is None else {case_key}
            records = {record.key: record for record in snapshot.records}
            fresh = records if case_key is None else _only(records, case_key)
            known = case_key is not None and not old - set(fresh) and self._defines_nothing(fresh)
            for key in old - set(fresh):
                self._records.pop(key, None)
                self._shards.put(key, {})
            self._records |= fresh
            self._latest = snapshot
            self._show(fresh.values(), known=known)

    def judged(self, verdicts: Verdicts) -> None:
        """Update verdicts, gates and the comparison of configurations; keep old ones on failure."""
        self._put("verdicts", partial(collect_verdicts, verdicts), current=not verdicts.failed)
        snapshot = self._source()
        self._put("gates", partial(collect_gates, verdicts, snapshot))
        # Slow, so not done for every result.
        self._put("settings", partial(collect_settings, snapshot))

    def _put(self, name: str, collect: Callable[[Families], None], *, current: bool = True) -> None:
        """Update a part of the summary; `current`: whether it is up to date."""
        families, health = _gather({name: collect})
        success, seconds = health[name]
        text = render(families)
        deflated = text.deflated()
        with self._lock:
            self._health[name] = success and current, seconds
            if success:
                self._summary[name] = text, deflated

    def _defines_nothing(self, fresh: Mapping[str, CaseRecord]) -> bool:
        """Return whether no definition changed and no case got its first successful run."""
        return all(
            key in self._records
            and self._records[key].last.definition == record.last.definition
            and (self._records[key].good is None) == (record.good is None)
            for key, record in fresh.items()
        )

    def _show(self, records: Collection[CaseRecord], *, known: bool = False) -> None:
        """Render some cases and the summary. The caller holds the lock.

        Args:
            known: only the values of `records` have changed, so that the parts which depend on
                all cases can be skipped.
        """
        if self._latest is None:
            return
        snapshot = replace(self._latest, records=list(self._records.values()))
        for record in records:
            key = record.key
            families = self._gather(CASE_COLLECTORS, replace(snapshot, records=[record]), key)
            self._shards.put(key, render_pieces(families))
        for name, collect in SUMMARY_COLLECTORS.items():
            if not (known and name in DEFINITION_COLLECTORS):
                text = render(self._gather({name: collect}, snapshot, ""))
                self._summary[name] = text, text.deflated()
        changed = records if known else list(self._records.values())
        soonest = _first_expiry(changed, snapshot)
        self._next_expiry = min(self._next_expiry, soonest) if known else soonest

    def _gather(
        self, collectors: Mapping[str, Collector], snapshot: Snapshot, case_key: str
    ) -> list[Family]:
        families, health = _gather(
            {name: _bound(collect, snapshot) for name, collect in collectors.items()}
        )
        for name, (success, seconds) in health.items():
            # A success with the next case must not hide the failure with this one.
            failing = self._failing.setdefault(name, set())
            (failing.discard if success else failing.add)(case_key)
            self._health[name] = (not failing, seconds)
        return families

    def _drop_expired(self) -> None:
        """Remove results that have become too old since they were rendered."""
        now = self._now()
        if now.timestamp() > self._next_expiry and self._latest is not None:
            self._latest = replace(self._latest, now=now)
            self._show(list(self._records.values()))

    def render(self, *, accept: str = "", compress: bool = False) -> tuple[bytes, str]:
        """Return the whole exposition and its content type."""
        opened = "application/openmetrics-text" in accept
        kind = OPENMETRICS if opened else PLAIN
        with self._lock:
            self._drop_expired()
            parts = [
                *self._shards.parts(opened=opened, compress=False),
                *(text.choose(opened=opened) for text, _ in self._summary.values()),
            ]
            deflated = (
                [
                    *self._shards.parts(opened=opened, compress=True),
                    *(text.choose(opened=opened) for _, text in self._summary.values()),
                ]
                if compress
                else []
            )
            cached_health = dict(self._health)
        live_families, health = _gather(self._live)
        families = [
            *live_families,
            *_health_families(cached_health | health),
            *self._process.collect(),
        ]
        live = render(families).choose(opened=opened) + (EOF if opened else b"")
        parts.append(live)
        if compress:
            return gzip_stream(parts, [*deflated, deflate(live)]), kind
        return b"".join(parts), kind


def _only(records: Mapping[str, CaseRecord], key: str) -> dict[str, CaseRecord]:
    return {key: records[key]} if key in records else {}


def _bound(collect: Collector, snapshot: Snapshot) -> Callable[[Families], None]:
    return lambda families: collect(snapshot, families)


def _first_expiry(records: Iterable[CaseRecord], snapshot: Snapshot) -> float:
    """Return the Unix time when the first of the shown records becomes too old."""
    ages = (moment for record in records for moment in _moments(record))
    future = (age + snapshot.max_age_seconds for age in ages)
    now = snapshot.now.timestamp()
    return min((at for at in future if at >= now), default=float("inf"))


def _moments(record: CaseRecord) -> list[float]:
    runs = [record.last] if record.good is None else [record.last, record.good]
    return [run.finished.timestamp() for run in runs]


def _gather(
    collectors: Mapping[str, Callable[[Families], None]],
) -> tuple[list[Family], dict[str, tuple[bool, float]]]:
    """Run each collector separately; return all families, and name -> (success, seconds)."""
    collected: list[Family] = []
    health: dict[str, tuple[bool, float]] = {}
    for name, collect in collectors.items():
        families = Families()
        begun = time.perf_counter()
        success = False
        try:
            collect(families)
            collected += families.families()
            success = True
        except PvebenchError as error:
            log.warning(_FAILED, collector=name, reason=error.reason)
        except Exception:
            # Any exception: one broken collector must not empty the exposition.
            log.exception(_FAILED, collector=name)
        health[name] = (success, time.perf_counter() - begun)
    return collected, health


def _health_families(health: Mapping[str, tuple[bool, float]]) -> list[Family]:
    families = Families()
    families.add(catalog.EXPOSITION_TIMESTAMP, {}, time.time())
    for name, (success, seconds) in health.items():
        families.add(catalog.COLLECTOR_SUCCESS, {"collector": name}, success)
        families.add(catalog.COLLECTOR_DURATION, {"collector": name}, seconds)
    return families.families()
