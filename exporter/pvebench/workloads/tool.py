"""What a workload room is: the contract that every benchmark tool fulfils.

A room does no I/O. It turns parameters into a job (files and a command for the guest) and
raw output into samples.
"""

from __future__ import annotations

import math
import random
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import AfterValidator, Field, StrictInt

from pvebench.errors import OutputUnreadable
from pvebench.fields import Strict, Text
from pvebench.model.run import Sample, Unit
from pvebench.model.units import plain_number
from pvebench.model.workload import Workload

T = TypeVar("T")

WORK_DIR = "/run/pvebench"
"""Directory in the guest for jobs and their output; it is in RAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a job runs against in the guest: a block device, or a file on a filesystem.

    Attributes:
        device: path of the device or the file.
        file: whether it is a file.
        offset_bytes: where on the device it begins.
        scratch: directory on the disk for tools that make files of their own; empty: none.
        work: directory for jobs and their output.
    """

    device: str
    size_bytes: int
    file: bool = False
    offset_bytes: int = 0
    scratch: str = ""
    work: str = WORK_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything the runner needs to run a tool in the guest.

    Attributes:
        argv: the command, as an argument list.
        files: path -> content, written before the start.
        output: path of the file that holds the tool's result.
        logs: paths of further files to keep as evidence; may be absent after the run.
        deadline_seconds: when to give the run up, counted from the start.
        moves_data: whether the window starts with the first I/O; else right after the start.
        timed: whether the window is as long as the workload says; else it lasts from the tool's
            start to its end.
        prepare: commands to run before the start, one after the other; not measured.
        cleanup: command to run after the end, however it ended; empty: none.
        drop_guest_cache: whether the guest's page cache must be empty at the start.
        work: directory that the job's files are in; emptied before they are written.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run will cost. `bytes_written` is an upper guess at `assumed` device speed."""

    seconds: float
    bytes_written: int


_MOST: Final = {Unit.BYTES_PER_SECOND: 1e15, Unit.IOPS: 1e12, Unit.SECONDS: 1e9, Unit.RATIO: 1e5}
"""A petabyte a second, thirty years: no tool of today says that, whatever it runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What came out of a tool's raw output.

    Attributes:
        samples: the numbers.
        intervals: direction -> I/O per second of each whole interval within the window.
        notes: what the reader of the run should know (text before the JSON, missing parts).

    Raises:
        OutputUnreadable: a number is below 0, infinite or none, or beyond all machines.
    """

    samples: tuple[Sample, ...]
    intervals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = [(" ".join(filter(None, (s.metric, s.part))), s.value) for s in self.samples]
        numbers += [(name, value) for name, steps in self.intervals.items() for value in steps]
        refuse([f"{n} is {v:.10g}" for n, v in numbers if not (math.isfinite(v) and v >= 0)])
        beyond = [s for s in self.samples if s.value > _MOST.get(s.unit, math.inf)]
        refuse([f"{s.metric} of {s.value:.3g} is more than any machine can" for s in beyond])


def refuse(faults: Iterable[str], *, evidence: str = "") -> None:
    """Refuse a tool's output whose numbers cannot be true.

    Raises:
        OutputUnreadable: there are `faults`.
    """
    found = list(faults)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise OutputUnreadable(
            f"the tool's numbers cannot be true: {found[0]}{more}",
            cause="its output was damaged or changed on the way, or another program wrote it",
            next_step="look at the run's raw output; if the tool did print that, it has a fault",
            evidence=evidence,
        )


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON (`object_pairs_hook`); of two numbers of one name which one counts?

    Text, as of an option that was given twice, is no matter.

    Raises:
        OutputUnreadable: a name other than of text is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = [name for name, count in counts.items() if count > 1]
        numbers = [name for name in twice if not isinstance(found[name], str)]
        refuse([f"{name[:50]} is there twice" for name in numbers])
    return found


def only_one(results: Iterable[T], *, evidence: str) -> T | None:
    """Return a tool's result; None: it printed none.

    Raises:
        OutputUnreadable: there are several; which one counts?
    """
    found = list(results)
    refuse([f"there are {len(found)} results"] * (len(found) > 1), evidence=evidence)
    return found[0] if found else None


def number_in(text: str) -> float:
    """Return the number that a tool printed, with a point or a comma.

    Raises:
        OutputUnreadable: it is none, or infinite.
    """
    value = plain_number(text.replace(",", "."))
    if value is None or not math.isfinite(value):
        raise OutputUnreadable(
            f"{text[:50]!r} is no number",
            cause="the tool's output was damaged on the way, or is of another version",
        )
    return value


class PlayDisk(Protocol):
    """A disk that does not exist, on which tools are only played (driver `simulated`).

    Attributes:
        name: what distinguishes it from others.
        rng: whatever varies, varies by it.
    """

    name: str
    rng: random.Random

    def iops(self, direction: str, *, bs: int, depth: float = 1, fsync: bool = False) -> float:
        """Return the I/O per second that it gives, without noise."""

    def rate(self, direction: str, *, bs: int, depth: float = 1) -> float:
        """Return the I/O per second that it gives this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a tool would have done on a disk that does not exist.

    Attributes:
        seconds: from the tool's first I/O to its end.
        output: path of its result; empty: none.
        text: what would stand in there.
        logs: path -> text of its further files.
        flushes_per_second: what QEMU would see of its syncs.
        moves_data: whether it does any I/O.
    """

    seconds: float
    output: str = ""
    text: str = ""
    logs: Mapping[str, str] = field(default_factory=dict)
    flushes_per_second: float = 0.0
    moves_data: bool = True


def written_to(argv: list[str], name: str) -> str:
    """Return the file `name` that a shell command writes its output to; empty: it has none."""
    found = re.search(rf">(\S+/{re.escape(name)})\b", argv[-1])
    return found[1] if found else ""


def program(name: str) -> str:
    """Return shell text that stands for a program's own file; where there is none, for a path.

    The guest's shell is busybox, which prefers its own dd and hdparm to those on the PATH.
    """
    places = "/usr/sbin /usr/bin /sbin /bin"
    return f'"$(for d in {places}; do [ -x $d/{name} ] && break; done; echo $d/{name})"'


def own_bytes(workload: Workload, target_bytes: int) -> int:
    """Return how much a tool with files of its own puts into them.

    No more than the test file has: a pack at a smaller scale must still fit into its volume.
    """
    return min(int(workload.parameters["size"]), target_bytes)


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"{text!r} is not a line of text")
    return text.strip()


class ToolOptions(Strict):
    """What a pack may say to every tool; a tool's own options and their rules are a class below.

    A rule about several options raises ValueError, `option: what is wrong`.

    Attributes:
        version: raised when the definition changes, since old results no longer compare.
        title: for people; None: made from the slug.
    """

    version: Annotated[StrictInt, Field(ge=1, le=10_000)] = 1
    title: Annotated[Text, AfterValidator(_line)] | None = None

    @abstractmethod
    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload that the options mean; the times are the pack's."""

    def slug(self, *parts: str) -> str:
        """Return the parts that are not empty, joined; `@n` from the second definition on."""
        return "-".join(filter(None, parts)) + (f"@{self.version}" if self.version != 1 else "")

    def heading(self, slug: str) -> str:
        """Return the pack's title, or the slug spaced out."""
        return self.title or slug.replace("-", " ")


class Tool(Protocol):
    """One benchmark tool.

    Attributes:
        tool: its name in packs.
        options: what a pack may say to it.
        program: what it is to a shell; the guest must have it, and the host for rows of its own.
            Empty: it needs none.
        open_ended: whether the same load can go on for any time, so that one can wait until it
            is steady.
        fresh_boot: whether the VM must be powered on for each run.
        seconds_step: last digit of the times that it prints, where that is much.
    """

    tool: str
    options: type[ToolOptions]
    program: str = ""
    open_ended: bool = False
    fresh_boot: bool = False
    seconds_step: float = 0.0

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return expected time in seconds and bytes written for one run."""

    def job(self, workload: Workload, target: Target) -> Job:
        """Return what is to be run in the guest."""

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in a tool's raw output.

        Raises:
            OutputUnreadable: truncated or not of the expected form.
            ToolFailed: the tool itself reports an error.
        """

    def play(self, argv: list[str], files: Mapping[str, bytes], disk: PlayDisk) -> Played | None:
        """Return what would come of a command; None: it is not one of this tool's.

        It knows of a job only its command and its files, as the real tool does.
        """
