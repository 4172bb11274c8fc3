"""`pvebench results`: stored runs, tables and comparisons with reference series."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import click
from rich.table import Table

from pvebench.cli.options import format_option, make_console, read_settings, settings_options
from pvebench.cli.progress import result_text
from pvebench.cli.selection import (
    Selection,
    reference_option,
    reference_series_of,
    relative_option,
    results_of,
    runs_of,
    selection_settings,
)
from pvebench.config import Settings
from pvebench.errors import StoreError
from pvebench.model.definition import Definition
from pvebench.model.run import Outcome
from pvebench.model.scenario import LINUX
from pvebench.report.table import ResultRow, csv_text, of_pass, result_rows
from pvebench.store.live_results import LiveResults, View
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.fastest_text import NOT_COUNTED, level_text, operation_lines
from pvebench.verdicts.ranking import (
    LEAST_RUNS,
    emulated_in,
    exclusion_of,
    gap_between,
    level_of,
    shown_definitions,
    totals,
)


@click.command()
@settings_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--not-ok", is_flag=True, help="Only runs with another outcome than ok.")
@click.option(
    "--pass", "pass_number", type=click.IntRange(min=1), help="Only this pass of a cycle."
)
@click.option("--run", "number", type=int, help="One run with its evidence.")
@click.option("--delete", "removed", type=int, metavar="RUN", help="Delete a run.")
@reference_option
@relative_option
@format_option("csv")
def results(number: int | None, removed: int | None, **options: Any) -> None:
    """Show stored results, newest first, or a table of all cases."""
    view = _View(*(options.pop(name) for name in _View.__dataclass_fields__))
    settings, pack = selection_settings(**options)
    if removed is not None:
        if number is not None or view.as_table or view.not_ok or view.pass_number:
            raise click.UsageError("use --delete without options that show runs")
        _delete(settings, removed)
        return
    with results_of(settings) as store:
        if number is not None:
            _show_run(store, number)
        elif view.as_table:
            series = reference_series_of(settings, pack, view.reference)
            runs = view.chosen(runs_of(store, pack))
            relative = view.relative_to or pack.relative_to
            _show_table(
                result_rows(runs, series, relative, LiveResults(store).now.durability), view
            )
        else:
            _show_runs(store, pack, view)


def _show_runs(store: Store, pack: Selection, view: _View) -> None:
    """Print runs, then the effects of operations, and devices."""
    if pack.name or view.pass_number:
        runs = view.chosen(runs_of(store, pack))
        runs = [run for run in runs if not (view.not_ok and run.outcome is Outcome.OK)]
        runs = runs[: view.limit]
    else:
        runs = store.runs(limit=view.limit, not_ok=view.not_ok)
    if view.form == "json":
        from pvebench.web.api import run_data  # noqa: PLC0415 # slow import, unneeded for other output

        click.echo(json.dumps([run_data(run) for run in runs], indent=2))
        return
    _print_results(runs)
    good = (run for run in runs if run.outcome.good)
    devices = (f"{place}: {text}" for place, text in store.identities.devices().items() if text)
    for line in (*operation_lines(good, emulated_in(store.periods())), *devices):
        click.echo(line)


def _delete(settings: Settings, number: int) -> None:
    """Delete a run while no instance uses the database. Raises StoreError if it does not exist."""
    with results_of(settings, write=True) as store:
        run = _stored(store, number)
        store.delete(run)
        sent = "; the hub of the fleet keeps it" if store.in_fleet else ""
    click.echo(
        f"deleted run {number}: {run.scenario}/{run.workload} of {run.finished:%Y-%m-%d}{sent}"
    )


@dataclass(frozen=True, slots=True)
class _View:
    """Options that select what to show, by their names."""

    limit: int
    not_ok: bool
    form: str
    reference: str | None
    pass_number: int | None
    relative_to: str | None

    @property
    def as_table(self) -> bool:
        return bool(self.form == "csv" or self.reference or self.relative_to)

    def chosen(self, runs: list[StoredRun]) -> list[StoredRun]:
        """Return the runs of the selected pass; without one, those of every pass."""
        return runs if self.pass_number is None else of_pass(runs, self.pass_number)


def _show_table(rows: list[ResultRow], view: _View) -> None:
    """Print a table in the chosen format."""
    if view.reference and not any(row["published"] is not None for row in rows):
        # On stderr: the table may go to a program.
        click.echo(f"no result has the workload and options of a row of {view.reference}", err=True)
    if view.form == "csv":
        click.echo(csv_text(rows), nl=False)
    elif view.form == "json":
        click.echo(json.dumps([dict(row.cells) for row in rows], indent=2))
    else:
        _print_reference([row for row in rows if row.current], view.reference or "")


def _print_results(runs: list[StoredRun]) -> None:
    columns = ["run", "finished (UTC)", "scenario", "workload", "outcome", "result"]
    # Most cycles have one pass only, and a column of ones is useless.
    passes = any(run.pass_number > 1 for run in runs)
    table = Table(*columns[:4], *(["pass"] if passes else []), *columns[4:], box=None)
    for run in runs:
        table.add_row(
            str(run.number),
            f"{run.finished:%Y-%m-%d %H:%M:%S}",
            run.scenario,
            run.workload,
            *([str(run.pass_number or "-")] if passes else []),
            str(run.outcome),
            result_text(run),
        )
    make_console().print(table)


def _print_reference(rows: list[ResultRow], series: str) -> None:
    """Print own values with their references and ratios; a dash means no value.

    Columns without values are omitted.
    """
    optional = {
        title.format(series=series): column
        for title, column in _OPTIONAL_COLUMNS.items()
        if any(row[column] is not None for row in rows)
    }
    table = Table("workload", "", "scenario", "outcome", "own", *optional, box=None)
    for row in rows:
        metric = str(row["published_metric"] or row["best_metric"])
        column = "iops" if metric == "iops" else "bandwidth_bytes_per_second"
        table.add_row(
            *(str(row[key]) for key in ("workload", "direction", "scenario", "outcome")),
            *(_show(row, name, metric) for name in (column, *optional.values())),
        )
    console = make_console()
    console.print(table)
    divisors = {str(row["relative_to"]) for row in rows if row["ratio_to_relative"] is not None}
    for scenario in sorted(divisors):
        console.print(f"relative: divided by {scenario} with the same workload")


_OPTIONAL_COLUMNS: Final = {
    "{series}": "published",
    "own ÷ {series}": "ratio_to_published",
    "relative": "ratio_to_relative",
    "÷ link": "network_share_ratio",
    "round trip": "network_round_trip_seconds",
}
"""Title with the name after --reference -> its column."""


def _show(row: ResultRow, column: str, metric: str) -> str:
    value = row[column]
    if not isinstance(value, int | float):
        return "-"
    if column.endswith("_seconds"):
        return f"{value * 1e3:.3f} ms"
    if "ratio" in column:
        return f"{value:.2f}"
    doubt = column == "published" and row["published_doubt"]
    return level_text(metric, value) + " (contradicts itself)" * bool(doubt)


def _stored(store: Store, number: int) -> StoredRun:
    run = store.run(number)
    if run is None:
        raise StoreError(
            f"run {number} does not exist", next_step="list the runs with `pvebench results`"
        )
    return run


def _show_run(store: Store, number: int) -> None:
    run = _stored(store, number)
    from pvebench.web.api import run_data  # noqa: PLC0415 # slow import, unneeded for other output

    click.echo(json.dumps({**run_data(run), "evidence": store.evidence(number)}, indent=2))


# --- `pvebench compare`: two storages, nodes, scenarios or options of the disk.


@click.command(epilog="Example: pvebench compare cache=none cache=writeback")
@settings_options
@click.argument("first")
@click.argument("second")
@format_option()
def compare(first: str, second: str, form: str, **options: Any) -> None:
    """Compare two storages, nodes, scenarios or options.

    FIRST and SECOND are names or patterns, such as local or '*.raw.none', or options of the disk,
    such as cache=none. Results are compared whose other options are the same.
    """
    with results_of(read_settings(**options)) as store:
        view = LiveResults(store).now
    measured = {key for key, trend in view.trends.items() if trend.points}
    cases = {key: case for key, case in shown_definitions(view).items() if key in measured}
    sides = [
        {key: case for key, case in cases.items() if _is(case, name)} for name in (first, second)
    ]
    for name, side in zip((first, second), sides, strict=True):
        if not side:
            names = sorted({label for case in cases.values() for label in case.labels.values()})
            step = f"use one of {', '.join(names)}, or OPTION=VALUE"
            raise StoreError(f"no results of {name!r}", next_step=step)
    rows = [_compared(view, *keys) for keys in _pairs(*sides)]
    if not rows:
        raise StoreError(
            f"no result of {first} has one of {second} with the same workload and other options",
            next_step="compare two values of one option, such as cache=none cache=writeback",
        )
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("workload", "scenarios", first, second, "difference", "95% CI", "note", box=None)
    for row in rows:
        table.add_row(*_cells(row))
    make_console().print(table)
    click.echo(_in_words(rows, first, second))


def _is(definition: Definition, name: str) -> bool:
    option, equals, value = name.partition("=")
    if equals:
        return _facts(definition).get(option) == value
    return any(fnmatchcase(label, name) for label in definition.labels.values())


def _facts(definition: Definition) -> dict[str, str]:
    """Return the labels and facts of a case; a definition names only other systems than Linux."""
    return {"os": LINUX, **definition.labels, **definition.facts()}


def _pairs(
    first: Mapping[str, Definition], second: Mapping[str, Definition]
) -> Iterator[tuple[str, str]]:
    """Yield the keys of two cases that differ only in options in which all of both sides differ."""
    facts = [
        {key: {**_facts(case), "scenario": ""} for key, case in side.items()}
        for side in (first, second)
    ]
    names = sorted({name for side in facts for options in side.values() for name in options})
    same = [
        name
        for name in names
        if set.intersection(*({case.get(name) for case in side.values()} for side in facts))
    ]
    keys = [{tuple(map(case.get, same)): key for key, case in side.items()} for side in facts]
    for options, key in keys[0].items():
        if keys[1].get(options, key) != key:
            yield key, keys[1][options]


def _compared(view: View, first: str, second: str) -> dict[str, Any]:
    """Return two results and the ratio of the second, with a CI if both have LEAST_RUNS."""
    definitions = [view.cases[key].definition for key in (first, second)]
    trends = [view.trends[key] for key in (first, second)]
    levels = [level_of(trend) for trend in trends]
    exclusions = (
        exclusion_of(definition, view.durability, trend)
        for definition, trend in zip(definitions, trends, strict=True)
    )
    ratio = levels[1] / levels[0] - 1 if levels[0] else None
    gap = gap_between([(trends[0], trends[1])])
    interval = {"low": gap.low, "high": gap.high} if gap.known and ratio is not None else {}
    return {
        "workload": definitions[0].workload,
        "metric": trends[0].metric,
        "scenarios": [definition.scenario for definition in definitions],
        "values": levels,
        "runs": [len(totals(trend)) for trend in trends],
        "ratio": ratio,
        "notes": sorted({NOT_COUNTED[why][0] for why in exclusions if why in NOT_COUNTED} - {""}),
        **interval,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a comparison."""
    interval = f"not yet known: {min(row['runs'])} of {LEAST_RUNS} runs"
    if "low" in row:
        interval = f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}%"
    texts = [level_text(row["metric"], value) for value in row["values"]]
    ratio = "-" if row["ratio"] is None else f"{100 * row['ratio']:+.1f}%"
    scenarios = " and ".join(dict.fromkeys(row["scenarios"]))
    return [row["workload"], scenarios, *texts, ratio, interval, "; ".join(row["notes"])]


def _in_words(rows: Sequence[Mapping[str, Any]], first: str, second: str) -> str:
    """Return the comparison as a sentence."""
    lower = sum(row.get("high", 0) < 0 for row in rows)
    higher = sum(row.get("low", 0) > 0 for row in rows)
    counts = f"faster than {first} in {higher} and slower in {lower} of {len(rows)} results"
    ratios = [1 + row["ratio"] for row in rows if row["ratio"] is not None and row["ratio"] > -1]
    rest = "" if higher + lower == len(rows) else ". The other differences are not certain"
    mean = statistics.geometric_mean(ratios) - 1 if ratios else 0.0
    return f"{second} is {counts}; geometric mean of all {100 * mean:+.1f}%{rest}"
