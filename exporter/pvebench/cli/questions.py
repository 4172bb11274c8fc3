"""Questions of `pvebench setup`, and writing settings without overwriting others."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, Final

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

    def choose(self, question: str, answers: Sequence[str], option: str) -> str:
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


_STORAGES: Final = "name in packs and labels: where pvebench creates and removes its volumes"
_COMMENTS: Final = {
    "node": "label `node` of all results",
    "state": "results, lock, sockets",
    "packs": "`pvebench packs` lists them; `pvebench packs --copy NAME` copies one to edit",
    "listen": "web UI and /metrics; a network address allows remote access",
    "storages": _STORAGES,
    "proxmox.storages": _STORAGES,
    "proxmox.token_file": "next to this file, mode 0600",
    "proxmox.pool": "VMs are created only in this pool",
    "proxmox.iso_storage": "for the guest image",
    "proxmox.node_exporter": "for host CPU and device bytes; empty: none",
}
"""Path of a key -> its comment."""


def settings_text(values: Mapping[str, Any]) -> str:
    """Return the settings file. JSON is valid YAML, so every text is quoted."""
    head = "# Created by pvebench setup. Keys: `pvebench schema settings`, docs/configuration.md."
    return "\n".join([head, *_lines(values)]) + "\n"


def _lines(values: Mapping[str, Any], above: str = "", indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{above}{key}"
        comment = f"  # {_COMMENTS[path]}" if path in _COMMENTS else ""
        name = json.dumps(key) if above.endswith("storages.") else key
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            yield f"{indent}{name}:{comment}"
            yield from _lines(value, f"{path}.", indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(value)}{comment}"


def write_settings(path: Path, values: Mapping[str, Any], *, replace: bool) -> None:
    """Write valid settings; an identical file stays unchanged.

    Raises:
        ConfigError: the answers are not valid settings; nothing is written.
        NotWritable: the file has different content or cannot be written.
    """
    text = settings_text(values)
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
