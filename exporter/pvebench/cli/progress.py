"""Progress and results of `pvebench run` and `pvebench serve` on the console."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pvebench.cli.options import make_console, read_settings
from pvebench.diagnostics.check import memory_warning
from pvebench.errors import CycleIncomplete
from pvebench.model import run_metrics
from pvebench.model.figure import Values
from pvebench.model.run import Outcome, Run, Sample
from pvebench.model.run_metrics import warm_text, was_canceled
from pvebench.model.status import Statuses, WorkerStatus
from pvebench.model.units import show_latency, show_rate, show_seconds
from pvebench.model.workload import Direction
from pvebench.service.housekeeping import Configuration
from pvebench.service.instance import measure
from pvebench.service.startup import assignments
from pvebench.store.records import StoredRun

# --- Progress: a live bar on a terminal, plain lines elsewhere.


class Progress:
    """Prints a line per finished run, on a terminal above a bar with the current case and the ETA.

    Args:
        logged: whether the log has each run; then only a terminal gets lines.
    """

    def __init__(self, console: Console, statuses: Statuses, *, logged: bool = False) -> None:
        self._console = console
        self._statuses = statuses
        self.live = console.is_terminal
        self.lines = self.live or not logged
        self._bar = Live(
            get_renderable=self._view, console=console, refresh_per_second=4, transient=True
        )

    def _view(self) -> Group:
        now = datetime.now(UTC)
        return Group(*(line for status in self._statuses() for line in live_view(status, now)))

    def __call__(self, run: Run) -> None:
        """Print the result of a run."""
        if self.lines:
            statuses = self._statuses()
            of_node = next(status for status in statuses if status.node == run.case.scenario.node)
            line = run_line(run, of_node, name_node=len(statuses) > 1)
            self._console.print(line, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self.live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar; the lines stay."""
        if self.live:
            self._bar.stop()


def run_line(run: Run, status: WorkerStatus, *, name_node: bool = False) -> Text:
    """Return `[3/12] local.scsi.raw.none/randread-4k-qd32  ok  9120 IOPS …`."""
    cycle = status.cycle
    count = f"[{cycle.done}/{cycle.planned}] " if cycle else ""
    node = f"{status.node}: " if name_node else ""
    line = Text(f"{count}{node}{run.case.slug}  ")
    line.append(
        str(run.outcome), style="bold blue" if run.outcome is Outcome.OK else "bold dark_orange"
    )
    detail = result_text(run)
    if cycle and cycle.done < cycle.planned:
        left = (cycle.expected_end - run.finished).total_seconds()
        detail += f"  (cycle ends in {show_seconds(max(0.0, left))})"
    return line.append(f"  {detail}")


def result_text(run: Run | StoredRun) -> str:
    """Return the numbers of a run if it was successful, and the reason if it is not ok."""
    numbers = _numbers(run.samples) if run.outcome.good else ""
    canceled = "operation canceled at the end" if numbers and was_canceled(run.samples) else ""
    parts = (numbers, numbers and warm_text(run.samples), canceled)
    return ": ".join(filter(None, ("; ".join(filter(None, parts)), run.reason)))


def _numbers(samples: tuple[Sample, ...]) -> str:
    """Return the main metrics of a run, per direction."""
    values, texts = Values(samples), []
    for way in Direction:
        iops, bandwidth = values.of(run_metrics.IOPS, way), values.of(run_metrics.BANDWIDTH, way)
        p99 = None if iops is None else values.of(run_metrics.CLAT_PERCENTILE, way, "99")
        parts = (
            "" if iops is None else f"{iops:,.0f} IOPS",
            "" if bandwidth is None else show_rate(bandwidth),
            "" if p99 is None else f"p99 {show_latency(p99)}",
        )
        if text := ", ".join(filter(None, parts)):
            texts.append(f"{way} {text}")
    return "; ".join(texts)


def live_view(status: WorkerStatus, now: datetime) -> list[Table | Text]:
    """Return the lines of the live display."""
    if status.hold is not None:
        return [Text(f"waiting: {status.hold.reason}", style="dim")]
    if status.case is None:
        if status.next_due is not None:
            wait = show_seconds(max(0.0, (status.next_due - now).total_seconds()))
            return [Text(f"idle, next run in {wait}", style="dim")]
        return [Text("starting", style="dim")]
    grid = Table.grid(padding=(0, 1))
    elapsed = (now - status.since).total_seconds()
    grid.add_row(
        Text(status.case.slug),
        Text(str(status.phase), style="bold"),
        _bar(elapsed, status.phase_seconds),
        _left(elapsed, status.phase_seconds),
    )
    cycle = status.cycle
    if cycle is not None:
        end = status.cycle_end(now)
        left = show_seconds((end - now).total_seconds()) if end else "late"
        grid.add_row(
            Text(f"cycle {cycle.number} of {cycle.pack}"),
            Text(f"{cycle.done}/{cycle.planned}"),
            _bar(cycle.done, cycle.planned),
            Text(f"ETA {left}"),
        )
    return [grid]


def _bar(done: float, total: float) -> ProgressBar:
    # Without a known total the bar pulses.
    return ProgressBar(total=total or None, completed=min(done, total), width=24, pulse=not total)


def _left(elapsed: float, total: float) -> Text:
    return Text(show_seconds(max(0.0, total - elapsed)) if total else "")


# --- Instances with progress on the console, for `pvebench run` and `pvebench serve`.


class Terminal:
    """`service.instance.Screen` of a console."""

    def __init__(self) -> None:
        self._console = make_console()

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line)

    def progress(self, statuses: Statuses) -> Progress:
        """Return live progress on a terminal, and lines or the log elsewhere."""
        context = click.get_current_context(silent=True)
        level = context.find_root().params.get("log_level") if context else None
        return Progress(self._console, statuses, logged=level in {"info", "debug"})


def measure_shown(options: dict[str, Any], *, cycles: int | None, web: bool) -> None:
    """Run an instance with the options of the command line; print the outcomes of its cycles.

    Raises:
        CycleIncomplete: a case has no publishable result.
    """
    selection = {key: options.pop(key) for key in ("scale", "only", "skip")}
    load = _loader(options, selection)
    first = load()
    state = first.settings.state
    if memory := memory_warning(state):
        click.echo(f"pvebench: warning: state directory {state} is {memory}", err=True)
    service = {"load": load, "config": options["config"], "cycles": cycles, "web": web}
    conclude(measure(first, Terminal(), **service), state)


def _loader(rest: dict[str, Any], selection: dict[str, Any]) -> Callable[[], Configuration]:
    """Return a function that reads settings and packs with the options of the command line."""

    def load() -> Configuration:
        settings = read_settings(**rest)
        return Configuration(settings, assignments(settings, **selection))

    return load


def conclude(outcomes: Sequence[Outcome], state: Path) -> None:
    """Print the outcomes of the cycles, by the last run of each case, stored in `state`.

    Raises:
        CycleIncomplete: a case has no publishable result.
    """
    unpublished = [str(outcome) for outcome in outcomes if not outcome.good]
    counts = Counter(outcomes)
    # A noisy result is published, but is not as good as others.
    others = "".join(
        f", {counts[outcome]} {outcome}"
        for outcome in Outcome
        if outcome is not Outcome.OK and counts[outcome]
    )
    click.echo(f"{counts[Outcome.OK]} of {len(outcomes)} cases ok{others}")
    if counts[Outcome.NOISY]:
        click.echo(
            "to get less noise, stop other load, or use a longer measure.runtime in the pack"
        )
    installed = shutil.which("pvebench")
    command = "pvebench" if installed else shlex.quote(sys.argv[0])
    click.echo(f"web UI of the results: {command} view --state {shlex.quote(str(state))}")
    if unpublished:
        raise CycleIncomplete(
            f"{len(unpublished)} of {len(outcomes)} cases have no publishable result "
            f"({', '.join(sorted(set(unpublished)))})",
            next_step=f"list the reasons: `pvebench results --not-ok --state {state}`",
        )
