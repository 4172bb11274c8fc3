"""An example of a plug-in of pvebench: a storage kind and a tool, both with options."""

import re
from collections.abc import Mapping

from pvebench import plugin
from pvebench.plugin import disks, errors, fields, ports, rules, run_metrics, scenarios, workloads

Logs = Mapping[str, str]


class MountedSettings(plugin.DirectorySettings):
    """Keys of kind `mounted`: `path`, and the mount point above it."""

    mount: fields.FilePath


class MountedDirectory(plugin.DirectoryStorage):
    """Directory on a file system of its own."""

    def __init__(
        self, context: plugin.StorageContext[MountedSettings], journal: ports.Journal
    ) -> None:
        super().__init__(context, journal)
        self._settings = context.settings

    def create(self, scenario: scenarios.Scenario) -> plugin.volumes.Volume:
        """Create a volume. Raises VolumeError if the file system is not mounted."""
        path, mount = self._settings.path, self._settings.mount
        if not (mount.is_mount() and path.is_relative_to(mount)):
            raise errors.VolumeError(f"{path} is not below {mount}, or that is not mounted")
        return super().create(scenario)


MOUNTED = plugin.Kind(
    holds=rules.StorageKind(
        name="mounted", formats=frozenset({disks.Format.RAW, disks.Format.QCOW2}), files=True
    ),
    settings=MountedSettings,
    make=MountedDirectory,
    identify=plugin.identify_directory,
)


class ScanOptions(plugin.ToolOptions):
    """Options of tool `scan`: the bytes of one read."""

    bs: fields.Size = 1024**2

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> workloads.Workload:
        """Return the workload: one sequential read of the whole disk."""
        slug = self.slug("scan", f"{self.bs // 1024}k")
        return workloads.Workload(
            slug=slug,
            tool="scan",
            title=self.heading(slug),
            parameters={"rw": "read", "bs": self.bs, "version": self.version},
            directions=(workloads.Direction.READ,),
            ramp_seconds=0.0,
            runtime_seconds=0.0,
        )


class Scan(plugin.Tool):
    """Reads the whole disk once."""

    tool = "scan"
    options = ScanOptions

    def estimate(self, workload: workloads.Workload, size_bytes: int) -> plugin.Estimate:
        """Return an estimate for 100 MB/s; it only reads."""
        return plugin.Estimate(seconds=size_bytes / 100e6, bytes_written=0)

    def job(self, workload: workloads.Workload, target: plugin.Target) -> plugin.Job:
        """Return the command, which prints the uptime before and after, and the bytes."""
        place = f"skip={target.offset_bytes} count={target.size_bytes}"
        flags = f"iflag=skip_bytes,count_bytes bs={workload.parameters['bs']} status=none"
        script = f'(cat /proc/uptime; dd if="$0" {flags} {place} | wc -c; cat /proc/uptime) >"$1"'
        output = f"{target.work}/scan.txt"
        return plugin.Job(
            argv=["/bin/sh", "-c", script, target.device, output],
            files={output: b""},
            output=output,
            deadline_seconds=target.size_bytes / 1e6 + 60,
            work=target.work,
            timed=False,
            drop_guest_cache=True,
        )

    def parse(self, workload: workloads.Workload, output: str, logs: Logs) -> plugin.Parsed:
        """Return bandwidth, bytes and seconds. Raises OutputUnreadable."""
        match = re.fullmatch(r"(\d+\.\d+) \S+\n(\d+)\n(\d+\.\d+) \S+\n", output)
        if match is None or (seconds := float(match[3]) - float(match[1])) <= 0:
            raise errors.OutputUnreadable("scan took no time", evidence=output[:200])
        size, direction = float(match[2]), workload.directions[0]
        numbers = {
            run_metrics.BANDWIDTH: size / seconds,
            run_metrics.BYTES: size,
            run_metrics.RUNTIME: seconds,
        }
        samples = (figure.sample(value, direction) for figure, value in numbers.items())
        return plugin.Parsed(samples=tuple(samples))
