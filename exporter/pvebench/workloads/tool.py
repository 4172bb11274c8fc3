"""Interface of benchmark tools.

A tool class does no I/O. It converts parameters into a job (files and a command for the guest)
and raw output into samples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol, Self, TypeVar, runtime_checkable

from pydantic import AfterValidator, Field, StrictInt

from pvebench.errors import OutputUnreadable
from pvebench.fields import Strict, Text
from pvebench.model.run import Sample
from pvebench.model.run_metrics import FIGURES, IOPS
from pvebench.model.units import MIB, plain_number
from pvebench.model.workload import Workload

T = TypeVar("T")

CPU_LOG = "guest_cpu.log"
"""Name of the log with `Guest.cpu_counters` before and after a job, one line each."""
WORK_DIR = "/run/pvebench"
"""Directory in the guest for jobs and their output, in RAM."""
BOOT_SECONDS: Final = 10.0
"""Estimate of a VM's boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of a job in the guest: a block device, or a file on a file system.

    Attributes:
        device: path of the device or file.
        file: whether it is a file.
        offset_bytes: start of the target on the device.
        scratch: directory on the disk for tools that create their own files; empty: none.
        work: directory for jobs and their output.
        engine: as `model.ports.Guest`.
        trims_counted: whether QEMU counts discards: not those of virtio.
    """

    device: str
    size_bytes: int
    file: bool = False
    offset_bytes: int = 0
    scratch: str = ""
    work: str = WORK_DIR
    engine: str = ""
    trims_counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Data that the runner needs to run a tool in the guest.

    Attributes:
        argv: the command, as an argument list.
        files: path -> content, written before the start.
        output: path of the file with the tool's result.
        logs: paths of further files to keep as evidence; may be absent after the run.
        deadline_seconds: time limit of the run, counted from the start.
        moves_data: whether the window starts with the first I/O; otherwise right after the start.
        timed: whether the workload defines the length of the window; otherwise it lasts from the
            tool's start to its end.
        prepare: commands to run one after the other before the start; not measured.
        cleanup: command to run after the end, also after a failure; empty: none.
        drop_guest_cache: whether the guest's page cache must be empty at the start.
        work: directory of the job's files; emptied before they are written.
    """

    argv: list[str]
    files: Mapping[str, bytes]
    output: str
    logs: tuple[str, ...] = ()
    deadline_seconds: float = 120.0
    moves_data: bool = True
    timed: bool = True
    prepare: tuple[tuple[str, ...], ...] = ()
    cleanup: tuple[str, ...] = ()
    drop_guest_cache: bool = False
    work: str = WORK_DIR


def shell_job(command: str, target: Target, output: str, **more: Any) -> Job:
    """Return the job of a command of the shell that writes `output` and ends on its own.

    Args:
        more: further fields of the job, or others than these.
    """
    usual: dict[str, Any] = {"timed": False, "drop_guest_cache": True, "work": target.work}
    argv = ["/bin/sh", "-c", command]
    return Job(argv=argv, files={output: b""}, output=output, **usual | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected cost of a run. `bytes_written` is an upper estimate for an assumed device speed."""

    seconds: float
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Parsed output of a tool.

    Attributes:
        samples: the measured values.
        intervals: direction -> I/O per second of each whole interval within the window.
        notes: remarks on the run (text before the JSON, missing parts).

    Raises:
        OutputUnreadable: a value is negative, infinite, not a number, or too large for any machine.
    """

    samples: tuple[Sample, ...]
    intervals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = [(" ".join(filter(None, (s.metric, s.part))), s.value) for s in self.samples]
        values += [(name, value) for name, steps in self.intervals.items() for value in steps]
        refuse([f"{n} is {v:.10g}" for n, v in values if not (math.isfinite(v) and v >= 0)])
        limited = [(s.metric, s.value, FIGURES[s.metric].most) for s in self.samples]
        limited += [(name, value, IOPS.most) for name, value in values[len(limited) :]]
        beyond = [(name, value) for name, value, limit in limited if value > limit]
        refuse(
            [f"{name} of {value:.3g} exceeds the limit of any machine" for name, value in beyond]
        )


def refuse(faults: Iterable[str], *, evidence: str = "") -> None:
    """Reject a tool's output with impossible values.

    Raises:
        OutputUnreadable: there are `faults`.
    """
    reasons = list(faults)
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise OutputUnreadable(
            f"impossible values in the tool's output: {reasons[0]}{more}",
            cause="damaged or modified output, or output of another program",
            next_step="check the raw output of the run; if it has these values, the tool is faulty",
            evidence=evidence,
        )


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object (`object_pairs_hook`) without duplicate keys, which would be ambiguous.

    Duplicate text values, for example of a repeated option, are accepted.

    Raises:
        OutputUnreadable: a key with a value other than text is duplicate.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        duplicates = [name for name, count in counts.items() if count > 1]
        ambiguous = [name for name in duplicates if not isinstance(values[name], str)]
        refuse([f"duplicate key {name[:50]}" for name in ambiguous])
    return values


def only_one(results: Iterable[T], *, evidence: str) -> T | None:
    """Return the only result of a tool; None: it printed none.

    Raises:
        OutputUnreadable: there are several, which is ambiguous.
    """
    items = list(results)
    refuse([f"{len(items)} results instead of one"] * (len(items) > 1), evidence=evidence)
    return items[0] if items else None


def number_in(text: str) -> float:
    """Return a number from a tool's output, with a decimal point or comma.

    Raises:
        OutputUnreadable: not a number, or infinite.
    """
    value = plain_number(text.replace(",", "."))
    if value is None or not math.isfinite(value):
        raise OutputUnreadable(
            f"{text[:50]!r} is not a number", cause="damaged output or unsupported tool version"
        )
    return value


def program(name: str) -> str:
    """Return shell text that expands to the path of a program's executable.

    The guest's shell is busybox, which prefers its own dd and hdparm to those on the PATH.
    """
    directories = "/usr/sbin /usr/bin /sbin /bin"
    return f'"$(for d in {directories}; do [ -x $d/{name} ] && break; done; echo $d/{name})"'


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"{text!r} is not a single line of printable text")
    return text.strip()


class ToolOptions(Strict):
    """Options of every tool in a pack; subclasses add the options and rules of one tool.

    A rule about several options raises ValueError with the text `option: problem`.

    Attributes:
        version: increased when the definition changes, because old results are not comparable.
        title: display name; None: derived from the slug.
    """

    version: Annotated[StrictInt, Field(ge=1, le=10_000)] = 1
    title: Annotated[Text, AfterValidator(_line)] | None = None

    @abstractmethod
    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload of these options; the times come from the pack."""

    @property
    def area(self) -> tuple[str, int]:
        """The option for the used bytes of the disk, and these bytes; 0: all of them."""
        size = getattr(self, "size", None)
        if size is not None:
            return "size", int(size)
        return "count", getattr(self, "count", 0) * getattr(self, "bs", 0)

    def scaled(self, factor: float, most: int) -> Self:
        """Return the options of a scaled pack: an area of whole units, at most `most` bytes."""
        (name, area), block = self.area, int(getattr(self, "bs", MIB))
        unit = block * getattr(self, "numjobs", 1) * getattr(self, "files", 1)
        whole = max(1, min(int(area * factor), most) // unit) * unit
        used = whole // (block if name == "count" else 1)
        return self.model_copy(update={name: used}) if area else self

    def slug(self, *parts: str) -> str:
        """Join the parts that are not empty; add `@n` from the second definition on."""
        return "-".join(filter(None, parts)) + (f"@{self.version}" if self.version != 1 else "")

    def heading(self, slug: str) -> str:
        """Return the title from the pack, or the slug with spaces."""
        return self.title or slug.replace("-", " ")


@runtime_checkable
class Tool(Protocol):
    """One benchmark tool.

    Attributes:
        tool: its name in packs.
        options: its options in packs.
        program: name of its executable. The guest must have it, and the host for host cases.
            Empty: it needs none.
        open_ended: whether the load can continue for any time, as waiting for a steady state
            requires.
        fresh_boot: whether the VM must be powered on for each run.
        seconds_step: resolution of the printed times in seconds, if it is significant.
    """

    tool: str
    options: type[ToolOptions]
    program: str = ""
    open_ended: bool = False
    fresh_boot: bool = False
    seconds_step: float = 0.0

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the expected seconds and written bytes of one run."""

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the job for the guest."""

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in a tool's raw output.

        Raises:
            OutputUnreadable: truncated or in an unexpected format.
            ToolFailed: the tool itself reports an error.
        """
