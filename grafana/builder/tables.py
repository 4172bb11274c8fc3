"""Table panels in the common style."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from grafana_foundation_sdk.builders import dashboard, prometheus, table
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder import looks
from builder.parts import FALLBACK_REF, described, instant, query, table_query, transformation
from builder.promql import if_empty, label
from pvebench.model.disk import Cache
from pvebench.model.run_metrics import JUDGED

SHORT_PIXELS: Final = 86
NARROW: Final = {"node": SHORT_PIXELS, "direction": SHORT_PIXELS, "metric": 128} | {
    "storage": 120,
    "operation": 140,
}
"""Label -> pixels of its column."""
WIDE: Final = {"description": 240, "configuration": 230, "scenario": 310, "summary": 370}
"""Label -> minimum pixels of its column, so that it is readable on a narrow screen."""
MAX_LETTER_PIXELS: Final = 8
"""Maximum width of a letter of an empty table's text."""
MIN_COLUMN_PIXELS: Final = 110
"""Minimum width of a column without its own; on a narrow screen the table scrolls."""
CASE_LABELS: Final = ("description", "configuration", "storage", "node", "scenario", "workload")
RESULT_LABELS: Final = (*CASE_LABELS, "direction")
"""Labels of tables of cases and of results, in the order of their columns."""
CORNER: Final = "disk by cache mode"
PLACEHOLDER: Final = "nothing"
"""Label of an empty table's text: a separate column has no link and is not cut."""
NAMES: Final = {
    "description": "workload description",
    "pve_version": "PVE",
    "kernel_version": "kernel",
    "qemu_version": "QEMU",
    PLACEHOLDER: "status",
}
"""Label -> title of its column."""


REFS: Final = "ABCDEFGHIJKLM"
"""Letters of the queries of columns."""
TREND: Final = "trend"
"""Prefix of the letters of queries over time, and suffix of their columns."""
TREND_PIXELS: Final = 50
TREND_POINTS: Final = 60
"""More than the pixels of a cell; each costs time in every row."""
Look = Sequence[dashboard_models.DynamicConfigValue]
HIDDEN: Look = [looks.prop("custom.hidden", True)]


def _trend_look(index: int) -> Look:
    line = {"type": "sparkline", "hideValue": True, "fillOpacity": 10}
    return [
        # Grafana 12.4 draws the last one in all columns of the same name; spaces without width.
        looks.prop("displayName", TREND + "\u200b" * index),
        looks.prop("custom.cellOptions", line),
        width(TREND_PIXELS),
        looks.prop("custom.filterable", False),
        looks.prop("color", looks.plain("blue")),
    ]


@dataclass(frozen=True, slots=True)
class Column:
    """One value column of a table.

    Attributes:
        expression: instant query; its labels join the rows.
        state: show the text of a verdict state instead of its number.
        change: the expression is a ratio; show it in percent with its sign, in color.
        coded: the expression is what `coded` returns.
        neutral: neither direction of a change is better.
        wide: width in pixels; 0: as wide as its title.
        trend: expression of another column: a line over the panel's time range.
    """

    title: str
    expression: str
    unit: str = "short"
    decimals: int | None = None
    state: bool = False
    change: bool = False
    coded: bool = False
    neutral: bool = False
    wide: int = 0
    trend: str = ""

    @property
    def query(self) -> str:
        """Return the query to send to Prometheus."""
        percent = self.change and not self.coded
        return f"round(100 * ({self.expression}))" if percent else self.expression

    def look(self) -> Look:
        """Return the column's field properties."""
        # A filter takes 20 pixels of a title; only labels have one.
        properties = [looks.prop("unit", self.unit), looks.prop("custom.filterable", False)]
        properties.append(looks.prop("custom.displayMode", "color-text"))
        if self.decimals is not None:
            properties.append(looks.prop("decimals", self.decimals))
        if self.state:
            properties += looks.rated(looks.STATES, nothing=looks.NO_BASELINE)
        if self.change:
            properties += [
                looks.prop("custom.align", "right"),
                looks.prop("mappings", looks.signed_mappings("–")),
                looks.prop("thresholds", looks.signed_steps(neutral=self.neutral)),
            ]
        pixels = self.wide or max(124 if self.state else SHORT_PIXELS, 8 * len(self.title) + 24)
        return [*properties, width(pixels)]


def width(pixels: int) -> dashboard_models.DynamicConfigValue:
    """Return the width of a column."""
    return looks.prop("custom.width", pixels)


def age_column(seconds: str) -> Column:
    """Return the column of ages."""
    return Column("age", seconds, unit="dtdurations", decimals=0)


def noise_column(ratio: str) -> Column:
    """Return the column of half the width of a 95% CI."""
    return Column("noise ±", ratio, unit="percentunit", decimals=1)


def rows(
    title: str,
    description: str,
    keys: Sequence[str],
    columns: Sequence[Column],
    *,
    sort: str = "",
    descending: bool = True,
    hidden: Sequence[str] = (),
    present: str = "",
    missing: str = "no data before the first run",
    styles: Mapping[str, Look] = MappingProxyType({}),
) -> table.Panel:
    """Return a table: one row per set of `keys`, one column per query.

    Args:
        keys: labels, in the order of their columns; configurations link to the case.
        sort: title of a column.
        hidden: labels without a column.
        present: expression with a result if the table has rows; default: first or last column.
        styles: further properties of columns, by name.
    """
    targets, texts = _targets(columns, present, missing), (title, description)
    built = (
        described(table.Panel(), texts, *targets, unit="short", missing=missing)
        # Grafana's default cell color is green, which implies good.
        .color_scheme(looks.by_steps())
        .thresholds(looks.steps(looks.NEUTRAL))
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .filterable(True)
        .min_width(MIN_COLUMN_PIXELS)
        .transformations(_shaped(keys, columns, hidden, sort=sort, descending=descending))
    )
    if _trends(columns):
        built = built.max_data_points(TREND_POINTS)
    # The text of an empty table is too long for an empty cell.
    built = built.override_by_regexp("/.*/", [looks.prop("noValue", "–")])  # a dash
    empty_pixels = max(MIN_COLUMN_PIXELS, MAX_LETTER_PIXELS * len(missing))
    every_style = [
        *((column.title, column.look()) for column in columns),
        *((f"{columns[i].title}, {TREND}", _trend_look(i)) for i in _trends(columns)),
        (NAMES[PLACEHOLDER], [looks.prop("custom.minWidth", empty_pixels)]),
        *_key_looks(keys),
        *styles.items(),
    ]
    for name, properties in every_style:
        built = built.override_by_name(name, [*properties])
    return built


def _targets(columns: Sequence[Column], present: str, missing: str) -> list[prometheus.Dataquery]:
    queries = [table_query(column.query, ref=REFS[i]) for i, column in enumerate(columns)]
    queries += [query(columns[i].trend, ref=f"{TREND}{REFS[i]}") for i in _trends(columns)]
    # For several empty answers, Grafana 12.4 shows a header and no `noValue`; the color of held
    # values is one. Repeating all queries would cost too much; every row has a value in the first
    # or the last column.
    none = if_empty(present or columns[0].query)
    if not present and len(columns) > 1:
        none += f" unless on () ({columns[-1].query})"
    return [*queries, table_query(label(PLACEHOLDER, missing, none), ref=FALLBACK_REF)]


def _trends(columns: Sequence[Column]) -> list[int]:
    return [i for i, column in enumerate(columns) if column.trend]


def _shaped(
    keys: Sequence[str],
    columns: Sequence[Column],
    hidden: Sequence[str],
    *,
    sort: str,
    descending: bool,
) -> list[dashboard_models.DataTransformerConfig]:
    """Return the transformations that join all query results into one table."""
    # With one query, Grafana names the column `Value`.
    titles = {"Value": columns[0].title}
    for index, column in enumerate(columns):
        titles[f"Value #{REFS[index]}"] = column.title
        if column.trend:
            titles[f"Trend #{TREND}{REFS[index]}"] = f"{column.title}, {TREND}"
    # A scenario's name begins with its storage.
    unshown = ("Time", "__name__", "job", "instance", f"Value #{FALLBACK_REF}", *hidden)
    order = {name: index for index, name in enumerate([PLACEHOLDER, *keys, *titles])}
    shown = {"renameByName": titles | NAMES, "indexByName": order}
    transformations = [
        *(_with_lines() if _trends(columns) else ()),
        transformation("merge"),
        transformation("organize", excludeByName=dict.fromkeys(unshown, True), **shown),
    ]
    if sort:
        by = [{"field": sort, "desc": descending}]
        transformations.append(transformation("sortBy", fields={}, sort=by))
    if changing := [column.title for column in columns if column.change]:
        transformations.append(as_text(*changing))
    return transformations


def _with_lines() -> Iterator[dashboard_models.DataTransformerConfig]:
    """Yield the conversion of series to cells, and a merge of the other queries.

    Grafana 12.4 merges by the columns that all queries have: an empty one has nothing but a time,
    which series do not have as cells.
    """
    for name, pattern in (("merge", "/^[A-Z]$/"), ("timeSeriesTable", f"/^{TREND}/")):
        one = transformation(name)
        one.filter_val = dashboard_models.MatcherConfig(id_val="byRefId", options=pattern)
        yield one


def _key_looks(keys: Sequence[str]) -> Iterator[tuple[str, Look]]:
    """Yield the properties of the labels' columns: name, properties."""
    # Configurations and descriptions are long; all other columns get a fixed width. Without a
    # long column, the storage or the metric takes the remaining width.
    narrow = [key for key in keys if key in NARROW]
    if not {*keys} & WIDE.keys():
        rest = "storage" if "storage" in narrow else "metric"
        narrow = [key for key in narrow if key != rest]
    for name in narrow:
        yield NAMES.get(name, name), [width(NARROW[name])]
    for name in [key for key in keys if key in WIDE]:
        yield NAMES.get(name, name), [looks.prop("custom.minWidth", WIDE[name])]
    if "metric" in keys:
        words = {one.name: (one.noun, "") for one in JUDGED.values()}
        yield "metric", [looks.prop("mappings", looks.values(words))]
    # Descriptions replace slugs, but the links need them.
    if {"description", "configuration"} & {*keys}:
        yield "workload", HIDDEN
    if {"configuration", "scenario"} & {*keys}:
        name = "configuration" if "configuration" in keys else "scenario"
        links = [looks.case_link("__data.fields")]
        if {"storage", "scenario"} <= {*keys}:
            links.append(looks.compare_link("__data.fields", "storage", "scenario"))
        yield name, [looks.prop("links", links)]
        if name == "configuration":
            yield "scenario", HIDDEN


def as_text(*titles: str) -> dashboard_models.DataTransformerConfig:
    """Convert columns to text: only text can show a plus sign."""
    conversions = [{"targetField": title, "destinationType": "string"} for title in titles]
    return transformation("convertFieldType", fields={}, conversions=conversions)


def grid(
    title: str, description: str, expression: str, *, unit: str, missing: str = "no data yet"
) -> table.Panel:
    """Return a table of the disk by its cache mode, colored by value; `missing` must be short."""
    # Neither good nor bad; darker is more.
    mode = dashboard_models.FieldColorModeId.CONTINUOUS_BLUES
    shades = dashboard.FieldColor().mode(mode)
    # Without a row, Grafana 12.4 shows the names of raw columns instead of `noValue`.
    nothing = label("disk", missing, label("cache", PLACEHOLDER))
    cells, texts = table_query(f"{expression} or on () {nothing}"), (title, description)
    return (
        described(table.Panel(), texts, cells, unit=unit, missing=missing)
        # Missing values have no color: the lowest value has the darkest one. That is for zero,
        # not for the minimum: otherwise a single value would be as dark as a missing one.
        .mappings(looks.values({}, nothing=("not measured", looks.UNKNOWN)))
        .min(0)
        .align(models.FieldTextAlignment.RIGHT)
        .display_mode(models.TableCellDisplayMode.COLOR_BACKGROUND)
        .color_scheme(shades)
        # Otherwise every column has 150 pixels, and Grafana cuts off the columns that do not fit.
        .min_width(80)
        .transformations([*by_rows("disk", "cache", CORNER, tuple(Cache))])
        .override_by_name(PLACEHOLDER, [looks.prop("custom.hidden", True)])
        .override_by_name(
            CORNER,
            [
                looks.prop("custom.displayMode", "auto"),
                looks.prop("custom.align", "left"),
                width(180),
            ],
        )
    )


def by_rows(
    row: str, column: str, corner: str, order: Sequence[str] = (), **names: str
) -> Iterator[dashboard_models.DataTransformerConfig]:
    """Yield the transformations to a table of one label by another, sorted by its first column.

    Without `order`, that of the columns differs between tables; `names` are titles of columns.
    """
    first = f"{row}\\{column}"
    empty = {"emptyValue": "null"} if order else {}
    fields = {"rowField": row, "columnField": column, "valueField": "Value #A"}
    yield transformation("groupingToMatrix", **fields, **empty)
    options: dict[str, object] = {"renameByName": {first: corner} | names}
    if order:
        options["indexByName"] = {name: index for index, name in enumerate((first, *order))}
    yield transformation("organize", **options)
    yield transformation("sortBy", fields={}, sort=[{"field": corner, "desc": False}])


def facts(title: str, description: str, expression: str) -> table.Panel:
    """Return the labels of one series as a table of names and values."""
    # Arithmetic removes the metric's name, which is not one of the facts.
    labels, texts = instant(f"1 * {expression}"), (title, description)
    return (
        # A size in bytes stays a whole number.
        described(table.Panel(), texts, labels, unit="none", missing="never measured")
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .transformations([transformation("labelsToFields", mode="rows")])
    )
