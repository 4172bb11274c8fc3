"""`make mutate`: breaks the code in a sample of places, and tells where no test notices.

Everything happens in a copy of the tree that is removed at the end. One child that runs all
chosen tests tells which of them run which line; of the others each runs the tests of one broken
line, the quick ones first, until one fails. Children are forked, so that the libraries are
imported once.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib
import importlib.util
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage
import pytest
from places import Place, places

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = Path("exporter/pvebench")
TESTS: Final = ("drivers/simulated", "notify", "runner", "scheduler", "store", "verdicts")
"""Folders of tests/unit: about these packages, and none that needs a disk below."""
OPTIONS: Final = ("-q", "-x", "-p", "no:cacheprovider", "--basetemp=scratch")
LIBRARIES: Final = (
    *("click", "jinja2", "numpy", "prometheus_client", "pydantic", "requests"),
    *("rich", "ruamel.yaml", "sqlalchemy", "structlog"),
)
"""Imported once, for all children."""
LEFT: Final = ("survived", "untested")
LONGEST: Final = 120.0
"""Seconds of tests, by their time alone, that one mutant may cost."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the tests do when nothing is broken.

    Attributes:
        seconds: test -> how long it takes.
        lines: file -> line -> tests that run it; "": it runs when the module is imported.
    """

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[str]]]

    def of(self, place: Place) -> list[str]:
        """Return the tests to run when a place is broken, quick ones first."""
        here = set(self.lines.get(str(place.path), {}).get(str(place.line), []))
        # What a fixture of a whole file does is seen as done by the first test that asks for it.
        files = {test.partition("::")[0] for test in here}
        found = [test for test in self.seconds if "" in here or test.partition("::")[0] in files]
        chosen, total = [], 0.0
        for test in sorted(found, key=lambda test: (test not in here, self.seconds[test])):
            total += self.seconds[test]
            if total > LONGEST and chosen:
                break
            chosen.append(test)
        return chosen


class Watcher:
    """A pytest plugin that notes which test runs which lines, and how long it takes."""

    def __init__(self) -> None:
        self.coverage = coverage.Coverage(source=[str(PACKAGE)], data_file=None)
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """See pytest."""
        self.coverage.switch_context(_name(item.nodeid))
        begun = time.monotonic()
        result = yield
        self.seconds[_name(item.nodeid)] += time.monotonic() - begun
        return result

    def known(self) -> dict[str, Any]:
        """Return what was seen, as `Known` takes it."""
        data = self.coverage.get_data()
        lines = {
            os.path.relpath(file): data.contexts_by_lineno(file) for file in data.measured_files()
        }
        return {"seconds": dict(self.seconds), "lines": lines}


def _name(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def watch(tests: list[str]) -> Known:
    """Run all tests on the code as it is.

    Raises:
        SystemExit: one of them fails, so nothing could be said of what is broken.
    """

    def child() -> int:
        watcher = Watcher()
        watcher.coverage.start()
        code = int(pytest.main([*OPTIONS, *tests], plugins=[watcher]))
        watcher.coverage.stop()
        Path("known.json").write_text(json.dumps(watcher.known()), "utf-8")
        return code

    if forked(child, seconds=1800.0) != 0:
        sys.exit(f"the tests fail without any mutant:\n{Path('said').read_text('utf-8')[-3000:]}")
    return Known(**json.loads(Path("known.json").read_text("utf-8")))


def forked(child: Callable[[], int], *, seconds: float) -> int | None:
    """Return what `child` returns in a process of its own; None: it did not end in time."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        try:
            os._exit(child())
        finally:
            os._exit(99)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def fate(place: Place, changed: str, known: Known) -> str:
    """Return what the tests say of a broken place: killed, timeout, survived or untested."""
    tests = known.of(place)
    if not tests:
        return "untested"
    seconds = [known.seconds[test] for test in tests]
    patience = f"--timeout={20 + 5 * max(seconds):.0f}"
    source = place.path.read_text("utf-8")
    place.path.write_text(changed, "utf-8")
    Path(importlib.util.cache_from_source(place.path)).unlink(missing_ok=True)
    try:
        code = forked(
            lambda: int(pytest.main([*OPTIONS, patience, *tests])), seconds=60 + 5 * sum(seconds)
        )
    finally:
        place.path.write_text(source, "utf-8")
    if code is None:
        return "timeout"
    return "killed" if code else "survived"


def chosen(packages: Sequence[str], *, seed: str) -> list[Place]:
    """Return all places of these packages in the order of the seed."""
    found: list[Place] = []
    for room in packages:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            if "migrations" not in path.parts:
                found += places(path, path.read_text("utf-8"), seed=seed)
    return sorted(found, key=lambda place: place.key)


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Work in a copy of the tree, in memory where that is possible."""
    memory = Path("/dev/shm")  # a directory of our own is made in it
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="pvebench-mutate-", dir=where) as name:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
        for file in filter(None, listed.stdout.split("\0")):
            if (ROOT / file).is_file():
                (Path(name) / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, Path(name) / file)
        os.chdir(name)
        sys.path.insert(0, str(Path("exporter").resolve()))
        os.environ["PYTHONPATH"] = sys.path[0]
        # A module and its mutant may be of one size and one second: their times tell nothing.
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(PACKAGE, quiet=1, invalidation_mode=unchecked)
        yield
        os.chdir(ROOT)


def main() -> int:
    """Print what becomes of each mutant, each survivor with its diff, and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", default="runner scheduler store")
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", nargs="*", default=[], help="keys that an earlier run printed")
    asked = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    counts: Counter[str] = Counter()
    with copied():
        tests = [str(path) for name in TESTS for path in Path("tests/unit", name).glob("test_*.py")]
        begun = time.monotonic()
        known = watch(sorted(tests))
        print(f"{len(known.seconds)} tests, {time.monotonic() - begun:.0f} s", flush=True)
        sys.dont_write_bytecode = True
        for place in chosen(asked.packages.split(), seed=asked.seed):
            source = place.path.read_text("utf-8")
            if asked.only and place.key not in asked.only:
                continue
            if (changed := place.mutant(source)) is None:
                continue
            found = fate(place, changed, known)
            counts[found] += 1
            left = place.diff(source, changed) if found in LEFT else f"{place.path}:{place.line}"
            print(f"{found} {place.key} {left}", flush=True)
            if not asked.only and counts.total() >= asked.sample:
                break
    shown = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    killed = counts.total() - sum(counts[name] for name in LEFT)
    print(f"score {killed}/{counts.total()} ({shown}), {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
