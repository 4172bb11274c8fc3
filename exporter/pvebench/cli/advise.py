"""`pvebench advise`: the best durable configuration per storage and purpose."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from pvebench.advice.audit import audit, audit_data, audit_lines
from pvebench.advice.next_measurements import Proposal, pack_text, proposal_text, proposals
from pvebench.advice.recommendation import Recommendation, compare, recommendations
from pvebench.advice.recommendation_text import (
    NOTHING,
    UNASSESSED,
    RunsOf,
    advice_data,
    advice_lines,
    gain_data,
    heading,
    newest_runs,
)
from pvebench.cli.options import PATH, format_option, read_settings, settings_options, show, writing
from pvebench.cli.selection import results_of
from pvebench.cli.verdict import verdicts_of
from pvebench.config import Settings, load_pack
from pvebench.drivers import driver_of, engine_of
from pvebench.errors import ConfigError
from pvebench.model.units import count_text, show_bytes
from pvebench.scheduler.plan import expand, make_plan
from pvebench.service.startup import budgets_of
from pvebench.store.live_results import LiveResults, View
from pvebench.store.store import Store
from pvebench.verdicts.ranking import Gap

_EVERY: Final = "1d"
"""Interval of the written pack: its cycle then fits the budget of 24 hours."""


@click.command()
@settings_options
@click.option(
    "--present",
    metavar="SCENARIO",
    help="Configuration in use, as in `pvebench plan`: adds the gain over it.",
)
@click.option(
    "--plan",
    "directory",
    type=PATH,
    metavar="DIRECTORY",
    help="Write a pack per storage that measures what could still be the fastest.",
)
@click.option(
    "--vms",
    "audited",
    is_flag=True,
    help="Audit the disks of all VMs; needs `pvebench proxmox init --with-advice`.",
)
@format_option()
def advise(
    present: str | None, directory: Path | None, audited: bool, form: str, **options: Any
) -> None:
    """Recommend configurations, by results of this installation.

    It never recommends settings that ignore flushes. With noisy, emulated or few runs, it
    recommends to measure first.
    """
    settings = read_settings(**options)
    if audited:
        _audit(settings, form)
        return
    with results_of(settings) as store:
        view, found = _advice(settings, store)
        without_aio = _without_aio(settings)
        runs_of = newest_runs(store)
        if directory is not None:
            _write_plans(settings, found, directory)
            return
        if form == "json":
            rows = [
                advice_data(advised, runs_of)
                | {
                    "gain_over_present": gain_data(_over(advised, present, view)),
                    "measure_next": [*map(proposal_text, proposals([advised], without_aio))],
                }
                for advised in found
            ]
            click.echo(json.dumps(rows, indent=2))
            return
        lines = list(_lines(found, runs_of, view, present, without_aio))
    click.echo("\n".join(lines) if lines else NOTHING)
    if present and not any(advised.choice(present) for advised in found):
        raise _unknown(present, found)


def _advice(settings: Settings, store: Store) -> tuple[View, tuple[Recommendation, ...]]:
    results = LiveResults(store)
    open_ones = verdicts_of(settings, results).regressions
    return results.now, recommendations(results.now, regressions=open_ones)


def _audit(settings: Settings, form: str) -> None:
    """Print the audit of all VMs of the cluster, with the results if there are any."""
    cluster = engine_of(settings.driver).read_vms(settings)
    if cluster is None:
        raise ConfigError.of_options(
            f"--vms: driver {settings.driver} has no cluster; use --driver proxmox"
        )
    has_results = settings.database.exists()
    with results_of(settings) if has_results else nullcontext() as store:
        view, found = _advice(settings, store) if store else (View(), ())
    disks = audit(cluster, found, view.trends)
    show(form, lambda: audit_data(cluster, disks), lambda: audit_lines(cluster, disks))


def _without_aio(settings: Settings) -> set[tuple[str, str]]:
    """Return (node, storage) of the settings whose volumes have no `aio`."""
    driver = driver_of(settings.driver)
    with suppress(ConfigError):  # results can be read without the driver's section
        return {
            (node, name)
            for node in driver.nodes(settings)
            for name, storage in driver.storages(settings, node).items()
            if storage.holds.network
        }
    return set()


def _lines(
    found: Sequence[Recommendation],
    runs_of: RunsOf,
    view: View,
    present: str | None,
    without_aio: Collection[tuple[str, str]],
) -> Iterator[str]:
    """Yield the advice as Markdown, which a terminal shows well, too."""
    for advised in found:
        yield f"## {heading(advised)}"
        lines = advice_lines(advised, runs_of, present, _over(advised, present, view))
        yield from (f"- {line}" for line in lines)
        for proposal in proposals([advised], without_aio)[:3]:
            yield f"- Measure next: {proposal_text(proposal)}."
        yield ""
    if found:
        yield UNASSESSED


def _over(advised: Recommendation, present: str | None, view: View) -> Gap | None:
    """Return the gain of the recommended configuration over the present one."""
    choice = advised.choice(present) if present else None
    if choice is None or choice is advised.chosen:
        return None
    gain = compare(choice, advised.chosen, view.trends)
    return gain if gain.known else None


def _unknown(present: str, found: Sequence[Recommendation]) -> ConfigError:
    known = sorted({choice.scenario for advised in found for choice in advised.choices})
    message = f"--present: no comparable result of {present!r}; known: {', '.join(known)}"
    return ConfigError.of_options(message)


# --- Packs that measure what could still be the fastest.


def _write_plans(settings: Settings, found: Sequence[Recommendation], directory: Path) -> None:
    groups: dict[tuple[str, str], list[Recommendation]] = {}
    for advised in found:
        groups.setdefault((advised.node, advised.storage), []).append(advised)
    written = [_write_plan(settings, place, own, directory) for place, own in groups.items()]
    if not any(written):
        click.echo("No unmeasured configuration could be the fastest; nothing to write.")


def _write_plan(
    settings: Settings, place: tuple[str, str], own: list[Recommendation], directory: Path
) -> bool:
    """Write the pack of a storage with as many proposals as the write budget has room for."""
    chosen = list(proposals(own, _without_aio(settings)))
    path = directory / f"advice-{'-'.join(place)}.yaml"
    budget = budgets_of(settings).limits.get(place)
    with TemporaryDirectory() as scratch:
        while chosen:
            text = pack_text(path.stem.lower(), own, chosen, every=_EVERY)
            trial = Path(scratch) / path.name
            trial.write_text(text, "utf-8")
            cost = _bytes(settings, place, trial)
            if budget is None or cost is None or cost <= budget:
                with writing(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, "utf-8")
                _report(path, chosen, cost, budget)
                return True
            chosen.pop()
    return False


def _bytes(settings: Settings, place: tuple[str, str], path: Path) -> int | None:
    """Return the bytes that a cycle writes; None: the settings do not have the storage."""
    driver, (node, storage) = driver_of(settings.driver), place
    storages = driver.storages(settings, node)
    if storage not in storages:
        return None
    pack = load_pack(path)
    kinds = {name: measured_storage.holds for name, measured_storage in storages.items()}
    matrix = expand(pack, node=node, storages=kinds, rows=driver.rows)
    return make_plan(matrix, seed=pack.seed, conduct=pack.conduct).bytes_written


def _report(path: Path, chosen: Sequence[Proposal], cost: int | None, budget: int | None) -> None:
    writes = "unknown writes: its storage is not in the settings"
    if cost is not None:
        limit = f" of the budget of {show_bytes(budget)} a day" if budget else "; no write budget"
        writes = f"at most {show_bytes(cost)} per cycle{limit}"
    click.echo(f"wrote {path}: {count_text(len(chosen), 'configuration')}; {writes}")
    for proposal in chosen:
        click.echo(f"  {proposal_text(proposal)}")
