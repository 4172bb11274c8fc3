"""Which steps are told together: those of one moment, and of cases that have much in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pvebench.analysis.figures import FIGURES
from pvebench.analysis.groups import Group, common_group
from pvebench.analysis.verdict import CaseStep, Verdict

Changed = tuple[Verdict, CaseStep]


def moments(
    changed: Mapping[tuple[float, bool], list[Changed]],
) -> list[tuple[float, bool, list[Changed]]]:
    """Return (time, known, changes); unknown times within one round are one moment."""
    found = [(time, True, pairs) for (time, known), pairs in changed.items() if known]
    last: list[Changed] = []
    for time, pairs in sorted(
        (time, pairs) for (time, known), pairs in changed.items() if not known
    ):
        if last and _within_a_round(last[0], time):
            last += pairs
        else:
            last = list(pairs)
            found.append((time, False, last))
    return found


def _within_a_round(first: Changed, time: float) -> bool:
    verdict, step = first
    return abs(verdict.history.split(time) - verdict.history.split(step.time)) <= 1


def together(
    pairs: Sequence[Changed], verdicts: Sequence[Verdict]
) -> dict[tuple[Group | None, bool], list[Changed]]:
    """Return (group, whether for worse) -> its cases, over all figures.

    The figures of one case are told together: whoever moved with a group in one figure and
    alone in another is told with the group.
    """
    groups = {verdict.history.of: step.group for verdict, step in pairs if step.group is not None}
    found: dict[tuple[Group | None, bool], list[Changed]] = {}
    worse = _worse(pairs)
    for verdict, step in pairs:
        group = step.group if step.group is not None else groups.get(verdict.history.of)
        found.setdefault((group, worse[verdict.history.of]), []).append((verdict, step))
    for key in [key for key in found if key[0] is None]:
        name = _in_common(found[key], verdicts)
        if name is not None and (name, key[1]) not in found:
            found[name, key[1]] = found.pop(key)
    return found


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
