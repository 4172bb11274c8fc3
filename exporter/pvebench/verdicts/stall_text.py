"""Effects of operations on a guest as sentences: stalls of a backup, with and without fleecing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from pvebench.model.definition import OPERATION_WORDS, Definition, configuration_text, workload_text
from pvebench.model.figures import OPERATION_GAP, OPERATION_RESOLUTION
from pvebench.store.records import StoredRun

_FLEECING: Final = "backup-fleecing"
_NO_GAP: Final = 1.5
"""Intervals between readings up to which there is no gap: they vary."""
_OWN: Final = frozenset({"during"})
"""Parameters that the compared workloads do not share."""


@dataclass(slots=True)
class _Load:
    """One workload on one disk.

    Attributes:
        gaps: operation -> longest gap and its resolution, seconds.
    """

    definition: Definition
    gaps: dict[str, tuple[float, float]] = field(default_factory=dict)


def operation_sentences(runs: Iterable[StoredRun]) -> tuple[str, ...]:
    """Return a sentence for each operation in the runs, of which the newest of a case counts."""
    loads: dict[tuple[str, ...], _Load] = {}
    for run in sorted(runs, key=lambda run: run.started):
        definition = run.definition
        name = str(definition.parameters.get("during", ""))
        figures = {sample.metric: sample.value for sample in run.samples}
        if name not in OPERATION_WORDS or OPERATION_GAP.name not in figures:
            continue
        rest = {key: value for key, value in definition.parameters.items() if key not in _OWN}
        place = (definition.node, definition.scenario, str(sorted(rest.items())))
        load = loads.setdefault(place, _Load(replace(definition, parameters=rest)))
        load.gaps[name] = (figures[OPERATION_GAP.name], figures.get(OPERATION_RESOLUTION.name, 0.0))
    return tuple(line for load in loads.values() for line in _lines(load))


def _lines(load: _Load) -> Iterable[str]:
    definition = load.definition
    for name, word in OPERATION_WORDS.items():
        if name not in load.gaps or (name == _FLEECING and "backup" in load.gaps):
            continue
        text = f"{word} on node {definition.node}, storage {definition.storage} "
        text += f"stalls {workload_text(definition)} "
        text += f"({configuration_text(definition)}) for {_span(*load.gaps[name])}"
        if name == "backup" and _FLEECING in load.gaps:
            text += f"; with fleecing {_span(*load.gaps[_FLEECING])}"
        yield text[0].upper() + text[1:]


def _span(gap: float, resolution: float) -> str:
    """Return a gap in words, and how long it can be at most.

    Without any gap, it is the interval between two readings of the counters.
    """
    most = _rounded_up(gap + resolution)
    if gap <= _NO_GAP * resolution:
        return f"less than {most} s"
    return f"{gap:.2g} s" if most == f"{gap:.2g}" else f"{gap:.2g} s (at most {most} s)"


def _rounded_up(seconds: float) -> str:
    """Return a number with two digits that is not smaller."""
    digits = 1 - math.floor(math.log10(seconds)) if seconds > 0 else 0
    unit = 10.0**digits
    return f"{math.ceil(seconds * unit - 1e-9) / unit:.2g}"
