"""Common parts of all dashboards: data source, variables, annotations, links, queries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from builder import promql as q
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "pvebench"


FALLBACK_REF: Final = "Z"
"""Query of a panel with its explanation, which returns a series only if the others return none."""


def _query(expression: str, legend: str, ref: str) -> prometheus.Dataquery:
    built = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(DATASOURCE)
    return built.legend_format(legend) if legend else built


def query(expression: str, *, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return a range query."""
    return _query(expression, legend, ref).range()


def instant(expression: str, *, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return an instant query with one value per series."""
    return _query(expression, legend, ref).instant()


def instants(
    queries: Iterable[tuple[str, str]], refs: str = "ABCDEFG"
) -> list[prometheus.Dataquery]:
    """Return instant queries of pairs of legend and expression."""
    pairs = zip(refs, queries, strict=False)
    return [instant(expression, legend=legend, ref=ref) for ref, (legend, expression) in pairs]


def table_query(expression: str, *, ref: str = "A") -> prometheus.Dataquery:
    """Return an instant query whose labels become columns."""
    return instant(expression, ref=ref).format(PromQueryFormat.TABLE)


def base(
    title: str,
    uid: str,
    description: str,
    *variables: dashboards.QueryVariable | dashboards.CustomVariable,
    since: str = "30d",
    node: str = "$node",
    scenario: str = "($storage)[.].*",
    **marked: str,
) -> dashboards.Dashboard:
    """Return a dashboard without panels, with the common parts and its variables.

    Args:
        node: pattern of the nodes whose software changes are marked; empty: no marks.
        scenario, marked: patterns of labels of the cases whose changes are marked; empty: none.
    """
    # The only board with the same variables is this one.
    year = dashboards.DashboardLink("Last year").url(f"/d/{uid}?from=now-1y&to=now")
    source = dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus")
    # Without variables: `All` of one dashboard is an error in another with a single-value variable.
    # Each board opens on its own range: a week hides what Before/after compares.
    menu = dashboards.DashboardLink("Storage benchmark").tags([TAG]).as_dropdown(True)
    menu = menu.type(models.DashboardLinkType.DASHBOARDS).keep_time(False).include_vars(False)
    built = (
        dashboards.Dashboard(f"Storage benchmark / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time(f"now-{since}", "now")
        .refresh("1m")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(dashboards.DashboardLink("Compare A with B").url("/d/pvebench-compare"))
        .link(menu)
        .link(year.include_vars(True))
        .with_variable(source)
        .with_variable(held_variable())
    )
    for variable in variables:
        built = built.with_variable(variable)
    if not node:
        return built
    cases = {"node": node, "scenario": scenario, **marked}
    new_software = _marks(
        "Software changes",
        "purple",
        q.series(m.ENVIRONMENT_START, node=node),
        "{{node}}: {{environment}}",
        "PVE {{pve_version}}, kernel {{kernel_version}}, QEMU {{qemu_version}}",
    )
    built = built.annotation(new_software)
    if not scenario:
        return built
    return built.annotation(_changes(cases)).annotation(_closed_changes(node))


def _marks(name: str, color: str, times: str, title: str, text: str) -> dashboards.AnnotationQuery:
    """Return marks at the Unix times that are the values of series."""
    mark = dashboards.AnnotationQuery().name(name).icon_color(color).enable(True)
    mark = mark.datasource(DATASOURCE).expr(f"1000 * {times}").use_value_for_time(True)
    return mark.title_format(title).text_format(text).step(f"{q.REGION_STEP}s")


def _changes(cases: dict[str, str]) -> dashboards.AnnotationQuery:
    """Return one region per open change of these cases, from its start on, with its sentence."""
    on_change = "on (job, instance, change)"
    of_cases = f"{q.changes_of(cases['node'])} and {on_change} {q.series(m.CHANGE_CASE, **cases)}"
    joined = f"{q.series(m.CHANGE_SINCE)} * {on_change} group_left (since, summary) ({of_cases})"
    return _marks(
        "Changes", "dark-orange", q.region(q.held(joined)), "since {{since}}", "{{summary}}"
    )


def _closed_changes(node: str) -> dashboards.AnnotationQuery:
    """Return one region per closed change of the nodes, which the board shows on request."""
    info = q.series(m.CLOSED_CHANGE_INFO, node=q.node_list_pattern(node))
    begin, end = (
        q.held(f"{one} * on (job, instance, change) group_left (since, state, summary) {info}")
        for one in (q.series(m.CLOSED_CHANGE_BEGIN), q.series(m.CLOSED_CHANGE_END))
    )
    times = q.region(begin, f"({end} or {begin})")
    # Their cases are not known: they would stand on charts that they did not affect.
    title = "since {{since}}, {{state}}"
    return _marks("Closed changes", "gray", times, title, "{{summary}}").enable(False)


def label_variable(
    name: str,
    label: str,
    *,
    among: str = "",
    multi: bool = False,
    metric: Metric = f.IOPS.metric,
    of: str = "",
    descending: bool = False,
) -> dashboards.QueryVariable:
    """Return a variable over the values of a label.

    Args:
        among: selector that narrows the values, such as `node=~"$node"`.
        descending: the default value is the last in alphabetical order.
    """
    selector = f"{metric.exposed}{{{among}}}" if among else metric.exposed
    sort = models.VariableSort
    order = sort.ALPHABETICAL_DESC if descending else sort.ALPHABETICAL_ASC
    built = query_variable(name, label, f"label_values({selector}, {of or name})")
    return _sorted(built, order, multi=multi)


def _sorted(
    variable: dashboards.QueryVariable, order: models.VariableSort, *, multi: bool
) -> dashboards.QueryVariable:
    variable = variable.sort(order).multi(multi).include_all(multi)
    return variable.all_value(".*") if multi else variable


def query_variable(name: str, label: str, text: str) -> dashboards.QueryVariable:
    """Return a variable over the results of a query in Grafana's own language."""
    return (
        dashboards.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": text, "refId": f"variable-{name}"})
        .definition(text)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def held_variable() -> dashboards.QueryVariable:
    """Return the hidden variable of the moment at which values are read, see `held`."""
    variable = query_variable("held", "Held at", f"query_result({q.held_moment()})")
    variable = variable.hide(models.VariableHide.HIDE_VARIABLE)
    return variable.regex('/held="(?<value>(?<text>[^"]+))"/').multi(False).include_all(False)


def custom_variable(name: str, label: str, choices: dict[str, str]) -> dashboards.CustomVariable:
    """Return a variable with fixed choices, text -> value. The first is the default."""
    text = ",".join(f"{shown} : {value}" for shown, value in choices.items())
    option = models.VariableOption
    options = [option(text=one, value=value, selected=False) for one, value in choices.items()]
    options[0].selected = True
    chosen = option(text=options[0].text, value=options[0].value, selected=True)
    variable = dashboards.CustomVariable(name).label(label).values(text)
    return variable.options(options).current(chosen)


def node_variable(*, multi: bool = True) -> dashboards.QueryVariable:
    """Return the node variable."""
    return label_variable("node", "Node", multi=multi, metric=m.RUN_ATTEMPT_TIMESTAMP)


def storage_variable(*, multi: bool = True) -> dashboards.QueryVariable:
    """Return the storage variable."""
    return label_variable(
        "storage", "Storage", among='node=~"$node"', multi=multi, metric=m.RUN_ATTEMPT_TIMESTAMP
    )


def workload_variable(
    *, multi: bool = False, among: str = 'node=~"$node",storage=~"$storage"'
) -> dashboards.QueryVariable:
    """Return the workload variable: its text is the description, its value the slug."""
    measured = f"{f.IOPS.metric.exposed}{{{among}}}"
    named = (
        f'label_join({m.WORKLOAD_INFO.exposed}, "shown", "  ·  ", "description", "workload") '
        f"and on (job, instance, workload) {measured}"
    )
    text = f"query_result(count by (shown, workload) ({named}))"
    pattern = '/shown="(?<text>[^"]+)".*workload="(?<value>[^"]+)"/'
    built = query_variable("workload", "Workload", text).regex(pattern)
    return _sorted(built, models.VariableSort.ALPHABETICAL_ASC, multi=multi)


_P = TypeVar("_P", stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)


def described(
    panel: _P, texts: tuple[str, str], *targets: prometheus.Dataquery, unit: str, missing: str
) -> _P:
    """Fill in what every panel has: title and description, queries, unit, text without a value."""
    panel = panel.datasource(DATASOURCE).title(texts[0]).description(texts[1])
    return panel.targets([*targets]).unit(unit).no_value(missing)


def transformation(name: str, **options: object) -> models.DataTransformerConfig:
    """Return a transformation of a panel's data."""
    return models.DataTransformerConfig(id_val=name, options=options)
