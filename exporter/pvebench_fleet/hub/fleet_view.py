"""What the sites of a fleet have in common, in sentences: upgrades to blame, and sites behind."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pvebench.log import log
from pvebench.model.environment import KnownIssue
from pvebench.model.units import DAY, count_text, show_bytes, show_seconds
from pvebench.verdicts.change_text import (
    change_of,
    change_text,
    differences_text,
    group_text,
    listed,
)
from pvebench_fleet.across_sites import FleetEffect, fleet_effects
from pvebench_fleet.hub.store.overview import FleetView, Overview

LEAST_SHIFT: Final = 0.005
"""Smallest shift of the other sites that is named; a logarithm."""
SILENT_SECONDS: Final = DAY
"""Time without a request after which a site is silent."""
NO_SITE_SECONDS: Final = 3600.0
"""Time without a request of any site after which the hub itself is to be checked; an idle site asks
every ten minutes."""
SKEW_SECONDS: Final = 300.0
"""Difference of a site's clock that page, `doctor` and alert name."""
BEHIND_SECONDS: Final = 2 * DAY
"""Age of the verdicts of a node with new runs after which judging is behind."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An upgrade to blame, in words.

    Attributes:
        behind: sites that still have the version before.
    """

    effect: FleetEffect
    text: str
    behind: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What sites have in common; `failed`: site -> why its data cannot be compared."""

    upgrades: Sequence[Upgrade] = ()
    issues: Sequence[tuple[KnownIssue, Sequence[str]]] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


def compared(view: FleetView, issues: Sequence[KnownIssue]) -> Compared:
    """Compare the sites; if that fails, those whose data does not fail alone."""
    try:
        return Compared(upgrades=upgrades(view), issues=unfixed(view, issues))
    except Exception as error:
        sites = {*view.effects, *view.facts}
        log.exception("sites cannot be compared", sites=sorted(sites))
        failed = dict.fromkeys(sites, type(error).__name__)
    if len(sites) > 1:
        alone = [compared(_part(view, {site}), issues).failed for site in sorted(sites)]
        failed = {name: text for each in alone for name, text in each.items()} or failed
    rest = compared(_part(view, sites - failed.keys()), issues) if failed else Compared()
    return replace(rest, failed={**failed, **rest.failed})


def _part(view: FleetView, sites: set[str]) -> FleetView:
    return FleetView(
        effects={site: nodes for site, nodes in view.effects.items() if site in sites},
        facts={site: nodes for site, nodes in view.facts.items() if site in sites},
    )


def upgrades(view: FleetView) -> list[Upgrade]:
    """Return the upgrades that changed several sites, the most certain first."""
    found: list[Upgrade] = []
    for effect in fleet_effects(view.effects):
        passed, different = {site_effect.site for site_effect in effect.sites}, effect.difference
        behind = tuple(
            site
            for site, nodes in sorted(view.facts.items())
            if site not in passed
            and any(facts.get(different.fact) == different.before for facts in nodes)
        )
        found.append(Upgrade(effect, sentence(effect, behind), behind))
    return found


def sentence(effect: FleetEffect, behind: Sequence[str] = ()) -> str:
    """Return an effect in words; `behind`: sites that still have the version before."""
    moved, figure = effect.moved, effect.figure
    typical = sum(site_effect.effect for site_effect in moved) / len(moved)
    subject = group_text(effect.group)
    changed = change_text(typical, figure)
    is_rate = figure.name == "throughput"
    begin = f"{subject} is {changed}" if is_rate else f"{changed} for {subject}"
    causes = differences_text((effect.difference, *effect.also))
    text = f"{begin} at {len(moved)} of {len(effect.sites)} sites since {causes}"
    low, high = sorted(change_of(end, figure) for end in (effect.low, effect.high))
    details = [
        f"mean of all sites {change_of(effect.mean, figure):+.1%}",
        f"95% CI {low:+.1%} to {high:+.1%}",
        f"spread between sites {math.expm1(effect.between):.1%}",
        listed([site_effect.site for site_effect in moved]),
    ]
    if effect.others:
        ratio = change_of(effect.shift, figure)
        same = "unchanged" if abs(effect.shift) < LEAST_SHIFT else f"{ratio:+.1%}"
        details.append(f"{count_text(effect.others, 'site')} without it: {same} at that time")
    text = f"{text[0].upper()}{text[1:]} ({'; '.join(details)})"
    return f"{text}. Still to come: {listed(behind)}" if behind else text


def unfixed(view: FleetView, issues: Sequence[KnownIssue]) -> list[tuple[KnownIssue, list[str]]]:
    """Return the known issues that explain changes, and the sites with such versions and storages.

    A type of storage that no fact names is not there.
    """
    found: list[tuple[KnownIssue, list[str]]] = []
    for issue in issues:
        sites = [
            site
            for site, nodes in sorted(view.facts.items())
            if issue.moves
            and any(issue.holds(facts) and _has_storage(issue, facts) for facts in nodes)
        ]
        if sites:
            found.append((issue, sites))
    return found


def _has_storage(issue: KnownIssue, facts: Mapping[str, str]) -> bool:
    types = {value for name, value in facts.items() if re.fullmatch("storage .* type", name)}
    return "plugin" not in issue.options or not types.isdisjoint(issue.options["plugin"])


# --- `pvebench hub doctor`: what is wrong, and the next step.

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
