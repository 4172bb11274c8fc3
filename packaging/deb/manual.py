"""Manual page and shell completions, generated from the commands.

click-man would find no command, because `pvebench` loads its commands only when one is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import click

from pvebench.cli.main import cli

COMPLETIONS: Final = {
    "bash": "bash-completion/completions/pvebench",
    "zsh": "zsh/vendor-completions/_pvebench",
    "fish": "fish/vendor_completions.d/pvebench.fish",
}
"""Shell -> path of its completions below /usr/share."""


def completions() -> dict[str, str]:
    """Return path below /usr/share -> content."""
    return {path: _completion(shell) for shell, path in COMPLETIONS.items()}


def _completion(shell: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pvebench"],
        env=os.environ | {"_PVEBENCH_COMPLETE": f"{shell}_source"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def manual(version: str) -> str:
    """Return pvebench(1) as troff with the man macros."""
    lines = [
        f'.TH PVEBENCH 1 "" "pvebench {version}" "User Commands"',
        ".SH NAME",
        r"pvebench \- storage benchmark that never stops measuring",
        ".SH SYNOPSIS",
        ".B pvebench",
        r"[\fIOPTION\fR]... \fICOMMAND\fR [\fIARGUMENT\fR]...",
        ".SH DESCRIPTION",
        *_text(cli.help),
        ".SH OPTIONS",
        *_options(cli),
        ".SH COMMANDS",
        *_commands(cli, "pvebench"),
        *_END,
    ]
    return "\n".join(lines) + "\n"


_END: Final = (
    ".SH FILES",
    ".TP",
    ".I /etc/pvebench/pvebench.yaml",
    "settings of the service",
    ".TP",
    ".I /var/lib/pvebench",
    "results",
    ".TP",
    ".I /usr/share/pvebench/systemd",
    "additional permissions of pvebench.service, by driver",
    ".SH SEE ALSO",
    r"/usr/share/doc/pvebench/docs",
)


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        usage = command.collect_usage_pieces(click.Context(command, info_name=name))
        yield f".SS {_plain(' '.join([path, name, *usage]))}"
        yield from _text(command.help)
        yield from _options(command)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


def _options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record:
            yield ".TP"
            yield rf"\fB{_plain(record[0])}\fR"
            yield _line(record[1] or "")


def _text(text: str | None) -> Iterator[str]:
    for number, paragraph in enumerate((text or "").split("\n\n")):
        if number:
            yield ".PP"
        yield _line(" ".join(paragraph.replace("\b", "").split()))


def _line(text: str) -> str:
    # troff interprets a leading dot or quote as a request.
    plain = _plain(text)
    return rf"\&{plain}" if plain[:1] in (".", "'") else plain


def _plain(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")
