"""`make sim-fleet SEEDS=1000`: a site, its clone and the hub in simulated faults; prints counts.

ARGS: `--mutant NAME` breaks the protocol first (tests/testing/fleet_mutants.py), `--from N` begins
at another seed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pvebench.log import log
from testing.fleet_mutants import MUTANTS
from testing.simulated_fleet import Schedule

ALIVE_EVERY = 1000


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS)
    given = parser.parse_args()
    log.configure(logging.CRITICAL)
    struck: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    broken, begun = 0, time.monotonic()
    with MUTANTS[given.mutant]() if given.mutant else nullcontext():
        for seed in range(given.first, given.first + given.seeds):
            schedule = Schedule(seed).play()
            struck.update(schedule.struck)
            rules.update({rule for rule, _ in schedule.broken})
            broken += bool(schedule.broken)
            for rule, line in schedule.broken[:1]:
                print(f"seed {seed}: {rule}: {line}", flush=True)
            if (seed + 1) % ALIVE_EVERY == 0:
                print(f"… {seed + 1 - given.first} schedules", flush=True)
    print(f"faults: {', '.join(f'{count} {name}' for name, count in struck.most_common())}")
    print(f"{given.seeds} schedules, {broken} broke a rule {dict(rules) or ''}".rstrip())
    print(f"{time.monotonic() - begun:.0f} s")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
