"""`pvebench reparse`: today's parsers over the raw output that is kept with each run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.cli.selection import results_of, selection_settings
from pvebench.model.units import format_size
from pvebench.runner.reparse import Correction, Reread, Rereader, Unreadable, can_be_read
from pvebench.store import Removal, ReplacedRun, StateDirectory, Store, StoredRun, backups_of
from pvebench.store import restore as put_back
from pvebench.workloads import TOOLS

# --- `pvebench prune`: what of the history is too old, and removing it.


@click.command()
@settings_options
@click.option("--apply", "write", is_flag=True, help="Remove it; else only say what would go.")
def prune(write: bool, **options: Any) -> None:
    """Tell what is older than keep_evidence and keep_runs allow; remove it with --apply.

    A running instance does so by itself once a day, unless it would be a large part of the
    history at once.
    """
    settings = read_settings(**options)
    ages = {"evidence_seconds": settings.keep_evidence, "runs_seconds": settings.keep_runs}
    with ExitStack() as stack:
        if write:
            stack.enter_context(StateDirectory(settings.state.absolute(), exclusive=True))
        store = stack.enter_context(results_of(settings))
        now = datetime.now(UTC)
        if write:
            removal, _ = store.prune(now, certain=True, **ages)
        else:
            removal = store.removable(now, **ages)
    click.echo(_told(removal, written=write))


def _told(removal: Removal, *, written: bool) -> str:
    if removal.before is None:
        return "there are too few runs to tell what is old; nothing is removed"
    verb = "removed" if written else "would be removed"
    counted = datetime.fromtimestamp(removal.before, UTC)
    lines = [
        f"ages are counted from {counted:%Y-%m-%d %H:%M} UTC",
        f"{removal.runs} of {removal.of_runs} runs {verb}",
        f"the raw output of {removal.stripped} of {removal.of_evidence} runs {verb}",
    ]
    if not written and (removal.runs or removal.stripped):
        lines.append("nothing was removed: add --apply")
    return "\n".join(lines)


# --- `pvebench restore`: put a copy of the database in its place.


@click.command()
@click.argument("copy", type=PATH, required=False)
@settings_options
def restore(copy: Path | None, **options: Any) -> None:
    """List the copies of the database; put COPY in its place. What was there is kept."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state.absolute(), exclusive=False)
    if copy is None:
        click.echo(_listed(state.database))
        return
    with StateDirectory(state.path, exclusive=True):
        kept = put_back(state.database, copy, datetime.now(UTC))
        store = Store(state.database)
        runs = store.totals().runs
        store.close()
    click.echo(f"{state.database} is the copy {copy} now: {runs} runs")
    if kept is not None:
        click.echo(f"what was there before: {kept}")


def _listed(database: Path) -> str:
    backups = backups_of(database)
    lines = [
        f"{one.path}  {one.made:%Y-%m-%d %H:%M} UTC  {format_size(one.size_bytes)}"
        for one in backups
    ]
    others = sorted(database.parent.glob(f"{database.name}.before-*"))
    lines += [f"{path}  from before an upgrade" for path in others]
    if not lines:
        return "there is no copy; `pvebench serve` makes one a day (keep_backups)"
    return "\n".join([*lines, f"put one in its place: pvebench restore {lines[0].split()[0]}"])


@dataclass(slots=True)
class Tally:
    """What reading again comes to, run by run.

    Attributes:
        cases: case -> how many of its runs were read.
        changes: (case, which of its numbers) -> changes.
        outcomes: (old outcome, new outcome) -> runs.
        reasons: why an output cannot be read -> runs.
    """

    cases: Counter[str] = field(default_factory=Counter)
    changes: dict[tuple[str, str], list[Correction]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    clear: int = 0
    bare: int = 0
    failed: int = 0

    def note(self, reread: Reread) -> None:
        """Count a run that was read."""
        run = reread.run
        case = f"{run.node}/{run.scenario}/{run.workload}"
        self.cases[case] += 1
        self.changed += bool(reread.changes)
        self.clear += reread.clear
        if reread.outcome is not run.outcome:
            self.outcomes[str(run.outcome), str(reread.outcome)] += 1
        for change in reread.changes:
            self.changes.setdefault((case, _name(change)), []).append(change)


@click.command()
@settings_options
@click.option("--tool", type=click.Choice(sorted(TOOLS)), help="Only runs of this tool.")
@click.option("--apply", "write", is_flag=True, help="Write it; else only say what would change.")
def reparse(tool: str | None, write: bool, **options: Any) -> None:
    """Read the raw output of stored runs again, all or those of one --pack; mend their numbers.

    Only what comes from a tool's output changes, and what follows from it.
    """
    settings, chosen = selection_settings(**options)
    pack = chosen.name or None
    tally = Tally()
    with ExitStack() as stack:
        if write:
            stack.enter_context(StateDirectory(settings.state.absolute(), exclusive=True))
        store = stack.enter_context(results_of(settings))
        rereader = Rereader(store, tool)
        for batch in store.mending.batches(pack):
            mended = [_mended(one) for one in _reread(store, rereader, batch, tally)]
            if write and mended:
                store.mending.apply(mended)
    for line in _lines(tally, written=write):
        click.echo(line)


def _reread(
    store: Store, rereader: Rereader, batch: list[StoredRun], tally: Tally
) -> Iterator[Reread]:
    """Yield the runs of a batch that change; count all."""
    for run in filter(rereader.wants, batch):
        evidence = store.evidence(run.number)
        if "output" not in evidence:
            tally.bare += bool(run.samples)
        elif not run.samples:
            tally.failed += can_be_read(run, evidence)
        else:
            try:
                reread = rereader.reread(run, evidence)
            except Unreadable as error:
                tally.reasons[str(error)] += 1
                continue
            tally.note(reread)
            if reread.changes:
                yield reread


def _mended(reread: Reread) -> ReplacedRun:
    return ReplacedRun(
        number=reread.run.number,
        gone=tuple(one.old for one in reread.changes if one.old and not one.new),
        put=tuple(one.new for one in reread.changes if one.new),
        outcome=reread.outcome,
        reason=reread.reason,
    )


def _lines(tally: Tally, *, written: bool) -> Iterator[str]:
    last = ""
    for (case, name), changes in tally.changes.items():
        if case != last:
            yield case
        last = case
        yield f"  {name}: {len(changes)} of {tally.cases[case]} runs, {_size(changes)}"
    will = "changed" if written else "would change"
    yield f"{tally.changed} of {tally.cases.total()} runs {will}"
    for (old, new), count in tally.outcomes.items():
        yield f"{count} of them from {old} to {new}"
    if tally.clear:
        yield (
            f"{tally.clear} stay implausible though nothing doubtful is left: "
            f"what else they would be is not kept with them"
        )
    if tally.bare:
        yield f"{tally.bare} without raw output (keep_evidence) stay as they are"
    for reason, count in tally.reasons.items():
        yield f"{count} cannot be read and stay as they are: {reason}"
    if tally.failed:
        yield f"{tally.failed} failed ones could be read now; they stay failed, measure them again"
    if tally.changed and not written:
        yield "nothing was written: add --apply"


def _name(change: Correction) -> str:
    return " ".join(filter(None, (change.metric, change.direction, change.part)))


def _size(changes: list[Correction]) -> str:
    """Return how far a number moves: new over old, or how often it comes or goes."""
    ratios = [
        one.new.value / one.old.value for one in changes if one.old and one.new and one.old.value
    ]
    come, gone = (sum(not getattr(one, side) for one in changes) for side in ("old", "new"))
    told = []
    if ratios:
        told.append(
            f"to {statistics.median(ratios):.4g} times the old value "
            f"({min(ratios):.4g} to {max(ratios):.4g})"
        )
    rest = len(changes) - len(ratios) - come - gone
    told += [f"from 0 in {rest}"] * bool(rest)
    told += [f"new in {come}"] * bool(come)
    told += [f"gone in {gone}"] * bool(gone)
    return ", ".join(told)
