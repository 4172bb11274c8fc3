"""Options, targets and recorded outputs of benchmark tools."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pvebench.model.units import MIB
from pvebench.model.workload import Workload
from pvebench.workloads import TOOLS, Job, Parsed, Target
from testing.packs import tool_workload

GOLDEN = Path(__file__).parents[1] / "golden"


def resolve(tool: str, **options: Any) -> Workload:
    return tool_workload(tool, options, ramp_seconds=2.0, runtime_seconds=8.0)


def golden(workload: Workload, name: str) -> Parsed:
    folder = GOLDEN / workload.tool.rstrip("+")
    return TOOLS[workload.tool].parse(workload, (folder / name).read_text("utf-8"), {})


def values(parsed: Parsed) -> Mapping[tuple[str, str, str], float]:
    return {
        (sample.metric, str(sample.direction or ""), sample.part): sample.value
        for sample in parsed.samples
    }


def ran(workload: Workload, folder: Path, *, size: int = MIB) -> Parsed:
    """Run the tool's job for real on a file in `folder`; return what its output says."""
    job = TOOLS[workload.tool].job(workload, file_target(folder, size))
    run_all(job)
    if job.cleanup:
        subprocess.run(job.cleanup, check=True)
    return TOOLS[workload.tool].parse(workload, Path(job.output).read_text("utf-8"), {})


def file_target(folder: Path, size: int) -> Target:
    (folder / "target").write_bytes(b"\0" * size)
    (folder / "scratch").mkdir(exist_ok=True)
    return Target(
        device=str(folder / "target"),
        size_bytes=size,
        file=True,
        scratch=str(folder / "scratch"),
        work=str(folder),
    )


def run_all(job: Job) -> None:
    for argv in job.prepare:
        subprocess.run(argv, check=True)
    subprocess.run(job.argv, check=True, capture_output=True)
