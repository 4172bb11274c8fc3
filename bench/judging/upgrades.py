"""Upgrades of whole nodes: whether they are blamed for what they did, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from judging.sampling import Row, Setup, share_row
from testing.answers import Answer, ask, ask_node
from testing.fleets import Fleet, fleet, labels_24, labels_144, loaded, mixed_case
from testing.noise import (
    BUSY,
    DAY,
    EPOCH,
    HOUR,
    Random,
    Series,
    hour_of,
    independent,
    unchanged,
    weekday_of,
)

AFTER: Final = (1, 3, 8)
"""Cycles after an upgrade at which is asked."""
VIRTIO: Final = {"bus": "virtio"}
BUS: Final = "one of three buses"
PAIR: Final = "random write on one bus"
GROUPS: Final = {BUS: VIRTIO, PAIR: {**VIRTIO, "workload": "randwrite"}}


def named(answer: Answer) -> bool:
    """Return whether a regression of virtio is attributed to the upgrade."""
    return any(one.group == VIRTIO and not one.all_but and one.ratio < 0 for one in answer.blamed())


def others_blamed(answer: Answer, node: Fleet) -> bool:
    """Return whether a change attributed to the upgrade includes cases of another bus."""
    hit = node.members(bus="virtio")
    return any(not hit[case] for one in answer.blamed() for case in one.cases)


# --- a load that differs from day to day ---


def busy_upgrade(rng: Random, depth: float) -> dict[int, tuple[bool, bool, bool]]:
    """Return cycles after -> false event, virtio named, others blamed."""
    before = int(rng.integers(10, 61))
    node = loaded(rng, before + max(AFTER), depth, float(rng.choice([4, 8, 24]))).upgraded(before)
    slower = node.changed(before, 0.8, node.members(bus="virtio"))
    results = {}
    for cycles in AFTER:
        false, right = ask_node(node, before + cycles), ask_node(slower, before + cycles)
        results[cycles] = bool(false.blamed()), named(right), others_blamed(right, node)
    return results


def day_rows(setup: Setup) -> Iterator[Row]:
    """Yield the results of upgrades below a load of the day."""
    for depth in (0.15, 0.25, 0.6):
        results = setup.each(busy_upgrade, depth)
        for cycles in AFTER:
            own = [one[cycles] for one in results]
            name = f"day load {depth:.0%}, {cycles} cycle(s) after"
            yield share_row(f"{name}: false event", [one[0] for one in own], most=0.05)
            least = 0.8 if cycles >= 3 else None
            yield share_row(
                f"{name}: -20% in one of three buses, named", [one[1] for one in own], least=least
            )
            yield share_row(f"{name}: others blamed", [one[2] for one in own], most=0.05)


# --- few runs before ---


def early_upgrade(rng: Random, before: int, a_day: float, cycles: int) -> tuple[bool, int]:
    """Return whether -20% in virtio is named, and how many of its cases are `unchanged`."""
    node = fleet(rng, labels_144(), before + cycles, a_day).upgraded(before)
    hit = node.members(bus="virtio")
    answer = ask_node(node.changed(before, 0.8, hit))
    same = sum(bool(hit[case]) for case, state in answer.states.items() if state == "unchanged")
    return named(answer), same


def early_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often an early upgrade is named."""
    for before, a_day, cycles, least in (
        (5, 8, 1, None),
        (5, 8, 3, 0.8),
        (5, 8, 8, None),
        (5, 1, 1, 0.8),
        (10, 1, 1, 0.95),
        (15, 1, 1, 0.99),
    ):
        results = setup.each(early_upgrade, before, a_day, cycles)
        name = f"{before} cycles before, {a_day} a day, {cycles} after"
        yield share_row(
            f"{name}: -20% in one of three buses, named", [one for one, _ in results], least=least
        )
        same = sum(count for _, count in results)
        yield Row(f"{name}: affected cases called unchanged", str(same), "0", same == 0)


# --- a change before the upgrade ---


def before_upgrade(rng: Random, a_day: float, days: float) -> dict[int, bool]:
    """Return cycles after -> whether the upgrade is blamed for a change `days` before it."""
    at = 60
    upgrade = at + round(days * a_day)
    node = fleet(rng, labels_24(), upgrade + max(AFTER), a_day).upgraded(upgrade)
    node = node.changed(at, 0.8, node.members(bus="virtio"))
    return {cycles: bool(ask_node(node, upgrade + cycles).blamed()) for cycles in AFTER}


def before_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often an upgrade is blamed for a change before it."""
    for a_day in (1, 2, 8):
        results = setup.each(before_upgrade, a_day, 3.0)
        for cycles in AFTER:
            hits = [one[cycles] for one in results]
            yield share_row(
                f"-20% 3 days before, {a_day} a day, {cycles} cycle(s) after: blamed",
                hits,
                most=0.02,
            )


BESIDE: Final = (-8, -6, -5, -4, -3, 3, 4, 5, 6, 8)
"""Runs between an upgrade and a change that it did not cause."""


def beside_upgrade(rng: Random, kind: str, runs: int) -> bool:
    """Return whether an upgrade without effect is blamed 8 or 30 runs after a change beside it.

    Args:
        kind: of the noise.
        runs: from the upgrade to the change; 0: there is none.
    """
    series = unchanged(kind, rng, 140, float(rng.choice([1, 8, 24])))
    series = Series(series.times, series.logs).upgraded(100)
    series = series.changed(100 + runs, float(rng.choice([0.95, 0.9, 0.8, 0.7])) if runs else 1.0)
    ends = (100 + max(runs, 0) + later for later in (8, 30))
    return any(ask(series.until(end)).blamed() for end in ends)


def beside_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often an upgrade is blamed for a change some runs before or after it."""
    for name, places, most in (
        ("-5% to -30%, 3 to 8 runs beside an upgrade", BESIDE, 0.015),
        ("an upgrade without effect", (0,), 0.003),
    ):
        pairs = [(kind, runs) for kind in BUSY for runs in places]
        hits = [hit for pair in pairs for hit in setup.each(beside_upgrade, *pair)]
        yield share_row(f"{name}: blamed", hits, most=most)


# --- rollback ---


def rollback(rng: Random, a_day: float) -> tuple[bool, bool, bool]:
    """Return whether a loss is red before the rollback, not red after it, and judged again."""
    node = fleet(rng, labels_24(), 80, a_day)
    hit = node.members(bus="virtio")
    node = node.changed(40, 0.8, hit, until=60)
    node = replace(node, environments=("0",) * 40 + ("1",) * 20 + ("0",) * 20)
    first, last = ask_node(node, 60), ask_node(node)
    states = [last.states[int(case)] for case in np.flatnonzero(hit)]
    return first.red, not last.red, "inconclusive" not in states


def rollback_rows(setup: Setup) -> Iterator[Row]:
    """Yield whether a rollback resolves a regression."""
    for a_day in (1, 8):
        results = setup.each(rollback, a_day)
        for place, name in enumerate(
            ("red before", "not red 20 cycles after", "no verdict inconclusive after")
        ):
            yield share_row(
                f"rollback of -20%, {a_day} a day: {name}",
                [one[place] for one in results],
                least=0.95,
            )


# --- quiet nodes ---


def quiet_upgrade(rng: Random, what: str, ratio: float, cycles: int) -> tuple[bool, bool, bool]:
    """Return whether an upgrade that slows some cases is blamed, and for exactly these.

    Also return whether there are several open regressions.
    """
    node = fleet(rng, labels_144(), 60 + cycles).upgraded(60)
    slowed = GROUPS.get(what, {})
    hit = node.members(**slowed)
    if what == "one case":
        hit = (np.arange(144) == 7).astype(float)
        logs = node.logs.copy()
        logs[7] = independent(rng, node.times)
        node = replace(node, logs=logs)
    answer = ask_node(node.changed(60, ratio, hit))
    right = [
        one.cases == {7} if what == "one case" else one.group == slowed and not one.all_but
        for one in answer.blamed()
    ]
    several = sum(one.state == "open" for one in answer.worse()) > 1
    return bool(right), any(right), several


def unequal_hours(rng: Random) -> bool:
    """Return whether an upgrade without effect is blamed that is followed by a working day.

    The host is 20% slower by day; the 60 earlier cycles ran at night.
    """
    early = EPOCH + DAY * (np.arange(60) // 2) + HOUR * (1 + 2.0 * (np.arange(60) % 2))
    late = EPOCH + 30 * DAY + HOUR * (9 + np.arange(5))  # a Wednesday
    times = np.concatenate([early, late])
    node = replace(fleet(rng, labels_24(), 65), times=times).upgraded(60)
    busy = (weekday_of(times) < 5) & (hour_of(times) >= 8) & (hour_of(times) < 18)
    return bool(ask_node(replace(node, logs=node.logs + np.log(0.8) * busy)).blamed())


def close_events(rng: Random, apart: int, ratio: float) -> tuple[bool, bool]:
    """Return whether only the wrong one of two upgrades is named, and whether both are."""
    right = int(rng.integers(2))
    series: Series = mixed_case(rng, 120).upgraded(60, 60 + apart)
    blamed = ask(series.changed(60 + right * apart, ratio)).blamed()
    named_ones = [one.index(series.times.tolist()) for one in blamed if one.ratio < 0]
    both = any(not one.single for one in blamed)
    wrong = bool(named_ones) and not both and 60 + right * apart not in named_ones
    return wrong, both


def quiet_upgrade_rows(setup: Setup) -> Iterator[Row]:
    """Yield the results of upgrades on quiet nodes."""
    for what, ratio, cycles, least in (
        (BUS, 0.95, 1, 0.95),
        (BUS, 0.97, 3, 0.9),
        ("all cases", 0.95, 1, 0.9),
        (PAIR, 0.95, 3, 0.85),
        ("one case", 0.8, 3, 0.9),
        ("one case", 0.9, 5, 0.8),
        ("one case", 0.95, 60, 0.8),
    ):
        _, right, several = zip(*setup.each(quiet_upgrade, what, ratio, cycles), strict=True)
        name = f"{ratio - 1:+.0%} in {what}, {cycles} cycle(s) after"
        yield share_row(f"{name}: named", right, least=least)
        yield share_row(f"{name}: several open regressions", several, most=0.05)
    for cycles in AFTER:
        false = [event for event, *_ in setup.each(quiet_upgrade, BUS, 1.0, cycles)]
        yield share_row(f"without effect, {cycles} cycle(s) after: false event", false, most=0.05)
    yield share_row(
        "nights before, a working day after: false event", setup.each(unequal_hours), most=0.05
    )
    for apart in (2, 5):
        results = setup.each(close_events, apart, 0.8, share=4)
        name = f"-20%, two upgrades {apart} runs apart"
        yield share_row(f"{name}: only the wrong one named", [one for one, _ in results], most=0.02)
        yield share_row(f"{name}: both named", [one for _, one in results])
