"""Lifecycle of a benchmark VM and its test disk, the same for every driver.

A driver's VM is a `VmLifecycle` with the steps of its hypervisor: power on and off, plug, unplug,
read back. Only this module changes the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

from pvebench.errors import (
    Busy,
    DriverError,
    GuestTimeout,
    NeverBooted,
    OutputUnreadable,
    SwitchFailed,
)
from pvebench.model.disk import Disk
from pvebench.model.guest import Guest, Question
from pvebench.model.ports import Clock
from pvebench.model.scenario import Machine
from pvebench.model.volume import Attachment, Plug, Volume
from pvebench.plugins import Registry


class PluggedDisk(Protocol):
    """Disk that a driver has plugged in, with what it needs to find and unplug it."""

    @property
    def plug(self) -> Plug:
        """The volume and its options."""

    @property
    def name(self) -> str:
        """Name in errors, such as `scsi1`."""


G = TypeVar("G", bound=Guest)
D = TypeVar("D", bound=PluggedDisk)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestSystem:
    """System of a guest other than pvebench's guest image, from a plug-in.

    Attributes:
        guest: client of the agent -> guest of this system, in that VM.
        min_memory: smallest memory of the VM, bytes.
        boot_seconds: estimate of a boot.
        if_silent: next step if the agent never responds.
    """

    guest: Callable[[Guest, Clock, Machine], Guest]
    min_memory: int
    boot_seconds: float
    if_silent: str


GUEST_SYSTEMS: Final = Registry[GuestSystem](
    "guests", lambda plugin: isinstance(plugin, GuestSystem), {}
)


_SILENT: Final = "it hangs, is slow without KVM, has no running guest agent or virtio-serial driver"


class Power(Enum):
    """Power state of a VM."""

    OFF = auto()
    PREPARED = auto()
    """Off, with the options of its next start."""
    STARTING = auto()
    """On; the guest has not answered yet."""
    RUNNING = auto()
    BROKEN = auto()
    """On or off after a failed start or switch: it must be restarted before it is used."""


@dataclass(slots=True)
class VmState(Generic[G, D]):
    """State of a VM; a power-off begins a new one.

    Attributes:
        cold: disk that is attached at power-on.
        client: the driver's client of the guest's agent; `guest` uses it, or is the same.
        begun: time of the power-on, monotonic seconds.
    """

    power: Power = Power.OFF
    machine: Machine | None = None
    cold: Plug | None = None
    guest: Guest | None = None
    client: G | None = None
    disk: D | None = None
    begun: float = 0.0
    boot_seconds: float = 0.0


class VmLifecycle(ABC, Generic[G, D]):
    """The part of `model.ports.FurtherVm` that is the same for all drivers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state: VmState[G, D] = VmState()
        self._failed = 0
        """Failed switches so far."""
        self._count = 0
        """Attachments so far; each has its own number in all IDs."""

    # --- steps of a hypervisor

    def _ensure(self, machine: Machine, cold: Plug | None) -> None:
        """Require what each boot needs. Raises as `boot`."""

    @abstractmethod
    def _configure(self, machine: Machine, cold: Plug | None) -> D | None:
        """Set the options of a VM that is off; return the disk that its start attaches."""

    @abstractmethod
    def _begin_start(self, machine: Machine) -> None:
        """Power the VM on and return at once."""

    @abstractmethod
    def _await_guest(self) -> G:
        """Return the guest when its agent answers."""

    @abstractmethod
    def _require_usable(self, guest: G) -> None:
        """Raise DriverError if the running VM must be restarted before its next use."""

    @abstractmethod
    def _end(self) -> None:
        """Power the VM off with its disk, whatever its state is."""

    @abstractmethod
    def _plug(self, plug: Plug) -> D:
        """Hot-plug a disk."""

    @abstractmethod
    def _unplug(self, disk: D) -> None:
        """Unplug a disk of a running VM."""

    @abstractmethod
    def _read_back(self, disk: D, guest: Guest) -> Attachment:
        """Return the effective configuration of a plugged disk."""

    # --- lifecycle

    @property
    def boot_seconds(self) -> float:
        return self._state.boot_seconds

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self._ensure(machine, cold)
        same = (machine, cold) == (self._state.machine, self._state.cold)
        if same and self._state.power is Power.STARTING:
            return self._started()
        if same and (guest := self._usable()) is not None:
            return guest
        self._state.guest = self._state.client = (
            None  # a power-off may fail; the VM must be restarted all the same
        )
        self._set_up(machine, cold)
        self._start(machine)
        return self._started()

    def launch(self, machine: Machine) -> None:
        """As `FurtherVm.launch`."""
        if (self._state.power, self._state.machine) != (Power.PREPARED, machine):
            raise SwitchFailed("VM not prepared")
        self._start(machine)

    def _usable(self) -> Guest | None:
        guest, client = self._state.guest, self._state.client
        if guest is None or client is None or self._state.power is not Power.RUNNING:
            return None
        try:
            self._require_usable(client)
        except DriverError:
            return None
        return guest

    def _set_up(self, machine: Machine, cold: Plug | None = None) -> None:
        """Set the options of the next start; the VM is off then. Raises as `boot`."""
        self.power_off()
        disk = self._configure(machine, cold)
        self._state = VmState(Power.PREPARED, machine, cold, disk=disk)

    def _start(self, machine: Machine) -> None:
        self._state.begun = self._clock.monotonic()
        self._begin_start(machine)
        self._state.power = Power.STARTING

    def _started(self) -> Guest:
        state = self._state
        state.power = Power.BROKEN  # until its guest answers
        machine = state.machine
        system = GUEST_SYSTEMS.get(machine.os) if machine else None
        try:
            client = state.client = self._await_guest()
        except GuestTimeout as error:
            if system is None:
                raise
            # Its image may be incomplete, which pvebench's own cannot be.
            raise NeverBooted(
                error.happened, cause=_SILENT, next_step=system.if_silent, evidence=error.evidence
            ) from error
        guest = system.guest(client, self._clock, machine) if system and machine else client
        state.guest = guest
        state.boot_seconds = self._clock.monotonic() - state.begun
        state.power = Power.RUNNING
        return guest

    def power_off(self) -> None:
        self._end()
        self._forget()

    def _forget(self) -> None:
        """Reset the state: the VM is off, new or gone."""
        self._state = VmState()

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        plug = Plug(volume, disk)
        what = f"attach {volume.volid} as {disk.bus}, cache={disk.cache}, aio={disk.aio}"
        with self._verified(what):
            if not disk.cold:
                self.detach()
                self._state.disk = self._plug(plug)
            plugged, guest = self._state.disk, self._state.guest
            if plugged is None or plugged.plug != plug or guest is None:
                raise SwitchFailed("disk missing after power-on")
            return self._read_back(plugged, guest)

    def detach(self) -> None:
        plugged = self._state.disk
        if plugged is None:
            return
        if self._state.power is not Power.RUNNING or plugged.plug.disk.cold:
            self.power_off()  # detaches the disk as well
            return
        with self._verified(f"detach {plugged.name}"):
            self._unplug(plugged)
        self._state.disk = None

    @contextmanager
    def _verified(self, what: str) -> Iterator[None]:
        """Stop using the VM after a failed switch. Raises SwitchFailed, Busy."""
        try:
            yield
        except Busy:
            raise  # nothing was changed
        except DriverError as error:
            self._state.power = Power.BROKEN
            self._failed += 1
            raise SwitchFailed(
                f"could not {what}: {error.happened}",
                cause=error.cause,
                next_step=error.next_step
                or "no action needed; pvebench restarts the VM for the next run",
                evidence=error.evidence,
            ) from error

    @property
    def _disk(self) -> D:
        """The attached disk. Raises SwitchFailed: there is none."""
        if self._state.disk is None:
            raise SwitchFailed("no test disk is attached")
        return self._state.disk


_FIND: Final = """\
end=$(($(date +%s) + $0))
until /usr/bin/pvebench-disk "$1"; do
    [ "$(date +%s)" -lt "$end" ] || exit 1
    sleep 0.1 2>/dev/null || sleep 1
done
"""
"""Script for /bin/sh; arguments: seconds, serial number. It waits in the guest, as each question to
a guest of a cluster is a request."""


_DISK: Final = Question("disk", ("/bin/sh", "-c", _FIND))


def find_in_guest(guest: Guest, serial: str, *, seconds: float) -> dict[str, str]:
    """Wait until the guest has the disk; return its properties (`device=…` words).

    Raises GuestTimeout: the guest does not detect it.
    """
    done = guest.ask(_DISK, f"{seconds:.0f}", serial, timeout=2 * seconds)
    if done.exit_code:
        raise GuestTimeout(
            f"disk with serial {serial} not visible in the guest after {seconds:.0f} s"
        )
    words = [word.partition("=") for word in done.stdout.decode("utf-8", "replace").split()]
    properties = {name: value for name, _, value in words}
    if not properties.get("device"):
        raise OutputUnreadable(
            f"unexpected guest output about the disk: {done.stdout[:80]!r}",
            cause="the program pvebench-disk in the guest image is damaged or of another version",
            next_step="rebuild the image with `pvebench guest build --force`",
        )
    return properties


def unverified(
    seen: Mapping[str, str], names: Sequence[str], effective: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the options without read-back; `cache` is one if the guest does not report it.

    Args:
        seen: properties from `find_in_guest`. names: options that a driver cannot read back.
        effective: options that were read back all the same.
    """
    unseen = ("cache",) if "write_cache" not in seen else ()
    return (*(name for name in names if name not in effective), *unseen)
