"""The best durable configuration per storage and purpose, by the values of the ranking. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pvebench.analysis.change import Change
from pvebench.analysis.difference import CHANCE
from pvebench.model.definition import Definition, further_options
from pvebench.model.durability import Durability, measured_of
from pvebench.model.workload import Direction
from pvebench.store.live_results import Trend, View, main_metric
from pvebench.verdicts.fastest_text import faster_excluded
from pvebench.verdicts.ranking import (
    LEAST_RUNS,
    Gap,
    Rank,
    RankedCase,
    Ranking,
    counted,
    gap_between,
    is_synced,
    is_usual,
    rankings,
)


class Purpose(StrEnum):
    """Use of a disk, by the kind of its I/O."""

    DATABASE = "database"
    """Synced small writes, such as those of databases and mail."""
    GENERAL = "general"
    """Small writes, mostly without a sync: desktops and mixed use."""
    READS = "reads"
    """Small random reads."""
    FILES = "files"
    """Large I/O: files and backups."""


class Standing(StrEnum):
    """Confidence of a recommendation."""

    FASTER = "faster"
    """The recommended configuration is significantly faster than the default."""
    DEFAULT = "default"
    """The default is within noise of the fastest: no reason to change it."""
    MEASURE = "measure"
    """The results do not support a recommendation."""


class Doubt(StrEnum):
    """Why the results do not support a recommendation, or only a weaker one."""

    EMULATED = "emulated"
    SIMULATED = "simulated"
    FEW_RUNS = "few_runs"
    ONLY_ONE = "only_one"
    NO_DEFAULT = "no_default"
    NOISE = "noise"
    """The noise does not exclude that the default is as fast."""
    EXCLUDED_FASTER = "excluded_faster"
    """A configuration that is not ranked has a higher result."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """One configuration under the workloads of a purpose.

    Attributes:
        places: its places in the rankings, in their order.
        runs: IDs of the runs that its values rest on.
        score: mean logarithm of its values relative to the fastest of each ranking.
        rank: by its gap to the choice with the highest score.
    """

    scenario: str
    definition: Definition
    places: tuple[RankedCase, ...]
    runs: tuple[int, ...]
    score: float
    rank: Rank = Rank.FASTEST

    @property
    def least_runs(self) -> int:
        """Runs of the workload with the fewest."""
        return min(place.runs for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The advice for one purpose on one storage.

    Attributes:
        rankings: those that it rests on.
        choices: the configurations that are ranked under each workload, the fastest first.
        chosen: recommended configuration, or with MEASURE the highest result so far.
        default: None: not measured.
        gain: of the chosen over the default; None: unknown, or it is the default.
        excluded: faster ones that are not ranked.
        durability: of the chosen; None: not measured.
        regression: the most severe open one of the chosen; None: none.
    """

    node: str
    storage: str
    purpose: Purpose
    rankings: tuple[Ranking, ...]
    choices: tuple[Choice, ...]
    standing: Standing
    doubts: tuple[Doubt, ...]
    chosen: Choice
    default: Choice | None
    gain: Gap | None
    excluded: tuple[RankedCase, ...]
    durability: Durability | None
    regression: Change | None

    @property
    def other_default(self) -> Choice | None:
        """The default, unless it is the chosen."""
        return None if self.default is self.chosen else self.default

    def choice(self, scenario: str) -> Choice | None:
        """Return the choice with a slug; None: not measured under all workloads."""
        return next((choice for choice in self.choices if choice.scenario == scenario), None)

    def ranked(self, *ranks: Rank) -> list[Choice]:
        """Return the choices with these ranks, in their order."""
        return [choice for rank in ranks for choice in self.choices if choice.rank is rank]


def purpose_of(definition: Definition) -> Purpose | None:
    """Return the purpose that a workload stands for; None: none."""
    if definition.tool != "fio" or not definition.directions:
        return None
    if main_metric(definition) == "bandwidth":
        return Purpose.FILES
    if Direction.WRITE not in definition.directions:
        return Purpose.READS if Direction.READ in definition.directions else None
    return Purpose.DATABASE if is_synced(definition) else Purpose.GENERAL


def recommendations(
    view: View, cases: Mapping[str, Definition] | None = None, regressions: Sequence[Change] = ()
) -> tuple[Recommendation, ...]:
    """Return the advice for each storage and purpose with a ranked result.

    Args:
        cases: key -> case; None: those of the current packs, or of all results without packs.
        regressions: the open ones, most severe first.
    """
    groups: dict[tuple[str, str, Purpose], list[Ranking]] = {}
    for ranking in rankings(view, cases):
        purpose = purpose_of(ranking.places[0].definition) if ranking.places else None
        if purpose is not None:
            groups.setdefault((ranking.node, ranking.storage, purpose), []).append(ranking)
    order = {purpose: place for place, purpose in enumerate(Purpose)}
    found = [
        _recommendation(group, _comparable(of), view, regressions)
        for group, of in sorted(groups.items(), key=lambda it: (it[0][:2], order[it[0][2]]))
    ]
    return tuple(advised for advised in found if advised)


def _comparable(rankings: Sequence[Ranking]) -> tuple[Ranking, ...]:
    """Return the rankings that have the configurations of the largest one in common."""
    largest = max(rankings, key=lambda ranking: len(ranking.places))
    names = _names(largest)
    return tuple(ranking for ranking in rankings if len(_names(ranking) & names) > 1) or (largest,)


def _names(ranking: Ranking) -> set[str]:
    return {place.definition.scenario for place in ranking.places}


def _choices(rankings: Sequence[Ranking], trends: Mapping[str, Trend]) -> tuple[Choice, ...]:
    """Return the configurations that all rankings have, the highest score first."""
    by_name = [
        {place.definition.scenario: place for place in ranking.places} for ranking in rankings
    ]
    common = set.intersection(*map(_names, rankings))
    levels = [{name: known[name].level for name in common} for known in by_name]
    choices = []
    for name in common:
        places = tuple(known[name] for known in by_name)
        if min(place.level for place in places) <= 0:
            continue
        logs = [math.log(known[name] / max(known.values())) for known in levels]
        choices.append(
            Choice(
                scenario=name,
                definition=places[0].definition,
                places=places,
                runs=tuple(sorted({p.run for o in places for p in counted(trends[o.key])})),
                score=sum(logs) / len(logs),
            )
        )
    choices.sort(key=lambda choice: (-choice.score, choice.scenario))
    chance = _chance(choices)
    return (
        *choices[:1],
        *(
            replace(other, rank=compare(choices[0], other, trends, chance=chance).rank)
            for other in choices[1:]
        ),
    )


def _chance(choices: Sequence[Choice]) -> float:
    """Return the error probability of one of the comparisons with the fastest."""
    return CHANCE / max(1, len(choices) - 1)


def compare(
    before: Choice, after: Choice, trends: Mapping[str, Trend], *, chance: float = CHANCE
) -> Gap:
    """Return how much more `after` gives than `before`."""
    pairs = zip(before.places, after.places, strict=True)
    return gap_between(
        [(trends[first.key], trends[second.key]) for first, second in pairs], chance=chance
    )


def _recommendation(
    group: tuple[str, str, Purpose],
    rankings: tuple[Ranking, ...],
    view: View,
    regressions: Sequence[Change],
) -> Recommendation | None:
    node, storage, purpose = group
    choices = _choices(rankings, view.trends)
    if not choices:
        return None
    equal = [choice for choice in choices if choice.rank in (Rank.FASTEST, Rank.EQUAL)]
    usual = [choice for choice in choices if is_usual(choice.definition)]
    default = min(usual, key=_options, default=None)
    chosen = default if default in equal else min(equal, key=_options)
    # One of each kind is enough: that of the first workload.
    faster = (place for ranking in reversed(rankings) for place in faster_excluded(ranking))
    excluded = tuple({place.exclusion: place for place in faster}.values())
    gain = _gain(default, chosen, choices, view)
    doubts = tuple(_doubts(rankings, choices, default, gain, view))
    standing = _standing(doubts, default=chosen is default)
    if standing is Standing.MEASURE and chosen is not choices[0]:
        chosen = choices[0]
        gain = _gain(default, chosen, choices, view)
    keys = {place.key for place in chosen.places}
    return Recommendation(
        node=node,
        storage=storage,
        purpose=purpose,
        rankings=rankings,
        choices=choices,
        standing=standing,
        doubts=(*doubts, *(Doubt.EXCLUDED_FASTER,) * bool(excluded)),
        chosen=chosen,
        default=default,
        gain=gain,
        excluded=excluded,
        durability=measured_of(chosen.definition, view.durability),
        regression=next(
            (regression for regression in regressions if keys & {*regression.cases}), None
        ),
    )


def _options(choice: Choice) -> tuple[int, float]:
    """Return the sort key for the simplest of equal configurations."""
    return len(further_options(choice.definition)), -choice.score


def _gain(
    default: Choice | None, chosen: Choice, choices: Sequence[Choice], view: View
) -> Gap | None:
    if default is None or default is chosen:
        return None
    gain = compare(default, chosen, view.trends, chance=_chance(choices))
    return gain if gain.known else None


def _doubts(
    rankings: Sequence[Ranking],
    choices: Sequence[Choice],
    default: Choice | None,
    gain: Gap | None,
    view: View,
) -> Iterable[Doubt]:
    if view.simulated:
        yield Doubt.SIMULATED
    if any(ranking.emulated for ranking in rankings):
        yield Doubt.EMULATED
    if min(choice.least_runs for choice in (choices[0], default or choices[0])) < LEAST_RUNS:
        yield Doubt.FEW_RUNS
    if len(choices) < 2:
        yield Doubt.ONLY_ONE
    if default is None:
        yield Doubt.NO_DEFAULT
    if gain is not None and gain.low <= 0:
        yield Doubt.NOISE


def _standing(doubts: Sequence[Doubt], *, default: bool) -> Standing:
    if set(doubts) - {Doubt.SIMULATED}:
        return Standing.MEASURE
    return Standing.DEFAULT if default else Standing.FASTER
