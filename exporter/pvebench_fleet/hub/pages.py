"""The hub's page and its metrics, as text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from pvebench.log import log
from pvebench.metrics.sample_lines import Families, text_of
from pvebench.model.figure import Metric
from pvebench.model.units import show_bytes, show_seconds
from pvebench.report.html import templates_of
from pvebench.sanitize import printable
from pvebench.verdicts.change_text import change_of
from pvebench_fleet.across_sites import FleetEffect
from pvebench_fleet.hub.fleet_view import (
    SKEW_SECONDS,
    CaseLine,
    Compared,
    NodeLine,
    Overview,
    SiteLine,
    SiteView,
)


def page(overview: Overview, compared: Compared, *, name: str, now: float) -> str:
    """Return the page as HTML; `now` in UNIX seconds, `name` of the hub."""
    waiting = [node for node in overview.nodes if node.unjudged or node.failed]
    worst = [
        (case.site, case.key, f"{case.direction} {case.metric}", _ratio(case.change))
        for case in overview.worst
    ]
    return _rendered(
        "fleet.html",
        name=name,
        compared=compared,
        sites=[*_rows(_site_row, overview.sites, now)],
        waiting=[*_rows(_node_row, waiting, now)],
        worst=worst,
    )


def site_page(view: SiteView, *, now: float) -> str:
    """Return the page of one site as HTML; `now` in UNIX seconds."""
    changes = [(severity, _ago(begin, now), text) for severity, begin, text in view.changes]
    return _rendered(
        "site.html",
        name=view.site.name,
        sites=[_site_row(view.site, now)],
        changes=changes,
        cases=[_case_row(case, now) for case in view.cases],
    )


def _rendered(template: str, **content: object) -> str:
    # Names and texts are a site's: characters that reverse or hide text are no part of a page.
    return printable(_TEMPLATES.get_template(template).render(**content))


def _case_row(case: CaseLine, now: float) -> tuple[str, ...]:
    finished, values = _ago(case.finished, now), _values(case)
    return case.key, finished, case.outcome, values, case.state, _ratio(case.change)


def _values(case: CaseLine) -> str:
    """Return the rates of a run: IOPS, or bandwidth where the tool counts no I/O."""
    found = {number[:2]: value for number, value in case.values.items()}
    rates = {
        way: f"{way} {show_bytes(value)}/s"
        for (name, way), value in found.items()
        if name == "bandwidth"
    }
    rates |= {
        way: f"{way} {value:,.0f} IOPS" for (name, way), value in found.items() if name == "iops"
    }
    return ", ".join(rates.values())


def _ratio(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}"


def _by_site(effect: FleetEffect) -> Iterator[tuple[str, str]]:
    """Yield each site and its change with the confidence interval."""
    for site in effect.sites:
        change = change_of(site.effect, effect.figure)
        low, high = sorted(change_of(end, effect.figure) for end in (site.low, site.high))
        yield site.site, f"{change:+.1%} ({low:+.1%} to {high:+.1%})"


def _ago(time: float | None, now: float) -> str:
    return "never" if not time else f"{show_seconds(max(0.0, now - time))} ago"


def _site_row(site: SiteLine, now: float) -> tuple[str, ...]:
    skew = site.skew or 0.0
    state = site.state + f", clock off by {show_seconds(abs(skew))}" * (abs(skew) > SKEW_SECONDS)
    contact, newest = _ago(site.contact, now), _ago(site.newest_run, now)
    return site.name, state, contact, newest, str(site.runs), str(site.refused), site.worst


def _rows(
    row: Callable[[Any, float], tuple[str, ...]], lines: Iterable[Any], now: float
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each line; what a site sent must not hide the others."""
    for line in lines:
        try:
            yield row(line, now)
        except Exception:
            log.exception("a line of the page failed", line=repr(line)[:300])
            yield getattr(line, "name", "") or line.site, "not shown: see the log of `hub pages`"


def _node_row(node: NodeLine, now: float) -> tuple[str, ...]:
    return node.site, node.node, str(node.unjudged), _ago(node.judged_at, now), node.failed


_TEMPLATES: Final = templates_of("pvebench_fleet")
_TEMPLATES.filters |= {"by_site": _by_site, "quoted": partial(quote, safe="")}

# --- Metrics.


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"pvebench_hub_{name}", "gauge", labels, text)


_SITE, _NODE = ("site",), ("site", "node")
_INFO: Final = _gauge("site_info", ("site", "state"), "State of a site, always 1.")
_OPEN: Final = _gauge("site_open_changes", ("site", "severity"), "Open regressions by severity.")
_OF_SITE: Final[Mapping[Metric, Callable[[SiteLine], float]]] = {
    _gauge(
        "site_contact_timestamp_seconds", _SITE, "Unix time of the last request; 0: never."
    ): lambda site: site.contact or 0.0,
    _gauge(
        "site_newest_run_timestamp_seconds", _SITE, "Unix time of the newest run; 0: none."
    ): lambda site: site.newest_run or 0.0,
    _gauge(
        "site_skew_seconds", _SITE, "Difference of the site's clock to the hub's."
    ): lambda site: site.skew or 0.0,
    _gauge(
        "site_runs_received", _SITE, "Runs and corrections that the hub received."
    ): lambda site: site.runs,
    _gauge("site_refused_lines", _SITE, "Lines that the hub could not store."): lambda site: (
        site.refused
    ),
}
_UNJUDGED: Final = _gauge("node_unjudged_runs", _NODE, "Runs that arrived since the last judging.")
_JUDGED: Final = _gauge(
    "node_judged_timestamp_seconds", _NODE, "Unix time of the last judging; 0: never."
)
_BLAMED: Final = _gauge("blamed_upgrades", (), "Upgrades that made several sites slower.")
_FAILED: Final = _gauge("sites_not_compared", (), "Sites whose data failed in the comparison.")
METRICS: Final = {
    metric.name for metric in (_INFO, _OPEN, *_OF_SITE, _UNJUDGED, _JUDGED, _BLAMED, _FAILED)
}


def metrics(overview: Overview, compared: Compared) -> str:
    """Return the metrics in the text format of Prometheus."""
    families = Families()
    for site in overview.sites:
        labels = {"site": site.name}
        families.add(_INFO, {**labels, "state": site.state}, 1)
        for metric, value in _OF_SITE.items():
            families.add(metric, labels, value(site))
        families.add(_OPEN, {**labels, "severity": "critical"}, site.critical)
        families.add(_OPEN, {**labels, "severity": "warning"}, site.warnings)
    for node in overview.nodes:
        labels = {"site": node.site, "node": node.node}
        families.add(_UNJUDGED, labels, node.unjudged)
        families.add(_JUDGED, labels, node.judged_at)
    families.add(_BLAMED, {}, sum(upgrade.effect.worse for upgrade in compared.upgrades))
    families.add(_FAILED, {}, len(compared.failed))
    return text_of([families])
