"""dd: one stream, or many small synced writes; a common first test.

Precautions against wrong results: dd writes random data from a pool through a pipe, and zeros only
on request; it never creates a missing device as a file in RAM (`nocreat`) and never truncates a
file (`notrunc`). Buffered writes without a final sync have the caveat CACHE.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.fields import Size
from pvebench.model.run_metrics import BANDWIDTH, BYTES, CLAT_MEAN, IOPS, OPERATIONS, RUNTIME
from pvebench.model.units import MIB, format_size
from pvebench.model.workload import Caveat, Direction, Workload
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    Target,
    Tool,
    ToolOptions,
    number_in,
    only_one,
    program,
    refuse,
    shell_job,
)

POOL_BYTES: Final = 16 * MIB
"""Size of the random data that is written repeatedly: larger than any storage's record."""
ASSUMED_BYTES_PER_SECOND: Final = 100 * MIB
_FLOOR_BYTES_PER_SECOND: Final = 100_000
_TOTAL: Final = re.compile(
    r"^(?P<bytes>\d+) [Bb]ytes? (\([^)]*\) )?(copied|kopiert), (?P<seconds>[\d.,e+-]+) s\b",
    re.MULTILINE,
)
_BLOCKS: Final = re.compile(r"^(?P<whole>\d+)\+(?P<partial>\d+) \S+ \S+$", re.MULTILINE)


class DdOptions(ToolOptions):
    """Options of dd. The pack's times are not used: dd copies a number of blocks.

    Attributes:
        count: number of blocks; 0: as many as fit.
        flush: sync before dd ends.
    """

    rw: Literal["read", "write"]
    bs: Annotated[Size, Field(ge=512, le=64 * MIB)] = MIB
    count: Annotated[StrictInt, Field(ge=0, le=1_000_000_000)] = 0
    direct: StrictBool = False
    sync: StrictBool = False
    flush: Literal["none", "fdatasync", "fsync"] = "none"
    input: Literal["random", "zero"] = "random"

    @model_validator(mode="after")
    def _reads_write_nothing(self) -> DdOptions:
        writes = self.sync or self.flush != "none" or self.input != "random"
        if self.rw == "read" and writes:
            raise ValueError("rw: read does not write; remove sync, flush and input")
        return self

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload; its caveats include buffered writes and zeros."""
        slug = self.slug(
            f"dd-{self.rw}-{format_size(self.bs)}",
            f"n{self.count}" if self.count else "",
            "direct" if self.direct else "",
            "sync" if self.sync else "",
            self.flush if self.flush != "none" else "",
            "zero" if self.input == "zero" else "",
        )
        forced = self.direct or self.sync or self.flush != "none"
        caveats = [Caveat.CACHE] if self.rw == "write" and not forced else []
        caveats += [Caveat.ZEROES] if self.input == "zero" else []
        return Workload(
            slug=slug,
            tool=Dd.tool,
            title=self.heading(slug),
            parameters={**self.model_dump(exclude={"title"}), "iodepth": 1, "numjobs": 1},
            directions=(Direction(self.rw),),
            caveats=tuple(caveats),
        )


class Dd(Tool):
    """dd. Stateless."""

    tool = "dd"
    program = "dd"
    options = DdOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the time at a typical speed; a write writes all copied bytes."""
        moved = _blocks(workload, size_bytes) * int(workload.parameters["bs"])
        written = moved if Direction.WRITE in workload.directions else 0
        return Estimate(seconds=moved / ASSUMED_BYTES_PER_SECOND, bytes_written=written)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the command. Raises ToolFailed if not one block fits into the target."""
        parameters, output = workload.parameters, f"{target.work}/dd.txt"
        blocks = _blocks(workload, target.size_bytes)
        if not blocks:
            raise ToolFailed(
                f"dd cannot run: {target.size_bytes} bytes do not hold one block of "
                f"{parameters['bs']} bytes",
                next_step="use a smaller bs, or a bigger volume",
            )
        size = [f"bs={parameters['bs']}", f"count={blocks}"]
        prepare: tuple[tuple[str, ...], ...] = ()
        if parameters["rw"] == "read":
            flags = ["skip_bytes", *(["direct"] if parameters["direct"] else [])]
            place = [f"if={target.device}", f"skip={target.offset_bytes}"]
            command = _dd([*place, "of=/dev/null", *size, f"iflag={','.join(flags)}"], output)
        elif parameters["input"] == "zero":
            command = _dd(["if=/dev/zero", *size, *_writing(workload, target)], output)
        else:
            pool = f"{target.work}/pool"
            prepare = (
                ("/bin/sh", "-c", f"head -c {POOL_BYTES} /dev/urandom >{shlex.quote(pool)}"),
            )
            copy = _dd(["iflag=fullblock", *size, *_writing(workload, target)], output)
            command = f"while cat {shlex.quote(pool)}; do :; done 2>/dev/null | {copy}"
        moved = blocks * int(parameters["bs"])
        seconds = moved / _FLOOR_BYTES_PER_SECOND + 60
        return shell_job(command, target, output, deadline_seconds=seconds, prepare=prepare)

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in dd's final report. Raises as `Tool.parse`."""
        match = only_one(_TOTAL.finditer(output), evidence=output[-500:])
        if match is None:
            raise OutputUnreadable(
                "dd reported no copied bytes",
                cause="dd was stopped or could not start",
                evidence=output[-500:],
            )
        moved, seconds = number_in(match["bytes"]), number_in(match["seconds"])
        if not moved or seconds <= 0:
            raise ToolFailed(
                "dd copied nothing", cause=output.splitlines()[0][:200], evidence=output[-500:]
            )
        direction, bs = workload.directions[0], int(workload.parameters["bs"])
        blocks = list(_BLOCKS.finditer(output))
        partial = any(number_in(match["partial"]) for match in blocks)
        notes = ("dd copied partial blocks",) if partial else ()
        operations = moved / bs
        refuse(
            f"{match[0]} of {bs} bytes are not {moved:.0f} bytes"
            for match in blocks[-1:]
            if not partial and number_in(match["whole"]) * bs != moved
        )
        return Parsed(
            samples=(
                IOPS.sample(operations / seconds, direction),
                BANDWIDTH.sample(moved / seconds, direction),
                OPERATIONS.sample(operations, direction),
                BYTES.sample(moved, direction),
                RUNTIME.sample(seconds, direction),
                # One block at a time: the mean time per block is the result of dd "latency" tests.
                CLAT_MEAN.sample(seconds / operations, direction),
            ),
            notes=notes,
        )


def _blocks(workload: Workload, size_bytes: int) -> int:
    return int(workload.parameters["count"]) or size_bytes // int(workload.parameters["bs"])


def _writing(workload: Workload, target: Target) -> list[str]:
    parameters = workload.parameters
    conversions = ["notrunc", "nocreat"]
    conversions += [str(parameters["flush"])] if parameters["flush"] != "none" else []
    flags = ["seek_bytes", *(["direct"] if parameters["direct"] else [])]
    flags += ["dsync"] if parameters["sync"] else []
    return [
        f"of={target.device}",
        f"seek={target.offset_bytes}",
        f"conv={','.join(conversions)}",
        f"oflag={','.join(flags)}",
    ]


def _dd(operands: list[str], output: str) -> str:
    # Words and numbers have a fixed format only in the C locale.
    return f"LC_ALL=C {program('dd')} {shlex.join(operands)} 2>{shlex.quote(output)}"
