"""The entries under `workloads:`: sweeps unrolled, options resolved by the tool's room."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from pvebench.config.document import Document, unknown_key
from pvebench.config.pack_file import MeasureOptions, PackFile
from pvebench.errors import ConfigError, Problem
from pvebench.model.workload import Workload
from pvebench.workloads import ROOMS


def resolve_workloads(document: Document, file: PackFile, factor: float) -> tuple[Workload, ...]:
    """Return the workloads of a pack.

    Args:
        factor: the pack's scale, which multiplies times.

    Raises:
        ConfigError: with every entry that is wrong, and where it is.
    """
    workloads: list[tuple[int, Workload]] = []
    problems: list[Problem] = []
    for index, entry in enumerate(file.workloads):
        try:
            made = [_workload(one, file.measure, factor) for one in _swept(entry)]
            workloads += [(index, workload) for workload in made]
        except ValueError as error:
            problems.append(_workload_problem(document, index, entry, str(error)))
    problems += _repeated(document, workloads) if not problems else []
    if not file.workloads:
        problems.append(document.problem(("workloads",), "no workloads: nothing would be run"))
    if problems:
        raise ConfigError(problems)
    return tuple(workload for _, workload in workloads)


def _swept(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one entry for each combination of options that are lists: a sweep in one line."""
    tool, options = next(iter(entry.items())) if len(entry) == 1 else ("", None)
    if not isinstance(options, dict):
        return [entry]
    lists = {key: value for key, value in options.items() if isinstance(value, list)}
    if empty := [key for key, value in lists.items() if not value]:
        raise ValueError(f"{empty[0]}: a sweep over no values measures nothing")
    return [
        {tool: {**options, **dict(zip(lists, values, strict=True))}}
        for values in itertools.product(*lists.values())
    ]


def _workload(entry: dict[str, Any], measure: MeasureOptions, factor: float) -> Workload:
    if len(entry) != 1:
        raise ValueError("wants exactly one key, the tool's name, with its options below it")
    tool, options = next(iter(entry.items()))
    if tool not in ROOMS:
        raise ValueError(unknown_key(str(tool), sorted(ROOMS)))
    if not isinstance(options, dict):
        raise ValueError(f"{tool}: wants a mapping of keys to values, found {options!r}")  # noqa: TRY004 # all complaints about a file are ValueErrors
    room = ROOMS[tool]
    workload = room.resolve(
        options,
        ramp_seconds=measure.ramp * factor,
        runtime_seconds=max(1.0, measure.runtime * factor),
    )
    if measure.steady is not None and room.open_ended:
        return replace(workload, steady=measure.steady.rule())
    return workload


def _workload_problem(
    document: Document, index: int, entry: dict[str, Any], message: str
) -> Problem:
    """Point at the option that the room complains about (`option: message`), or at the entry."""
    option = message.partition(":")[0]
    for tool, options in entry.items():
        if isinstance(options, dict) and option in options:
            return document.problem(("workloads", index, tool, option), f"{tool}.{message}")
    return document.problem(("workloads", index), message)


def _repeated(document: Document, workloads: list[tuple[int, Workload]]) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for index, workload in workloads:
        if workload.slug in first:
            message = f"same workload as entry {first[workload.slug] + 1}: {workload.slug}"
            problems.append(document.problem(("workloads", index), message))
        first.setdefault(workload.slug, index)
    return problems
