"""Common parts of all dashboards: data source, variables, annotations, links, queries."""

from __future__ import annotations

from functools import reduce
from typing import Final, Protocol, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from builder.promql import (
    REGION_STEP,
    changes_of,
    held,
    held_moment,
    node_list_pattern,
    region,
    series,
)
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "pvebench"


def query(expression: str, *, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return a range query."""
    built = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(DATASOURCE).range()
    return built.legend_format(legend) if legend else built


FALLBACK_REF: Final = "Z"
"""Query of a panel with its explanation, which returns a series only if the others return none."""


def table_query(expression: str, *, ref: str = "A") -> prometheus.Dataquery:
    """Return an instant query whose labels become columns."""
    return (
        prometheus.Dataquery()
        .expr(expression)
        .ref_id(ref)
        .datasource(DATASOURCE)
        .instant()
        .format(PromQueryFormat.TABLE)
    )


def instant(expression: str, *, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return an instant query with one value per series."""
    built = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(DATASOURCE).instant()
    return built.legend_format(legend) if legend else built


def base(
    title: str,
    uid: str,
    description: str,
    *,
    since: str = "30d",
    node: str = "$node",
    scenario: str = "($storage)[.].*",
    **marked: str,
) -> dashboards.Dashboard:
    """Return an empty dashboard with the common parts.

    Args:
        since: default time range, as Grafana writes it: `30d`.
        node: pattern of the nodes whose software changes are marked; empty: no marks.
        scenario, marked: patterns of labels of the cases whose changes are marked.
    """
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
        .link(_dashboard_menu())
        # The only board with the same variables is this one.
        .link(
            dashboards.DashboardLink("Last year")
            .url(f"/d/{uid}?from=now-1y&to=now")
            .include_vars(True)
        )
        .with_variable(
            dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(held_variable())
    )
    if not node:
        return built
    cases = {"node": node, "scenario": scenario, **marked}
    marks = (_environment_changes(node), _changes(cases), _closed_changes(node))
    return reduce(lambda board, mark: board.annotation(mark), marks, built)


def _dashboard_menu() -> dashboards.DashboardLink:
    # Without variables: `All` of one dashboard is an error in another with a single-value variable.
    return (
        dashboards.DashboardLink("Storage benchmark")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        # Each board opens on its own range: a week hides what Before/after compares.
        .keep_time(False)
        .include_vars(False)
    )


def _environment_changes(node: str) -> dashboards.AnnotationQuery:
    """Return one marker per new environment."""
    return _marks(
        "Software changes",
        "purple",
        series(m.ENVIRONMENT_START, node=node),
        "{{node}}: {{environment}}",
        "PVE {{pve_version}}, kernel {{kernel_version}}, QEMU {{qemu_version}}",
    )


def _marks(name: str, color: str, times: str, title: str, text: str) -> dashboards.AnnotationQuery:
    """Return marks at the Unix times that are the values of series."""
    return (
        dashboards.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(color)
        .expr(f"1000 * {times}")
        .use_value_for_time(True)
        .title_format(title)
        .text_format(text)
        .step(f"{REGION_STEP}s")
    )


def _changes(cases: dict[str, str]) -> dashboards.AnnotationQuery:
    """Return one region per open change of these cases, from its start on, with its sentence."""
    on_change = "on (job, instance, change)"
    of_cases = f"{changes_of(cases['node'])} and {on_change} {series(m.CHANGE_CASE, **cases)}"
    began = series(m.CHANGE_SINCE)
    joined = f"{began} * {on_change} group_left (since, summary) ({of_cases})"
    return _marks("Changes", "dark-orange", region(held(joined)), "since {{since}}", "{{summary}}")


def _closed_changes(node: str) -> dashboards.AnnotationQuery:
    """Return one region per closed change of the nodes, which the board shows on request."""
    info = series(m.CLOSED_CHANGE_INFO, node=node_list_pattern(node))
    begin, end = (
        held(f"{one} * on (job, instance, change) group_left (since, state, summary) {info}")
        for one in (series(m.CLOSED_CHANGE_BEGIN), series(m.CLOSED_CHANGE_END))
    )
    times = region(begin, f"({end} or {begin})")
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
        multi: allow several values and All.
        of: the label; default: the name of the variable.
        descending: the default value is the last in alphabetical order.
    """
    selector = f"{metric.exposed}{{{among}}}" if among else metric.exposed
    order = (
        models.VariableSort.ALPHABETICAL_DESC
        if descending
        else models.VariableSort.ALPHABETICAL_ASC
    )
    built = query_variable(name, label, f"label_values({selector}, {of or name})")
    built = built.sort(order).multi(multi).include_all(multi)
    return built.all_value(".*") if multi else built


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
    variable = query_variable("held", "Held at", f"query_result({held_moment()})")
    variable = variable.hide(models.VariableHide.HIDE_VARIABLE)
    return variable.regex('/held="(?<value>(?<text>[^"]+))"/').multi(False).include_all(False)


def custom_variable(name: str, label: str, choices: dict[str, str]) -> dashboards.CustomVariable:
    """Return a variable with fixed choices, text -> value. The first is the default."""
    text = ",".join(f"{shown} : {value}" for shown, value in choices.items())
    options = [
        models.VariableOption(text=shown, value=value, selected=index == 0)
        for index, (shown, value) in enumerate(choices.items())
    ]
    return (
        dashboards.CustomVariable(name)
        .label(label)
        .values(text)
        .options(options)
        .current(models.VariableOption(text=options[0].text, value=options[0].value, selected=True))
    )


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
    built = query_variable("workload", "Workload", text).regex(
        '/shown="(?<text>[^"]+)".*workload="(?<value>[^"]+)"/'
    )
    built = built.sort(models.VariableSort.ALPHABETICAL_ASC).multi(multi).include_all(multi)
    return built.all_value(".*") if multi else built


def scenario_variable() -> dashboards.QueryVariable:
    """Return the scenario variable."""
    among = 'node=~"$node",storage=~"$storage"'
    return label_variable("scenario", "Configuration", among=among, multi=True)


_P = TypeVar(
    "_P",
    bargauge.Panel,
    stat.Panel,
    statetimeline.Panel,
    table.Panel,
    timeseries.Panel,
    xychart.Panel,
)


def described(
    panel: _P, texts: tuple[str, str], *targets: prometheus.Dataquery, unit: str, missing: str
) -> _P:
    """Fill in what every panel has: title and description, queries, unit, text without a value."""
    panel = panel.datasource(DATASOURCE).title(texts[0]).description(texts[1])
    return panel.targets([*targets]).unit(unit).no_value(missing)


def place(x: int, y: int, width: int, height: int) -> models.GridPos:
    """Return a panel's position on the 24-column grid."""
    return models.GridPos(x=x, y=y, w=width, h=height)


class _Panel(Protocol):
    def grid_pos(self, grid_pos: models.GridPos) -> Builder[models.Panel]: ...


def collapsed(title: str, y: int, *panels: _Panel, height: int = 8) -> dashboards.Row:
    """Return a collapsed row with panels side by side."""
    row = dashboards.Row(title).collapsed(True).grid_pos(place(0, y, 24, 1))
    width = 24 // len(panels)
    for index, panel in enumerate(panels):
        row = row.with_panel(panel.grid_pos(place(width * index, y + 1, width, height)))
    return row


def transformation(name: str, **options: object) -> models.DataTransformerConfig:
    """Return a transformation of a panel's data."""
    return models.DataTransformerConfig(id_val=name, options=options)
