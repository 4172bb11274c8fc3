"""Interfaces to hypervisor, guest, host, clock and storage, and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from pvebench.errors import SwitchFailed
from pvebench.model.disk import Disk
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.guest import Guest
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Identity, Plug, Volume
from pvebench.model.workload import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSnapshot:
    """Host counters at one moment; two of them delimit a window.

    Attributes:
        monotonic: time in seconds of the host probe's clock.
        cpu_seconds: component -> CPU seconds so far: `total` (the whole host, all modes but
            idle, iowait and steal), its modes `user`, `system` …, `qemu`, and its parts `vcpu`,
            `iothread`, `other`; `container`; and `vcpu_wait`, the time in which vCPU threads were
            ready to run but had no CPU.
        bytes: name -> bytes so far: `process_read`, `process_write` (QEMU's storage traffic),
            `device_read`, `device_write` (the backing device, or the server of a mounted NFS or
            CIFS share, if known).
        cpus: number of the host's CPUs.
        context_switches: of the whole host so far.
        vm_exits: exits of the VM to KVM so far, for all reasons together.
        pressure_seconds: resource -> time so far in which tasks waited (Linux PSI): `cpu_some`,
            `io_some`, `io_full`, `memory_some`, `memory_full`.
        averages: over the last seconds, where no counters exist: `total_coarse`, busy cores of the
            host; `vm_io_some` …, pressure of the VM alone.
        conditions: current state: `disk_margin`, degrees Celsius between the hottest drive and its
            maker's limit; `zfs_cache`, bytes in ZFS' cache (ARC); `md_sync`, 1 while a software
            RAID is checked or rebuilt, else 0.
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


class HoldKind(StrEnum):
    """Reason for which a case waits, as a label value."""

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
    """Reason for which a case must not run now.

    Attributes:
        seconds: time until the next attempt.
        skip: whether to record the case as skipped instead of waiting.
    """

    kind: HoldKind
    reason: str
    seconds: float = 5.0
    skip: bool = False


class Guard(Protocol):
    """Guard of something that runs must not disturb, or must not be disturbed by.

    Owned by one worker thread. Must not raise DriverError: an unknown state holds no case.
    """

    def enter(self, case: Case) -> Hold | None:
        """Return why `case` must wait; None: it may run, and `leave` is called after it."""

    def leave(self, case: Case) -> str:
        """Return what disturbed the run that has ended; empty: nothing known."""
        del case
        return ""


API_METHODS: Final = ("get", "post", "put", "delete")
"""HTTP methods of the Proxmox API: read, create, change, remove."""


@dataclass(slots=True)
class Traffic:
    """Counts of API requests since the start. Written by one worker's thread, read by any.

    Attributes:
        requests: operation -> requests, repeated reads included.
        failures: operation -> requests without a response, or with an access or server error.
            Requests that the server understood and declined are not included.
        tasks: tasks on the node that the requests started.
    """

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(API_METHODS, 0))
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(API_METHODS, 0))
    tasks: int = 0

    def count(self, operation: str, *, failed: bool) -> None:
        """Count a request that has ended."""
        self.requests[operation] += 1
        self.failures[operation] += failed


# --- interfaces of the runner to hypervisor, guest, host and clock
#
# Drivers implement these Protocols; nothing here does I/O. Errors are those of `pvebench.errors`;
# a method names the ones that its callers must expect.


class Clock(Protocol):
    """Source of time and waiting, so that simulated time uses the same code."""

    def now(self) -> datetime:
        """Return the wall time, UTC, aware."""

    def monotonic(self) -> float:
        """Return seconds that never decrease."""

    def sleep(self, seconds: float) -> None:
        """Wait. Raises Interrupted: a stop was requested before or during the wait."""


class Backend(Protocol):
    """Place where tools run on a volume: a VM, a host or a container."""

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the running guest, booting or restarting it where needed.

        Args:
            machine: the VM around the disk.
            cold: a disk that must be attached at power-on, because its bus cannot hot-plug. None:
                no such disk must be attached.

        Raises:
            GuestTimeout, HypervisorGone, GuestImageError, SwitchFailed.
        """

    def power_off(self) -> None:
        """Shut the VM down, so that the next boot starts from power-on."""

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Attach `volume` with the options of `disk`; read back the effective configuration.

        The host's page cache of the volume is dropped first. A disk that was attached at power-on
        (`boot`) is only read back.

        Raises:
            SwitchFailed, HypervisorGone, OutcomeUnknown.
        """

    def detach(self) -> None:
        """Detach the test disk; do nothing if none is attached. Raises as `attach`."""

    def drop_caches(self, volume: Volume) -> int | None:
        """Write back and drop the host's page cache of `volume`; return bytes still cached.

        None: unknown, because the cache is that of another machine or program.
        """

    def counters(self) -> BlockCounters | None:
        """Return QEMU's counters of the attached disk, or without a VM those of its device.

        None: no I/O counters, as for a file on a network file system, or during an operation that
        blocks QEMU.
        """

    def shutdown(self) -> None:
        """End the VM and remove the volumes. Never raises for what is already gone."""


class VolumeSource(Protocol):
    """Backend with volumes of its own."""

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the scenario's volume and whether it is new (its former content is lost).

        A linked clone is new each time.

        Raises:
            NoSpace, VolumeError.
        """


class Hypervisor(Backend, VolumeSource, Protocol):
    """Hypervisor of one benchmark VM and its test disk. Owned by one worker thread."""

    @property
    def boot_seconds(self) -> float:
        """Seconds of the last boot, from power-on to the agent's first response; 0: none yet."""

    def statistics(self) -> str:
        """Return QEMU's own statistics of all disks for the evidence of a failure, as text.

        Empty: no VM measures.

        Raises:
            DriverError: they cannot be read.
        """

    def environment(self) -> Environment:
        """Return the running environment. Complete only after `boot`."""

    def host_environment(self) -> Environment:
        """Return the part of the environment that is known without a VM. Never raises."""


class FurtherVm(Hypervisor, Protocol):
    """Another VM on the same host, with volumes of its own."""

    def prepare(self, machine: Machine, *, count: int) -> None:
        """Make it ready for `launch`: created, and off.

        Args:
            count: number of such VMs that are about to boot together.

        Raises:
            NoSpace: the host has too little memory. Others as `boot`.
        """

    def launch(self, machine: Machine) -> None:
        """Begin to boot and return at once; the next `boot` waits for the guest.

        Raises:
            As `boot`.
        """

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """As `VmFunctions.take_snapshots`."""


class HostProbe(Protocol):
    """Source of host counters, outside the guest."""

    def snapshot(self) -> HostSnapshot:
        """Return the current counters. Unreadable ones are absent, never zero."""


class StorageNetwork(Protocol):
    """Network between this machine and a storage's server."""

    @property
    def link_bits_per_second(self) -> int:
        """Capacity of the link in each direction; 0: not declared."""

    def round_trip(self) -> float | None:
        """Return the current round trip time in seconds. Never raises.

        None: it cannot be measured from here.
        """


class Fault(Protocol):
    """Fault of a storage that can be caused on purpose, and that ends even without pvebench."""

    def begin(self) -> None:
        """Begin the fault and return at once. Raises FaultFailed."""

    def lasted(self) -> float | None:
        """Return the fault's duration in seconds, or None while it lasts.

        Raises:
            FaultFailed: the fault's command failed, so its effect on the storage is unknown.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a disk under load, and of an operation on it.

    Attributes:
        operations: completed I/O of the guest since the disk was attached.
        latencies: completed reads and writes so far, per bin of `Operation.bounds`.
        bytes: processed by the operation so far.
        ended: whether the operation has ended.
        is_read: whether the counters could be read now; if not, they are those of the last look.
    """

    operations: int
    latencies: Sequence[int]
    bytes: int = 0
    ended: bool = False
    is_read: bool = True


class Operation(Protocol):
    """Operation on the attached test disk. The next `detach` removes what is left of it."""

    @property
    def look_seconds(self) -> float:
        """Interval between two looks: the resolution of gaps."""

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds of the latency bins, seconds; one more bin is above the last.

        Empty: the driver has no latencies.
        """

    def prepare(self) -> None:
        """Create what it needs, before the load. Raises DriverError."""

    def begin(self) -> None:
        """Begin it and return at once, or when it is complete. Raises DriverError."""

    def look(self) -> Progress:
        """Return the current state; let the operation take its next step.

        Raises:
            OperationFailed, DriverError.
        """

    def cancel(self) -> None:
        """End it if it runs. Raises DriverError."""


class Journal(Protocol):
    """Journal of changes: each is recorded durably before it is made, so that it can be undone."""

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        """Record an intended change; return its number. Durable on return."""

    def close(self, number: int) -> None:
        """Close the record of a change that was undone or never made."""

    def pending(self, *kinds: str) -> list[tuple[int, str, Mapping[str, str]]]:
        """Return (number, kind, details) of the open changes, newest first; no kinds: of all."""


def of_kinds(journal: Journal, *kinds: str) -> list[tuple[int, Mapping[str, str]]]:
    """Return (number, details) of the open changes of these kinds, newest first."""
    return [(number, details) for number, _, details in journal.pending(*kinds)]


REMAINS: Final = "remains"
"""Kind of a journal entry of what only a person can remove; `text` says what, where and how."""


def remember(journal: Journal, text: str) -> None:
    """Record what only a person can remove, once, until `pvebench cleanup --confirm`."""
    if {"text": text} not in [details for _, details in of_kinds(journal, REMAINS)]:
        journal.open(REMAINS, {"text": text})


class FillNotes(Protocol):
    """Notes stored with the volumes about their fills, for the next start."""

    def content(self, volume: Volume) -> str:
        """Return what the volume was filled with (`Layout.content`); empty: not known."""

    def note(self, volume: Volume, content: str) -> None:
        """Store what the volume holds; empty: no longer known. Durable on return.

        Raises:
            DriverError: the note could not be stored.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFunctions:
    """What a node does with its VMs, beyond `Hypervisor`.

    Attributes:
        take_snapshots: gives a detached volume the missing snapshots of its chain, and removes
            what was written since the newest one. Raises DriverError.
        operate: (name, bytes per second of its target or 0) -> operation on the attached disk.
        further_vm: number from 2 on -> another VM on the node.
    """

    take_snapshots: Callable[[Volume, Disk], None]
    operate: Callable[[str, int], Operation]
    further_vm: Callable[[int], FurtherVm]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFunctions:
    """What a node knows of its storages, by storage id; empty: nothing.

    Attributes:
        identify: returns the current identity of a storage; empty: unknown. Raises DriverError: it
            is missing, or does not answer.
        networks: network to its server.
        faults: (storage id, name) -> fault that may be caused.
        free: free bytes at the last check; kept up to date.
        seen: metric -> share, other observations of that check; unknown ones are absent.
        copies: returns storage -> maximum bytes that the operation of a case writes.
    """

    identify: Callable[[str], Identity] = lambda _: {}
    networks: Mapping[str, StorageNetwork] = field(default_factory=dict)
    faults: Mapping[tuple[str, str], Fault] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    copies: Callable[[Case], Mapping[str, int]] = lambda _: {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Everything that one worker needs of one node.

    Attributes:
        vms: None: the node measures without VMs.
        guards: guards of the node, the cheapest first.
        fill_notes: notes about the fills of volumes that stay from start to start.
        poll_seconds: interval for polling the hypervisor and the guest during a run.
        traffic: counts of requests to the node's API; None: no API.
        upkeep: returns the software installed since the start of the VM, where this is checked;
            cheap enough to be called before every run, at most 30 s old. Never raises DriverError.
    """

    node: str
    hypervisor: Hypervisor
    probe: HostProbe
    clock: Clock
    vms: VmFunctions | None = None
    storages: StorageFunctions = field(default_factory=StorageFunctions)
    guards: Sequence[Guard] = ()
    simulated: bool = False
    poll_seconds: float = 0.1
    fill_notes: FillNotes | None = None
    traffic: Traffic | None = None
    upkeep: Callable[[], PendingUpdates] = PendingUpdates

    def require_vms(self) -> VmFunctions:
        """Return the functions of its VMs. Raises SwitchFailed: the driver has none."""
        if self.vms is None:
            raise SwitchFailed("this driver has no VMs")
        return self.vms
