"""What is told together: steps of one moment, creeps, and cases that have much in common."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.case_history import CaseStep
from pvebench.analysis.figures import FIGURES
from pvebench.analysis.groups import Group, common_group
from pvebench.analysis.verdict import Verdict

Changed = tuple[Verdict, CaseStep]
Named = tuple[Group | None, bool]
"""What cases share, and whether it was for the worse."""
FURTHER: Final = 1.5
"""Times as far as everything (in logarithms) that a group must have moved to be told apart."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When something changed: at an event, at an unknown time, or slowly since then."""

    time: float
    known: bool
    slow: bool
    changed: tuple[Changed, ...]


def occasions(verdicts: Sequence[Verdict]) -> Iterator[Occasion]:
    """Yield the occasions of all steps and creeps, in no order."""
    steps = [
        (verdict, step) for verdict in verdicts for step in (*verdict.accepted, *verdict.steps)
    ]
    for time, pairs in _by_time([pair for pair in steps if pair[1].known]):
        yield Occasion(time, known=True, slow=False, changed=tuple(pairs))
    yield from _unknown([pair for pair in steps if not pair[1].known])
    creeps = [(verdict, verdict.creep) for verdict in verdicts if verdict.creep is not None]
    if creeps:
        # How far back a creep is seen says little of when it began: they are told as one.
        time = statistics.median_low([step.time for _, step in creeps])
        yield Occasion(time, known=False, slow=True, changed=tuple(creeps))


def _by_time(pairs: Sequence[Changed]) -> Iterator[tuple[float, list[Changed]]]:
    ordered = sorted(pairs, key=lambda pair: pair[1].time)
    for time, here in itertools.groupby(ordered, key=lambda pair: pair[1].time):
        yield time, list(here)


def _unknown(pairs: Sequence[Changed]) -> Iterator[Occasion]:
    """Yield the occasions of steps at unknown times; those within one round are one."""
    together: list[list[Changed]] = []
    for time, here in _by_time(pairs):
        if together and _within_a_round(together[-1][0], time):
            together[-1] += here
        else:
            together.append(here)
    for found in together:
        yield Occasion(found[0][1].time, known=False, slow=False, changed=tuple(found))


def _within_a_round(first: Changed, time: float) -> bool:
    verdict, step = first
    return verdict.history.runs_between(time, step.time) <= 1


def together(pairs: Sequence[Changed], verdicts: Sequence[Verdict]) -> dict[Named, list[Changed]]:
    """Return (group, whether for worse) -> its cases, over all figures.

    The figures of one case are told together: whoever moved with a group in one figure and
    alone in another is told with the group.
    """
    groups = {verdict.history.of: step.group for verdict, step in pairs if step.group is not None}
    found: dict[Named, list[Changed]] = {}
    worse = _worse(pairs)
    for verdict, step in pairs:
        group = step.group if step.group is not None else groups.get(verdict.history.of)
        found.setdefault((group, worse[verdict.history.of]), []).append((verdict, step))
    for key in [key for key in found if key[0] is None]:
        name = _in_common(found[key], verdicts)
        if name is not None and (name, key[1]) not in found:
            found[name, key[1]] = found.pop(key)
    for worse_too in (True, False):
        _join_everything(found, worse=worse_too)
    return found


def _join_everything(found: dict[Named, list[Changed]], *, worse: bool) -> None:
    """Tell a group with everything, where that moved about as far: it is no story of its own."""
    everything = found.get(((), worse))
    if everything is None:
        return
    for key in [key for key in found if key[0] and key[1] == worse]:
        if _as_far(found[key], everything):
            everything += found.pop(key)


def _as_far(some: Sequence[Changed], others: Sequence[Changed]) -> bool:
    name = first_figure(others)
    effects = [
        statistics.median(
            [step.effect for verdict, step in pairs if verdict.history.figure.name == name]
        )
        for pairs in (some, others)
        if first_figure(pairs) == name
    ]
    return len(effects) == 2 and abs(effects[0]) < FURTHER * abs(effects[1])


def first_figure(pairs: Sequence[Changed]) -> str:
    """Return the name of the most telling figure that moved."""
    return min((verdict.history.figure.name for verdict, _ in pairs), key=list(FIGURES).index)


def _in_common(members: Sequence[Changed], verdicts: Sequence[Verdict]) -> Group | None:
    """Return what cases that were found one by one have in common, if that names them."""
    mine = {verdict.history.of: verdict.history.labels for verdict, _ in members}
    judged = {
        verdict.history.of: verdict.history.labels for verdict in verdicts if verdict.state.judged
    }
    return common_group(list(mine.values()), list(judged.values()))


def _worse(pairs: Sequence[Changed]) -> dict[str, bool]:
    """Return case -> whether its most telling figure has moved for the worse."""
    order = list(FIGURES)
    first: dict[str, tuple[int, float]] = {}
    for verdict, step in pairs:
        place = (order.index(verdict.history.figure.name), step.effect)
        first[verdict.history.of] = min(place, first.get(verdict.history.of, place))
    return {case: effect < 0 for case, (_, effect) in first.items()}
