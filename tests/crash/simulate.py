"""`make sim SEEDS=1000`: fault and crash schedules against the simulated driver; prints counts."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.packs import write_pack
from support.simulated_crashes import ForgetfulJournal, play


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else 1000
    forgetful = "--without-journal" in arguments
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    deaths, wrong, begun = 0, 0, time.monotonic()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        pack = write_pack(directory)
        for seed in range(seeds):
            journal = ForgetfulJournal if forgetful else lambda inner: inner
            schedule = play(seed, directory, pack, journalled=journal)
            deaths += schedule.deaths
            outcomes.update(schedule.outcomes)
            wrong += bool(schedule.wrong)
            for line in schedule.wrong[:3]:
                print(f"seed {seed}: {line}")
            (directory / f"{seed}.db").unlink()
    shown = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(
        f"{seeds} schedules, {deaths} deaths, {outcomes.total()} runs ({shown}); "
        f"{wrong} schedules broke a rule; {time.monotonic() - begun:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
