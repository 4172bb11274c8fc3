"""What end-to-end tests share: runs of pvebench, and pieces of which each runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Piece = tuple[str, Callable[[], None]]
"""A name, and what is to be run; it raises one of `FAILED` if it fails."""
FAILED: Final = (AssertionError, RuntimeError, subprocess.SubprocessError)


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def pvebench(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pvebench", *arguments]


def measured(config: Path, state: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the runs of `pvebench run` with these words."""
    command = pvebench("run", "--config", str(config), *words)
    code = subprocess.run(command, check=False).returncode
    assert code in (0, 9), code
    return results(state)


def results(state: Path) -> list[dict[str, Any]]:
    """Return the runs in a state directory, the latest first."""
    listed = pvebench("results", "--state", str(state), "--format=json", "--limit", "1000")
    runs: list[dict[str, Any]] = json.loads(
        subprocess.run(listed, check=True, capture_output=True).stdout
    )
    return runs


def value(run: Mapping[str, Any], metric: str, *directions: str) -> float:
    """Return the sum of a metric over these directions, or all."""
    samples = [each for each in run["samples"] if each["metric"] == metric]
    return sum(
        each["value"] for each in samples if each["direction"] in directions or not directions
    )


def must_be_measured(runs: Sequence[dict[str, Any]]) -> None:
    """Fail where a run did not come about. A loaded machine may well make numbers implausible."""
    bad = [
        (one["scenario"], one["workload"], one["reason"])
        for one in runs
        if one["outcome"] in ("failed", "invalid", "skipped")
    ]
    assert runs, "no runs"
    assert not bad, bad


def run_all(pieces: Iterable[Piece], missing: tuple[type[Exception], ...] = ()) -> int:
    """Run every piece; return the exit code: 1 if one failed, 3 if one was not tried.

    Args:
        missing: what a piece raises that lacks what it needs.
    """
    bad: dict[str, list[str]] = {"FAILED": [], "NOT TRIED": []}
    ran = 0
    for name, run in pieces:
        say(name)
        began = time.monotonic()
        try:
            run()
            ran += 1
        except missing as error:
            bad["NOT TRIED"].append(f"{name}: {error}")
        except FAILED as error:
            bad["FAILED"].append(f"{name}: {error}")
            print(f"pvebench: FAILED: {name}: {error}", file=sys.stderr, flush=True)
        say(f"{name}: {time.monotonic() - began:.0f} s")
    say(f"{ran} ran, {len(bad['FAILED'])} failed, {len(bad['NOT TRIED'])} not tried")
    for word, lines in bad.items():
        for line in lines:
            print(f"pvebench: {word}: {line}", file=sys.stderr)
    if bad["FAILED"]:
        return 1
    return 3 if bad["NOT TRIED"] or not ran else 0
