"""Look for inputs that break a reader, by coverage: `python -m fuzz SECONDS [TARGET…]`.

Each target is a process of its own, with a bound on memory and on the time of one input. It
starts from its seeds and from what was once found; what it finds is kept in the directory that
the last lines name, smallest form first to be copied to `found/`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MOST_MIB = 2048
MOST_SECONDS = 10
"""Of one input; a busy machine is slow."""
_RUNS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def main() -> int:
    """Fuzz all targets, one after the other; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=")
    parser.add_argument("seconds", type=int, nargs="?", default=60, help="of each target")
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _fuzz(given.one, given.targets)
        return 0
    from fuzz.targets import TARGETS, found

    kept = Path(tempfile.mkdtemp(prefix="pvebench-fuzz-"))
    broken = []
    for name in given.targets or TARGETS:
        corpus = kept / name
        corpus.mkdir()
        inputs = [*TARGETS[name].seeds(), *(path.read_bytes() for path in found(name))]
        for number, content in enumerate(inputs):
            (corpus / f"seed-{number}").write_bytes(content)
        runs, good = _run(name, corpus, given.seconds)
        print(f"{name:14} {runs:>10} executions  {'held' if good else 'BROKEN'}", flush=True)
        broken += [] if good else [name]
    if broken:
        print(f"{', '.join(broken)}: the inputs are {kept}/*-crash-*, the tracebacks {kept}/*.log")
    return 1 if broken else 0


def _run(name: str, corpus: Path, seconds: int) -> tuple[int, bool]:
    """Fuzz one target in a process of its own; return how many inputs it got, whether all held."""
    log = corpus.with_suffix(".log")
    options = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MOST_MIB}",
        f"-timeout={MOST_SECONDS}",
        f"-artifact_prefix={corpus}-crash-",
        "-print_final_stats=1",
        "-max_len=200000",
    ]
    with log.open("w") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "fuzz", "--one", name, "0", str(corpus), "--", *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    runs = _RUNS.findall(log.read_text("utf-8", "replace"))
    return int(runs[-1]) if runs else 0, ended.returncode == 0


def _fuzz(name: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["pvebench"]):
        from fuzz.targets import TARGETS
    target = TARGETS[name]

    def once(content: bytes) -> None:
        target(content)

    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
