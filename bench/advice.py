"""Simulated clusters with known truth: is the advice right, and does the gate keep its promises?

Usage: .venv/bin/python bench/advice.py [--seeds 200]
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from pvebench.advice.gate import GateResult, Runs, series_of
from pvebench.advice.gate_statistic import TOLERANCE, Decision, bounds
from pvebench.advice.recommendation import Standing, recommendations
from pvebench.verdicts.ranking import MAX_EQUAL_LOSS
from testing.simulated_results import HOUR, case, trend, view_of

CONFIGURATIONS = (
    "scsi.raw.none",
    "scsi.raw.none.iothread-1",
    "virtio.raw.none",
    "virtio.raw.none.iothread-1",
    "scsi.raw.writeback",
    "scsi.raw.directsync",
    "virtio.raw.none.aio-native",
    "scsi.raw.unsafe",
)
TIE = 0.005
"""True differences below this are ties."""


def advice(seed: int) -> Counter[str]:
    """Return what came of the advice on one storage with random true values."""
    noise = random.Random(seed)  # noqa: S311 # simulation
    equal = seed % 4 == 0
    true = {
        slug: 1000 * math.exp(0 if equal else noise.uniform(-0.4, 0.4)) for slug in CONFIGURATIONS
    }
    true["scsi.raw.unsafe"] = 20_000
    sd, runs = noise.choice((0.01, 0.03, 0.06)), noise.choice((3, 5, 10))
    cases = [
        (case(slug, fsync=1), trend(value, noise, runs=runs, sd=sd)) for slug, value in true.items()
    ]
    (one,) = recommendations(view_of(cases))
    level = {f"local.{slug}": value for slug, value in true.items() if "unsafe" not in slug}
    best, chosen = max(level.values()), level.get(one.chosen.scenario, 0.0)
    counts = Counter({"clusters": 1, "durable": int(chosen > 0)})
    if one.standing is Standing.MEASURE:
        return counts + Counter({"measure first": 1})
    right = chosen >= best * (1 - MAX_EQUAL_LOSS)
    counts += Counter({"advised": 1, "best or within noise": int(right)})
    counts["the very best"] += int(chosen >= best * (1 - TIE))
    if equal:
        called = one.standing is Standing.DEFAULT
        counts += Counter({"ties": 1, "ties called ties": int(called)})
    if one.gain is not None:
        ratio = chosen / level["local.scsi.raw.none"] - 1
        counts += Counter(
            {"gains": 1, "gain within CI": int(one.gain.low <= ratio <= one.gain.high)}
        )
    return counts


def rows(seeds: int) -> Iterator[tuple[str, str]]:
    """Yield (aim, result)."""
    total: Counter[str] = sum(map(advice, range(seeds)), Counter())
    yield (
        "advised is the best or within the noise that it states, >= 99%",
        share(total, "best or within noise", "advised"),
    )
    yield "  of these the very best (within 0.5%)", share(total, "the very best", "advised")
    yield "ties called ties", share(total, "ties called ties", "ties")
    yield "only durable configurations", share(total, "durable", "clusters")
    yield "gain over the default within its CI", share(total, "gain within CI", "gains")
    yield "measure first", share(total, "measure first", "clusters")


# --- The gate: a canary and two peers, whose runs share the noise of their storage.

BEFORE, AFTER = 60, 40
BUSES = ("scsi", "virtio", "sata", "ide")
LOADS = ({"rw": "randread"}, {"rw": "randwrite"}, {"rw": "randread", "iodepth": 32})


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A simulated upgrade.

    Attributes:
        lost: true loss of the canary.
        bus: only its cases lose; empty: all.
        fault: loss of all nodes at the same time.
        kind: noise of the runs: `normal`, `skewed` or `autocorrelated`.
    """

    lost: float = 0.0
    bus: str = ""
    fault: float = 0.0
    kind: str = "normal"


def looks(seed: int, truth: Truth) -> Iterator[tuple[int, GateResult]]:
    """Yield (round, result) of one upgrade."""
    noise = random.Random(seed)  # noqa: S311 # simulation
    common = [noise.gauss(0, 0.05) + 0.1 * math.sin(r / 4) for r in range(BEFORE + AFTER)]
    found = []
    for place in BUSES:
        for load in LOADS:
            one = case(f"{place}.raw.none", **load)
            hit = truth.lost if truth.bus in ("", place) else 0.0
            nodes = [_runs(noise, common, shift, truth) for shift in (hit, 0.0, 0.0)]
            found.append(series_of(one, nodes[0], nodes[1:], BEFORE * HOUR))
    for rounds in range(2, AFTER + 1):
        cut = [replace(one, after=one.after[:rounds]) for one in found]
        groups, cases = bounds(cut, TOLERANCE)
        yield (
            rounds,
            GateResult(
                canary="pve1",
                since=0.0,
                tolerance=TOLERANCE,
                peers=("pve2", "pve3"),
                groups=groups,
                cases=cases,
            ),
        )


def _runs(noise: random.Random, common: list[float], lost: float, truth: Truth) -> Runs:
    """Return the runs of a node, one an hour."""
    rest, found = 0.0, []
    for place, shared in enumerate(common):
        step = noise.gauss(0, 0.03)
        if truth.kind == "skewed":
            step = 0.04 * (1 - noise.expovariate(1))
        rest = 0.5 * rest + step if truth.kind == "autocorrelated" else step
        loss = math.log((1 - lost) * (1 - truth.fault)) if place >= BEFORE else 0.0
        found.append((place * HOUR + noise.uniform(0, 600), rest + shared + loss))
    return found


Stated = list[tuple[int, tuple[float, float]]]
"""(round, stated range of further rounds)."""


def decided_at(seed: int, truth: Truth) -> tuple[Decision, int, Stated]:
    """Return decision, its round, and the ranges stated at the looks before."""
    stated: Stated = []
    for rounds, result in looks(seed, truth):
        if result.decision is not Decision.UNDECIDED:
            return result.decision, rounds, stated
        if result.wait is not None:
            first, last = result.wait
            stated.append((rounds, (first / HOUR, last / HOUR)))
    return Decision.UNDECIDED, AFTER, stated


def stops(seeds: int, truth: Truth, within: int = AFTER) -> str:
    """Return how many upgrades are stopped within so many rounds."""
    found = [decided_at(seed, truth) for seed in range(seeds)]
    hit = sum(one is Decision.STOP and at <= within for one, at, _ in found)
    return f"{hit} of {seeds} ({hit / seeds:.1%})"


def waits(seeds: int) -> str:
    """Return how often the decision is in the range of rounds stated before it."""
    right = total = 0
    for seed in range(seeds):
        _, at, stated = decided_at(seed, Truth())
        for rounds, (first, last) in stated:
            total += 1
            right += math.floor(first) <= at - rounds <= math.ceil(last)
    return f"{right} of {total} ({right / max(1, total):.1%})"


def oracle(seeds: int) -> str:
    """Return how often the best constant guess of the decision's round is right within 20%.

    It knows the true loss and noise, and the decisions of all seeds: what no estimate can know.
    """
    found = [decided_at(seed, Truth()) for seed in range(seeds)]
    looked = [(rounds, at - rounds) for _, at, stated in found for rounds, _ in stated]
    guesses = [quarter / 4 for quarter in range(4 * AFTER)]
    right = max(
        sum(abs(guess - rounds - left) <= 0.2 * left for rounds, left in looked)
        for guess in guesses
    )
    return f"{right} of {len(looked)} ({right / max(1, len(looked)):.1%})"


def passes(seeds: int) -> str:
    """Return how many upgrades without a loss pass, and after how many rounds."""
    found = [decided_at(seed, Truth()) for seed in range(seeds)]
    good = [at for one, at, _ in found if one is Decision.PASS]
    return f"{len(good)} of {seeds}, median round {median(good) if good else 0:.0f}"


def gate_rows(seeds: int) -> Iterator[tuple[str, str]]:
    """Yield (aim, result)."""
    yield (
        "10% loss of one bus stopped within 10 rounds, >= 95%",
        stops(seeds, Truth(lost=0.1, bus="ide"), 10),
    )
    yield "10% loss of all cases stopped within 2 rounds", stops(seeds, Truth(lost=0.1), 2)
    blamed = "fault of the shared storage blamed on the update, <= 1%"
    yield blamed, stops(seeds, Truth(fault=0.3))
    yield "false stops at any of 39 looks, <= 5%", stops(seeds, Truth())
    yield "  with skewed noise", stops(seeds, Truth(kind="skewed"))
    correlated = "  with autocorrelated noise"
    yield correlated, stops(seeds, Truth(kind="autocorrelated"))
    yield "no loss passes", passes(seeds)
    yield "stated range has the time of the decision, >= 80%", waits(seeds)
    yield "  best single time with full knowledge, right within 20%", oracle(seeds)


def share(counts: Counter[str], part: str, of: str) -> str:
    """Return a count with its share of another."""
    return f"{counts[part]} of {counts[of]} ({counts[part] / max(1, counts[of]):.1%})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    for name, text in (*rows(seeds), *gate_rows(seeds)):
        print(f"{name}: {text}")


if __name__ == "__main__":
    main()
