"""An example of a plug-in of pvebench: a storage kind and a tool."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from pvebench.plugin import (
    Direction,
    DirectoryStorage,
    Estimate,
    Format,
    Job,
    Journal,
    Kind,
    OutputUnreadable,
    Parsed,
    Scenario,
    StorageKind,
    StorageOptions,
    Target,
    Tool,
    ToolOptions,
    Volume,
    VolumeError,
    Workload,
    figures,
    identify_directory,
)


class MountedDirectory(DirectoryStorage):
    """Directory on a file system of its own, whose mount point is option `mount`."""

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        super().__init__(options, journal)
        self._path, self._mount = Path(options.path), Path(options.options.get("mount", ""))

    def create(self, scenario: Scenario) -> Volume:
        """Create a volume. Raises VolumeError if the file system is not mounted."""
        if not (self._mount.is_mount() and self._path.is_relative_to(self._mount)):
            raise VolumeError(f"{self._path} is not below {self._mount}, or that is not mounted")
        return super().create(scenario)


MOUNTED = Kind(
    holds=StorageKind(name="mounted", formats=frozenset({Format.RAW, Format.QCOW2}), files=True),
    make=MountedDirectory,
    identify=identify_directory,
    required=frozenset({"path"}),
    options=frozenset({"mount"}),
)


class CatOptions(ToolOptions):
    """Tool `cat` has no options of its own."""

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload: one sequential read of the whole disk."""
        slug = self.slug("cat")
        return Workload(
            slug=slug,
            tool="cat",
            title=self.heading(slug),
            parameters={"rw": "read", "version": self.version},
            directions=(Direction.READ,),
            ramp_seconds=0.0,
            runtime_seconds=0.0,
        )


class Cat(Tool):
    """Reads the whole disk once."""

    tool = "cat"
    options = CatOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return an estimate for 100 MB/s; it only reads."""
        return Estimate(seconds=size_bytes / 100e6, bytes_written=0)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the command, which prints the uptime before and after, and the bytes."""
        device, output = shlex.quote(target.device), f"{target.work}/cat.txt"
        read = f"head -c {target.size_bytes} {device} | wc -c"
        command = f"(cat /proc/uptime; {read}; cat /proc/uptime) >{shlex.quote(output)}"
        argv = ["/bin/sh", "-c", command]
        return Job(argv=argv, files={output: b""}, output=output, work=target.work, timed=False,
                   drop_guest_cache=True)  # fmt: skip

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return bandwidth, bytes and seconds. Raises OutputUnreadable."""
        match = re.fullmatch(r"(\d+\.\d+) \S+\n(\d+)\n(\d+\.\d+) \S+\n", output)
        if match is None or (seconds := float(match[3]) - float(match[1])) <= 0:
            raise OutputUnreadable("cat took no time", evidence=output[:200])
        size, read = float(match[2]), Direction.READ
        return Parsed(samples=(
            figures.BANDWIDTH.sample(size / seconds, read),
            figures.BYTES.sample(size, read),
            figures.RUNTIME.sample(seconds, read),
        ))  # fmt: skip
