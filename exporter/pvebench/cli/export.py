"""Commands that write results to files: `pvebench report` and `export`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.advice.recommendation import recommendations
from pvebench.advice.recommendation_text import advice_lines, heading, newest_runs
from pvebench.cli.main import PluginGroup
from pvebench.cli.options import output_option, settings_options, write_output
from pvebench.cli.selection import (
    reference_option,
    reference_series_of,
    relative_option,
    results_of,
    runs_of,
    selection_settings,
)
from pvebench.cli.verdict import verdicts_of
from pvebench.model.units import count_text
from pvebench.report.html import Subject, report_html
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.overall_state import headline
from pvebench.verdicts.ranking import answers, shown_definitions

# --- `pvebench report`: one HTML file that needs no network.


@click.command()
@settings_options
@output_option("HTML file to write.", Path("pvebench-report.html"))
@reference_option
@relative_option
def report(output: Path, reference: str | None, relative_to: str | None, **options: Any) -> None:
    """Write an HTML report of all results, or of one --pack.

    The file is self-contained.
    """
    settings, pack = selection_settings(**options)
    series = reference_series_of(settings, pack, reference)
    with results_of(settings) as store:
        runs = runs_of(store, pack)
        results = LiveResults(store)
        view, keys = results.now, {run.case_key for run in runs}
        verdicts = verdicts_of(settings, results)
        cases = {key: case for key, case in shown_definitions(view).items() if key in keys}
        subject = Subject(
            title=pack.title or (f"Pack {pack.name}" if pack.name else "All results"),
            source=pack.source,
            node=settings.node,
            now=datetime.now(UTC),
            simulated=store.simulated,
            environments=tuple(store.environments()),
            devices=view.devices,
            verdict=headline(verdicts, dated=False, evidence=False),
            rankings=answers(view, cases),
            trends=view.trends,
            advice=tuple(
                (heading(advised), tuple(advice_lines(advised, newest_runs(store))))
                for advised in recommendations(view, cases, verdicts.regressions)
            ),
        )
    html = report_html(subject, runs, series, relative_to or pack.relative_to)
    write_output(output, html.encode(), count_text(len(runs), "run"))


# --- `pvebench export`: the stored history for other programs.


@click.group(cls=PluginGroup)
def export() -> None:
    """Export results."""
