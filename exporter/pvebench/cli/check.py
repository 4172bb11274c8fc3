"""`pvebench check`: is everything here that a run needs?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from pvebench.cli.options import json_option, read_settings, scale_option, settings_options
from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.driver import Finding, attempt
from pvebench.drivers.storages.settings import existing
from pvebench.errors import MachineError, NotWritable
from pvebench.plan import make_plan
from pvebench.service.choice import assignments
from pvebench.service.instance import access_of


@click.command()
@settings_options
@scale_option
@json_option
def check(as_json: bool, scale: float, **options: Any) -> None:
    """Check settings, packs, tools, space and accelerator; change nothing."""
    show_findings(list(findings_of(options, scale)), as_json=as_json)


def show_findings(findings: list[Finding], *, as_json: bool = False) -> None:
    """Print them. Raises MachineError if one is bad."""
    if as_json:
        rows = [{"check": name, "ok": good, "found": text} for name, good, text in findings]
        click.echo(json.dumps(rows, indent=2))
    else:
        for name, good, text in findings:
            click.echo(f"{'ok  ' if good else 'FAIL'}  {name}: {text}")
    bad = [name for name, good, _ in findings if not good]
    if bad:
        raise MachineError(
            f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}",
            next_step="mend the first that failed, then check again: others may rest on it",
        )


def findings_of(options: dict[str, Any], scale: float = 1.0) -> Iterator[Finding]:
    """Yield what is there and what is not, for settings that are read as `read_settings` does."""
    # Settings and packs raise their own, better message: nothing below means much without them.
    settings = read_settings(**options)
    yield "settings", True, f"node {settings.node}, driver {settings.driver}"
    given = assignments(settings, scale=scale)
    for entry in given:
        made = make_plan(entry.matrix, seed=entry.pack.seed)
        yield f"pack {entry.pack.name}", True, f"{len(made.cases)} cases on {entry.node}"
    yield attempt("state", lambda: _state(settings))
    if settings.web_config_file is not None:
        access = access_of(settings)
        yield "web configuration", True, f"{settings.web_config_file}: {access.scheme}"
    cases = [case for entry in given for case in entry.matrix.cases]
    yield from engine_of(settings.driver).check(settings, cases)


def _state(settings: Settings) -> str:
    # Looked at, not made: as root it would then belong to root.
    there = existing(settings.state)
    if not os.access(there, os.W_OK | os.X_OK):
        raise NotWritable(
            f"state directory {settings.state}: {there} cannot be written",
            next_step="mend its permissions, or name another one with --state",
        )
    return str(settings.state) + ("" if there == settings.state else " (will be made)")
