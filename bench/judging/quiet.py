"""Series without a change: whether they end red, and how often something is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from judging import rivals
from judging.sampling import Row, Setup, share_row
from testing.answers import ask
from testing.noise import KINDS, LEAST_RATES, MODES, RUNS, Random, unchanged

MOST: Final = 0.03
MOST_MODES: Final = 0.08
EACH_RATE: Final = (1, 4, 24, 48)


def ends_red(rng: Random, kind: str) -> tuple[bool, int]:
    """Return whether an unchanged series ends red, and the number of reported changes."""
    answer = ask(unchanged(kind, rng))
    return answer.red, len(answer.changes)


def red_at_rate(rng: Random, kind: str, a_day: float) -> bool:
    """Return whether an unchanged series ends red at a rate of runs."""
    return ask(unchanged(kind, rng, a_day=a_day)).red


def rate_rows(setup: Setup) -> Iterator[Row]:
    """Yield how many series of all kinds and rates end red, and of which kinds they are."""
    hits = dict[str, list[bool]]()
    for kind in KINDS:
        for a_day in EACH_RATE:
            if a_day >= LEAST_RATES.get(kind, 0):
                hits.setdefault(kind, []).extend(setup.each(red_at_rate, kind, a_day, share=0.25))
    red = ", ".join(f"{kind} {sum(reds)}" for kind, reds in hits.items() if any(reds))
    row = share_row(
        f"{len(hits)} kinds at {len(EACH_RATE)} rates: ends red",
        [hit for reds in hits.values() for hit in reds],
        most=0.005,
    )
    yield Row(row.name, f"{row.measured}: {red}" if red else row.measured, "≤ 0.5%", row.good)
    steady = [hit for kind, reds in hits.items() if kind not in MODES for hit in reds]
    yield share_row("the same without the kinds with other levels", steady)


def others(rng: Random, kind: str) -> tuple[int, int]:
    """Return the numbers of changes that otava (tuned) and PELT run by run report."""
    series = unchanged(kind, rng)
    found = rivals.otava(series, p_value=1e-6, size=0.03)
    return len(found), len(rivals.online(series.logs, rivals.ONLINE[0]))


def quiet_rows(setup: Setup) -> Iterator[Row]:
    """Yield the results of every kind."""
    count = reported = 0
    for kind in KINDS:
        results = setup.each(ends_red, kind)
        changes = sum(number for _, number in results)
        count, reported = count + len(results), reported + changes
        row = share_row(
            f"{kind}: ends red",
            [red for red, _ in results],
            most=MOST_MODES if kind in MODES else MOST,
        )
        rate = 1000 * changes / (RUNS * len(results))
        yield Row(row.name, f"{row.measured}; {rate:.1f} per 1,000 runs", row.aim, row.good)
    yield Row("all kinds, reported per 1,000 runs", f"{1000 * reported / (RUNS * count):.2f}")
    if not rivals.install():
        pairs = [pair for kind in KINDS for pair in setup.each(others, kind, share=0.1)]
        for place, name in enumerate(("otava, p ≤ 1e-6, ≥ 3%", "PELT run by run, 14/20")):
            rate = 1000 * sum(pair[place] for pair in pairs) / (RUNS * len(pairs))
            yield Row(f"{name}: all kinds, reported per 1,000 runs", f"{rate:.1f}")
