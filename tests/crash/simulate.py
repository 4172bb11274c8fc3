"""`make sim SEEDS=1000`: fault and crash schedules against the simulated driver; prints counts.

ARGS: `--mutant NAME` breaks pvebench first (tests/testing/simulated_mutants.py), `--from N` begins
at another seed. Ctrl-C ends it with the counts so far.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pvebench.log import log
from testing.simulated_crashes import Schedule, play
from testing.simulated_mutants import MUTANTS

MEMORY = Path("/dev/shm")  # what dies here are processes, not disks
ALIVE_EVERY = 500


class Counts:
    """What the schedules came to, together."""

    def __init__(self) -> None:
        self.played = self.deaths = self.stops = self.broken = 0
        self.outcomes: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()

    def add(self, schedule: Schedule) -> None:
        self.played += 1
        self.deaths += schedule.deaths
        self.stops += schedule.stops
        self.broken += bool(schedule.broken.lines)
        self.outcomes.update(schedule.outcomes)
        self.struck.update(schedule.struck)
        self.rules.update(schedule.broken.rules)
        for rule, line in schedule.broken.lines[:3]:
            print(f"seed {schedule.seed}: {rule}: {line}", flush=True)
        if self.played % ALIVE_EVERY == 0:
            print(f"… {self.played} schedules", flush=True)

    def show(self) -> None:
        print(f"{self.played} schedules, {self.deaths} deaths, {self.stops} stops")
        print(f"{self.outcomes.total()} runs: {_shown(self.outcomes)}")
        print(f"faults: {_shown(self.struck)}")
        print(f"{self.broken} schedules broke a rule {_shown(self.rules)}".rstrip())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    given = parser.parse_args()
    log.configure(logging.CRITICAL)
    # A shell that starts it in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counts, begun = Counts(), time.monotonic()
    broken = MUTANTS[given.mutant][0]() if given.mutant else nullcontext()
    directory = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
    with directory as name, broken, suppress(KeyboardInterrupt):
        for seed in range(given.first, given.first + given.seeds):
            counts.add(play(seed, Path(name)))
    counts.show()
    print(f"{time.monotonic() - begun:.0f} s")
    return int(counts.broken > 0)


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
