"""What the card says: a picture that people post in a forum. Pure; `card_picture` draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.words import sentence
from pvebench.judging import Verdicts
from pvebench.judging.fastest import Against, Contest, Place
from pvebench.judging.found import (
    level_text,
    milestone_text,
    milestones,
    schedule_of,
    what_was_found,
    writes_unflushed,
)
from pvebench.judging.headline import calm, standing
from pvebench.model.definition import Definition
from pvebench.model.environment import Episode
from pvebench.model.plain_words import setting_words, workload_words
from pvebench.model.units import KIB, MIB
from pvebench.results import View

KINDS: Final = (
    ("read", "Sequential read", MIB, 8),
    ("write", "Sequential write", MIB, 8),
    ("randread", "Random read", 4 * KIB, 32),
    ("randwrite", "Random write", 4 * KIB, 32),
)
"""fio's pattern, what the row is called where it is not measured, block size and depth that are
nearest to what the field compares: SEQ1M Q8T1 and RND4K Q32T1."""
VERSIONS: Final = (("pve", "Proxmox VE"), ("kernel", "kernel"), ("qemu", "QEMU"))
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """One workload.

    Attributes:
        usual: what the usual disk reaches; empty where it is not measured.
        fastest: what the fastest setting that keeps data safe reaches; `setting` says which.
        gap: the usual disk against it, with its sign, or that it cannot be known.
    """

    title: str
    usual: str = ""
    fastest: str = ""
    setting: str = ""
    gap: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Everything that stands on the card, in words; `date` is that of the newest run."""

    where: str
    cpu: str
    versions: str
    rows: tuple[CardRow, ...]
    verdict: str
    date: str
    simulated: bool


def make_card(
    view: View,
    verdicts: Verdicts,
    now: datetime,
    cases: Mapping[str, Definition],
    *,
    anonymous: bool = False,
) -> Card:
    """Return what the card says of one storage.

    Args:
        cases: key -> case, all of that storage.
        anonymous: leave the nodes' names out.
    """
    found = what_was_found(view, schedule_of(view, now), cases)
    contests = [one.contest for one in found]
    first = next(iter(cases.values()), None)
    node, storage = (first.node, first.storage) if first else ("", "")
    facts = _facts([one for one in view.episodes if one.node == node])
    return Card(
        where=storage if anonymous else ", ".join(part for part in (node, storage) if part),
        cpu=facts.get("cpu_model", ""),
        versions=", ".join(f"{name} {facts[fact]}" for fact, name in VERSIONS if fact in facts),
        rows=tuple(_row(kind, contests) for kind in KINDS),
        verdict=_verdict(view, verdicts, now, anonymous=anonymous),
        date=f"{_until(view, cases, now):%Y-%m-%d}",
        simulated=view.simulated,
    )


def _until(view: View, cases: Mapping[str, Definition], now: datetime) -> datetime:
    """Return when the newest run ended."""
    ends = [view.cases[key].last.finished for key in cases if key in view.cases]
    return max(ends, default=now).astimezone(UTC)


def _facts(episodes: Sequence[Episode]) -> Mapping[str, str]:
    return episodes[-1].facts if episodes else {}


def _row(kind: tuple[str, str, int, int], contests: Sequence[Contest]) -> CardRow:
    rw, title, block, depth = kind
    there = [
        (contest, contest.fastest)
        for contest in contests
        if contest.fastest is not None and contest.fastest.definition.parameters.get("rw") == rw
    ]
    if not there:
        return CardRow(title=title, fastest=NOT_MEASURED)
    contest, first = min(there, key=lambda one: _distance(one[1].definition, block, depth))
    usual = contest.usual
    unflushed = " (unflushed)" if writes_unflushed(first.definition) else ""
    return CardRow(
        title=workload_words(first.definition),
        usual=level_text(contest.metric, usual.level) if usual else "",
        fastest=level_text(contest.metric, first.level),
        setting=setting_words(first.definition) + unflushed,
        gap=_gap(usual, first) if usual else "",
    )


def _distance(definition: Definition, block: int, depth: int) -> tuple[float, bool, float, str]:
    """Return how far a workload is from what the field compares."""
    known = definition.parameters
    sizes = [float(known.get(name, 1) or 1) for name in ("bs", "iodepth", "numjobs")]
    synced = any(known.get(name) for name in ("fsync", "fdatasync", "sync"))
    return (
        abs(math.log2(sizes[0] / block)),
        synced,
        abs(math.log2(sizes[1] * sizes[2] / depth)),
        definition.workload,
    )


def _gap(usual: Place, first: Place) -> str:
    if usual is first:
        return "is the usual disk"
    percent = f"{100 * usual.ratio:+.0f} %"
    if usual.against is Against.SAME:
        return f"{percent}, within noise"
    return percent if usual.against is Against.SLOWER else f"{percent}, noise not known"


def _verdict(view: View, verdicts: Verdicts, now: datetime, *, anonymous: bool) -> str:
    """Return what is wrong, or that nothing is, or when that can be said."""
    if verdicts.regressions:
        finding = verdicts.regressions[0]
        # Its node stands in the sentence, and nowhere else in it.
        shown = replace(finding, node="") if anonymous else finding
        more = len(verdicts.regressions) - 1
        return sentence(shown, evidence=False) + (f" (and {more} more)" if more else "")
    if standing(verdicts) == "cannot_tell":
        soon = milestones(view, first_end=None, now=now)
        ahead = [milestone_text(one, now) for one in soon if not one.reached]
        return f"No verdict yet. {ahead[-1]}." if ahead else "No verdict yet."
    return calm(verdicts)
