"""`make crash MOMENTS=50`: kill -9 of pvebench, QEMU, both or a container; prints the counts."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pvebench.drivers.lxc.container import found_here
from support.crashes import CrashTest


def main(arguments: list[str]) -> int:
    moments = int(arguments[0]) if arguments else 50
    seed = int(arguments[1]) if len(arguments) > 1 else int(time.time())
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        able, why = found_here()
        if not able:
            print(f"pvebench: NOT TRIED: containers: {why}", file=sys.stderr)
        report = CrashTest(Path(directory), seed=seed, containers=able).play(moments)
    print(f"seed {seed}: {report}; {time.monotonic() - begun:.0f} s")
    for line in report.wrong:
        print(f"  {line}")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
