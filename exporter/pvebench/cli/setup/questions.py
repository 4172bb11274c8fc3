"""Questions of `pvebench setup`, and writing settings without overwriting others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace as replaced
from pathlib import Path

import click

from pvebench.config import load_settings
from pvebench.errors import ConfigError, NotWritable


class Questions:
    """Questions with default answers; with `yes` only defaults are used."""

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    def text(self, question: str, default: str, option: str) -> str:
        """Return the answer; with `yes` the default, if there is one."""
        if not self._yes:
            return str(click.prompt(question, default=default or None))
        if not default:
            raise click.UsageError(f"--yes requires {option}")
        return default

    def one_of(self, question: str, answers: Sequence[str], option: str) -> str:
        """Return one of `answers`; the first is the default."""
        if self._yes:
            raise click.UsageError(f"--yes requires {option}: {', '.join(answers)}")
        return str(click.prompt(question, type=click.Choice(answers), default=answers[0]))

    def names(self, question: str, default: Sequence[str], option: str) -> list[str]:
        """Return any number of names."""
        answer = self.text(f"{question}, separated by commas", ",".join(default), option)
        return [name.strip() for name in answer.split(",") if name.strip()]

    def agree(self, question: str) -> None:
        """Continue only if the answer is yes. Raises Abort."""
        if not self._yes:
            click.confirm(question, default=True, abort=True)


def write_settings(path: Path, text: str, *, replace: bool) -> None:
    """Write valid settings; an identical file stays unchanged.

    Raises:
        ConfigError: the answers are not valid settings; nothing is written.
        NotWritable: the file has different content or cannot be written.
    """
    try:
        if path.exists() and not replace:
            if path.read_text("utf-8") == text:
                click.echo(f"{path} is up to date")
                return
            raise NotWritable(
                f"{path} exists with different content",
                cause="it was edited, or the answers differ",
                next_step="overwrite it with --replace, or set another file with --config",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pvebench-") as directory:
            new = Path(directory) / path.name
            new.write_text(text, "utf-8")
            _check(new, path)
            if path.exists():
                path.write_text(text, "utf-8")  # keeps owner, mode and symbolic links
            else:
                new.replace(path)
    except OSError as error:
        raise NotWritable(
            f"settings file {path}: {error.strerror}",
            cause=f"{path.parent} is not writable",
            next_step="set another file with --config",
        ) from error
    click.echo(f"Settings written to {path}")


def _check(new: Path, path: Path) -> None:
    """Raise ConfigError if the new file for `path` is not valid settings."""
    try:
        load_settings(new)
    except ConfigError as error:
        problems = [replaced(problem, file=f"{path}, not written") for problem in error.problems]
        raise ConfigError(problems, next_step="correct the answer or option") from error
