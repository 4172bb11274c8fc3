"""`pvebench demo`: a simulated year of results, and an exporter that serves it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, TextIO

import click

from pvebench.cli.options import PATH, listen_options, pack_file, web_options
from pvebench.config import Pack, Settings, load_pack
from pvebench.config.known_issues import load_known_issues
from pvebench.config.settings import WallSettings
from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.storages import KINDS
from pvebench.errors import StoreError
from pvebench.files import read_text
from pvebench.metrics.exposition import Families
from pvebench.metrics.verdict_collectors import change_kind, collect_verdicts
from pvebench.model.figure import NODE, Metric
from pvebench.model.run import Run
from pvebench.model.status import State, WorkerStatus
from pvebench.model.units import DAY
from pvebench.model.workload import Case
from pvebench.scheduler.plan import Assignment, Matrix, expand
from pvebench.scheduler.worker import Worker
from pvebench.service.instance import planned_cases
from pvebench.service.publisher import show_stored
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import OVERDUE, Outage, Verdicts
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench_lab.cli.past_metrics import (
    STEP_SECONDS,
    PastMetrics,
    Period,
    first_moment,
    histories,
    past_metrics_text,
    past_verdicts,
    write_past,
)
from pvebench_lab.simulated.demo_year import YEAR, Story, history
from pvebench_lab.simulated.simulated_hypervisor import SimulatedHypervisor, simulated_site

# --- Past verdicts and alerts of the year, for the demo's timelines.

RECENT_MONTHS: Final = 96.0
REGULAR_DAYS: Final = (16.0, 32.0)
"""Days between regular moments, within `RECENT_MONTHS` days before the end and before that: each
costs seconds of CPU."""
RECENT_DAYS: Final = (9.0, 4.0)
"""Also judged, in days before the end: a one-day doubt should not fill two weeks of the chart."""
AFTER_CHANGE_DAYS: Final = 1.5
"""Days after new software until the demo's pack has measured every case with it."""
APART_DAYS: Final = 4.0
"""Days to a moment after new software; a closer regular moment adds no information."""


NO_RESULTS_SECONDS: Final = OVERDUE * DAY + 900
"""Time after a result until the alert PVEBenchNoResults: each case of the demo is due daily."""


def judged_moments(changes: Iterable[float], end: float) -> list[float]:
    """Return when to judge: at regular intervals, and soon after each software change.

    Args:
        changes: first use of each environment, UNIX seconds.
        end: end of the simulated year, UNIX seconds.
    """
    near, far = REGULAR_DAYS
    days = [near * number for number in range(1, round(RECENT_MONTHS / near) + 1)]
    days += [
        far * number for number in range(1, int(YEAR.days / far) + 1) if far * number > days[-1]
    ]
    regular = {end - ago * DAY for ago in (*days, *RECENT_DAYS)}
    soon = {moment + AFTER_CHANGE_DAYS * DAY for moment in changes}
    # Nodes upgraded on the same day are judged once, after the last upgrade.
    soon = {moment for moment in soon if not any(0 < later - moment < DAY for later in soon)}
    regular = {
        moment for moment in regular if all(abs(moment - new) > APART_DAYS * DAY for new in soon)
    }
    return sorted(moment for moment in regular | soon if moment < end)


def judge_past(store: Store, end: float) -> Sequence[PastMetrics]:
    """Judge the simulated runs at past moments; minutes of CPU for a whole year."""
    results, issues = LiveResults(store), load_known_issues()
    begun = {period.started.timestamp() for period in results.now.periods}
    # The changes of the past get the IDs that the exporter gives them now.
    verdict = VerdictService(results, issues).judge()
    past = []
    moments = judged_moments(begun, end)
    for moment, verdicts in past_verdicts(results, issues, moments, known=verdict.changes):
        families = Families()
        collect_verdicts(verdicts, families)
        firing_alerts(verdicts, families)
        past.append((moment, [families]))
    return with_outages(past, verdict.outages)


def with_outages(past: Sequence[PastMetrics], outages: Sequence[Outage]) -> Sequence[PastMetrics]:
    """Return past metrics with the alerts about times without results, as the rule fires them."""
    begun = {outage.begin + NO_RESULTS_SECONDS for outage in outages}
    ended = {outage.end for outage in outages}
    found: list[PastMetrics] = []
    for moment in sorted({at for at, _ in past} | begun | ended):
        before = [families for at, families in past if at <= moment][-1:]
        silent = [
            outage for outage in outages if outage.begin + NO_RESULTS_SECONDS <= moment < outage.end
        ]
        alerts = Families()
        no_results_alerts((outage.node for outage in silent), alerts)
        found.append((moment, [*chain(*before), alerts]))
    return found


_ALERT: Final = ("alertname", "alertstate", "severity")
_CHANGE_ALERT: Final = Metric("ALERTS", "gauge", (*_ALERT, "change", "kind"), "Alerts that fired.")
_NODE_ALERT: Final = Metric("ALERTS", "gauge", (*_ALERT, *NODE), "Alerts that fired.")


def firing_alerts(verdicts: Verdicts, families: Families) -> None:
    """Add the alerts about open changes, as Prometheus stores what its rules make of them."""
    for change in verdicts.open_changes:
        if change.severity != "info":
            kind = change_kind(change)
            name = "PVEBenchImplausibleGain" if change.implausible else "PVEBenchChange"
            labels = {"change": change.id, "kind": kind, "severity": change.severity}
            alert = {"alertname": name, "alertstate": "firing", **labels}
            families.add(_CHANGE_ALERT, alert, 1)


def no_results_alerts(nodes: Iterable[str], families: Families) -> None:
    """Add the alerts about nodes without results, as Prometheus stores them."""
    kept = {"alertname": "PVEBenchNoResults", "alertstate": "firing", "severity": "warning"}
    for node in nodes:
        families.add(_NODE_ALERT, kept | {"node": node}, 1)


NODES: Final[Mapping[str, Mapping[str, str]]] = {
    "pve1": {"local-zfs": "block", "ceph": "block"},
    "pve2": {"local-nvme": "dir"},
    "pve3": {"local-lvm": "block"},
    "pve4": {"local-lvm": "block"},
}
"""Node -> storage -> its kind. All but one hold block volumes, so raw only."""
PACK: Final = Path("demo")
SHOWN: Final = Settings(
    wall=tuple(
        WallSettings(
            scenario="local-nvme.scsi.raw.none.iothread-1", workload=workload, direction=direction
        )
        for workload, direction in (
            ("randread-4k-qd1", "read"),
            ("randwrite-4k-qd1", "write"),
            ("read-1M-qd8", "read"),
            ("write-1M-qd8", "write"),
        )
    )
)
"""Settings of the demo. The wall has a case that the last upgrade made slower."""
BLOCK_SECONDS: Final = 486 * 3600.0
"""Longest block that Prometheus creates: 2 h times a power of three."""


@click.group()
def demo() -> None:
    """Browse a simulated year. Nothing is measured; all numbers are invented."""


@demo.command()
@click.option("--state", type=PATH, required=True, help="Directory for the simulated results.")
@click.option(
    "--pack", type=PATH, default=PACK, show_default=True, help="Pack of the simulated cases."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the invented numbers."
)
@click.option(
    "--days",
    type=click.FloatRange(min=1, max=YEAR.days),
    default=YEAR.days,
    show_default=True,
    help="Number of days, counted from the end of the year.",
)
def fill(state: Path, pack: Path, seed: int, days: float) -> None:
    """Create the simulated year, ending now, in an empty state directory."""
    assignments = demo_assignments(load_pack(pack_file(pack)))
    with ExitStack() as stack:
        directory = stack.enter_context(StateDirectory(state.absolute(), exclusive=True))
        store = stack.enter_context(closing(Store(directory.database, simulated=True)))
        if store.totals().runs:
            raise StoreError(
                f"{directory.database} already has results",
                next_step="pass an empty state directory with --state",
            )
        story = replace(YEAR, days=days)
        count = fill_store(store, assignments, end=datetime.now(UTC), seed=seed, story=story)
    cases = sum(len(assignment.matrix.cases) for assignment in assignments)
    click.echo(f"{count} simulated runs of {cases} cases")


@demo.command()
@click.option("--state", type=PATH, required=True, help="Directory of the simulated results.")
@click.option(
    "--pack", type=PATH, default=PACK, show_default=True, help="Pack of the simulated cases."
)
@click.option("--directory", type=PATH, required=True, help="Directory for the files.")
@click.option("--instance", default="127.0.0.1:10620", show_default=True, help="Label 'instance'.")
@click.option(
    "--step",
    type=click.FloatRange(min=1),
    default=STEP_SECONDS,
    show_default=True,
    help="Seconds between samples of a constant value.",
)
@click.option("--until", type=float, help="End of the year, in UNIX seconds; default: now.")
@click.option(
    "--before",
    type=float,
    help="Skip files that begin then or later, in UNIX seconds, because they already exist.",
)
def export(
    state: Path,
    pack: Path,
    directory: Path,
    instance: str,
    step: float,
    until: float | None,
    before: float | None,
) -> None:
    """Export the simulated year as OpenMetrics files, one per Prometheus block, newest first.

    The last file, 0.om, has the verdicts and alerts of the year: judging takes most of the time.
    """
    planned = planned_cases(demo_assignments(load_pack(pack_file(pack))))
    database, now = state / "pvebench.db", until or datetime.now(UTC).timestamp()
    if not database.exists():
        fill = f"run `pvebench demo fill --state {state}` first"
        raise StoreError(f"no simulated year in {state}", next_step=fill)
    directory.mkdir(parents=True, exist_ok=True)
    labels = {"job": "pvebench", "instance": instance}
    with closing(Store(database, simulated=True)) as store:
        results = LiveResults(store, planned)
        cases = list(histories(results))
        for start, end in reversed([*blocks(first_moment(results), now)]):
            if before is not None and start >= before:
                continue
            with whole_file(directory, start) as file:
                window = Period(start=start, end=end, step=step, labels=labels)
                write_past(results, SHOWN, window, file, cases=cases)
        with whole_file(directory, 0.0) as file:
            window = Period(start=first_moment(results), end=now, step=step, labels=labels)
            file.writelines(past_metrics_text(judge_past(store, now), window))
    click.echo(f"wrote {directory}: {len(list(directory.glob('*.om')))} files")


@contextmanager
def whole_file(directory: Path, begin: float) -> Iterator[TextIO]:
    """Write a file named after the moment `begin`; rename it only when it is complete."""
    part = directory / "part"
    with part.open("w", encoding="utf-8") as file:
        yield file
    part.rename(directory / f"{int(begin)}.om")


def blocks(start: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield (start, end) of the blocks that Prometheus would create; UNIX seconds."""
    while start < end:
        until = min(end, start - start % BLOCK_SECONDS + BLOCK_SECONDS)
        yield start, until
        start = until


@demo.command()
@click.option("--state", type=PATH, required=True, help="Directory of the simulated results.")
@click.option(
    "--pack", type=PATH, default=PACK, show_default=True, help="Pack of the simulated cases."
)
@web_options
@listen_options("127.0.0.1:10620")
@click.option("--note", type=PATH, help="File with a text that the web UI shows.")
def show(state: Path, pack: Path, note: Path | None, **web: Any) -> None:
    """Serve the simulated year until Ctrl-C: web UI and /metrics, as `serve` does."""
    settings = SHOWN.with_changes(web)
    assignments = demo_assignments(load_pack(pack_file(pack)))
    with StateDirectory(state.absolute(), exclusive=True) as directory:
        store = Store(directory.database, simulated=True)
        show_stored(
            LiveResults(store, planned_cases(assignments)),
            settings,
            lambda line: click.echo(line.replace("results on", "simulated results on")),
            statuses=lambda: demo_statuses(assignments),
            note=lambda: read_text(note) if note and note.is_file() else "",
        )


def demo_assignments(pack: Pack) -> list[Assignment]:
    """Return the pack's cases on every storage of the demo's nodes."""
    assignments = []
    for node, storages in NODES.items():
        kinds = {name: KINDS[kind].holds for name, kind in storages.items()}
        cases: list[Case] = []
        for storage in storages:
            # Storages are expanded separately: variants use the first value of each axis only.
            local = replace(pack, axes={**pack.axes, "storage": (storage,)})
            cases += expand(local, node=node, storages=kinds).cases
        assignments.append(Assignment(pack, Matrix(cases=tuple(cases), excluded=())))
    return assignments


def fill_store(
    store: Store,
    assignments: Sequence[Assignment],
    *,
    end: datetime,
    seed: int,
    story: Story = YEAR,
) -> int:
    """Write the simulated year to an empty store; return the number of runs."""
    templates: list[Run] = []
    for assignment in assignments:
        node = assignment.matrix.cases[0].scenario.node
        templates += simulated_runs(node, assignment, seed=seed)
        store.begin_cycle(
            f"demo-{node}",
            node=node,
            pack=assignment.pack.name,
            tier=assignment.pack.tier,
            planned=len(assignment.matrix.cases),
        )
    prepared = [replace(run, cycle=f"demo-{run.case.scenario.node}") for run in templates]
    count = store.add_history(history(prepared, story, end=end, seed=seed))
    for cycle in {run.cycle for run in prepared}:
        store.end_cycle(cycle)
    return count


def simulated_runs(node: str, assignment: Assignment, *, seed: int) -> list[Run]:
    """Return a successful run of each case, from one simulated cycle."""
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(Store(Path(directory) / "pvebench.db", simulated=True)) as store,
    ):
        hypervisor = SimulatedHypervisor(
            node=node, seed=seed, clock=SimulatedClock(datetime.now(UTC))
        )
        Worker(
            site=simulated_site(hypervisor),
            assignments=[assignment],
            results=LiveResults(store),
            notify=runs.append,
            cycles=1,
        ).run()
    return [run for run in runs if run.outcome.good]


def demo_statuses(assignments: Sequence[Assignment]) -> list[WorkerStatus]:
    """Return the statuses of the demo's nodes, idle until the next case tomorrow."""
    now = datetime.now(UTC)
    tomorrow = now.replace(hour=1, minute=0, second=0, microsecond=0) + timedelta(days=1)
    first = {
        assignment.matrix.cases[0].scenario.node: assignment.matrix.cases[:1]
        for assignment in assignments
    }
    return [
        WorkerStatus(
            node=node,
            state=State.IDLE,
            since=now,
            progressed=now,
            next_due=tomorrow,
            upcoming=tuple(first.get(node, ())),
        )
        for node in NODES
    ]
