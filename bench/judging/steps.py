"""Changes at any time: whether they are reported, soon, and red for as long as they last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from judging.sampling import Row, Setup, share_row
from pvebench.analysis.judge import Judge
from testing.answers import ask, ask_latency
from testing.fleets import mixed_case
from testing.noise import (
    KINDS,
    LEAST_RATES,
    MODES,
    Random,
    Series,
    clock,
    day_load,
    independent,
    modes,
    unchanged,
)

SOON: Final = 10
SINCE: Final = 5
"""Runs before a change from which on a reported begin counts as that change."""


def _plain(rng: Random, runs: int, a_day: float, cv: float = 0.03) -> Series:
    times = clock(rng, runs, a_day)
    return Series(times, independent(rng, times) * cv / 0.03)


def _worse(series: Series, at: int, runs: int) -> tuple[bool, bool]:
    """Return whether a regression from run `at` on is reported after `runs` runs, and red."""
    part = series.until(runs)
    answer, times = ask(part), part.times.tolist()
    return any(one.index(times) >= at - SINCE for one in answer.worse()), answer.red


def same_run_by_run(rng: Random) -> bool:
    """Return whether the answer is the same from nothing and with what earlier runs left."""
    series, judge = mixed_case(rng, 260, float(rng.choice([1, 8, 24]))).changed(150, 0.8), Judge()
    for runs in range(20, 260, 7):
        ask(series.until(runs), judge)
    return ask(series, judge) == ask(series)


# --- red while it lasts ---


def lasting(rng: Random, a_day: float) -> tuple[bool, bool, bool, bool]:
    """Return whether a loss of 20%, and a further 40%, are ever reported without being red.

    Also return whether the first is red 40 to 160 runs later, whether it is several regressions
    then, and whether both are red after 400 more.
    """
    before, cv = int(rng.integers(10, 151)), float(rng.choice([0.01, 0.02, 0.03]))
    second = before + int(rng.integers(40, 160))
    series = _plain(rng, second + 400, a_day, cv)
    if rng.integers(2):
        load = day_load(rng, series.times, depth=0.15, cv=0.0)
        series = replace(series, logs=series.logs + load)
    series = series.changed(before, 0.8).changed(second, 0.6)
    asked = (*range(before + 6, second, 5), *range(second + 5, second + 400, 15))
    silent = any(
        reported and not red for reported, red in (_worse(series, before, n) for n in asked)
    )
    first, last = ask(series.until(second)), ask(series)
    several = sum(one.state == "open" for one in first.worse()) > 1
    return silent, first.red, several, last.red


def lasting_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often a reported and lasting regression is not red."""
    for a_day in (4, 8, 12, 24):
        silent, first, several, last = zip(*setup.each(lasting, a_day, share=2), strict=True)
        name = f"{a_day} runs a day, 10 to 150 before"
        yield share_row(f"{name}: ever reported and lasting, not red", silent, most=0.0)
        yield share_row(f"{name}: -20% red 40 to 160 runs later", first)
        yield share_row(f"{name}: -20% is several open regressions", several, most=0.0)
        yield share_row(f"{name}: a further -40%, red 400 runs later", last, least=1.0)


# --- soon ---


def soon(rng: Random, kind: str, ratio: float, a_day: float) -> tuple[bool, bool, bool]:
    """Return whether a loss is possibly slower or reported within 10 runs, and red within 20."""
    at = int(rng.integers(60, 200))
    series = (
        mixed_case(rng, at + 2 * SOON, a_day)
        if kind == "usual"
        else unchanged(kind, rng, at + 2 * SOON, a_day)
    ).changed(at, ratio)
    return *_within(series, at), all(_worse(series, at, at + 2 * SOON))


def _within(series: Series, at: int) -> tuple[bool, bool]:
    """Return whether a loss is possibly slower or reported within 10 runs, and reported."""
    parts = [series.until(at + runs) for runs in range(SOON, 2, -1)]
    reported = any(_worse(part, at, len(part.logs))[0] for part in parts)
    return reported or any(ask(part).states[0] == "possibly_slower" for part in parts), reported


def soon_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often a loss is reported within 10 runs."""
    for ratio, least in ((0.8, 0.8), (0.5, 0.95)):
        for a_day in (1, 8, 24):
            for kind, noise in (("independent", "CV 3%"), ("usual", "usual noise")):
                results = setup.each(soon, kind, ratio, a_day, share=2)
                name = f"{ratio - 1:+.0%}, {a_day} a day, {noise}"
                doubted, reported, red = zip(*results, strict=True)
                yield share_row(
                    f"{name}: possibly slower or reported within {SOON} runs", doubted, least=least
                )
                yield share_row(f"{name}: reported within {SOON} runs", reported, least=least)
                yield share_row(f"{name}: red after {2 * SOON}", red)
    for ratio in (0.95, 0.9):
        results = setup.each(soon, "independent", ratio, 8, share=2)
        yield share_row(
            f"{ratio - 1:+.0%}, 8 a day, CV 3%: reported within {SOON} runs",
            [reported for _, reported, _ in results],
        )


EVERY_RATIO: Final = ((0.9, 0.75), (0.8, 0.92), (0.5, 0.99))
"""Loss and the least share that is to be reported within 10 runs, over all kinds and rates."""
SOON_RATES: Final = (1, 4, 24, 48)


def soon_of_kind(rng: Random, kind: str, ratio: float, a_day: float) -> tuple[bool, bool]:
    """Return `_within` of a loss within a kind of noise."""
    at = int(rng.integers(60, 200))
    return _within(unchanged(kind, rng, at + SOON, a_day).changed(at, ratio), at)


def slow_latency(rng: Random, kind: str, a_day: float) -> tuple[bool]:
    """Return whether a p99 latency × 1.2 is reported within 10 runs; throughput is unchanged."""
    at = int(rng.integers(60, 200))
    series = unchanged(kind, rng, at + SOON, a_day)
    latency = replace(series, logs=-series.logs).changed(at, 1.2)
    return (
        any(
            ask_latency(series.until(at + runs), latency.until(at + runs), since=at - SINCE)
            for runs in range(SOON, 2, -1)
        ),
    )


def every_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often a loss is reported within 10 runs in any kind of noise, at any rate."""
    losses = ((f"{ratio - 1:+.0%}", soon_of_kind, (ratio,), least) for ratio, least in EVERY_RATIO)
    for name, sample, sizes, least in (*losses, ("p99 latency × 1.2", slow_latency, (), 0.85)):
        hits = {
            (kind, a_day): setup.each(sample, kind, *sizes, a_day, share=0.25)
            for kind in KINDS
            for a_day in SOON_RATES
            if kind not in MODES and a_day >= LEAST_RATES.get(kind, 0)
        }
        title = f"{name}, {len(KINDS) - len(MODES)} kinds:"
        yield _every_row(f"{title} reported within {SOON} runs", hits, least)
        if sample is soon_of_kind:
            seen = {key: [(doubted,) for doubted, _ in pairs] for key, pairs in hits.items()}
            yield _every_row(f"{title} the same, or possibly slower", seen, None)


def _every_row(
    name: str, hits: Mapping[tuple[str, int], Sequence[tuple[bool, ...]]], least: float | None
) -> Row:
    """Return how often something is so, at each rate, and in which kinds it rarely is."""
    row = share_row(name, _of(hits), least=least)
    rates = [f"{np.mean(_of(hits, a_day=a_day)):.0%} at {a_day}" for a_day in SOON_RATES]
    rare = [kind for kind in KINDS if np.mean(_of(hits, kind) or [1]) < 0.5]
    less = f"; less than half: {', '.join(rare)}" if rare else ""
    return Row(row.name, f"{row.measured}: {', '.join(rates)} a day{less}", row.aim, row.good)


def _of(
    hits: Mapping[tuple[str, int], Sequence[tuple[bool, ...]]], kind: str = "", a_day: int = 0
) -> list[bool]:
    """Return the last of the results of a kind of noise, of a rate, or all."""
    return [
        hit
        for (noise, rate), results in hits.items()
        if kind in ("", noise) and a_day in (0, rate)
        for *_, hit in results
    ]


# --- shapes ---


def _outliers_first(rng: Random) -> Series:
    """Return a loss of 14% whose first runs are outliers, at 1% noise."""
    series = _plain(rng, 200, 8, 0.01).changed(120, 0.86)
    logs = series.logs.copy()
    logs[120 : 120 + int(rng.integers(1, 4))] += rng.choice([-1, 1]) * rng.uniform(0.2, 0.6)
    return replace(series, logs=logs)


def _stuck(rng: Random) -> Series:
    """Return two modes, the worse of which stays for 100 runs."""
    times = clock(rng, 400, 8)
    logs = modes(rng, times)
    logs[300:] = independent(rng, times[300:]) - 0.1
    return Series(times, logs)


def _part_slower(rng: Random) -> Series:
    """Return runs of which a quarter becomes 25% slower."""
    series = _plain(rng, 300, 8)
    hit = (rng.random(300) < 0.25) & (np.arange(300) >= 200)
    return replace(series, logs=series.logs + np.log(0.75) * hit)


def _gradual(ratio: float, runs: int, rng: Random) -> Series:
    """Return a loss of a constant share per run, over the last `runs` runs."""
    series = _plain(rng, 150 + runs, 4)
    steps = np.clip(np.arange(150 + runs) - 149, 0, None)
    return replace(series, logs=series.logs + steps * np.log(ratio))


SHAPES: Final[Mapping[str, Callable[[Random], Series]]] = {
    "-14% that begins with outliers, CV 1%, after 80 runs": _outliers_first,
    "stuck at the worse of two modes for 100 runs": _stuck,
    "a quarter of the runs is 25% slower, after 100 runs": _part_slower,
    "-1% per run, after 18 runs": partial(_gradual, 0.99, 18),
    "-0.1% per run, after 200 runs": partial(_gradual, 0.999, 200),
}
AIMS: Final = (0.95, 0.95, 0.8, 0.5, 0.5)


def shape(rng: Random, name: str) -> bool:
    """Return whether a shape of change ends red."""
    return ask(SHAPES[name](rng)).red


def glitch(rng: Random) -> bool:
    """Return whether one run at half the speed is ever reported."""
    series = mixed_case(rng, 120, 8)
    logs = series.logs.copy()
    logs[100] += np.log(0.5)
    return any(_worse(replace(series, logs=logs), 98, runs)[0] for runs in range(101, 121))


def shape_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often other shapes of changes are red."""
    for name, least in zip(SHAPES, AIMS, strict=True):
        yield share_row(f"{name}: red", setup.each(shape, name), least=least)
    yield share_row("the same run by run and from nothing", setup.each(same_run_by_run), least=1.0)
    yield share_row(
        "one run at half the speed, reported within 20 runs", setup.each(glitch, share=2), most=0.02
    )
