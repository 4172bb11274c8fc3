"""Lists of all commands and API addresses, generated for their pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from pvebench.cli.main import GROUPS, cli
from pvebench.web.endpoints import document

_PAGES: Final = {
    "serve": "operations.md#web-ui",
    "verdict": "verdict.md",
    "results": "#results-and-reports",
    "export": "operations.md#filling-gaps-in-prometheus",
    "baseline": "verdict.md#baselines",
    "judge": "verdict.md#judge-other-histories",
    "import": "#import-reference-results",
    "advise": "advice.md",
    "durability": "durability.md",
    "upgrade": "advice.md#before-an-upgrade",
    "gate": "advice.md#during-an-upgrade",
    "setup": "configuration.md#create-settings",
    "packs": "configuration.md#packs",
    "plan": "cost.md#see-the-cost",
    "storage": "storages.md",
    "proxmox": "proxmox.md#set-up-a-cluster",
    "grafana": "existing-grafana.md",
    "print": "operations.md#prometheus",
    "fleet": "fleet.md#connect-a-site",
    "hub": "fleet.md",
    "doctor": "operations.md#diagnose-problems",
    "notify": "notifications.md",
    "cleanup": "operations.md#files-processes-and-cleanup",
    "prune": "operations.md#database",
    "restore": "operations.md#database",
    "reparse": "measurement.md#parse-stored-output-again",
}
"""Command -> the page or heading that explains it; the others need none beside `--help`."""


def commands_text() -> str:
    """Return a list of all commands in the groups of the help."""
    context = click.Context(cli)
    lines = []
    for group, names in GROUPS.items():
        lines += [f"**{group}**", ""]
        lines += [_entry(name, cli.get_command(context, name)) for name in names]
        lines.append("")
    return "\n".join(lines[:-1])


def _entry(name: str, command: click.Command | None) -> str:
    span = f"`pvebench {name}`"
    link = f"[{span}]({_PAGES[name]})" if name in _PAGES else span
    parts: list[str] = []
    if isinstance(command, click.Group):  # with those of plug-ins
        parts = sorted(command.list_commands(click.Context(command)))
    below = f" {', '.join(f'`{part}`' for part in parts)}" if parts else ""
    return f"- {link}{below}: {command.get_short_help_str(limit=200) if command else ''}"


# --- The API.


def addresses_text() -> str:
    """Return a section for each address: what it returns, its parameters and its keys."""
    content = document()
    shapes, known = content["components"]["schemas"], set[str]()
    sections = []
    for path, methods in content["paths"].items():
        operation = methods["get"]
        queries = [one for one in operation["parameters"] if one["in"] == "query"]
        body = operation["responses"]["200"]["content"]["application/json"]["schema"]
        sections.append(
            "\n".join(
                [
                    f"## `{path.replace('{', '<').replace('}', '>')}`",
                    "",
                    f"{operation['summary']}.",
                    *([""] if queries else []),
                    *map(_parameter, queries),
                    "",
                    f"Keys: {', '.join(_keys(_shape(body), shapes, known))}.",
                ]
            )
        )
    return "\n\n".join(sections)


def _parameter(parameter: Mapping[str, Any]) -> str:
    rule = parameter["schema"]
    values = ", ".join(f"`{word}`" for word in rule.get("enum", ()))
    if "maximum" in rule:
        values = f"{rule['minimum']} to {rule['maximum']}, default {rule['default']}"
    about = parameter["description"].rstrip(".")
    return f"- `{parameter['name']}`: {about}{f': {values}' if values else ''}"


def _keys(shape: str, shapes: Mapping[str, Any], known: set[str]) -> Iterator[str]:
    """Yield the keys of a shape, with those of its parts in parentheses, unless they are known."""
    for key, rule in shapes[shape]["properties"].items():
        listed = rule.get("type") == "array"
        options = rule.get("anyOf", [rule["items"] if listed else rule])
        parts = [part for part in map(_shape, options) if part]
        span = f"`{key}[]`" if listed else f"`{key}`"
        if not parts:
            yield span
        elif parts[0] in known:
            yield f"{span} (as above)"
        else:
            known.add(parts[0])
            yield f"{span} ({', '.join(_keys(parts[0], shapes, known))})"


def _shape(rule: Mapping[str, Any]) -> str:
    """Return the name of the shape that a schema refers to; empty: a plain value."""
    return str(rule.get("$ref", "")).rpartition("/")[2]
