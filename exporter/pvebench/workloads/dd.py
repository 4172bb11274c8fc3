"""dd: one stream, or many tiny synced writes; what people type first.

What would make its numbers wrong, and what is done about it: zeros are not written unless
asked for (a pool of random data goes through a pipe), a missing device is never made as a file
in RAM (`nocreat`), and a file is never shortened (`notrunc`). Buffered writes that nothing
forces to the disk carry their caveat.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB, format_size
from pvebench.model.workload import Caveat, Direction, Workload
from pvebench.workloads.base import Estimate, Job, Parsed, Target, program
from pvebench.workloads.given import Given, slug

OPTIONS: Final = ("rw", "bs", "count", "direct", "sync", "flush", "input")
POOL_BYTES: Final = 16 * MIB
"""Random data that is written again and again: larger than any storage's record."""
ASSUMED_BYTES_PER_SECOND: Final = 100 * MIB
_FLOOR_BYTES_PER_SECOND: Final = 100_000
_TOTAL: Final = re.compile(
    r"^(?P<bytes>\d+) [Bb]ytes? (\([^)]*\) )?(copied|kopiert), (?P<seconds>[\d.,e+-]+) s\b",
    re.MULTILINE,
)
_BLOCKS: Final = re.compile(r"^(?P<whole>\d+)\+(?P<partial>\d+) \S+ \S+$", re.MULTILINE)


class Dd:
    """The room of dd, a `Room`. It has no state."""

    tool = "dd"
    open_ended = False
    fresh_boot = False

    def resolve(
        self, options: Mapping[str, Any], *, ramp_seconds: float, runtime_seconds: float
    ) -> Workload:
        """Return the workload. The pack's times do not matter: a count of blocks is copied."""
        given = Given(self.tool, options, OPTIONS)
        rw = given.one_of("rw", ("read", "write"))
        bs = given.size("bs", default=MIB, low=512, high=64 * MIB)
        count = given.whole("count", default=0, low=0, high=1_000_000_000)
        direct, sync = given.yes("direct", default=False), given.yes("sync", default=False)
        flush = given.one_of("flush", ("none", "fdatasync", "fsync"), default="none")
        source = given.one_of("input", ("random", "zero"), default="random")
        if rw == "read" and (sync or flush != "none" or source != "random"):
            raise ValueError("rw: read writes nothing: no sync, flush or input")
        name = slug(
            f"dd-{rw}-{format_size(bs)}", f"n{count}" if count else "", "direct" if direct else "",
            "sync" if sync else "", flush if flush != "none" else "",
            "zero" if source == "zero" else "", version=given.version(),
        )  # fmt: skip
        loose = rw == "write" and not (direct or sync or flush != "none")
        caveats = [Caveat.CACHE] if loose else []
        caveats += [Caveat.ZEROES] if source == "zero" else []
        return Workload(
            slug=name, tool=self.tool, title=given.title(name),
            parameters={
                "rw": rw, "bs": bs, "iodepth": 1, "numjobs": 1, "count": count, "direct": direct,
                "sync": sync, "flush": flush, "input": source, "version": given.version(),
            },
            directions=(Direction(rw),), ramp_seconds=0.0, runtime_seconds=0.0,
            caveats=tuple(caveats),
        )  # fmt: skip

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the time at a usual speed; a write writes what it copies."""
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
        return Job(
            argv=["/bin/sh", "-c", command], files={output: b""}, output=output, work=target.work,
            deadline_seconds=moved / _FLOOR_BYTES_PER_SECOND + 60, timed=False, prepare=prepare,
            drop_guest_cache=True,
        )  # fmt: skip

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in what dd says at its end. Raises as `Room.parse`."""
        match = _TOTAL.search(output)
        if match is None:
            raise OutputUnreadable(
                "dd did not say how much it copied",
                cause="it was stopped, or could not start",
                evidence=output[-500:],
            )
        moved, seconds = int(match["bytes"]), float(match["seconds"].replace(",", "."))
        if not moved or seconds <= 0:
            raise ToolFailed(
                "dd copied nothing", cause=output.splitlines()[0][:200], evidence=output[-500:]
            )
        direction, bs = workload.directions[0], int(workload.parameters["bs"])
        partial = [int(found["partial"]) for found in _BLOCKS.finditer(output)]
        notes = ("dd moved partial blocks",) if any(partial) else ()
        operations = moved / bs
        return Parsed(
            samples=(
                Sample("iops", direction, operations / seconds, Unit.IOPS),
                Sample("bandwidth", direction, moved / seconds, Unit.BYTES_PER_SECOND),
                Sample("operations", direction, operations, Unit.OPERATIONS),
                Sample("bytes", direction, float(moved), Unit.BYTES),
                Sample("runtime", direction, seconds, Unit.SECONDS),
                # One block at a time: what each took on average is what dd "latency" tests mean.
                Sample("clat_mean", direction, seconds / operations, Unit.SECONDS),
            ),
            notes=notes,
        )


def _blocks(workload: Workload, size_bytes: int) -> int:
    fitting = size_bytes // int(workload.parameters["bs"])
    return min(int(workload.parameters["count"]) or fitting, fitting)


def _writing(workload: Workload, target: Target) -> list[str]:
    parameters = workload.parameters
    conversions = ["notrunc", "nocreat"]
    conversions += [str(parameters["flush"])] if parameters["flush"] != "none" else []
    flags = ["seek_bytes", *(["direct"] if parameters["direct"] else [])]
    flags += ["dsync"] if parameters["sync"] else []
    return [
        f"of={target.device}", f"seek={target.offset_bytes}", f"conv={','.join(conversions)}",
        f"oflag={','.join(flags)}",
    ]  # fmt: skip


def _dd(operands: list[str], output: str) -> str:
    # What dd says is read in any language, but numbers have only one form in C.
    return f"LC_ALL=C {program('dd')} {shlex.join(operands)} 2>{shlex.quote(output)}"
