"""bonnie++: write, rewrite, read, seek; through the guest's page cache, as in old published tables.

Its blocks are zeros except for a few bytes (seen with strace on 2.00a), so compression or zero
detection of the storage affects the results. `-r` gets a false memory size because bonnie++
otherwise rejects small files; a caveat notes that the file fits into the cache.
"""

from __future__ import annotations

import contextlib
import csv
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from pydantic import Field, StrictBool

from pvebench.errors import OutputUnreadable
from pvebench.fields import WholeMib
from pvebench.model.run import Sample
from pvebench.model.run_metrics import BANDWIDTH, PHASE_CPU, REWRITE_BANDWIDTH, SEEKS
from pvebench.model.units import KIB, MIB, format_size
from pvebench.model.workload import Caveat, Direction, Workload, WorksOn
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    Target,
    Tool,
    ToolOptions,
    number_in,
    only_one,
    refuse,
    shell_job,
)

PASSES: Final = 5
"""Passes over the file: written, read and rewritten, read, and the seeks."""
ASSUMED_BYTES_PER_SECOND: Final = 50 * MIB
_FLOOR_BYTES_PER_SECOND: Final = 500_000
_VERSION: Final = "1.98"
_COLUMNS: Final = {
    "write": 11,
    "write_cpu": 12,
    "rewrite": 13,
    "rewrite_cpu": 14,
    "read": 17,
    "read_cpu": 18,
    "seeks": 19,
    "seeks_cpu": 20,
}
"""Index of the field in the CSV line; speeds in KiB/s, CPU in percent."""
_TOO_QUICK: Final = "+++"


class BonnieOptions(ToolOptions):
    """Options of bonnie++. The pack's times are not used: the file size defines the duration."""

    size: Annotated[WholeMib, Field(ge=16 * MIB, le=1 << 50)]
    direct: StrictBool = False

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload; it creates its own files, with or without the guest's cache."""
        slug = self.slug("bonnie", format_size(self.size), "direct" if self.direct else "")
        return Workload(
            slug=slug,
            tool=Bonnie.tool,
            title=self.heading(slug),
            parameters={"size": self.size, "direct": self.direct, "version": self.version},
            directions=(Direction.READ, Direction.WRITE),
            place=WorksOn.DIRECTORY,
            caveats=(Caveat.ZEROES,) if self.direct else (Caveat.CACHE, Caveat.ZEROES),
        )


class Bonnie(Tool):
    """bonnie++. Stateless."""

    tool = "bonnie++"
    program = "bonnie++"
    options = BonnieOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the time at a typical speed; the file is written twice."""
        size = int(workload.parameters["size"])
        return Estimate(seconds=PASSES * size / ASSUMED_BYTES_PER_SECOND, bytes_written=2 * size)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the command; its files are in a separate directory, removed at the end."""
        parameters, output = workload.parameters, f"{target.work}/bonnie.csv"
        size = int(parameters["size"])
        directory = f"{target.scratch}/bonnie"
        argv = ["bonnie++", "-d", directory, "-s", str(size // MIB), "-r", "1", "-n", "0"]
        argv += ["-f", "-q", "-m", "pvebench", *(["-D"] if parameters["direct"] else [])]
        # bonnie++ refuses to run as root without `-u`; a service may not set even its own user.
        user = '$([ "$(id -u)" != 0 ] || echo -u 0)'
        command = f"exec {shlex.join(argv)} {user} >{shlex.quote(output)}"
        return shell_job(
            command,
            target,
            output,
            deadline_seconds=PASSES * size / _FLOOR_BYTES_PER_SECOND + 120,
            prepare=(("rm", "-rf", directory), ("mkdir", directory)),
            cleanup=("rm", "-rf", directory),
        )

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in bonnie++'s CSV line. Raises as `Tool.parse`."""
        row = _row(output)
        samples: list[Sample] = []
        notes: list[str] = []
        for name, direction in (("write", Direction.WRITE), ("read", Direction.READ)):
            rate = _value(row, name, notes)
            if rate is not None:
                speed = BANDWIDTH.sample(rate * KIB, direction)
                samples += [speed, *_cpu(row, name, direction)]
        rewritten, seeks = _value(row, "rewrite", notes), _value(row, "seeks", notes)
        if rewritten is not None:
            value = rewritten * KIB
            samples.append(REWRITE_BANDWIDTH.sample(value))
        if seeks is not None:
            samples.append(SEEKS.sample(seeks))
        return Parsed(samples=tuple(samples), notes=tuple(notes))


def _row(output: str) -> list[str]:
    row = only_one(_rows(output), evidence=output[-500:])
    if row is None:
        raise OutputUnreadable(
            "bonnie++ printed no result line",
            cause="bonnie++ was stopped, or its version is not 2.00a",
            evidence=output[-500:],
        )
    return row


def _rows(output: str) -> Iterator[list[str]]:
    with contextlib.suppress(csv.Error):  # an unterminated field
        for row in csv.reader(output.splitlines(keepends=True)):
            if row and row[0] == _VERSION and len(row) > max(_COLUMNS.values()):
                yield row


def _value(row: list[str], name: str, notes: list[str]) -> float | None:
    text = row[_COLUMNS[name]]
    if text.startswith(_TOO_QUICK):
        notes.append(f"{name}: too fast for bonnie++ to measure; use a larger size")
        return None
    if not text:
        return None
    value = number_in(text)
    minimum = 0 if name.endswith("_cpu") else 1  # a phase without measurable time is `+++`
    refuse([f"{name} is {text[:50]}"] if value < minimum else [])
    return value


def _cpu(row: list[str], name: str, direction: Direction) -> list[Sample]:
    value = _value(row, f"{name}_cpu", [])
    return [] if value is None else [PHASE_CPU.sample(value / 100, direction)]
