"""How much a node's API was asked, and how often in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from pvebench.model.disk import Disk
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Identity, Plug, Volume
from pvebench.model.workload import Case

# --- The host's counters at one moment.


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSnapshot:
    """Host counters at one moment; two of them make a window.

    Attributes:
        monotonic: when, in seconds of the host probe's clock.
        cpu_seconds: component -> CPU seconds so far: `total` (the whole host, all modes but
            idle, iowait and steal), its modes `user`, `system` …, `qemu`, and of it `vcpu`,
            `iothread`, `other`; `container`; and `vcpu_wait`, how long the vcpu threads were
            ready to run but had no CPU.
        bytes: name -> bytes so far: `process_read`, `process_write` (QEMU's storage traffic),
            `device_read`, `device_write` (the backing device, or the server of a mounted NFS or
            CIFS, if it can be known).
        cpus: how many the host has.
        context_switches: of the whole host so far.
        vm_exits: how often the VM left its CPU for KVM so far, all reasons together.
        pressure_seconds: resource -> time so far in which tasks waited (Linux PSI): `cpu_some`,
            `io_some`, `io_full`, `memory_some`, `memory_full`.
        averages: over the last seconds, where there are no counters: `total_coarse`, busy cores
            of the host; `vm_io_some` …, pressure of the VM alone.
        conditions: what is so now: `disk_margin`, by how many degrees Celsius the hottest drive is
            below the most that its maker allows; `zfs_cache`, bytes that ZFS' cache (ARC) has;
            `md_sync`, 1 while a software RAID is checked or rebuilt, 0 while none of them is.
    """

    monotonic: float
    cpu_seconds: Mapping[str, float]
    bytes: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 0
    context_switches: int = 0
    vm_exits: int = 0
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)
    averages: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, float] = field(default_factory=dict)


# --- When a case must not run now, and why: manners as values and a Protocol.


class HoldKind(StrEnum):
    """What holds a case, in few words for labels."""

    PAUSED = "paused"
    QUIET = "quiet_hours"
    BUSY = "busy"
    LOAD = "load"
    TURN = "turn"
    BUDGET = "budget"
    SPACE = "space"
    AWAY = "away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a case must not run now.

    Attributes:
        seconds: when to ask again.
        skip: to wait is of no use: the case is recorded as skipped and comes back later.
    """

    kind: HoldKind
    reason: str
    seconds: float = 5.0
    skip: bool = False


class Guard(Protocol):
    """Looks after one thing that measuring must not disturb, or must not be disturbed by.

    Owned by one worker thread. Must not raise DriverError: what cannot be known holds nothing.
    """

    def enter(self, case: Case) -> Hold | None:
        """Return why `case` must wait; None: it may run, and `leave` is called after it."""

    def leave(self, case: Case) -> str:
        """Return what disturbed the run that has ended; empty: nothing that is known."""


OPERATIONS: Final = ("get", "post", "put", "delete")
"""HTTP methods of the Proxmox API: read, make, change, remove."""


def _none() -> dict[str, int]:
    return dict.fromkeys(OPERATIONS, 0)


@dataclass(slots=True)
class Traffic:
    """Counts since the start. Written by one worker's thread, read by any.

    Attributes:
        requests: operation -> requests that were made, repeated reads included.
        failures: operation -> those without an answer, or with one that told of no access or a
            server in trouble. A request that the server understood and declined is none.
        tasks: that the requests started on the node.
    """

    requests: dict[str, int] = field(default_factory=_none)
    failures: dict[str, int] = field(default_factory=_none)
    tasks: int = 0

    def count(self, operation: str, *, failed: bool) -> None:
        """Count a request that has ended."""
        self.requests[operation] += 1
        self.failures[operation] += failed


# --- The doors to the outside: what the runner needs of a hypervisor, a guest, a host, a clock.
#
# Drivers implement these Protocols; nothing here does any I/O. Errors are those of
# `pvebench.errors`; a method names the ones its callers must expect.


class Clock(Protocol):
    """All waiting and all time go through here, so that simulated time is the same code."""

    def now(self) -> datetime:
        """Return the wall time, UTC, aware."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            Interrupted: a stop was requested before or during the wait.
        """


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that has ended in the guest."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Guest(Protocol):
    """The benchmark guest, reached through its agent."""

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a short program to its end.

        Raises:
            GuestSilent: no answer within `timeout` seconds.
            ToolFailed: the program does not exist in the guest.
        """

    def start(self, argv: list[str]) -> int:
        """Start a long program detached; return its pid. Raises as `run`."""

    def poll(self, pid: int) -> Completed | None:
        """Return how `pid` ended, or None while it runs. May be asked once after the end."""

    def read_file(self, path: str) -> bytes:
        """Return a whole file, read in slices.

        Raises:
            OutputUnreadable: it does not exist or cannot be read.
        """

    def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""


@runtime_checkable
class TakesJobs(Protocol):
    """A guest to which each word is dear: it takes a job whole, and gives its results with it."""

    def launch(
        self, argv: list[str], *, work: str, files: Mapping[str, bytes], results: Sequence[str]
    ) -> int:
        """Empty directory `work`, write `files` (ASCII), start as `Guest.start` does.

        When `Guest.poll` has told the end, `Guest.read_file` has the `results` at hand.
        """


class Hypervisor(Protocol):
    """Switches the test disk of one benchmark VM on one node. Owned by one worker thread."""

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the running guest, booting or restarting it where needed.

        Args:
            machine: the VM around the disk.
            cold: a disk that must be there at power-on, because its bus cannot hot-plug. None:
                no such disk must be there.

        Raises:
            GuestSilent, HypervisorGone, GuestImageError, SwitchFailed.
        """

    @property
    def boot_seconds(self) -> float:
        """How long the last boot took, from power-on to the agent's first answer; 0: none yet."""

    def power_off(self) -> None:
        """End the VM in order, so that the next boot is one from power-on."""

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the scenario's volume and whether it is new (what was on it is gone).

        A linked clone is new each time.

        Raises:
            NoSpace, VolumeError.
        """

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Plug `volume` with the options of `disk`; read back what came of it.

        The host's page cache of the volume is dropped first. A disk that is there since
        power-on (`boot`) is only read back.

        Raises:
            SwitchFailed, HypervisorGone, OutcomeUnknown.
        """

    def detach(self) -> None:
        """Unplug the test disk; nothing happens if none is plugged. Raises as `attach`."""

    def drop_caches(self, volume: Volume) -> int | None:
        """Write back and drop the host's page cache of `volume`; return bytes still cached.

        None: it cannot be known, because the cache is another machine's or program's.
        """

    def counters(self) -> BlockCounters | None:
        """Return QEMU's counters of the attached disk, or without a VM its device's.

        None: nothing here counts what is read and written, as of a file on a network file system.
        """

    def environment(self) -> Environment:
        """Return the running environment. Complete only after `boot`."""

    def host_environment(self) -> Environment:
        """Return what is known without a VM. Never raises."""

    def shutdown(self) -> None:
        """End the VM, remove the volumes, leave nothing. Never raises for what is already gone."""


@runtime_checkable
class ReportsStatistics(Protocol):
    """A hypervisor that tells more of its disks than `counters`, for the evidence of a failure."""

    def statistics(self) -> str:
        """Return QEMU's own statistics of all disks, as text. Raises DriverError."""


class HostProbe(Protocol):
    """Measures the host, outside the guest."""

    def snapshot(self) -> HostSnapshot:
        """Return the counters now. What cannot be read is absent, never zero."""


class StorageNetwork(Protocol):
    """The network between the machine that measures and a storage's server."""

    @property
    def link_bits_per_second(self) -> int:
        """What the link carries in each direction; 0: nobody said."""

    def round_trip(self) -> float | None:
        """Return how long a packet and its answer take now, in seconds. Never raises.

        None: it cannot be known from here.
        """


class Fault(Protocol):
    """Something bad that can be done to a storage, and that ends whatever becomes of us."""

    def begin(self) -> None:
        """Begin it and return at once. Raises FaultFailed."""

    def lasted(self) -> float | None:
        """Return how many seconds it lasted, or None while it does.

        Raises:
            FaultFailed: what does it has failed: nobody knows what the storage went through.
        """


class Journal(Protocol):
    """Undo book: a change is written here, durably, before it is made."""

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        """Record an intended change; return its number. Durable on return."""

    def close(self, number: int) -> None:
        """Strike out a change that has been undone (or never came to be)."""

    def pending(self) -> list[tuple[int, str, Mapping[str, str]]]:
        """Return (number, kind, details) of all open changes, newest first."""


class FillNotes(Protocol):
    """Remembers, beside the volumes themselves, which of them are filled: for the next start."""

    def content(self, volume: Volume) -> str:
        """Return what the volume was filled with (`Layout.content`); empty: nothing is known."""

    def note(self, volume: Volume, content: str) -> None:
        """Remember what the volume holds; empty: no longer what it did. Durable on return.

        Raises:
            DriverError: it could not be noted.
        """


def _unidentified(storage: str) -> Identity:
    del storage
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Everything one worker needs of one node.

    Attributes:
        guards: what looks after the node itself, the cheapest first.
        free: storage id -> bytes that were free when last looked at; kept up to date.
        seen: storage id -> metric -> share, what else was seen of it then; what cannot be known is
            absent.
        identify: storage id -> which storage it is now; empty: that cannot be known. Raises
            DriverError: it is not there, or does not answer.
        fill_notes: remembers which volumes are filled, where they stay from start to start.
        poll_seconds: how often the hypervisor and the guest may be asked while a run goes on.
        traffic: how much the node's API was asked; None: it has none.
        networks: storage id -> the network to it, for storages that are a server's.
        faults: (storage id, name) -> what may be done to it.
        upkeep: returns what was installed since the VM was started, where that is looked at;
            cheap enough to be asked before every run, half a minute old at most. Never raises
            DriverError.
    """

    node: str
    hypervisor: Hypervisor
    probe: HostProbe
    clock: Clock
    simulated: bool = False
    poll_seconds: float = 0.1
    networks: Mapping[str, StorageNetwork] = field(default_factory=dict)
    faults: Mapping[tuple[str, str], Fault] = field(default_factory=dict)
    upkeep: Callable[[], PendingUpdates] = PendingUpdates
    guards: Sequence[Guard] = ()
    free: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    identify: Callable[[str], Identity] = _unidentified
    fill_notes: FillNotes | None = None
    traffic: Traffic | None = None
