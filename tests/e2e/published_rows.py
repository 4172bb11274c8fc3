"""Runs every row of the published packs that bench/reports/published.md lists as run in the lab.

Of each row, each scenario and each workload at least once, at a small size; with names of packs,
their rows only. Fails where a run did not come about, whatever its numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.storages.identity import claim
from pvebench.model.units import MIB
from testing.devices import block_device
from testing.packs import ROOT
from testing.published import LAB, Row, rows

SCALES: Final = {"cache-bus-format-2017": 0.0125, "raid-2017": 0.05, "zfs-mdadm-2016": 0.05}
"""Of packs whose volumes would be too small for a file system, or too large, at `SCALE`."""
SCALE: Final = 0.012
DEVICE_BYTES: Final = 512 * MIB


def pvebench(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pvebench", *arguments]


@contextmanager
def storage(row: Row, directory: Path) -> Iterator[str]:
    """Yield the settings of the row's storage: a claimed device where it must be one."""
    (directory / "volumes").mkdir(exist_ok=True)
    if row.storage == "passthrough":
        with block_device(directory / "device", DEVICE_BYTES) as device:
            claim(device, destroy=False)
            yield f"{{kind: block, path: {device}}}"
    elif any(case.workload.tool == "hdparm" for case in row.cases):
        yield f"{{kind: loop, path: {directory}/volumes}}"
    else:
        yield f"{{kind: dir, path: {directory}/volumes}}"


def small(row: Row) -> list[str]:
    """Return the words of `pvebench run` for one cycle of the row's sample."""
    only = [word for case in row.sample() for word in ("--only", case.slug)]
    return ["--cycles", "1", "--scale", str(SCALES.get(row.pack, SCALE)), *only]


def run(row: Row, directory: Path) -> list[dict[str, Any]]:
    """Return the runs of the row's sample."""
    pack = ROOT / "scenarios" / f"{row.pack}.yaml"
    with storage(row, directory) as text:
        config = directory / "pvebench.yaml"
        config.write_text(
            f"node: lab\naccelerator: tcg\nstate: {directory}/state\npacks: [{pack}]\n"
            f"storages:\n  {row.storage}: {text}\n",
            "utf-8",
        )
        return measured(config, directory / "state", small(row))


def measured(config: Path, state: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the runs of `pvebench run` with these words."""
    command = pvebench("run", "--config", str(config), *words)
    code = subprocess.run(command, check=False).returncode
    assert code in (0, 9), code
    listed = pvebench("results", "--state", str(state), "--format=json", "--limit", "1000")
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(listed, check=True, capture_output=True).stdout
    )
    return found


def must_be_measured(runs: Sequence[dict[str, Any]]) -> None:
    """Fail where a run did not come about, whatever its numbers."""
    bad = [
        (one["scenario"], one["workload"], one["reason"])
        for one in runs
        if one["outcome"] in ("failed", "invalid", "skipped")
    ]
    assert runs, "no runs"
    assert not bad, bad


def must_have_run(row: Row, runs: Sequence[dict[str, Any]]) -> None:
    """Fail where a scenario or a workload of the row's sample was not measured."""
    must_be_measured(runs)
    wanted, ran = row.sample(), {(one["scenario"], one["workload"]) for one in runs}
    assert {case.scenario.slug for case in wanted} == {scenario for scenario, _ in ran}
    assert {case.workload.slug for case in wanted} == {workload for _, workload in ran}


def main(packs: Sequence[str]) -> int:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        print("pvebench: NOT TRIED: loop devices need root and /dev/loop-control", file=sys.stderr)
        return 3
    for row in rows():
        if row.place != LAB or (packs and row.pack not in packs):
            continue
        print(f"== {row.pack}: {row.storage}, {row.side}", flush=True)
        with tempfile.TemporaryDirectory(prefix="pvebench-published-") as name:
            must_have_run(row, run(row, Path(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
