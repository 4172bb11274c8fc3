"""Pieces that all dashboards share: data source, variables, queries, colours, links."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from pvebench.metrics.catalog import CATALOG, IOPS, Metric

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "pvebench"


def query(expression: str, *, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return a range query."""
    built = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(DATASOURCE).range()
    return built.legend_format(legend) if legend else built


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


def instant(expression: str, *, legend: str, ref: str = "A") -> prometheus.Dataquery:
    """Return an instant query with one value for each series."""
    return (
        prometheus.Dataquery()
        .expr(expression)
        .ref_id(ref)
        .datasource(DATASOURCE)
        .instant()
        .legend_format(legend)
    )


def series(metric: Metric, **matchers: str) -> str:
    """Return a selector on `metric`; each matcher's value is a regular expression.

    Raises:
        KeyError: the catalogue's metric has no such label, so the panel would stay empty.
    """
    assert CATALOG[metric.name] is metric  # noqa: S101 # a metric from elsewhere is a mistake
    for label in matchers:
        if label not in metric.labels:
            raise KeyError(f"{metric.name} has no label {label}")
    inside = ",".join(f'{label}=~"{value}"' for label, value in matchers.items())
    return f"{metric.exposed}{{{inside}}}"


def base(title: str, uid: str, description: str) -> dashboards.Dashboard:
    """Return an empty dashboard with what all have in common."""
    return (
        dashboards.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time("now-24h", "now")
        .refresh("1m")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(
            dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )


def label_variable(
    name: str, label: str, *, among: str = "", multi: bool = False
) -> dashboards.QueryVariable:
    """Return a variable over the values that a label of the results has.

    Args:
        among: selector that narrows the values, such as `node=~"$node"`.
        multi: several values and All; else one.
    """
    text = f"label_values({IOPS.name}{{{among}}}, {name})"
    built = (
        dashboards.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": text, "refId": f"variable-{name}"})
        .definition(text)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(multi)
        .include_all(multi)
    )
    return built.all_value(".+") if multi else built


def place(x: int, y: int, width: int, height: int) -> models.GridPos:
    """Return a panel's place on the 24-column grid."""
    return models.GridPos(x=x, y=y, w=width, h=height)


def transformation(name: str, **options: object) -> models.DataTransformerConfig:
    """Return a transformation of a panel's data."""
    return models.DataTransformerConfig(id_val=name, options=options)
