"""`make crash MOMENTS=50`: kill -9 of pvebench and what it measures with; prints the counts.

At half of the moments, a copy of the state directory is started, and an older one restored later.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pvebench_lab.lxc.container import container_support
from testing.crashes import OPERATION_SECONDS, LabCrashTest, Report
from testing.node_crashes import node_crashes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("moments", type=int, nargs="?", default=50)
    parser.add_argument("seed", type=int, nargs="?", default=int(time.time()))
    what = parser.add_mutually_exclusive_group()
    about = "a container on a node by ssh; pvebench or the program there is killed"
    what.add_argument("--node", action="store_true", help=about)
    about = "one VM on a file and nothing else: a moment takes seconds, so there can be hundreds"
    what.add_argument("--short", action="store_true", help=about)
    about = "every operation, such as a backup, on a disk in a file and nothing else"
    what.add_argument("--operations", action="store_true", help=about)
    given = parser.parse_args(arguments)
    short = given.short or given.operations
    begun = time.monotonic()
    able, why = container_support()
    if not able and not short:
        print(f"pvebench: NOT TRIED: containers: {why}", file=sys.stderr)
        if given.node:
            return 1
    with tempfile.TemporaryDirectory() as directory:
        if given.node:
            report = on_node(Path(directory), given.moments, given.seed)
        else:
            lab = LabCrashTest(
                Path(directory),
                seed=given.seed,
                containers=able and not short,
                loops=not short,
                copied=0.1 if given.operations else 0.5,
                every_operation=not short,
                operations_only=given.operations,
            )
            within = OPERATION_SECONDS if given.operations else 0.0
            report = lab.play(given.moments, within_seconds=within)
    print(f"seed {given.seed}: {report}; {time.monotonic() - begun:.0f} s")
    for line in report.wrong:
        print(f"  {line}")
    return int(bool(report.wrong))


def on_node(directory: Path, moments: int, seed: int) -> Report:
    with node_crashes(directory, seed=seed) as crashes:
        return crashes.play(moments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
