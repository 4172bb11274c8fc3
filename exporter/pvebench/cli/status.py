"""`pvebench status`: the instance in six lines, beside a running service or without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from pvebench.cli.options import columns, format_option, read_settings, settings_options, show
from pvebench.cli.selection import results_of
from pvebench.cli.verdict import verdicts_of
from pvebench.config import Settings
from pvebench.diagnostics.doctor import exporter_address, leftovers
from pvebench.diagnostics.outgoing import Severity
from pvebench.diagnostics.pipeline import fetch
from pvebench.errors import PipelineError, StoreError
from pvebench.model.run import Outcome
from pvebench.model.status import State
from pvebench.model.units import count_text, show_bytes, show_clock, show_seconds
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import holder_of, pause_reason_of
from pvebench.verdicts.overall_state import headline
from pvebench.verdicts.ranking import shown_definitions


@click.command()
@settings_options
@format_option()
def status(form: str, **options: Any) -> None:
    """Show what runs, what is next, what changed and what it costs."""
    settings, failed = read_settings(**options), list[StoreError]()
    lines = _lines(settings, failed)
    show(form, lambda: dict(lines), lambda: columns(lines))
    if failed:
        raise failed[0]


def _lines(settings: Settings, failed: list[StoreError]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line; why results cannot be read is added to `failed`."""
    now, database = datetime.now(UTC), settings.database
    holder = holder_of(settings.state)
    live = _live(settings, "status") if holder else {}
    yield "running", _running(settings, holder, live)
    yield "next", _next(settings, holder, live.get("workers", []), now)
    stored, data = _NO_RESULTS, f"{database.parent} (no database yet)"
    if database.exists():
        data = f"{database} ({show_bytes(database.stat().st_size)})"
        try:
            with results_of(settings) as store:
                stored = _stored(settings, LiveResults(store), now, live) or _NO_RESULTS
        except StoreError as error:
            # The instance knows what runs all the same.
            failed.append(error)
            stored = dict.fromkeys(_NO_RESULTS, f"unknown: {error.reason}")
    yield from stored.items()
    yield "data", data


_NO_RESULTS: Final = {
    "results": "none yet",
    "changed": "unknown: no results",
    "cost": "unknown: no results; estimate it with `pvebench plan`",
}


def _stored(
    settings: Settings, results: LiveResults, now: datetime, live: dict[str, Any]
) -> dict[str, str]:
    """Return the lines that come from results; empty without a run."""
    view = results.now
    if not view.cases:
        return {}
    known = str(_live(settings, "verdict").get("headline", "")) if live else ""
    first = live.get("first_verdicts")
    if known and first:
        known += f" First verdicts about {show_clock(datetime.fromisoformat(first), now)}."
    if not known:
        known = headline(verdicts_of(settings, results), evidence=False)
    shown = [view.cases[key] for key in shown_definitions(view) if key in view.cases]
    ok = sum(record.last.outcome is Outcome.OK for record in shown)
    last = max(record.last.finished for record in view.cases.values())
    age = show_seconds(max(0.0, (now - last).total_seconds()))
    cases = f"{ok} of {count_text(len(shown), 'case')} ok"
    found = f"{count_text(view.totals.runs, 'run')}; {cases}; the latest {age} ago"
    return {"results": found, "changed": known, "cost": _cost(results, now)}


def _live(settings: Settings, name: str) -> dict[str, Any]:
    """Return a response of the running instance's API; empty if it does not answer."""
    address = f"{exporter_address(settings)}/api/v1/{name}"
    try:
        data = json.loads(fetch(address, "pvebench", ""))
    except (PipelineError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _running(settings: Settings, holder: int, live: dict[str, Any]) -> str:
    if not holder:
        left = [
            observation.text
            for observation in leftovers(settings)
            if observation.severity is not Severity.OK
        ]
        return "; ".join(["nothing", *left])
    if not live:
        return f"process {holder}; no details from {exporter_address(settings)}"
    faults = [f"{part} fails: {fault}" for part, fault in live.get("faults", {}).items()]
    return "; ".join([*faults, *map(_activity, live["workers"])]) + f" (process {holder})"


def _activity(worker: dict[str, Any]) -> str:
    cycle = worker["cycle"]
    count = f", {cycle['done']} of {cycle['planned']} of {cycle['pack']}" if cycle else ""
    case = worker["case"]
    if case is None:
        return f"{worker['node']} is {worker['state']}"
    return f"{case['case']} on {worker['node']} ({worker['phase']}{count})"


def _next(settings: Settings, holder: int, workers: list[dict[str, Any]], now: datetime) -> str:
    """Return the next case and its time; without an instance the command that starts one."""
    if paused := pause_reason_of(settings.state):
        return f"paused ({paused}); continue with `pvebench resume`"
    if not holder:
        return "nothing scheduled; start `pvebench serve` with the same settings"
    texts = [text for worker in workers if (text := _upcoming(worker, now))]
    return "; ".join(texts) or "unknown"


def _upcoming(worker: dict[str, Any], now: datetime) -> str:
    if worker["hold"]:
        return f"{worker['node']} waits: {worker['hold']['reason']}"
    if worker["state"] == State.ERROR:
        return f"{worker['node']} retries: {worker['fault']}"
    first = next(iter(worker["upcoming"]), None)
    due = first["expected_start"] if first else worker["next_due"]
    name = f"{first['case'] if first else 'a case'} on {worker['node']}"
    if due is None:
        return ""
    left = (datetime.fromisoformat(due) - now).total_seconds()
    return f"{name} in {show_seconds(left)}" if left >= 1 else f"{name} is due"


def _cost(results: LiveResults, now: datetime) -> str:
    """Return the bytes written to all storages, fills included, as write budgets count them."""
    storages = {storage for _, storage, _ in results.now.totals.bytes}
    written = sum(results.store.written_bytes(storage, now) for storage in storages)
    return f"{show_bytes(written)} written in the last 24 hours"
