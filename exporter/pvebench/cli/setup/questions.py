"""What `pvebench setup` asks, and how settings are written: never over others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace as replaced
from pathlib import Path

import click

from pvebench.config import load_settings
from pvebench.errors import ConfigError, NotWritable


class Questions:
    """Asks, or takes what it was given; with `yes` a question is a mistake of the caller."""

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    def text(self, question: str, default: str, option: str) -> str:
        """Return the answer; with `yes` the default, if there is one."""
        if not self._yes:
            return str(click.prompt(question, default=default or None))
        if not default:
            raise click.UsageError(f"with --yes, {option} must be given")
        return default

    def one_of(self, question: str, answers: Sequence[str], option: str) -> str:
        """Return one of `answers`; the first is the default where it can be asked."""
        if self._yes:
            raise click.UsageError(f"with --yes, say {option}: {', '.join(answers)}")
        return str(click.prompt(question, type=click.Choice(answers), default=answers[0]))

    def names(self, question: str, default: Sequence[str], option: str) -> list[str]:
        """Return names, however many were answered."""
        answer = self.text(f"{question}, with commas between", ",".join(default), option)
        return [name.strip() for name in answer.split(",") if name.strip()]

    def agree(self, question: str) -> None:
        """End it unless the answer is yes. Raises Abort."""
        if not self._yes:
            click.confirm(question, default=True, abort=True)


def write_settings(path: Path, text: str, *, replace: bool) -> None:
    """Write the settings, if they can be read; those that say the same stay as they are.

    Raises:
        ConfigError: what was answered makes no settings; nothing is written.
        NotWritable: others are there, or they cannot be written.
    """
    try:
        if path.exists() and not replace:
            if path.read_text("utf-8") == text:
                click.echo(f"{path} says so already")
                return
            raise NotWritable(
                f"{path} is there and says something else",
                cause="it was changed by hand, or what it was made from was",
                next_step="write over it with --replace, or give another file as --config",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pvebench-") as beside:
            new = Path(beside) / path.name
            new.write_text(text, "utf-8")
            _check(new, path)
            if path.exists():
                path.write_text(text, "utf-8")  # its owner, its mode and a link to it stay
            else:
                new.replace(path)
    except OSError as error:
        raise NotWritable(
            f"settings file {path}: {error.strerror}",
            cause=f"{path.parent} cannot be written",
            next_step="give another place as --config",
        ) from error
    click.echo(f"the settings are in {path}")


def _check(new: Path, path: Path) -> None:
    """Raise ConfigError if the new file, to become `path`, cannot be read as settings."""
    try:
        load_settings(new)
    except ConfigError as error:
        problems = [replaced(problem, file=f"{path}, not written") for problem in error.problems]
        raise ConfigError(problems, next_step="give another answer, or option") from error
