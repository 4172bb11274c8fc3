"""The hub's page and its metrics, as text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote

from pvebench.log import log
from pvebench.model.judged import Judged
from pvebench.model.units import show_bytes, show_seconds
from pvebench.verdicts.change_text import change_of
from pvebench_fleet.across_sites import SiteEffect
from pvebench_fleet.hub.fleet_view import (
    SKEW_SECONDS,
    CaseLine,
    Compared,
    NodeLine,
    Overview,
    SiteLine,
    SiteView,
)

_STYLE: Final = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3em .8em .3em 0;"
    "border-bottom:1px solid #ccc;vertical-align:top}.bad{color:#b00020}"
)
_SITE_HEAD: Final = (
    *("Site", "State", "Last contact", "Newest run", "Runs", "Refused", "Worst open change"),
)


def page(overview: Overview, compared: Compared, *, name: str, now: float) -> str:
    """Return the page as HTML; `now` in UNIX seconds, `name` of the hub."""
    upgrades = compared.upgrades
    failed = [f"{site} is not compared: {why}" for site, why in compared.failed.items()]
    worse = [upgrade.text for upgrade in upgrades if upgrade.effect.worse]
    body = [
        f"<h1>{escape(name)}</h1>",
        "<h2>Upgrades</h2>",
        *(f"<p class=bad>{escape(text)}</p>" for text in (*failed, *worse)),
        *(f"<p>{escape(upgrade.text)}</p>" for upgrade in upgrades if not upgrade.effect.worse),
        *([] if upgrades else ["<p>No upgrade changed several sites.</p>"]),
        *_sections(overview, compared, now),
    ]
    return _html(name, body)


def _html(title: str, body: Iterable[str]) -> str:
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>"


def site_page(view: SiteView, *, now: float) -> str:
    """Return the page of one site as HTML; `now` in UNIX seconds."""
    changes = [(severity, _ago(begin, now), text) for severity, begin, text in view.changes]
    cases = [
        (
            case.key,
            _ago(case.finished, now),
            case.outcome,
            _values(case),
            case.state,
            _ratio(case.change),
        )
        for case in view.cases
    ]
    head = ("Case", "Newest run", "Outcome", "Newest good values", "Verdict", "Change")
    body = [
        "<p><a href='/'>All sites</a></p>",
        f"<h1>{escape(view.site.name)}</h1>",
        _table(_SITE_HEAD, [_site_row(view.site, now)]),
        "<h2>Open changes</h2>",
        _table(("Severity", "Since", "Change"), changes) if changes else "<p>None.</p>",
        "<h2>Newest results</h2>",
        _table(head, cases) if cases else "<p>None: no run was judged yet.</p>",
    ]
    return _html(view.site.name, body)


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


def _sections(overview: Overview, compared: Compared, now: float) -> Iterator[str]:
    for upgrade in compared.upgrades:
        rows = [(site.site, _change(site, upgrade.effect.figure)) for site in upgrade.effect.sites]
        version = f"{upgrade.effect.difference.fact} {upgrade.effect.difference.after}"
        yield f"<h3>{escape(version)} by site</h3>" + _table(("Site", "Change (95% CI)"), rows)
    yield "<h2>Sites</h2>" + _table(_SITE_HEAD, _rows(_site_row, overview.sites, now))
    waiting = [node for node in overview.nodes if node.unjudged or node.failed]
    if waiting:
        columns = ("Site", "Node", "Runs to judge", "Last judged", "Error")
        yield "<h2>Judging</h2>" + _table(columns, _rows(_node_row, waiting, now))
    if overview.worst:
        cases = [
            (case.site, case.key, f"{case.direction} {case.metric}", f"{case.change:+.1%}")
            for case in overview.worst
        ]
        yield "<h2>Slowest against their baseline</h2>" + _table(
            ("Site", "Case", "Metric", "Change"), cases
        )
    if compared.issues:
        issues = [(issue.id, issue.title, ", ".join(sites)) for issue, sites in compared.issues]
        yield "<h2>Known issues</h2>" + _table(("Issue", "Effect", "Sites"), issues)


def _change(effect: SiteEffect, figure: Judged) -> str:
    change = change_of(effect.effect, figure)
    low, high = sorted(change_of(end, figure) for end in (effect.low, effect.high))
    return f"{change:+.1%} ({low:+.1%} to {high:+.1%})"


def _ago(time: float | None, now: float) -> str:
    return "never" if not time else f"{show_seconds(max(0.0, now - time))} ago"


def _site_row(site: SiteLine, now: float) -> tuple[str, ...]:
    skew = site.skew or 0.0
    state = site.state + f", clock off by {show_seconds(abs(skew))}" * (abs(skew) > SKEW_SECONDS)
    contact, newest = _ago(site.contact, now), _ago(site.newest_run, now)
    link = _Link(site.name)
    return link, state, contact, newest, str(site.runs), str(site.refused), site.worst


def _rows(
    row: Callable[[Any, float], tuple[str, ...]], found: Iterable[Any], now: float
) -> Iterator[tuple[str, ...]]:
    for one in found:
        try:
            yield row(one, now)
        except Exception:
            log.exception("a line of the page failed", line=repr(one)[:300])
            yield getattr(one, "name", "") or one.site, "not shown: see the log of `hub pages`"


class _Link(str):
    """Name of a site, which leads to its page."""

    __slots__ = ()


def _node_row(node: NodeLine, now: float) -> tuple[str, ...]:
    return node.site, node.node, str(node.unjudged), _ago(node.judged_at, now), node.failed


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{escape(text)}</th>" for text in head)]
    lines += ["".join(f"<td>{_cell(text)}</td>" for text in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _cell(text: str) -> str:
    shown = escape(text)
    is_link = isinstance(text, _Link)
    return f"<a href='/sites/{quote(text, safe='')}'>{shown}</a>" if is_link else shown


# --- Metrics.

METRICS: Final = {
    "pvebench_hub_site_info": "State of a site, always 1.",
    "pvebench_hub_site_contact_timestamp_seconds": "Unix time of the last request; 0: never.",
    "pvebench_hub_site_newest_run_timestamp_seconds": "Unix time of the newest run; 0: none.",
    "pvebench_hub_site_skew_seconds": "Difference of the site's clock to the hub's.",
    "pvebench_hub_site_runs_received": "Runs and corrections that the hub received.",
    "pvebench_hub_site_refused_lines": "Lines that the hub could not store.",
    "pvebench_hub_site_open_changes": "Open regressions by severity.",
    "pvebench_hub_node_unjudged_runs": "Runs that arrived since the last judging.",
    "pvebench_hub_node_judged_timestamp_seconds": "Unix time of the last judging; 0: never.",
    "pvebench_hub_blamed_upgrades": "Upgrades that made several sites slower.",
    "pvebench_hub_sites_not_compared": "Sites whose data failed in the comparison.",
}
"""Metric -> help; all are gauges."""


def metrics(overview: Overview, compared: Compared) -> str:
    """Return the metrics in the text format of Prometheus."""
    lines: dict[str, list[str]] = {name: [] for name in METRICS}

    def add(name: str, value: float, **labels: str) -> None:
        shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        lines[f"pvebench_hub_{name}"].append(f"{{{shown}}} {value!r}" if shown else f" {value!r}")

    for site in overview.sites:
        add("site_info", 1, site=site.name, state=site.state)
        add("site_contact_timestamp_seconds", site.contact or 0.0, site=site.name)
        add("site_newest_run_timestamp_seconds", site.newest_run or 0.0, site=site.name)
        add("site_skew_seconds", site.skew or 0.0, site=site.name)
        add("site_runs_received", site.runs, site=site.name)
        add("site_refused_lines", site.refused, site=site.name)
        add("site_open_changes", site.critical, site=site.name, severity="critical")
        add("site_open_changes", site.warnings, site=site.name, severity="warning")
    for node in overview.nodes:
        add("node_unjudged_runs", node.unjudged, site=node.site, node=node.node)
        add("node_judged_timestamp_seconds", node.judged_at, site=node.site, node=node.node)
    add("blamed_upgrades", sum(upgrade.effect.worse for upgrade in compared.upgrades))
    add("sites_not_compared", len(compared.failed))
    text = [
        f"# HELP {name} {METRICS[name]}\n# TYPE {name} gauge\n"
        + "".join(f"{name}{line}\n" for line in found)
        for name, found in lines.items()
    ]
    return "".join(text)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
