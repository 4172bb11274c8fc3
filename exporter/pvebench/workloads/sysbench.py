"""sysbench fileio: six patterns over its own files.

Without `--validate` sysbench writes nothing but zeros, and a storage that compresses them or
leaves holes is measured at that; so its files are made with it, and it stays on while measuring
(reads are then checked, which costs the guest a little CPU). sysbench 1.0 has no warm-up of its
own: the same load runs before, unmeasured, for the ramp.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from pvebench.model.units import KIB, MIB, format_size
from pvebench.model.workload import Caveat, Direction, Place, Workload
from pvebench.workloads.base import Estimate, Job, Parsed, Target, own_bytes
from pvebench.workloads.given import Given, slug
from pvebench.workloads.sysbench_parse import parse

OPTIONS: Final = (
    "mode", "size", "bs", "threads", "files", "direct", "fsync_freq", "validate",
)  # fmt: skip
READ, WRITE = (Direction.READ,), (Direction.WRITE,)
MODES: Final[dict[str, tuple[Direction, ...]]] = {
    "seqwr": WRITE, "seqrewr": WRITE, "seqrd": READ, "rndrd": READ, "rndwr": WRITE,
    "rndrw": READ + WRITE,
}  # fmt: skip
ASSUMED_BYTES_PER_SECOND: Final = 500 * MIB
_PREPARE_BYTES_PER_SECOND: Final = 50 * MIB


class Sysbench:
    """The room of sysbench fileio, a `Room`. It has no state."""

    tool = "sysbench"
    open_ended = False
    fresh_boot = False

    def resolve(
        self, options: Mapping[str, Any], *, ramp_seconds: float, runtime_seconds: float
    ) -> Workload:
        """Return the workload. Times are whole seconds, at least three of them measured."""
        given = Given(self.tool, options, OPTIONS)
        mode = given.one_of("mode", tuple(MODES))
        size = given.size("size", default=None, low=MIB, high=1 << 50)
        bs = given.size("bs", default=16 * KIB, low=512, high=64 * MIB)
        threads = given.whole("threads", default=1, low=1, high=256)
        files = given.whole("files", default=1, low=1, high=1024)
        fsync = given.whole("fsync_freq", default=100, low=0, high=1_000_000)
        direct = given.yes("direct", default=False)
        validate = given.yes("validate", default=True)
        if size % (files * bs):
            raise ValueError(f"size: {size} bytes is not whole blocks of {bs} in {files} files")
        name = slug(
            f"sysbench-{mode}-{format_size(bs)}", f"t{threads}" if threads != 1 else "",
            f"f{files}" if files != 1 else "", f"size{format_size(size)}",
            f"fsync{fsync}" if fsync != 100 else "", "direct" if direct else "",
            "" if validate else "unchecked", version=given.version(),
        )  # fmt: skip
        caveats = [] if direct else [Caveat.CACHE]
        caveats += [] if validate else [Caveat.ZEROES]
        return Workload(
            slug=name, tool=self.tool, title=given.title(name),
            parameters={
                "mode": mode, "rw": mode, "size": size, "bs": bs, "numjobs": threads,
                "iodepth": 1, "files": files, "fsync_freq": fsync, "direct": direct,
                "validate": validate, "version": given.version(),
            },
            directions=MODES[mode], ramp_seconds=float(round(ramp_seconds)),
            runtime_seconds=float(max(3, round(runtime_seconds))),
            place=Place.DIRECTORY, caveats=tuple(caveats),
        )  # fmt: skip

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the window's time and the making of the files."""
        size = own_bytes(workload, size_bytes)
        window = workload.ramp_seconds + workload.runtime_seconds
        writes = Direction.WRITE in workload.directions
        return Estimate(
            seconds=window + size / _PREPARE_BYTES_PER_SECOND,
            bytes_written=size + round(window * ASSUMED_BYTES_PER_SECOND * writes),
        )

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the commands: make the files, warm up, measure, remove the files."""
        output, directory = f"{target.work}/sysbench.txt", f"{target.scratch}/sysbench"
        kept = shlex.quote(output)
        inside = f"cd {shlex.quote(directory)} &&"
        options = shlex.join(_options(workload, target))
        ramp, runtime = round(workload.ramp_seconds), round(workload.runtime_seconds)
        warm = f"sysbench --time={ramp} {options} run >{kept} &&" if ramp else ""
        seconds = ramp + runtime
        return Job(
            argv=[
                "/bin/sh", "-c",
                f"{inside} {warm} exec sysbench --time={runtime} {options} run >{kept}",
            ],
            files={output: b""}, output=output, work=target.work,
            deadline_seconds=2 * seconds + 120, drop_guest_cache=True,
            prepare=(
                ("rm", "-rf", directory),
                ("mkdir", directory),
                ("/bin/sh", "-c", f"{inside} sysbench {options} prepare >{kept} && sync"),
            ),
            cleanup=("rm", "-rf", directory),
        )  # fmt: skip

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in sysbench's report. Raises as `Room.parse`."""
        return parse(workload, output)


def _options(workload: Workload, target: Target) -> list[str]:
    parameters = workload.parameters
    whole = int(parameters["files"]) * int(parameters["bs"])
    size = own_bytes(workload, target.size_bytes) // whole * whole
    return [
        f"--threads={parameters['numjobs']}", "--percentile=99", "--report-interval=1",
        f"--validate={'on' if parameters['validate'] else 'off'}", "fileio",
        f"--file-num={parameters['files']}", f"--file-total-size={size}",
        f"--file-block-size={parameters['bs']}", f"--file-test-mode={parameters['mode']}",
        f"--file-fsync-freq={parameters['fsync_freq']}",
        *(["--file-extra-flags=direct"] if parameters["direct"] else []),
    ]  # fmt: skip
