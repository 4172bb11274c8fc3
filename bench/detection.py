"""Quality of change detection, as users get it: every number is from the function of `judge`.

Prints a table of what was measured and its aim, and ends with status 1 if an aim is missed. Every
number comes from the seeds. See docs/detection.md.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from judging.gates import gate_rows
from judging.incidents import incident_rows
from judging.public import public_rows
from judging.quiet import quiet_rows, rate_rows
from judging.real import real_rows
from judging.sampling import Constant, Row, Setup, number_row
from judging.sizes import claim_rows, kind_rows, synthetic_rows
from judging.steps import every_rows, lasting_rows, shape_rows, soon_rows
from judging.upgrades import (
    before_rows,
    beside_rows,
    day_rows,
    early_rows,
    quiet_upgrade_rows,
    rollback_rows,
)

from pvebench.analysis.judge import Judge, Material
from pvebench_lab.cli.judge import judged
from testing.answers import ask, ask_node, material
from testing.fleets import fleet, labels_144
from testing.noise import BUSY, Series, stream, unchanged

FULL_SERIES = 300
FULL_SEEDS = [1, 2, 3]
SERIES = 8


def speed_rows(setup: Setup) -> Iterator[Row]:
    """Yield the CPU time of `judge`, the best of three because of other load on the machine."""
    rng = stream(setup.seeds[0], "speed")
    for runs, most in ((1_000, 0.02), (10_000, 0.2), (50_000, 0.5)):
        for ratio, name in ((1.0, "unchanged"), (0.9, "one change")):
            series = unchanged("independent", rng, runs, 48).changed(runs // 2, ratio)
            seconds = best_seconds(partial(ask, series))
            yield number_row(f"`judge` of {runs:,} runs, {name}", seconds, " s", most=most)
    node = fleet(rng, labels_144(), 125).upgraded(120)
    yield number_row("`judge` of 144 cases × 125 runs", best_seconds(partial(ask_node, node)), " s")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        seconds, mebibytes = pool.submit(many_cases, 2_000, 1_000).result()
    name = "`judge` of 2,000 cases × 1,000 runs from nothing"
    yield number_row(f"{name}: CPU", seconds, " s", most=30)
    yield number_row(f"{name}: memory of the process", mebibytes, " MB", most=500)


def many_cases(cases: int, runs: int) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MB of judging a node with many cases."""
    given = many_material(cases, runs)
    begun = time.process_time()
    judged(given, Judge())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return time.process_time() - begun, peak / 1024


def many_material(cases: int, runs: int) -> Material:
    """Return cases with usual noise, a fifth of them 10% slower at an upgrade."""
    rng, labels = stream(1, "many"), labels_144()
    base = [unchanged(kind, rng, runs, 8) for kind in BUSY]
    times = base[0].times
    every = (
        Series(times, np.roll(base[case % len(base)].logs, int(rng.integers(runs))))
        .changed(runs - 40, 0.9 if case % 5 == 0 else 1.0)
        .upgraded(runs - 40)
        for case in range(cases)
    )
    return material(every, [labels[case % len(labels)] for case in range(cases)])


def best_seconds(work: Callable[[], object], times: int = 3) -> float:
    """Return the shortest of several CPU times."""
    durations = []
    for _ in range(times):
        begun = time.process_time()
        work()
        durations.append(time.process_time() - begun)
    return min(durations)


SECTIONS: dict[str, tuple[str, Callable[[Setup], Iterator[Row]]]] = {
    "real": ("Real histories with labels, and other methods", real_rows),
    "public": ("Published histories, read twice", public_rows),
    "lasting": ("Reported and lasting, but not red", lasting_rows),
    "days": ("Upgrades below a load that differs from day to day (sd 30%)", day_rows),
    "early": ("Upgrades after few runs", early_rows),
    "soon": ("Reported within 10 runs", soon_rows),
    "every": ("Reported within 10 runs, in all kinds of noise", every_rows),
    "rates": ("Series without a change, at each rate", rate_rows),
    "quiet": ("Series without a change", quiet_rows),
    "sizes": ("Sizes and intervals", synthetic_rows),
    "kinds": ("Intervals in each kind of noise", kind_rows),
    "claims": ("Changes that are ruled out", claim_rows),
    "beside": ("Changes beside an upgrade", beside_rows),
    "before": ("Changes before an upgrade", before_rows),
    "rollback": ("Rollback", rollback_rows),
    "shapes": ("Other shapes of changes", shape_rows),
    "upgrades": ("Upgrades on quiet nodes", quiet_upgrade_rows),
    "gates": ("Gate without peers", gate_rows),
    "issues": ("Known regressions", incident_rows),
    "speed": ("Speed", speed_rows),
}


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section")
    parser.add_argument("--seed", type=int, action="append", help="seeds (default: 1)")
    parser.add_argument("--series", type=int, help=f"per question and seed (default: {SERIES})")
    parser.add_argument(
        "--full", action="store_true", help=f"{FULL_SERIES} series and seeds {FULL_SEEDS}"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--public", type=Path, metavar="FOLDER", help="published histories")
    for name, metavar, text in (
        ("--set", "MODULE:NAME=VALUE", "another value of a constant of pvebench.analysis"),
        ("--vary", "MODULE:NAME=VALUE,…", "section real: F1 and false alarms at each value"),
    ):
        parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)
    return parser.parse_args()


def varied(text: str) -> tuple[Constant, list[str]]:
    """Return a constant and its values: `MODULE:NAME=VALUE,VALUE`."""
    place, _, values = text.partition("=")
    return Constant(place), values.split(",")


def main() -> int:
    """Measure and print; return the exit status."""
    given = options()
    for constant, values in map(varied, given.set):
        constant.set(values[0])
    series = given.series or (FULL_SERIES if given.full else SERIES)
    setup = Setup(
        given.seed or (FULL_SEEDS if given.full else [1]),
        series,
        given.jobs,
        list(map(varied, given.vary)),
        given.public,
    )
    missed = 0
    print(f"Seeds {setup.seeds}, {series} series per question and seed.\n")
    for name in given.only or SECTIONS:
        title, section = SECTIONS[name]
        begun = time.perf_counter()
        print(f"| {title} | Measured | Aim | |\n|---|---|---|---|", flush=True)
        for row in section(setup):
            missed += row.good is False
            mark = {True: "reached", False: "**missed**", None: ""}[row.good]
            print(f"| {row.name} | {row.measured} | {row.aim} | {mark} |", flush=True)
        print(f"\n({name}: {time.perf_counter() - begun:.0f} s)\n", flush=True)
    print(f"{missed} aims missed" if missed else "all aims reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
