"""The page itself: a cached results block and a small live block, in each encoding.

A collector that raises costs its own part of the page and nothing else: prometheus_client
alone would lose the whole page. The two blocks are simply put behind one another; gzip
allows that too, since a gzip stream may have several members (RFC 1952, 2.2).
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.metrics.results import COLLECTORS
from pvebench.metrics.snapshot import Snapshot

log = structlog.get_logger()

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_EOF: Final = b"# EOF\n"


class ResultSource(Protocol):
    """Where the results block comes from."""

    def snapshot(self) -> Snapshot:
        """Return the present results."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Rendered families in both formats, plain and compressed."""

    plain: bytes
    plain_gzip: bytes
    open: bytes
    open_gzip: bytes


class Page:
    """`/metrics`. `refresh` is called when a result changes; `render` for every scrape.

    Args:
        source: gives the snapshot that the results block is made from.
        live: name -> collector of the live block.
    """

    def __init__(
        self, source: ResultSource, live: Mapping[str, Callable[[Families], None]]
    ) -> None:
        self._source = source
        self._live = dict(live)
        self._process = ProcessCollector(registry=None)
        self._lock = threading.Lock()
        self._cached = _block([])
        self._health: list[Family] = []

    def refresh(self) -> None:
        """Render the results block anew from the store; a fault leaves the old one in place."""
        try:
            snapshot = self._source.snapshot()
        except Exception:
            # Whatever ails the store, the measuring goes on and the page keeps what it has.
            log.exception("the results could not be read for the metrics page")
            return

        def bind(collect: Callable[[Snapshot, Families], None]) -> Callable[[Families], None]:
            return lambda families: collect(snapshot, families)

        parts = {name: bind(collect) for name, collect in COLLECTORS.items()}
        gathered, health = _gather(parts)
        with self._lock:
            self._cached, self._health = _block(gathered), health

    def render(self, *, accept: str = "", compress: bool = False) -> tuple[bytes, str]:
        """Return the whole page and its content type."""
        with self._lock:
            cached, cached_health = self._cached, self._health
        gathered, health = _gather(self._live)
        families = [*gathered, *_joined([*cached_health, *health]), *self._process.collect()]
        if "application/openmetrics-text" in accept:
            live = _open(families) + _EOF
            body = cached.open_gzip + _zip(live) if compress else cached.open + live
            return body, OPENMETRICS
        live = _plain(families)
        body = cached.plain_gzip + _zip(live) if compress else cached.plain + live
        return body, PLAIN


def _gather(
    collectors: Mapping[str, Callable[[Families], None]],
) -> tuple[list[Family], list[Family]]:
    """Run each collector by itself; return what they made, and how they fared."""
    made: list[Family] = []
    health = Families()
    for name, collect in collectors.items():
        families = Families()
        begun = time.perf_counter()
        try:
            collect(families)
            made += families.families()
            success = 1
        except Exception:
            # Any fault at all: one broken part must not empty the page.
            log.exception("a part of the metrics page failed", collector=name)
            success = 0
        labels = {"collector": name}
        health.add(catalog.COLLECTOR_SUCCESS, labels, success)
        health.add(catalog.COLLECTOR_DURATION, labels, time.perf_counter() - begun)
    return made, health.families()


def _joined(families: Iterable[Family]) -> list[Family]:
    """Put the samples of families with one name under one head."""
    joined: dict[str, Family] = {}
    for family in families:
        known = joined.get(family.name)
        if known is None:
            joined[family.name] = known = Family(
                family.name, family.documentation, family.type, family.unit
            )
        known.samples = [*known.samples, *family.samples]
    return list(joined.values())


class _Fixed(Collector):
    """Families that are ready, in the form that prometheus_client renders."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        return self._families


def _registry(families: Iterable[Family]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(families))
    return registry


def _plain(families: Iterable[Family]) -> bytes:
    return generate_latest(_registry(families))


def _open(families: Iterable[Family]) -> bytes:
    registry = _registry(families)
    text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call] # library
    return text.removesuffix(_EOF)


def _zip(text: bytes) -> bytes:
    # mtime=0: the same page has the same bytes.
    return gzip.compress(text, compresslevel=6, mtime=0)


def _block(families: list[Family]) -> _Block:
    plain, opened = _plain(families), _open(families)
    return _Block(plain, _zip(plain), opened, _zip(opened))
