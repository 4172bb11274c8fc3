"""`pvebench check`: is everything here that a run needs?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import click

from pvebench.cli.options import json_option, read_settings, scale_option, settings_options
from pvebench.drivers.driver import Finding
from pvebench.errors import MachineError
from pvebench.service.checking import findings as find

_WORDS: Final = {True: "ok  ", False: "FAIL", None: "?   "}


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
            click.echo(f"{_WORDS[good]}  {name}: {text}")
    bad = [name for name, good, _ in findings if good is False]
    if bad:
        raise MachineError(
            f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}",
            next_step="mend the first that failed, then check again: others may rest on it",
        )


def findings_of(options: dict[str, Any], scale: float = 1.0) -> Iterator[Finding]:
    """Yield what is there and what is not, for settings that are read as `read_settings` does."""
    yield from find(read_settings(**options), scale)
