"""Commands for the database: `pvebench prune`, `restore` and `reparse`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.cli.selection import results_of, selection_settings
from pvebench.model.units import count_text, format_size
from pvebench.runner.reparse import Correction, ReparsedRun, Reparser, UnreadableOutput, can_be_read
from pvebench.store.backups import backups_of
from pvebench.store.backups import restore as restore_backup
from pvebench.store.records import StoredRun
from pvebench.store.retention import Removal
from pvebench.store.state_directory import StateDirectory, summarize_store
from pvebench.store.store import Store
from pvebench.store.writing import ReplacedRun
from pvebench.workloads import TOOLS

# --- `pvebench prune`: expired results.


@click.command()
@settings_options
@click.option("--apply", "write", is_flag=True, help="Remove them; otherwise only list them.")
def prune(write: bool, **options: Any) -> None:
    """List expired results; delete them with --apply.

    Results expire by the settings keep_evidence and keep_runs.

    A running instance does so once a day, unless it would delete a large part of the history
    at once.
    """
    settings = read_settings(**options)
    ages = {"evidence_seconds": settings.keep_evidence, "runs_seconds": settings.keep_runs}
    with results_of(settings, write=write) as store:
        now = datetime.now(UTC)
        if write:
            removal, _ = store.prune(now, certain=True, keep_unsent=True, **ages)
        else:
            removal = store.removable(now, **ages)
    click.echo(_removal_text(removal, written=write))


def _removal_text(removal: Removal, *, written: bool) -> str:
    if removal.before is None:
        return "too few runs to determine expired results; nothing removed"
    verb = "removed" if written else "would be removed"
    reference = datetime.fromtimestamp(removal.before, UTC)
    lines = [
        f"ages relative to {reference:%Y-%m-%d %H:%M} UTC",
        f"{removal.runs} of {removal.of_runs} runs {verb}",
        f"raw output of {removal.stripped} of {removal.of_evidence} runs {verb}",
    ]
    if removal.unsent:
        lines.append(f"{removal.unsent} expired runs kept until the hub of the fleet has them")
    if not written and (removal.runs or removal.stripped):
        lines.append("nothing removed; add --apply to remove them")
    return "\n".join(lines)


# --- `pvebench restore`: backups of the database.


@click.command()
@click.argument("backup", type=PATH, required=False)
@settings_options
def restore(backup: Path | None, **options: Any) -> None:
    """List the backups of the database, or restore BACKUP. The replaced database is kept."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state.absolute(), exclusive=False)
    if backup is None:
        click.echo(_backups_text(state.database))
        return
    with StateDirectory(state.path, exclusive=True):
        summarize_store(backup, most_bytes=0)  # is it of this pvebench, or of an older one?
        replaced = restore_backup(state.database, backup, datetime.now(UTC))
        with closing(Store(state.database)) as store:
            runs = store.totals().runs
    click.echo(f"restored {backup} to {state.database}: {count_text(runs, 'run')}")
    if replaced is not None:
        click.echo(f"replaced database: {replaced}")


def _backups_text(database: Path) -> str:
    backups = backups_of(database)
    lines = [
        f"{backup.path}  {backup.made:%Y-%m-%d %H:%M} UTC  {format_size(backup.size_bytes)}"
        for backup in backups
    ]
    upgrades = sorted(database.parent.glob(f"{database.name}.before-*"))
    lines += [f"{path}  from before an upgrade" for path in upgrades]
    if not lines:
        return "no backups; `pvebench serve` makes one per day (keep_backups)"
    return "\n".join([*lines, f"to restore one, run `pvebench restore {lines[0].split()[0]}`"])


# --- `pvebench reparse`: current parsers over the raw output stored with each run.


@dataclass(slots=True)
class Tally:
    """Result of a reparse, counted run by run.

    Attributes:
        cases: case -> number of its parsed runs.
        changes: (case, name of a sample) -> changes.
        outcomes: (old outcome, new outcome) -> number of runs.
        reasons: reason for unreadable output -> number of runs.
        changed, clear, bare, failed: numbers of runs: with changed samples; implausible without a
            failed check; without raw output; failed, but readable now.
    """

    cases: Counter[str] = field(default_factory=Counter)
    changes: dict[tuple[str, str], list[Correction]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    clear: int = 0
    bare: int = 0
    failed: int = 0

    def note(self, reparsed: ReparsedRun) -> None:
        """Count a parsed run."""
        run = reparsed.run
        case = f"{run.node}/{run.scenario}/{run.workload}"
        self.cases[case] += 1
        self.changed += bool(reparsed.changes)
        self.clear += reparsed.clear
        if reparsed.outcome is not run.outcome:
            self.outcomes[str(run.outcome), str(reparsed.outcome)] += 1
        for change in reparsed.changes:
            name = " ".join(filter(None, (change.metric, change.direction, change.part)))
            self.changes.setdefault((case, name), []).append(change)


@click.command()
@settings_options
@click.option("--tool", type=click.Choice(sorted(TOOLS)), help="Only runs of this tool.")
@click.option("--apply", "write", is_flag=True, help="Save corrections; otherwise only list them.")
def reparse(tool: str | None, write: bool, **options: Any) -> None:
    """Parse stored output again; `--apply` saves corrections.

    It reads the runs of --pack, or all. Only values from a tool's output change, and values that
    follow from them.
    """
    settings, chosen = selection_settings(**options)
    pack = chosen.name or None
    tally = Tally()
    with results_of(settings, write=write) as store:
        reparser = Reparser(store, tool)
        for batch in store.batches(pack):
            corrected = [
                _replacement(reparsed) for reparsed in _reread(store, reparser, batch, tally)
            ]
            if write and corrected:
                store.correct(corrected)
    for line in _tally_lines(tally, written=write):
        click.echo(line)


def _reread(
    store: Store, reparser: Reparser, batch: list[StoredRun], tally: Tally
) -> Iterator[ReparsedRun]:
    """Yield the changed runs of a batch; count all."""
    for run in filter(reparser.wants, batch):
        evidence = store.evidence(run.number)
        if "output" not in evidence:
            tally.bare += bool(run.samples)
        elif not run.samples:
            tally.failed += can_be_read(run, evidence)
        else:
            try:
                reparsed = reparser.parse_again(run, evidence)
            except UnreadableOutput as error:
                tally.reasons[str(error)] += 1
                continue
            tally.note(reparsed)
            if reparsed.changes:
                yield reparsed


def _replacement(reparsed: ReparsedRun) -> ReplacedRun:
    return ReplacedRun(
        number=reparsed.run.number,
        gone=tuple(change.old for change in reparsed.changes if change.old and not change.new),
        put=tuple(change.new for change in reparsed.changes if change.new),
        outcome=reparsed.outcome,
        reason=reparsed.reason,
    )


def _tally_lines(tally: Tally, *, written: bool) -> Iterator[str]:
    last = ""
    for (case, name), changes in tally.changes.items():
        if case != last:
            yield case
        last = case
        yield f"  {name}: {len(changes)} of {tally.cases[case]} runs, {_size(changes)}"
    verb = "changed" if written else "would change"
    yield f"{tally.changed} of {tally.cases.total()} runs {verb}"
    for (old, new), count in tally.outcomes.items():
        yield f"{count} of them from {old} to {new}"
    if tally.clear:
        yield (
            f"{count_text(tally.clear, 'run')} still implausible without a failed check: "
            "their other outcome was not stored"
        )
    if tally.bare:
        yield f"{count_text(tally.bare, 'run')} unchanged: no raw output (keep_evidence)"
    for reason, count in tally.reasons.items():
        yield f"{count_text(count, 'run')} unchanged: unreadable output: {reason}"
    if tally.failed:
        yield f"{count_text(tally.failed, 'failed run')} unchanged, but readable now; measure again"
    if tally.changed and not written:
        yield "nothing saved; add --apply to save the corrections"


def _size(changes: list[Correction]) -> str:
    """Return the size of a change: new value over old, and the number of added and removed ones."""
    ratios = [
        change.new.value / change.old.value
        for change in changes
        if change.old and change.new and change.old.value
    ]
    added, removed = (
        sum(not getattr(change, side) for change in changes) for side in ("old", "new")
    )
    texts = []
    if ratios:
        texts.append(
            f"to {statistics.median(ratios):.4g} times the old value "
            f"({min(ratios):.4g} to {max(ratios):.4g})"
        )
    from_zero = len(changes) - len(ratios) - added - removed
    texts += [f"from 0 in {from_zero}"] * bool(from_zero)
    texts += [f"added in {added}"] * bool(added)
    texts += [f"removed in {removed}"] * bool(removed)
    return ", ".join(texts)
