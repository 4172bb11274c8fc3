"""What the hub's page and metrics show: sites, nodes, worst cases, effects; values and queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pvebench.analysis.change import FactDifference
from pvebench_fleet.node_effects import NodeEffect

if TYPE_CHECKING:
    from pvebench_fleet.hub.store.site_transaction import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Everything that is judged, at a moment.

    Attributes:
        effects: site -> effects of each of its nodes.
        facts: site -> facts of the present environment of each of its nodes.
    """

    effects: Mapping[str, Sequence[Sequence[NodeEffect]]] = field(default_factory=dict)
    facts: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLine:
    """State of a site; times in UNIX seconds, None: never.

    Attributes:
        skew: seconds that the site's clock is ahead.
        newest_run: end of the newest run that arrived.
        critical, warnings: number of open regressions; `worst`: sentence of the worst one.
    """

    name: str
    state: str
    contact: float | None
    skew: float | None
    newest_run: float | None
    runs: int
    refused: int
    critical: int
    warnings: int
    worst: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """State of the judging of a node; `judged_at` in UNIX seconds, 0: never."""

    site: str
    node: str
    unjudged: int
    judged_at: float
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """Case with a confirmed loss; `change`: a ratio."""

    site: str
    node: str
    key: str
    direction: str
    metric: str
    state: str
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Sites, their nodes, and the worst cases of all."""

    sites: Sequence[SiteLine] = ()
    nodes: Sequence[NodeLine] = ()
    worst: Sequence[WorstCase] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLine:
    """Newest run of a case, and its worst verdict about throughput; `finished` in UNIX seconds.

    Attributes:
        values: numbers of its newest successful run: (metric, direction, part, unit) -> value.
        state: of the verdict; empty: none. `change`: a ratio; None: unknown.
    """

    key: str
    finished: float
    outcome: str
    values: Mapping[tuple[str, ...], float]
    state: str
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteView:
    """One site: its open changes, worst first, and the newest runs of its cases."""

    site: SiteLine
    changes: Sequence[tuple[str, float, str]]
    cases: Sequence[CaseLine]


WORST: Final = 20
"""Cases in the list of the worst."""
CHANGES: Final = 50
CASES: Final = 200
"""Open changes, and newest runs of cases, on the page of a site."""
_SITES: Final = """
SELECT s.name, s.state, s.contact, s.skew_seconds AS skew, s.newest_run,
    (SELECT coalesce(sum(count), 0) FROM arrived a WHERE a.site = s.site)::bigint AS runs,
    (SELECT count(*) FROM refused f WHERE f.site = s.site) AS refused,
    (SELECT count(*) FROM change c WHERE c.site = s.site AND c.state = 'open' AND c.regression
        AND c.severity = 'critical') AS critical,
    (SELECT count(*) FROM change c WHERE c.site = s.site AND c.state = 'open' AND c.regression
        AND c.severity <> 'critical') AS warnings,
    coalesce((SELECT data->>'text' FROM change c WHERE c.site = s.site AND c.state = 'open'
        AND c.regression ORDER BY c.severity = 'critical' DESC, c.change_ratio LIMIT 1), '')
    AS worst
FROM site s WHERE s.state <> 'forgotten' ORDER BY s.name
"""
_NODES: Final = """
SELECT s.name AS site, a.node, a.count - coalesce(n.judged, 0) AS unjudged,
    coalesce(n.judged_at, 0) AS judged_at, coalesce(n.failed, '') AS failed
FROM arrived a JOIN site s USING (site) LEFT JOIN node_state n USING (site, node)
WHERE s.state <> 'forgotten' ORDER BY 1, 2
"""
_WORST: Final = """
SELECT s.name AS site, v.node, c.key, v.direction, v.metric, v.state, v.change_ratio AS change
FROM verdict v JOIN site s USING (site) JOIN "case" c USING (case_id)
WHERE v.state IN ('slower', 'gradually_slower') AND v.metric = 'throughput'
ORDER BY v.change_ratio LIMIT %s
"""
_CHANGES: Final = """
SELECT c.severity, c.begin, c.data->>'text' AS text FROM change c JOIN site s USING (site)
WHERE s.name = %s AND c.state = 'open'
ORDER BY c.regression DESC, c.severity = 'critical' DESC, c.change_ratio LIMIT %s
"""
_CASES: Final = """
SELECT c.key, t.finished, t.outcome, h.numbers, t.good_vals, coalesce(v.state, '') AS state,
    v.change_ratio AS change
FROM case_state t JOIN "case" c USING (case_id) JOIN site s ON s.site = t.site
LEFT JOIN shape h ON h.shape = t.good_shape
LEFT JOIN LATERAL (SELECT state, change_ratio FROM verdict v WHERE v.site = t.site
    AND v.node = c.node AND v.case_id = t.case_id AND metric = 'throughput'
    ORDER BY change_ratio LIMIT 1) v ON true
WHERE s.name = %s ORDER BY t.finished DESC, c.key LIMIT %s
"""
_FACTS: Final = """
SELECT DISTINCT ON (s.name, c.node) s.name, e.facts
FROM case_state t JOIN "case" c USING (case_id) JOIN site s ON s.site = t.site
JOIN environment e ON e.env = t.env ORDER BY s.name, c.node, t.finished DESC
"""
_EFFECTS: Final = """
SELECT s.name, f.node, f.at, f.differences, f.metric, f.labels, f.effect, f.error, f.own, f.cases
FROM effect f JOIN site s USING (site) ORDER BY f.site, f.node, f.place
"""


def read_overview(connection: Connection) -> Overview:
    """Return sites, nodes and the worst cases."""
    return Overview(
        sites=[SiteLine(**row) for row in connection.execute(_SITES.encode())],
        nodes=[NodeLine(**row) for row in connection.execute(_NODES.encode())],
        worst=[WorstCase(**row) for row in connection.execute(_WORST.encode(), (WORST,))],
    )


def read_site_view(name: str, connection: Connection) -> SiteView | None:
    """Return a site with its open changes and newest runs; None: the role sees no such site."""
    sites = [SiteLine(**row) for row in connection.execute(_SITES.encode())]
    site = next((one for one in sites if one.name == name), None)
    if site is None:
        return None
    changes = connection.execute(_CHANGES.encode(), (name, CHANGES))
    return SiteView(
        site=site,
        changes=[(row["severity"], row["begin"], row["text"]) for row in changes],
        cases=[_case(row) for row in connection.execute(_CASES.encode(), (name, CASES))],
    )


def _case(row: dict[str, Any]) -> CaseLine:
    numbers = map(tuple, row.pop("numbers") or ())
    values = dict(zip(numbers, row.pop("good_vals") or (), strict=True))
    return CaseLine(values=values, **row)


def read_fleet_view(connection: Connection) -> FleetView:
    """Return the effects of upgrades at all sites, and their present versions."""
    facts: dict[str, list[dict[str, str]]] = {}
    for row in connection.execute(_FACTS.encode()):
        facts.setdefault(row["name"], []).append(row["facts"])
    effects: dict[str, dict[str, list[NodeEffect]]] = {}
    for row in connection.execute(_EFFECTS.encode(), binary=True):
        nodes = effects.setdefault(row["name"], {})
        nodes.setdefault(row["node"], []).append(_effect(row))
    return FleetView(
        effects={site: [*nodes.values()] for site, nodes in effects.items()}, facts=facts
    )


def _effect(row: dict[str, Any]) -> NodeEffect:
    pairs: Iterable[list[str]] = row["labels"]
    return NodeEffect(
        time=row["at"],
        differences=tuple(FactDifference(*item) for item in row["differences"]),
        figure=row["metric"],
        group=tuple((key, value) for key, value in pairs),
        effect=row["effect"],
        error=row["error"],
        own=row["own"],
        cases=row["cases"],
    )
