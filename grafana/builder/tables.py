"""Tables in the house style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import prometheus, table
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder.looks import (
    UNKNOWN,
    case_link,
    fixed,
    plain,
    prop,
    sequential,
    signed_words,
    state_words,
    values,
)
from builder.parts import DATASOURCE, STANDS_IN, instant, table_query, transformation
from builder.promql import none_of

SHORT_PIXELS: Final = 86
NARROW: Final = {"node": SHORT_PIXELS, "direction": SHORT_PIXELS, "metric": 126, "storage": 120}
"""Label -> pixels of its column."""
LETTER_PIXELS: Final = 8
"""The most that a letter of what stands in an empty table is wide."""
LEAST_PIXELS: Final = 110
"""Of a column that shares what is left: on a narrow screen the table scrolls."""
WIDE: Final = {"description": 250, "configuration": 250, "scenario": 310, "summary": 420}
"""Label -> the least pixels of its column; without them a narrow screen would leave a syllable."""
SO_FAR: Final = "nothing"
"""Label of what stands in an empty table: of its own, so that it is no link and is not cut."""
NAMES: Final = {
    "description": "workload, in words",
    "metric": "figure",
    "pve_version": "PVE",
    "kernel_version": "kernel",
    "qemu_version": "QEMU",
    SO_FAR: "so far",
}
"""Labels -> what their columns are called."""


_Look = list[dashboard_models.DynamicConfigValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One value column of a table.

    Attributes:
        title: of the column; `merge` would call it `Value #A`.
        expression: instant query; its labels join the rows.
        unit: as Grafana spells it.
        words: of the verdict instead of the number.
        gauge: draw a bar in the cell.
        change: the expression is a ratio; show it in per cent with its sign, in colour.
        neutral: of a change: neither direction is the better one.
        wide: how many pixels it gets; 0: what its title needs.
    """

    title: str
    expression: str
    unit: str = "short"
    decimals: int | None = None
    words: bool = False
    gauge: bool = False
    change: bool = False
    neutral: bool = False
    wide: int = 0

    @property
    def asked(self) -> str:
        """What Prometheus is asked."""
        return f"round(100 * ({self.expression}))" if self.change else self.expression

    @property
    def pixels(self) -> int:
        """How wide its title and its filter need it."""
        return self.wide or max(104 if self.words else SHORT_PIXELS, 8 * len(self.title) + 44)

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
                # Else the bar is scaled by the largest value of all columns, such as an age.
                prop("fieldMinMax", True),
                prop("min", 0),
                prop("color", fixed("blue")),
            ]
        if self.change:
            found += [
                prop("custom.displayMode", "color-text"),
                prop("custom.align", "right"),
                prop("mappings", signed_words(neutral=self.neutral, nothing="–")),
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
    hidden: Sequence[str] = (),
    there: str = "",
    missing: str = "none yet",
) -> table.Panel:
    """Return a table: a row for each set of `keys`, a column for each query.

    Args:
        keys: labels, in the order of their columns.
        sort: title of a column.
        linked: the column `setting` leads to the case.
        hidden: labels without a column.
        there: what has an answer where there is a row; default: the first or the last column.
    """
    built = (
        table.Panel()
        .datasource(DATASOURCE)
        .targets([*_targets(columns, there, missing)])
        .title(title)
        .description(description)
        .unit("short")
        .no_value(missing)
        # Grafana's own colour of a cell is green, which judges.
        .color_scheme(plain())
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .filterable(True)
        .min_width(LEAST_PIXELS)
        .transformations(_shaped(keys, columns, hidden, sort=sort, descending=descending))
    )
    # What stands for an empty table is too long for an empty cell.
    built = built.override_by_regexp("/.*/", [prop("noValue", "–")])  # a dash
    looks = [
        *((one.title, _column_look(one)) for one in columns),
        (NAMES[SO_FAR], [prop("custom.minWidth", max(LEAST_PIXELS, LETTER_PIXELS * len(missing)))]),
        *_key_looks(keys, linked=linked),
    ]
    for name, properties in looks:
        built = built.override_by_name(name, properties)
    return built


def _targets(columns: Sequence[Column], there: str, missing: str) -> list[prometheus.Dataquery]:
    asked = [table_query(one.asked, ref=_ref(index)) for index, one in enumerate(columns)]
    if len(columns) == 1:
        return asked
    # Seen in a Grafana 12.4: of several answers without rows it shows a header and no `noValue`.
    # To ask all columns again would cost too much; a row that has neither end is none.
    none = none_of(there or columns[0].asked)
    if not there:
        none += f" unless on () ({columns[-1].asked})"
    words = f'label_replace({none}, "{SO_FAR}", "{missing}", "", "")'
    return [*asked, table_query(words, ref=STANDS_IN)]


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _shaped(
    keys: Sequence[str],
    columns: Sequence[Column],
    hidden: Sequence[str],
    *,
    sort: str,
    descending: bool,
) -> list[dashboard_models.DataTransformerConfig]:
    """Return the steps from the answers of all queries to one table."""
    # With one query Grafana calls the column `Value`, with several `Value #A` and so on.
    shown = {"Value": columns[0].title} | {
        f"Value #{_ref(index)}": column.title for index, column in enumerate(columns)
    }
    done = [
        transformation("merge"),
        transformation(
            "organize",
            # A scenario's name begins with its storage.
            excludeByName=dict.fromkeys(
                ("Time", "__name__", "job", "instance", f"Value #{STANDS_IN}", *hidden), True
            ),
            renameByName=shown | NAMES,
            indexByName={name: index for index, name in enumerate([SO_FAR, *keys, *shown])},
        ),
    ]
    if sort:
        done.append(transformation("sortBy", fields={}, sort=[{"field": sort, "desc": descending}]))
    if changing := [column.title for column in columns if column.change]:
        done.append(as_text(*changing))
    return done


def _column_look(column: Column) -> _Look:
    width = [] if column.gauge else [prop("custom.width", column.pixels)]
    return [*column.properties(), *width]


def _key_looks(keys: Sequence[str], *, linked: bool) -> Iterator[tuple[str, _Look]]:
    """Yield the looks of the labels' columns: name, properties."""
    # Settings and words are long, everything else is short: it gets no more than it needs. Where
    # nothing is long, the storage or the figure takes what is left.
    narrow = [key for key in keys if key in NARROW]
    if not {*keys} & WIDE.keys():
        rest = "storage" if "storage" in narrow else "metric"
        narrow = [key for key in narrow if key != rest]
    for name in narrow:
        yield NAMES.get(name, name), [prop("custom.width", NARROW[name])]
    for name in [key for key in keys if key in WIDE]:
        yield NAMES.get(name, name), [prop("custom.minWidth", WIDE[name])]
    # What words say, nobody has to read as a slug; but the link needs it.
    hide = [prop("custom.hidden", True)]
    if "description" in keys and "workload" in keys:
        yield "workload", hide
    if linked and {"configuration", "scenario"} & {*keys}:
        name = "configuration" if "configuration" in keys else "scenario"
        yield name, [prop("links", [case_link("__data.fields")])]
        if name == "configuration":
            yield "scenario", hide


def as_text(*titles: str) -> dashboard_models.DataTransformerConfig:
    """Make columns text: only text can be given a sign."""
    return transformation(
        "convertFieldType",
        fields={},
        conversions=[{"targetField": title, "destinationType": "string"} for title in titles],
    )


def grid(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    row: str,
    column: str,
    corner: str,
    order: Sequence[str],
) -> table.Panel:
    """Return a table of one label by another, coloured by value.

    Args:
        order: of the columns; else it is that of the answer, another in each table.
    """
    first = f"{row}\\{column}"
    return (
        table.Panel()
        .datasource(DATASOURCE)
        .with_target(table_query(expression))
        .title(title)
        .description(description)
        .unit(unit)
        .no_value("nothing measured yet: it comes with the first run")
        # Without a colour: the lowest value has the darkest one. That is for zero, not for the
        # least: a single value would else be as dark as none.
        .mappings(values({}, nothing=("not measured", UNKNOWN)))
        .min(0)
        .align(models.FieldTextAlignment.RIGHT)
        .display_mode(models.TableCellDisplayMode.COLOR_BACKGROUND)
        .color_scheme(sequential())
        # Else Grafana gives every column 150 pixels, and cuts off what does not fit.
        .min_width(80)
        .transformations(
            [
                transformation(
                    "groupingToMatrix",
                    rowField=row,
                    columnField=column,
                    valueField="Value",
                    emptyValue="null",
                ),
                transformation(
                    "organize",
                    renameByName={first: corner},
                    indexByName={name: index for index, name in enumerate((first, *order))},
                ),
                transformation("sortBy", fields={}, sort=[{"field": corner, "desc": False}]),
            ]
        )
        .override_by_name(
            corner,
            [
                prop("custom.displayMode", "auto"),
                prop("custom.align", "left"),
                prop("custom.width", 200),
            ],
        )
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
