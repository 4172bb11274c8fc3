"""`pvebench reparse`: today's parsers over the raw output that is kept with each run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click

from pvebench.cli.looking import looking_settings, results_of
from pvebench.cli.options import settings_options
from pvebench.runner.rereading import Change, Reread, Rereader, Unreadable, can_be_read
from pvebench.store import Mended, StateDirectory, Store, StoredRun
from pvebench.workloads import ROOMS


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
    changes: dict[tuple[str, str], list[Change]] = field(default_factory=dict)
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
@click.option("--tool", type=click.Choice(sorted(ROOMS)), help="Only runs of this tool.")
@click.option("--apply", "write", is_flag=True, help="Write it; else only say what would change.")
def reparse(tool: str | None, write: bool, **options: Any) -> None:
    """Read the raw output of stored runs again, all or those of one --pack; mend their numbers.

    Only what comes from a tool's output changes, and what follows from it.
    """
    settings, chosen = looking_settings(**options)
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


def _mended(reread: Reread) -> Mended:
    return Mended(
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
            f"{tally.clear} stay suspicious though nothing doubtful is left: "
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


def _name(change: Change) -> str:
    return " ".join(filter(None, (change.metric, change.direction, change.part)))


def _size(changes: list[Change]) -> str:
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
