"""Verdicts in sentences that a person would say. Effects are logarithms, plus for better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.case_history import Figure, Group
from pvebench.analysis.change import Candidate, Change, Difference, Match, Move, derived

_FACTS: Final[Mapping[str, str]] = {
    "pve": "pve-manager",
    "kernel": "kernel",
    "qemu_package": "pve-qemu-kvm",
    "qemu": "QEMU",
    "qemu_server": "qemu-server",
    "zfs": "ZFS",
    "ceph": "Ceph",
    "machine": "machine type",
    "microcode": "microcode",
    "governor": "CPU governor",
    "accel": "accelerator",
    "cpu_model": "CPU",
    "cpus": "number of CPUs",
    "guest_kernel": "guest kernel",
    "guest_image": "guest image",
    "fio": "fio",
    "host_os": "host system",
    "cpu_type": "CPU type",
}
"""Fact -> its name in sentences."""
_LOADS: Final[Mapping[str, str]] = {
    "randread": "random read",
    "randwrite": "random write",
    "read": "sequential read",
    "write": "sequential write",
    "randrw": "mixed random I/O",
    "rw": "mixed sequential I/O",
    "readwrite": "mixed sequential I/O",
    "trim": "trim",
    "randtrim": "random trim",
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
MANY: Final = 1.5
"""Relative change from which one speaks of so many times, not of per cent."""
HUGE: Final = 99.0
"""Relative change from which nobody wants decimals."""
LISTED: Final = 3
"""Cases or differences that a sentence names; of more it tells the number."""


def sentence(finding: Change, *, evidence: bool = True) -> str:
    """Return what has happened, as one sentence.

    Args:
        evidence: tell the interval and the number of runs too, which are others with every run.
    """
    text = _slowly(finding) if finding.slow else f"{_beginning(finding)}{_since(finding)}"
    text += ", as it was before" if finding.back else ""
    text += f" ({'; '.join(_details(finding, evidence=evidence))})"
    for match in finding.issues[:1]:
        text += f"; {issue_text(match)}"
    if finding.reason:
        text += f". Too good to be true: {finding.reason}"
    if finding.accepted:
        text += " [accepted]"
    elif finding.over:
        text += f" [{_over(finding)}]"
    return text


def _over(finding: Change) -> str:
    if not finding.until:
        return "over"
    days = (finding.until - finding.time) / 86400
    after = f"{days:.0f} days" if days >= 2 else f"{24 * days:.0f} h"
    return f"over since {datetime.fromtimestamp(finding.until, UTC):%Y-%m-%d}, after {after}"


def _beginning(finding: Change) -> str:
    first, who = finding.moves[0], subject(finding)
    if who == "everything" and first.figure.name != "throughput":
        text = _verb(first).removeprefix(": ")
    else:
        text = who + _verb(first)
    return text if finding.group is None else text[0].upper() + text[1:]


def _slowly(finding: Change) -> str:
    first, who = finding.moves[0], subject(finding)
    figure = first.figure
    word = figure.worse if first.effect < 0 else figure.better
    who = who if figure.name == "throughput" else f"{figure.noun} of {who}"
    when = datetime.fromtimestamp(finding.time, UTC)
    text = f"{who} is slowly getting {word}: {percent(first.effect, figure)} over {first.runs} runs"
    text = text if finding.group is None else text[0].upper() + text[1:]
    now = _now_that(finding)
    return f"{text} since {when:%Y-%m-%d}{',' if now else ''}{now}"


def subject(finding: Change) -> str:
    """Return what has changed: a group in words, or the cases by name."""
    if finding.group is None:
        shown = ", ".join(finding.names[:LISTED])
        more = len(finding.names) - LISTED
        return f"{shown} and {more} more" if more > 0 else shown
    if finding.all_but:
        return "everything but " + group_text(finding.group).replace("everything", "what is", 1)
    return group_text(finding.group)


def group_text(group: Group) -> str:
    """Return a group in words: `random write on virtio`."""
    values = dict(group)
    if not values:
        return "everything"
    load = values.pop("rw", "")
    places = [_PLACES.get(key, key + " {}").format(value) for key, value in values.items()]
    return " ".join([_LOADS.get(load, load) or "everything", *places])


def percent(effect: float, figure: Figure) -> str:
    """Return by how much a value has changed, without its sign: `18 %`, or `4.1 times`."""
    change = change_of(effect, figure)
    if change > MANY:
        return f"{1 + change:.1f} times" if change < HUGE else f"{1 + change:,.0f} times"
    whole = 0.1 <= abs(change) < 0.995 or abs(change) >= 1
    return f"{abs(change):.0%}".replace("%", " %") if whole else _fine(change)


def change_of(effect: float, figure: Figure) -> float:
    """Return the relative change of the value itself: -0.18 is 18 % less of it."""
    return math.expm1(effect if figure.more_is_better else -effect)


def _fine(change: float) -> str:
    return f"{abs(change):.1%}".replace("%", " %")


def _verb(move: Move) -> str:
    between = " got " if move.figure.name == "throughput" else ": "
    return between + change_text(move.effect, move.figure)


def change_text(effect: float, figure: Figure) -> str:
    """Return a change in words: `18 % slower`, `p99 latency 40 % longer`."""
    amount, word = percent(effect, figure), figure.worse if effect < 0 else figure.better
    if figure.name == "throughput":
        return f"{amount} {word}"
    if amount.endswith("times"):
        word = f"as {'long' if word == 'longer' else 'high' if word == 'higher' else 'large'}"
    return f"{figure.noun} {amount} {word}"


def _since(finding: Change) -> str:
    now = _now_that(finding)
    if finding.came_with:
        return f"{now}{', or' if now else ''} with {_came_with(finding)}"
    when = datetime.fromtimestamp(finding.time, UTC)
    return f"{now}{',' if now else ''} since {when:%Y-%m-%d %H:%M} UTC"


def _now_that(finding: Change) -> str:
    """Return what else changed with it: it is told before software is."""
    texts = " and ".join(one.text for one in finding.meanwhile)
    return f" now that {texts}" if texts else ""


def _came_with(finding: Change) -> str:
    """Return what a change came with; of events that no run tells apart, all of them."""
    texts = [differences_text(event) for event in finding.came_with]
    if len(texts) == 1:
        return texts[0]
    if len(texts) > LISTED:
        texts[LISTED:] = [f"{len(texts) - LISTED} more"]
    runs = finding.events_apart
    count = f"{runs} run{'' if runs == 1 else 's'}"
    apart = (
        "with no run between them"
        if not runs
        else f"which came {count} apart"
        if len(texts) == 2
        else f"which came within {count}"
    )
    return f"{', '.join(texts[:-1])} or {texts[-1]}, {apart}"


def differences_text(found: Sequence[Difference]) -> str:
    """Return the new versions: `pve-qemu-kvm 9.2.0-2 and kernel 6.11.11-1-pve`."""
    texts = [
        f"{_FACTS.get(one.fact, one.fact)} {one.after}"
        if one.after
        else f"no known {_FACTS.get(one.fact, one.fact)}"
        for one in found
    ]
    shown, more = texts[:LISTED], len(texts) - LISTED
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _details(finding: Change, *, evidence: bool) -> list[str]:
    first, *others = finding.moves
    moved = {move.figure.name: move.effect for move in finding.moves}
    others = [move for move in others if not derived(move.figure.name, moved)]
    found = [f"95 % interval {interval(first)}"] if evidence else []
    found += [_extent(finding, first, evidence=evidence)]
    found += [f"on {finding.node}"] if finding.node else []
    found += [
        f"{move.figure.noun} {'down' if change_of(move.effect, move.figure) < 0 else 'up'} "
        f"{percent(move.effect, move.figure)}"
        for move in others
    ]
    found += [one.numbers for one in finding.meanwhile if evidence]
    if not (finding.known or finding.slow or finding.meanwhile):
        found.append(_candidates(finding.candidates))
    return found


def interval(move: Move) -> str:
    """Return the 95 % interval of a change in percent: `15-21 %`."""
    ends = [100 * change_of(effect, move.figure) for effect in (move.low, move.high)]
    if change_of(move.effect, move.figure) < 0:
        ends = [-end for end in ends]
    low, high = sorted(ends)
    if low > 100 * MANY:
        return f"{_apart(1 + low / 100, 1 + high / 100, 1)} times"
    return f"{low:.0f} to {high:.0f} %" if low < 0 else f"{_apart(low, high, 0)} %"


def _apart(low: float, high: float, digits: int) -> str:
    """Return both ends with as many digits as it takes to tell them apart, two more at most."""
    texts = ([f"{end:.{digits + more}f}" for end in (low, high)] for more in range(3))
    return "-".join(next((ends for ends in texts if ends[0] != ends[1]), [f"{low:.{digits}f}"]))


def _extent(finding: Change, first: Move, *, evidence: bool) -> str:
    told = evidence and not finding.slow
    runs = f", {first.runs} run{'s' if first.runs > 1 else ''} after it" if told else ""
    if finding.group is None:
        count = len(finding.cases)
        return f"{count} case{'s' if count > 1 else ''}{runs}"
    if not finding.all_but and len(finding.cases) >= finding.of:
        return f"all {finding.of} cases{runs}"
    total = "" if finding.all_but else f" of {finding.of}"
    return f"{len(finding.cases)}{total} cases{runs}"


def _candidates(found: Sequence[Candidate]) -> str:
    if not found:
        return "nothing known happened near it"
    one = found[0]
    place = (
        "then" if one.runs == 0 else f"{abs(one.runs)} runs {'later' if one.runs > 0 else 'before'}"
    )
    return f"nearest: {one.happening.kind} ({one.happening.text}) {place}"


def issue_text(match: Match) -> str:
    """Return a known issue in words."""
    issue = match.issue
    if match.ends:
        return f"the fix of known issue {issue.id} ({issue.title})"
    text = f"known issue {issue.id} ({issue.title})"
    text += f", fixed in {match.fixed_in}" if match.fixed_in else ", no fix known"
    return text + (f", workaround: {issue.workaround}" if issue.workaround else "")
