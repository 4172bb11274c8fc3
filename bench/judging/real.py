"""How reported changes match what people marked in real histories, next to other methods."""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np

from judging import rivals
from judging.labelled import (
    BACK,
    FOLDS,
    MARGIN,
    NEW,
    Found,
    History,
    best_of,
    cross_validated,
    read,
    score,
)
from judging.sampling import Constant, Row, Setup, number_row, share_row
from judging.sizes import size_rows
from pvebench.analysis.judge import Judge
from testing.answers import Moved, ask

T = TypeVar("T")
SIZES: Final = (0.01, 0.015, 0.02, 0.03, 0.05)
LATER: Final = (3, 6, 8, 10, 15, 20, 30, 45, 60)
"""Runs after a change at which is asked whether it is reported."""
STEP: Final = 8
"""Runs between two questions, run by run."""
WATCHED: Final = 0.7
"""Most changes per 1,000 runs of quiet histories that are reported at some time."""
TAKEN_BACK: Final = 0.12
"""Maximum share of all changes reported at some time that are missing in the end."""
SIDE: Final = 15
"""Runs on each side of a change that its size is compared with."""


def asked(history: History) -> list[tuple[int, Moved]]:
    """Return (first run, change) of the changes that `judge` reports in a history."""
    times = history.series.times.tolist()
    changes = ask(history.series).changes
    return [(bisect_left(times, change.begin), change) for change in changes]


def _by_name(histories: Sequence[History], found: Sequence[Sequence[int]]) -> Found:
    return {one.name: places for one, places in zip(histories, found, strict=True)}


def _places(
    histories: Sequence[History],
    answers: Sequence[list[tuple[int, Moved]]],
    counts: Callable[[Moved], bool] = lambda _: True,
) -> Found:
    """Return the first runs of the changes that count."""
    return _by_name(
        histories, [[place for place, one in answer if counts(one)] for answer in answers]
    )


def real_rows(setup: Setup) -> Iterator[Row]:
    """Yield the quality on all labelled histories, and that of other methods.

    With constants to vary: only the quality with their values.
    """
    histories = read()
    if setup.vary:
        yield from _varied(setup, histories)
        return
    answers = setup.over(asked, histories)
    ours = _places(histories, answers)
    yield from _ours(histories, ours)
    yield from _curve(histories, answers)
    yield from _early(setup, histories, ours)
    yield from size_rows("real histories", list(_sides(histories, answers)))
    yield from _rivals(setup, histories)


def _ours(histories: Sequence[History], found: Found) -> Iterator[Row]:
    total = score(histories, found)
    folds = [
        score([one for one in histories if one.fold == fold], found).f1 for fold in range(FOLDS)
    ]
    yield Row(
        "F1",
        f"{total.f1:.3f} (folds {min(folds):.2f} to {max(folds):.2f})",
        "≥ 0.6 (0.62)",
        total.f1 >= 0.6,
    )
    yield number_row("changes per 1,000 quiet runs", total.rate, most=0.4)
    for kind, least in ((BACK, 0.92), (NEW, 0.95)):
        hit, count = total.clear.get(kind, (0, 0))
        yield share_row(
            f"clear changes {kind}", [True] * hit + [False] * (count - hit), least=least
        )


def _curve(
    histories: Sequence[History], answers: Sequence[list[tuple[int, Moved]]]
) -> Iterator[Row]:
    """Yield F1 against false alarms if only larger changes were reported."""
    for size in SIZES:
        found = _places(histories, answers, partial(_large, size))
        yield _scored(f"changes of {size:.1%} and more", histories, found)
    worse = _places(histories, answers, lambda one: one.ratio < 0)
    rate = score(histories, worse).rate
    yield number_row("regressions per 1,000 quiet runs", rate)


def _varied(setup: Setup, histories: Sequence[History]) -> Iterator[Row]:
    """Yield F1 against false alarms for all combinations of values, and the tuned one."""
    constants = [constant for constant, _ in setup.vary]
    settings = dict[str, Found]()
    for values in itertools.product(*(values for _, values in setup.vary)):
        usual = [constant.get() for constant in constants]
        name = ", ".join(
            f"{one.place} = {value}" for one, value in zip(constants, values, strict=True)
        )
        _set(constants, values)
        settings[name] = _places(histories, setup.over(asked, histories))
        _set(constants, usual)
        yield _scored(name, histories, settings[name])
    yield _scored("tuned on the other folds", histories, cross_validated(histories, settings))


def _set(constants: Sequence[Constant], values: Sequence[str]) -> None:
    for constant, value in zip(constants, values, strict=True):
        constant.set(value)


def _large(size: float, change: Moved) -> bool:
    return abs(change.effect) >= size


def _scored(name: str, histories: Sequence[History], found: Found) -> Row:
    total = score(histories, found)
    clear = [
        f"{hit} of {count} {kind.removesuffix(' level')}"
        for kind, (hit, count) in sorted(total.clear.items())
    ]
    return Row(name, f"F1 {total.f1:.3f}; {total.rate:.2f} per 1,000; {', '.join(clear)}")


# --- how soon, and whether it is the same run by run ---


def delay(label: int, history: History) -> float:
    """Return the runs after which a label is reported; infinite: not within the last of LATER."""
    for later in LATER:
        part = history.series.until(label + later)
        times = part.times.tolist()
        if history.near([change.index(times) for change in ask(part).changes], label):
            return later
    return float("inf")


def _delay(pair: tuple[int, History]) -> float:
    return delay(*pair)


def run_by_run(history: History) -> tuple[list[int], int]:
    """Return the first runs of all changes that are ever reported, and how many are missing later.

    The begin of a gradual change moves with its latest runs: those in one direction are one.
    """
    reported: list[tuple[int, Moved]] = []
    now: list[tuple[int, Moved]] = []
    judge, runs = Judge(), len(history.series.logs)
    for count in (*range(STEP, runs, STEP), runs):
        part = history.series.until(count)
        times = part.times.tolist()
        now = [(change.index(times), change) for change in ask(part, judge).changes]
        reported += [new for new in now if not any(_same(new, old) for old in reported)]
    missing = [old for old in reported if not any(_same(new, old) for new in now)]
    return [place for place, _ in reported], len(missing)


def _same(one: tuple[int, Moved], other: tuple[int, Moved]) -> bool:
    (place, change), (earlier, known) = one, other
    gradual = change.slow and known.slow and change.effect * known.effect > 0
    return gradual or abs(place - earlier) <= MARGIN


def _early(setup: Setup, histories: Sequence[History], found: Found) -> Iterator[Row]:
    hits = [
        (label, history)
        for history in histories
        for label in history.labels
        if history.near(found[history.name], label)
    ]
    delays = np.array(setup.over(_delay, hits))
    yield number_row("median delay of found changes", float(np.median(delays)), " runs")
    yield share_row("found within 10 runs", (delays <= 10).tolist())
    reported, missing = zip(*setup.over(run_by_run, histories), strict=True)
    row = _scored(f"asked every {STEP} runs", histories, _by_name(histories, reported))
    quiet = score(histories, _by_name(histories, reported)).rate
    yield Row(row.name, row.measured, "≤ 0.7 per 1,000", quiet <= WATCHED)
    taken = [number < sum(missing) for number in range(sum(map(len, reported)))]
    yield share_row("of these, taken back", taken, most=TAKEN_BACK)


def _some(setup: Setup, histories: Sequence[History]) -> Sequence[History]:
    """Return evenly chosen histories, for what takes long."""
    return histories[:: max(1, len(histories) // (4 * setup.series * len(setup.seeds)))]


def _sides(
    histories: Sequence[History], answers: Sequence[list[tuple[int, Moved]]]
) -> Iterator[tuple[Moved, float]]:
    """Yield each change with its size by fifteen runs on either side."""
    for history, answer in zip(histories, answers, strict=True):
        logs = history.series.logs
        for place, change in answer:
            if place >= SIDE and place + SIDE <= len(logs) and not change.slow:
                before, after = logs[place - SIDE : place], logs[place : place + SIDE]
                yield change, float(np.median(after) - np.median(before))


# --- other methods ---


def _pelt(setting: rivals.PeltSetting, history: History) -> list[int]:
    return rivals.pelt(history.series.logs, setting)


def _otava(setting: tuple[float, float], history: History) -> list[int]:
    return rivals.otava(history.series, p_value=setting[0], size=setting[1])


def _online(setting: rivals.PeltSetting, history: History) -> list[tuple[int, int]]:
    return rivals.online(history.series.logs, setting)


def _tuned(
    setup: Setup,
    histories: Sequence[History],
    title: str,
    work: Callable[[T, History], list[int]],
    grid: Sequence[T],
) -> Iterator[Row]:
    """Yield the score of a method with settings chosen on the other folds, and of the best."""
    settings: dict[str, Found] = {}
    for setting in grid:
        found = setup.over(partial(work, setting), histories)
        settings[str(setting)] = _by_name(histories, found)
    yield _scored(f"{title}, tuned", histories, cross_validated(histories, settings))
    best = best_of(histories, settings)
    yield _scored(f"{title}, {best}", histories, settings[best])


def _rivals(setup: Setup, histories: Sequence[History]) -> Iterator[Row]:
    missing = rivals.install()
    if missing:
        print(f"\nNOT COMPARED with PELT and otava: {missing}\n", file=sys.stderr, flush=True)
        yield Row("PELT, otava", f"NOT COMPARED, not installable: {missing}")
        return
    yield from _tuned(setup, histories, "PELT, whole history", _pelt, rivals.PELT_GRID)
    yield from _tuned(setup, histories, "otava, whole history", _otava, rivals.OTAVA_GRID)
    default = {one.name: _otava(rivals.OTAVA_DEFAULT, one) for one in histories}
    yield _scored("otava, defaults", histories, default)
    some = _some(setup, histories)
    for setting in rivals.ONLINE:
        reported = setup.over(partial(_online, setting), some)
        found = _by_name(some, [[place for place, _ in own] for own in reported])
        delays = [runs - place for own in reported for place, runs in own]
        row = _scored(f"PELT run by run, {setting} ({len(some)} histories)", some, found)
        yield Row(row.name, f"{row.measured}; median delay {np.median(delays):g} runs")
