"""`pvebench hub doctor`: what is wrong with the hub, and the next step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from pvebench.model.units import show_bytes, show_seconds
from pvebench_fleet.hub.fleet_view import (
    BEHIND_SECONDS,
    NO_SITE_SECONDS,
    SILENT_SECONDS,
    SKEW_SECONDS,
    Overview,
)

Level = Literal["ok", "warning", "critical"]
Finding = tuple[Level, str]
LEAST_VERSION: Final = 150000
_DURABLE: Final = {"fsync": {"on"}, "full_page_writes": {"on"}}
_COMMITS: Final = {"synchronous_commit": {"on", "remote_apply", "remote_write", "local"}}


def findings(overview: Overview, settings: Mapping[str, str], now: float) -> Iterator[Finding]:
    """Yield what was checked; `now` in UNIX seconds."""
    number = int(settings["server_version_num"])
    new = number >= LEAST_VERSION
    level: Level = "ok" if new else "critical"
    yield level, f"PostgreSQL {number // 10000}" + ("" if new else ": needs 15 or later")
    for name, allowed in (_DURABLE | _COMMITS).items():
        if settings[name] not in allowed:
            yield "critical", f"{name} is {settings[name]}: a crash loses results; set it to on"
    size = show_bytes(int(settings["bytes"]))
    yield "ok", f"database: {size}, {sum(site.runs for site in overview.sites)} runs received"
    if int(settings["odd_runs"]):
        text = f"{settings['odd_runs']} runs with a time before 2020"
        yield "warning", f"{text}: check the clocks of the sites"
    found = [*_sites(overview, now), *_nodes(overview, now)]
    yield from found
    if not found:
        yield "ok", f"{len(overview.sites)} sites, {len(overview.nodes)} nodes"


def _sites(overview: Overview, now: float) -> Iterator[Finding]:
    newest = max((site.contact for site in overview.sites if site.contact is not None), default=now)
    if now - newest > NO_SITE_SECONDS:
        text = f"no site connected for {show_seconds(now - newest)}"
        yield "critical", f"{text}: check that `pvebench hub serve` runs and that sites reach it"
    for site in overview.sites:
        if site.state == "held":
            text = "select its process with `pvebench hub sites hold --keep`"
            yield "critical", f"{site.name} is held: {text}"
        if site.contact is None:
            yield "warning", f"{site.name} never connected: check `fleet` in its settings"
        elif now - site.contact > SILENT_SECONDS:
            silent = show_seconds(now - site.contact)
            yield "warning", f"{site.name} silent for {silent}: run `pvebench fleet status` there"
        if abs(site.skew or 0.0) > SKEW_SECONDS:
            off = show_seconds(abs(site.skew or 0.0))
            yield "warning", f"{site.name}: clock off by {off}: check NTP there"
        if site.refused:
            text = f"{site.refused} lines refused: see table `refused`"
            yield "warning", f"{site.name}: {text}"


def _nodes(overview: Overview, now: float) -> Iterator[Finding]:
    for node in overview.nodes:
        place = f"{node.site}, {node.node}"
        if node.failed:
            yield "critical", f"{place}: judging failed: {node.failed}; see the log of `hub judge`"
        elif node.unjudged and now - node.judged_at > BEHIND_SECONDS:
            age = show_seconds(now - node.judged_at)
            text = f"not judged for {age}" if node.judged_at else "never judged"
            yield "warning", f"{place}: {text}: start more `pvebench hub judge`"
