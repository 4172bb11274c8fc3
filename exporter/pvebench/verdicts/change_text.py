"""Changes as sentences. Effects are logarithms, plus for better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pvebench.analysis.case_history import Group
from pvebench.analysis.change import Change, FactDifference, Match, Move, NearbyEvent, derived
from pvebench.model.definition import LOADS
from pvebench.model.environment import FACT_NAMES
from pvebench.model.figure import VerdictFigure
from pvebench.model.units import count_text, show_day, show_span, show_time

_LOADS: Final[Mapping[str, str]] = {
    **LOADS,
    "randrw": "mixed random I/O",
    "rw": "mixed sequential I/O",
    "readwrite": "mixed sequential I/O",
}
_PLACES: Final[Mapping[str, str]] = {
    "bus": "on {}",
    "format": "on {}",
    "storage": "on storage {}",
    "cache": "with cache={}",
    "aio": "with aio={}",
    "iothread": "with iothread={}",
    "tool": "of {}",
    "workload": "in {}",
    "durable": "that must reach the device",
}
SMALL: Final = 0.0995
"""Relative change below which percentages have a decimal."""
MANY: Final = 1.5
"""Relative change from which sentences use a factor instead of a percentage."""
HUGE: Final = 99.0
"""Relative change from which factors have no decimals."""
BRIEF: Final = 60
"""Maximum characters of a headline that is read from a distance."""
NEARLY: Final = 0.9
"""Share of the cases from which they are nearly everything."""
LISTED: Final = 3
"""Maximum names in an enumeration; of more it gives the number."""


def sentence(change: Change, *, evidence: bool = True) -> str:
    """Return a change as one sentence.

    Args:
        evidence: include the interval and the number of runs, which differ with every run.
    """
    text = _drift(change) if change.slow else f"{_beginning(change)}{_since(change)}"
    text += ", back to the earlier level" if change.back else ""
    text += _other_causes(change)
    text += f" ({'; '.join(_details(change, evidence=evidence))})"
    for match in change.issues[:1]:
        text += f"; {issue_text(match)}"
    if change.reason:
        text += f". Implausible: {change.reason}"
    return text + _ending(change)


def _ending(change: Change) -> str:
    if change.state == "accepted":
        return " [accepted]"
    if change.state == "open" or (change.back and change.end is None):
        return ""
    if change.end is None:
        return " [no longer confirmed]"
    after = show_span(change.end - change.begin)
    return f" [resolved {show_day(change.end)} after {after}]"


def _beginning(change: Change) -> str:
    first, cases = change.moves[0], subject(change)
    if change.share < 1:
        often = "at random" if change.kind == "mode" else "for several runs each"
        amount = change_text(first.effect, first.figure)
        return f"{change.share:.0%} of the runs of {cases}, {often}, are {amount}"
    if change.group == () and first.figure.name != "throughput":
        text = change_text(first.effect, first.figure)
    elif first.figure.name == "throughput":
        text = f"{cases} {_is(change)} {change_text(first.effect, first.figure)}"
    else:
        text = f"{cases}: {change_text(first.effect, first.figure)}"
    return text if change.group is None else text[0].upper() + text[1:]


def _is(change: Change) -> str:
    several = _part(change).endswith("cases") or (change.group is None and len(change.names) > 1)
    return "are" if several else "is"


def _drift(change: Change) -> str:
    first, cases = change.moves[0], subject(change)
    figure = first.figure
    word = figure.worse if first.effect < 0 else figure.better
    if figure.name == "throughput":
        text = f"{cases} {_is(change)} gradually {word}"
    else:
        text = f"{figure.noun} of {cases} is gradually {word}"
    text = text if change.group is None else text[0].upper() + text[1:]
    amount = percent(first.effect, figure)
    return f"{text}: {amount} since {show_day(change.begin)} ({count_text(first.runs, 'run')})"


def subject(change: Change) -> str:
    """Return what has changed: a group in words, or the names of the cases."""
    if change.group is None:
        shown = ", ".join(change.names[:LISTED])
        more = len(change.names) - LISTED
        return f"{shown} and {more} more" if more > 0 else shown
    if change.all_but:
        return "everything except " + group_text(change.group).removeprefix("everything ")
    whole, some = group_text(change.group), _part(change)
    return some + whole.removeprefix("everything") if some else whole


def _part(change: Change) -> str:
    """Return what a part of "everything" is called; empty: all of a group, or a group by name."""
    if change.group is None or change.all_but or len(change.cases) >= change.of:
        return ""
    if not group_text(change.group).startswith("everything"):
        return ""
    share = len(change.cases) / change.of
    if share >= NEARLY:
        return "nearly everything"
    return "most cases" if share > 1 / 2 else "some cases"


def brief(change: Change) -> str:
    """Return what changed and by how much, in at most `BRIEF` characters."""
    first = change.moves[0]
    word = first.figure.worse if first.effect < 0 else first.figure.better
    amount = change_text(first.effect, first.figure)
    if change.slow and first.figure.name == "throughput":
        amount = f"gradually {word}: {percent(first.effect, first.figure)}"
    count = count_text(len(set(change.cases)), "case")
    places = (subject(change), f"{count} on {listed(change.storages)}", count)
    texts = (f"{place}: {amount}" for place in places)
    text = next((text for text in texts if len(text) <= BRIEF), amount)
    return text[0].upper() + text[1:] if change.group is not None else text


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration: `a and b`, `a, b, c and 5 more`."""
    if len(names) > LISTED + 1:
        return f"{', '.join(names[:LISTED])} and {len(names) - LISTED} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def group_text(group: Group) -> str:
    """Return a group in words: `random write on virtio`."""
    values = dict(group)
    if not values:
        return "everything"
    load = values.pop("rw", "")
    places = [_PLACES.get(key, key + " {}").format(value) for key, value in values.items()]
    return " ".join([_LOADS.get(load, load) or "everything", *places])


def percent(effect: float, figure: VerdictFigure) -> str:
    """Return by how much a value has changed, without its sign: `18%`, or `4.1 times`."""
    return percent_text(change_of(effect, figure))


def percent_text(change: float) -> str:
    """Return the size of a relative change: `2.3%`, `18%`, or `4.1 times`."""
    if change > MANY:
        return f"{1 + change:.1f} times" if change < HUGE else f"{1 + change:,.0f} times"
    whole = SMALL <= abs(change) < 0.995 or abs(change) >= 0.9995
    return f"{abs(change):.0%}" if whole else f"{abs(change):.1%}"


def change_of(effect: float, figure: VerdictFigure) -> float:
    """Return the relative change of the value itself: -0.18 is 18% less of it."""
    return math.expm1(effect if figure.more_is_better else -effect)


def change_text(effect: float, figure: VerdictFigure) -> str:
    """Return a change in words: `18% slower`, `p99 latency 40% longer`."""
    amount, word = percent(effect, figure), figure.worse if effect < 0 else figure.better
    if figure.name == "throughput":
        return f"{amount} {word}"
    if amount.endswith("times"):
        word = f"as {'long' if word == 'longer' else 'high' if word == 'higher' else 'large'}"
    return f"{figure.noun} {amount} {word}"


def _since(change: Change) -> str:
    return f" since {cause_text(change) if change.came_with else show_time(change.begin)}"


def _other_causes(change: Change) -> str:
    """Return what else changed at the same time."""
    if not change.meanwhile:
        return ""
    other = "other " if change.came_with else ""
    plural = "s" if len(change.meanwhile) > 1 else ""
    texts = " and ".join(concurrent_change.text for concurrent_change in change.meanwhile)
    return f"; {other}possible cause{plural}: {texts}"


def cause_text(change: Change) -> str:
    """Return the events that may explain a change; all of them if runs cannot separate them."""
    texts = [differences_text(event) for event in change.came_with]
    if len(texts) < 2:
        return "".join(texts)
    several = len(texts) > 2
    if len(texts) > LISTED:
        texts[LISTED:] = [f"{len(texts) - LISTED} more"]
    runs = count_text(change.events_apart, "run")
    if not change.events_apart:
        apart = "no run between them"
    else:
        apart = f"within {runs}" if several else f"{runs} apart"
    return f"{', '.join(texts[:-1])} or {texts[-1]} ({apart})"


def differences_text(different: Sequence[FactDifference]) -> str:
    """Return the new versions: `pve-qemu-kvm 9.2.0-2 and kernel 6.11.11-1-pve`."""
    names = [(FACT_NAMES.get(known.fact, known.fact), known.after) for known in different]
    return listed([f"{name} {after}" if after else f"unknown {name}" for name, after in names])


def _details(change: Change, *, evidence: bool) -> list[str]:
    first, *other_moves = change.moves
    moved = {move.figure.name: move.effect for move in change.moves}
    other_moves = [move for move in other_moves if not derived(move.figure.name, moved)]
    details = [f"95% CI {interval(first)}"] if evidence else []
    details += [_extent(change, first, evidence=evidence)]
    details += [f"on {listed(change.nodes)}"] if change.nodes else []
    details += [
        f"{move.figure.noun} {'down' if change_of(move.effect, move.figure) < 0 else 'up'} "
        f"{percent(move.effect, move.figure)}"
        for move in other_moves
    ]
    details += [concurrent_change.numbers for concurrent_change in change.meanwhile if evidence]
    if not (change.known or change.slow or change.meanwhile):
        details.append(_nearest(change.candidates))
    return details


def interval(move: Move) -> str:
    """Return the 95% CI of a change in percent: `15-21%`."""
    change, low, high = (
        change_of(effect, move.figure) for effect in (move.effect, move.low, move.high)
    )
    return interval_text(change, low, high)


def interval_text(change: float, low: float, high: float) -> str:
    """Return the CI with the digits of `percent_text`: `1.8-5.6%`, `15-21%`, `2.4-3.1 times`."""
    low, high = sorted((-low, -high) if change < 0 else (low, high))
    if change > MANY:
        return f"{_range(1 + low, 1 + high, int(change < HUGE))} times"
    low, high, digits = 100 * low, 100 * high, int(abs(change) < SMALL)
    return f"{low:.{digits}f} to {high:.{digits}f}%" if low < 0 else f"{_range(low, high, digits)}%"


def _range(low: float, high: float, digits: int) -> str:
    """Return both ends with enough digits to differ, also from 0, two more at most."""
    texts = [[f"{end:,.{digits + more}f}" for end in (0.0, low, high)] for more in range(3)]
    clear = (ends[1:] for ends in texts if len({*ends}) == 3)
    return "-".join(next(clear, [*dict.fromkeys(texts[0][1:])]))


def _extent(change: Change, first: Move, *, evidence: bool) -> str:
    runs = f", {count_text(first.runs, 'run')}" if evidence and not change.slow else ""
    if change.group is None or change.all_but:
        return f"{count_text(len(change.cases), 'case')}{runs}"
    if len(change.cases) >= change.of:
        return f"all {change.of} cases{runs}"
    return f"{len(change.cases)} of {count_text(change.of, 'case')}{runs}"


def _nearest(candidates: Sequence[NearbyEvent]) -> str:
    if not candidates:
        return "no known event nearby"
    nearest = candidates[0]
    runs = count_text(abs(nearest.runs), "run")
    when = "at the same run"
    if nearest.runs:
        when = f"{runs} {'later' if nearest.runs > 0 else 'earlier'}"
    return f"nearest event: {nearest.kind} ({nearest.text}), {when}"


def issue_text(match: Match) -> str:
    """Return a known issue in words."""
    issue = match.issue
    if match.ends:
        return f"fix of known issue {issue.id} ({issue.title})"
    text = f"known issue {issue.id} ({issue.title})"
    text += f", fixed in {match.fixed_in}" if match.fixed_in else ", no fix known"
    return text + (f", workaround: {issue.workaround}" if issue.workaround else "")
