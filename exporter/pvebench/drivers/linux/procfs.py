"""Facts and counters of a machine from /proc and /sys: CPU, QEMU's threads, conditions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from io import BytesIO, StringIO
from pathlib import Path
from typing import IO, Any, Final

from pvebench.drivers.linux.block_devices import devices_below
from pvebench.drivers.linux.io_counters import counters_of
from pvebench.model import run_metrics
from pvebench.model.ports import HostSnapshot
from pvebench.model.units import NANOSECONDS, kernel_number

# --- fetched copies of files in another machine's /proc and /sys


@dataclass(frozen=True, slots=True)
class Fetched(Traversable):
    """Path in fetched files, usable instead of a `Path`.

    Attributes:
        files: absolute path -> content.
        path: absolute, without a slash at its end; empty: the root.
    """

    files: Mapping[str, bytes]
    path: str = ""

    @classmethod
    def read(cls, output: bytes) -> Fetched:
        """Parse the output of `grep -aHZ ''`: each line after its file's name and a NUL."""
        files: dict[str, list[bytes]] = {}
        name = ""
        for line in output.split(b"\n")[:-1]:
            before, separator, text = line.partition(b"\0")
            # A line without a NUL is not grep's output.
            name = before.decode("utf-8", "replace") if separator else name
            files.setdefault(name, []).append(text)
        return cls({path: b"\n".join([*lines, b""]) for path, lines in files.items()})

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def iterdir(self) -> Iterator[Fetched]:
        """Yield the entries of a directory. Raises FileNotFoundError."""
        start = f"{self.path}/"
        below = [path for path in self.files if path.startswith(start)]
        names = {path[len(start) :].partition("/")[0] for path in below}
        if not names:
            raise FileNotFoundError(2, "was not fetched", self.path)
        return (Fetched(self.files, start + name) for name in sorted(names))

    def joinpath(self, *descendants: Any) -> Fetched:
        return Fetched(self.files, "/".join([self.path, *map(str, descendants)]))

    def __truediv__(self, child: Any) -> Fetched:
        return self.joinpath(child)

    def is_dir(self) -> bool:
        return any(path.startswith(f"{self.path}/") for path in self.files)

    def is_file(self) -> bool:
        return self.path in self.files

    def read_bytes(self) -> bytes:
        """Return the content. Raises FileNotFoundError."""
        if self.path not in self.files:
            raise FileNotFoundError(2, "was not fetched", self.path)
        return self.files[self.path]

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "replace")

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        return BytesIO(self.read_bytes()) if "b" in mode else StringIO(self.read_text())


_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MEMORY: Final = (("memory", "some"), ("memory", "full"))
_MICROSECONDS: Final = 1e6
"""Per second; the unit of /proc/pressure and cpu.stat (Linux' Documentation/accounting/psi.rst and
admin-guide/cgroup-v2.rst)."""

# idle, iowait and steal of the cpu line, counted from user = 0: stolen time was not used here, and
# meanwhile the other modes are counted as without it.
_IDLE_FIELDS: Final = (3, 4, 7)
_GUEST_FIELDS: Final = (8, 9)  # user time includes guest time
_VCPU: Final = re.compile(r"CPU \d+/")


@dataclass(frozen=True, slots=True)
class ProcProbe:
    """`model.ports.HostProbe` for a QEMU on this machine, or a container.

    Attributes:
        pid: returns QEMU's process ID, or None while there is no VM.
        container: likewise for a process in the container.
        volume: returns the file or device of the test volume, whose backing devices are counted;
            None: none on this machine.
        root: `/`; another tree in tests.
    """

    pid: Callable[[], int | None]
    volume: Callable[[], Path | None]
    root: Path = Path("/")
    container: Callable[[], int | None] = field(default=lambda: None, kw_only=True)

    def snapshot(self) -> HostSnapshot:
        """Return the current counters; unreadable ones are absent."""
        volume = self.volume()
        try:
            devices = devices_below(volume) if volume is not None else ()
        except OSError:
            devices = ()  # the volume was removed
        at, inside = time.monotonic(), self.container()
        snapshot = read_snapshot(self.root, pid=self.pid(), devices=devices, at=at)
        used = cpu_seconds(self.root, inside) if inside is not None else None
        if used is None:
            return snapshot
        return replace(snapshot, cpu_seconds={**snapshot.cpu_seconds, "container": used})


def read_snapshot(
    root: Traversable, *, pid: int | None, devices: tuple[int, ...], at: float
) -> HostSnapshot:
    """Return the counters in /proc and /sys below `root`; missing ones are absent.

    Args:
        pid: QEMU's process. devices: numbers of the block devices below the test volume; empty:
            unknown. at: time of the reading, in seconds.
    """
    total, cpus, switches = _host_cpu(root)
    seconds = {"total": total}
    counts: dict[str, int] = {}
    if pid is not None:
        seconds |= qemu_cpu(root, pid)
        counts |= _process_bytes(root, pid)
    if devices:
        moved = _device_bytes(root, devices)
        # Traffic to a server is only in the share's counters, not in the process's.
        counts = moved if moved and not os.major(devices[0]) else counts | moved
    return HostSnapshot(
        monotonic=at,
        cpu_seconds=seconds,
        bytes=counts,
        cpus=cpus,
        context_switches=switches,
        vm_exits=vm_exits(root, pid) if pid is not None else 0,
        conditions=of_files(root),
    )


def _host_cpu(root: Traversable) -> tuple[float, int, int]:
    busy, cpus, switches = 0.0, 0, 0
    for line in (root / "proc/stat").read_text("ascii").splitlines():
        name, *values = line.split()
        if name == "cpu":
            skip = {*_IDLE_FIELDS, *_GUEST_FIELDS}
            ticks = sum(kernel_number(value) for at, value in enumerate(values) if at not in skip)
            busy = ticks / _TICKS
        elif name.startswith("cpu"):
            cpus += 1
        elif name == "ctxt":
            switches = kernel_number(values[0])
    return busy, cpus, switches


def qemu_cpu(root: Traversable, pid: int) -> dict[str, float]:
    """Return CPU seconds of a QEMU process: `qemu`, and its parts `vcpu`, `iothread`, `other`.

    Threads are identified by the names that QEMU gives them with `debug-threads=on`. The total of
    the process is read first and includes ended threads, so `other` is the rest.
    """
    process = root / "proc" / str(pid)
    try:
        whole = _stat_seconds(process / "stat")
        threads = [(_name(task), _stat_seconds(task / "stat")) for task in _tasks(process)]
    except OSError:
        return {}  # the process ended during the reading
    vcpu = sum(seconds for name, seconds in threads if _VCPU.match(name))
    iothread = sum(seconds for name, seconds in threads if name.startswith("IO "))
    rest = max(0.0, whole - vcpu - iothread)
    used = {"qemu": whole, "vcpu": vcpu, "iothread": iothread, "other": rest}
    return used | _vcpu_wait(process)


def _vcpu_wait(process: Traversable) -> dict[str, float]:
    """Return the time that vCPU threads waited for a CPU, if the kernel counts it."""
    try:
        waits = [
            kernel_number((task / "schedstat").read_text("ascii").split()[1])
            for task in _tasks(process)
            if _VCPU.match(_name(task))
        ]
    except (OSError, IndexError, ValueError):
        return {}
    return {"vcpu_wait": sum(waits) / NANOSECONDS}


def cpu_seconds(root: Traversable, pid: int) -> float | None:
    """Return the CPU time of a process's group; None: not readable."""
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text("ascii").splitlines()
        group = dict(line.rsplit(":", 1) for line in lines)["0:"].lstrip("/")
        unified = root / "sys/fs/cgroup/unified"  # on systems with both versions
        base = unified if unified.is_dir() else root / "sys/fs/cgroup"
    except (OSError, KeyError, ValueError):
        return None
    return group_seconds(base / group / "cpu.stat")


def group_seconds(stat: Traversable) -> float | None:
    """Return the CPU time in a group's cpu.stat; None: not readable."""
    try:
        used = dict(line.split() for line in stat.read_text("ascii").splitlines())
        return kernel_number(used["usage_usec"]) / _MICROSECONDS
    except (OSError, KeyError, ValueError):
        return None


def pressures(root: Traversable) -> dict[str, float]:
    """Return resource -> seconds so far in which tasks waited, with `HostSnapshot`'s names."""
    seconds = {}
    for resource, kind in (("cpu", "some"), ("io", "some"), ("io", "full"), *_MEMORY):
        try:
            text = (root / "proc/pressure" / resource).read_text("ascii")
        except OSError:
            continue  # a kernel without these counters
        if total := re.search(rf"^{kind} .*\btotal=(\d{{1,18}})$", text, re.MULTILINE):
            seconds[f"{resource}_{kind}"] = int(total[1]) / _MICROSECONDS
    return seconds


def vm_exits(root: Traversable, pid: int) -> int:
    """Return the exits of a VM's CPUs to KVM so far; 0: unknown.

    Each VM has a directory `PID-FD` (`kvm_create_vm_debugfs` in Linux's virt/kvm/kvm_main.c) with
    sums over its CPUs.
    """
    try:
        entries = list((root / "sys/kernel/debug/kvm").iterdir())
        of_vm = [entry for entry in entries if entry.name.startswith(f"{pid}-")]
        return sum(kernel_number((entry / "exits").read_text("ascii")) for entry in of_vm)
    except (OSError, ValueError):
        return 0


def _tasks(process: Traversable) -> list[Traversable]:
    return sorted((process / "task").iterdir(), key=lambda task: task.name)


def _name(task: Traversable) -> str:
    return (task / "comm").read_bytes().decode("utf-8", "replace").strip()


def _stat_seconds(path: Traversable) -> float:
    # The name is in parentheses and may contain spaces; utime and stime are fields 14 and 15.
    fields = path.read_bytes().decode("utf-8", "replace").rpartition(")")[2].split()
    return (kernel_number(fields[11]) + kernel_number(fields[12])) / _TICKS


def _process_bytes(root: Traversable, pid: int) -> dict[str, int]:
    try:
        text = (root / "proc" / str(pid) / "io").read_text("ascii")
    except OSError:
        return {}
    values = dict(line.split(": ") for line in text.splitlines())
    return {
        "process_read": kernel_number(values["read_bytes"]),
        "process_write": kernel_number(values["write_bytes"]),
    }


def _device_bytes(root: Traversable, devices: tuple[int, ...]) -> dict[str, int]:
    try:
        counters = counters_of(root, devices)
    except OSError:
        counters = None
    if counters is None:
        return {}
    return {"device_read": counters.read_bytes, "device_write": counters.write_bytes}


def host_facts(root: Traversable = Path("/")) -> dict[str, str]:
    """Return kernel, CPU model, microcode, governor and distribution of the running host."""
    cpu = _pairs(_read(root / "proc/cpuinfo").partition("\n\n")[0], ":")  # of the first CPU
    facts = {
        "kernel": _read(root / "proc/sys/kernel/osrelease"),
        "cpu_model": cpu.get("model name", ""),
        "microcode": cpu.get("microcode", ""),
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "host_os": _pairs(_read(root / "etc/os-release"), "=").get("PRETTY_NAME", "").strip('"'),
        "cpus": str(_host_cpu(root)[1] or ""),
    }
    return {key: value for key, value in facts.items() if value}


def available_memory(root: Traversable = Path("/")) -> int:
    """Return the bytes that new processes can use without swapping (MemAvailable)."""
    return _memory("MemAvailable", root)


def total_memory(root: Traversable = Path("/")) -> int:
    """Return the bytes of the machine's memory; 0: unknown."""
    return _memory("MemTotal", root)


def _memory(key: str, root: Traversable) -> int:
    match = re.search(rf"^{key}:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _read(path: Traversable) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def _pairs(text: str, separator: str) -> dict[str, str]:
    pairs = (line.partition(separator) for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


# --- conditions that slow down disks: heat, a smaller ZFS cache, a RAID check


_DRIVES: Final = frozenset({"nvme", "drivetemp"})
"""Drivers of hwmon for drives: drivers/nvme/host/hwmon.c and drivers/hwmon/drivetemp.c of Linux."""
_SENSOR: Final = "temp1"
"""Sensor of the whole drive, with its maker's limit; other sensors have none."""
_MILLI: Final = 1000.0
"""Per degree Celsius; Linux' Documentation/hwmon/sysfs-interface.rst."""
_ARC: Final = re.compile(r"^size\s+4\s+(\d{1,18})$", re.MULTILINE)
_ARRAY: Final = re.compile(r"^md\w* : ", re.MULTILINE)
_SYNCS: Final = re.compile(r" (?:check|resync|recovery|reshape) = *\d+\.\d%")
"""Output of `status_resync` in drivers/md/md.c of Linux; a pending sync has no percentage."""
_SYNCING: Final = frozenset({"check", "resync", "recovering"})
"""States of node_exporter's collector mdadm, which does not report reshapes."""

Sample = tuple[str, Mapping[str, str], float]


def of_page(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the conditions on a page of node_exporter, as in `HostSnapshot.conditions`.

    Its collectors hwmon, zfs and mdadm are enabled by default.
    """
    drives: set[str] = set()
    arrays: dict[str, dict[str, float]] = {}
    values: dict[str, dict[str, float]] = {"temp": {}, "max": {}}
    conditions: dict[str, float] = {}
    names = {"node_hwmon_temp_celsius": "temp", "node_hwmon_temp_max_celsius": "max"}
    for name, labels, value in samples:
        if name == "node_hwmon_chip_names" and labels.get("chip_name") in _DRIVES:
            drives.add(labels.get("chip", ""))
        elif name in names and labels.get("sensor") == _SENSOR:
            values[names[name]][labels.get("chip", "")] = value
        elif name == "node_zfs_arc_size":
            conditions[run_metrics.ZFS_CACHE.name] = value
        elif name in {"node_md_state", "node_md_blocks_synced"}:
            arrays.setdefault(labels.get("device", ""), {})[labels.get("state", "")] = value
    if arrays:
        conditions[run_metrics.MD_SYNC.name] = float(any(map(_syncs, arrays.values())))
    known = drives & values["temp"].keys() & values["max"].keys()
    return conditions | _margin(values["max"][chip] - values["temp"][chip] for chip in known)


def _syncs(array: Mapping[str, float]) -> bool:
    """Return whether an array is syncing; a pending sync has no synced blocks yet."""
    return bool(array.get("")) and any(array.get(state) for state in _SYNCING)


def of_files(root: Traversable) -> dict[str, float]:
    """Return the conditions in /proc and /sys below `root`, as in `HostSnapshot.conditions`."""
    conditions = _margin(_margins(root / "sys/class/hwmon"))
    with suppress(OSError):
        if size := _ARC.search((root / "proc/spl/kstat/zfs/arcstats").read_text("ascii")):
            conditions[run_metrics.ZFS_CACHE.name] = float(size[1])
    with suppress(OSError):
        arrays = (root / "proc/mdstat").read_text("ascii")
        if _ARRAY.search(arrays):
            conditions[run_metrics.MD_SYNC.name] = float(bool(_SYNCS.search(arrays)))
    return conditions


def _margins(chips: Traversable) -> Iterable[float]:
    with suppress(OSError):
        for chip in sorted(chips.iterdir(), key=lambda path: path.name):
            with suppress(OSError, ValueError):  # a chip without a limit, a drive in standby
                if (chip / "name").read_text("ascii").strip() in _DRIVES:
                    limit, now = (_number(chip / f"{_SENSOR}_{part}") for part in ("max", "input"))
                    yield (limit - now) / _MILLI


def _number(path: Traversable) -> int:
    return kernel_number(path.read_text("ascii"))


def _margin(margins: Iterable[float]) -> dict[str, float]:
    least = min(margins, default=None)
    return {} if least is None else {run_metrics.DISK_MARGIN.name: least}
