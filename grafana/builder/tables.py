"""Tables in the house style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder.looks import around_zero, case_link, fixed, prop, sequential, state_words
from builder.parts import DATASOURCE, instant, table_query, transformation

SHORT_PIXELS: Final = 86


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One value column of a table.

    Attributes:
        title: of the column; `merge` would call it `Value #A`.
        expression: instant query; its labels join the rows.
        unit: as Grafana spells it.
        words: of the verdict instead of the number.
        gauge: draw a bar in the cell.
        change: colour it as a change, plus is better.
    """

    title: str
    expression: str
    unit: str = "short"
    decimals: int | None = None
    words: bool = False
    gauge: bool = False
    change: bool = False

    @property
    def pixels(self) -> int:
        """How wide its title and its filter need it."""
        return max(104 if self.words else SHORT_PIXELS, 8 * len(self.title) + 44)

    def properties(self) -> list[dashboard_models.DynamicConfigValue]:
        """Return the column's look."""
        found = [prop("unit", self.unit)]
        if self.decimals is not None:
            found.append(prop("decimals", self.decimals))
        if self.words:
            found += [prop("mappings", state_words()), prop("custom.displayMode", "color-text")]
        if self.gauge:
            found += [
                prop("custom.displayMode", "gradient-gauge"),
                prop("min", 0),
                prop("color", fixed("blue")),
            ]
        if self.change:
            found += [
                prop("custom.displayMode", "color-text"),
                prop("thresholds", around_zero()),
                prop("color", {"mode": "thresholds"}),
                prop("decimals", 1),
            ]
        return found


def rows(
    title: str,
    description: str,
    keys: Sequence[str],
    columns: Sequence[Column],
    *,
    sort: str = "",
    descending: bool = True,
    linked: bool = True,
    missing: str = "none yet",
) -> table.Panel:
    """Return a table: a row for each set of `keys`, a column for each query."""
    targets = [
        table_query(column.expression, ref=chr(ord("A") + index))
        for index, column in enumerate(columns)
    ]
    # With one query Grafana calls the column `Value`, with several `Value #A` and so on.
    shown = {"Value": columns[0].title} | {
        f"Value #{chr(ord('A') + index)}": column.title for index, column in enumerate(columns)
    }
    order = {name: index for index, name in enumerate([*keys, *shown])}
    steps_done = [
        transformation("merge"),
        transformation(
            "organize",
            # A scenario's name begins with its storage.
            excludeByName=dict.fromkeys(("Time", "__name__", "job", "instance"), True)
            | ({"storage": True} if "scenario" in keys and "storage" not in keys else {}),
            renameByName=shown,
            indexByName=order,
        ),
    ]
    if sort:
        steps_done.append(
            transformation("sortBy", fields={}, sort=[{"field": sort, "desc": descending}])
        )
    built = (
        table.Panel()
        .datasource(DATASOURCE)
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit("short")
        .no_value(missing)
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .filterable(True)
        .min_width(60)
        .transformations(steps_done)
    )
    for column in columns:
        properties = column.properties()
        if "scenario" in keys and not column.gauge:
            properties.append(prop("custom.width", column.pixels))
        built = built.override_by_name(column.title, properties)
    if "scenario" in keys:
        # Names of cases are long, everything else is short: it gets no more than it needs.
        for name in ("node", "direction"):
            built = built.override_by_name(name, [prop("custom.width", SHORT_PIXELS)])
    if linked:
        built = built.override_by_name("scenario", [prop("links", [case_link("__data.fields")])])
    return built


def grid(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    row: str = "bus",
    column: str = "cache",
) -> table.Panel:
    """Return a table of one label by another, coloured by value."""
    return (
        table.Panel()
        .datasource(DATASOURCE)
        .with_target(table_query(expression))
        .title(title)
        .description(description)
        .unit(unit)
        .no_value("not measured")
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.COLOR_BACKGROUND)
        .color_scheme(sequential())
        .transformations(
            [
                transformation(
                    "groupingToMatrix", rowField=row, columnField=column, valueField="Value"
                )
            ]
        )
        .override_by_name(f"{row}\\{column}", [prop("custom.displayMode", "auto")])
    )


def facts(title: str, description: str, expression: str) -> table.Panel:
    """Return the labels of one series as a table of name and value."""
    return (
        table.Panel()
        .datasource(DATASOURCE)
        # Arithmetic takes the metric's name off, which is no fact.
        .with_target(instant(f"1 * {expression}"))
        .title(title)
        .description(description)
        .unit("short")
        .no_value("never measured")
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .transformations([transformation("labelsToFields", mode="rows")])
    )
