"""`make compose-test`: compose.yaml started for real, looked at, and taken away again.

Exit codes: 0 all checks hold, 1 one does not, 3 no Docker engine answers or can be started. With
`--skip-without-engine` the last is a skip that is said aloud and ends with 0.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checks import PARTS
from engine import Engine, NoEngine
from images import Images
from project import Project

from pvebench.errors import PvebenchError


def main(arguments: Sequence[str]) -> int:
    """Run the parts; return the exit code."""
    parser = argparse.ArgumentParser(prog="make compose-test")
    parser.add_argument("--skip-without-engine", action="store_true")
    parser.add_argument("--only", choices=PARTS, action="append", help="default: every part")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIRECTORY",
        help="files of the engine that is started: what was built is there the next time",
    )
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        return run(options.only or list(PARTS), options.keep and options.keep.absolute())
    except NoEngine as error:
        print(f"compose-test: {error}", file=sys.stderr)
        if not options.skip_without_engine:
            return error.exit_code
        print(
            f"SKIPPED: compose-test, {len(PARTS)} of {len(PARTS)} parts: compose.yaml was NOT "
            "started",
            file=sys.stderr,
        )
        return 0
    except PvebenchError as error:
        print(f"compose-test: {error}", file=sys.stderr)
        return 1


def stop(number: int, _: FrameType | None) -> None:
    """End the `with` blocks in order."""
    raise SystemExit(128 + number)


def run(parts: Sequence[str], kept: Path | None) -> int:
    """Start the stack once for each part, say what holds; return 1 when something does not."""
    begun, said = time.monotonic(), list[str]()
    # Short, because the engine's sockets are in it.
    with tempfile.TemporaryDirectory(prefix="pvb-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        engine = Engine(kept or directory / "engine")
        print("building the images takes minutes, the first time …", flush=True)
        with engine.building() as docker:
            images = Images(docker, directory / "images")
        with engine.running() as docker:
            try:
                for part in parts:
                    said += play(part, Project(docker, images, directory / part, part))
            finally:
                images.remove(docker)
    wrong = sum(sentence.startswith("WRONG") for sentence in said)
    print(f"{len(said) - wrong} checks hold, {wrong} do not; {time.monotonic() - begun:.0f} s")
    return int(bool(wrong))


def play(part: str, project: Project) -> Iterator[str]:
    """Start the stack and yield what is said of it, as soon as it is said."""
    print(f"{part}: starting the stack …", flush=True)
    with project:
        for sentence in PARTS[part](project):
            print(f"{part}: {sentence}", flush=True)
            yield sentence


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
