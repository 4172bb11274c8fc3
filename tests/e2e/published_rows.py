"""Runs every row of the published packs that bench/reports/published.md lists as run in the lab.

Of each row, each scenario and each workload at least once, at a small size; with names of packs,
their rows only. Fails where a run did not come about, whatever its numbers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from e2e.pieces import measured, must_be_measured, run_all
from pvebench.drivers.storages.identity import claim
from pvebench.model.units import MIB
from testing.devices import block_device
from testing.packs import ROOT
from testing.published import LAB, Row, small, small_rows

DEVICE_BYTES: Final = 512 * MIB


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


def run(row: Row) -> None:
    """Run the row's sample. Raises AssertionError."""
    pack = ROOT / "scenarios" / f"{row.pack}.yaml"
    with tempfile.TemporaryDirectory(prefix="pvebench-published-") as name:
        directory = Path(name)
        with storage(row, directory) as text:
            config = directory / "pvebench.yaml"
            config.write_text(
                f"node: lab\naccelerator: tcg\nstate: {directory}/state\npacks: [{pack}]\n"
                f"storages:\n  {row.storage}: {text}\n",
                "utf-8",
            )
            must_have_run(row, measured(config, directory / "state", small(row)))


def must_have_run(row: Row, runs: Sequence[dict[str, Any]]) -> None:
    """Fail where a scenario or a workload of the row's sample was not measured."""
    must_be_measured(runs)
    requested, ran = row.sample(), {(one["scenario"], one["workload"]) for one in runs}
    assert {case.scenario.slug for case in requested} == {scenario for scenario, _ in ran}
    assert {case.workload.slug for case in requested} == {workload for _, workload in ran}


def main(packs: Sequence[str]) -> int:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        print("pvebench: NOT TRIED: loop devices need root and /dev/loop-control", file=sys.stderr)
        return 3
    requested = small_rows(LAB, packs)
    return run_all(
        (f"{row.pack}: {row.storage}, {row.side}", partial(run, row)) for row in requested
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
