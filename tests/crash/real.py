"""`make crash MOMENTS=50`: kill -9 of pvebench, QEMU or both in real cycles; prints the counts."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.crashes import CrashTest


def main(arguments: list[str]) -> int:
    moments = int(arguments[0]) if arguments else 50
    seed = int(arguments[1]) if len(arguments) > 1 else int(time.time())
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = CrashTest(Path(directory), seed=seed).play(moments)
    print(f"seed {seed}: {report}; {time.monotonic() - begun:.0f} s")
    for line in report.wrong:
        print(f"  {line}")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
