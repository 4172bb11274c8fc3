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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from pvebench.advice.recommendation import Standing, recommendations
from pvebench.verdicts.ranking import MAX_EQUAL_LOSS
from testing.simulated_results import case, trend, view_of

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


def share(counts: Counter[str], part: str, of: str) -> str:
    """Return a count with its share of another."""
    return f"{counts[part]} of {counts[of]} ({counts[part] / max(1, counts[of]):.1%})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    for name, text in rows(parser.parse_args().seeds):
        print(f"{name}: {text}")


if __name__ == "__main__":
    main()
