"""Simulated guest with the programs that the runner uses, in simulated time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pvebench.errors import GuestTimeout, HypervisorGone
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Journal
from pvebench_lab.simulated import simulated_fio, simulated_tools
from pvebench_lab.simulated.simulated_tools import SimulatedOutput

if TYPE_CHECKING:
    from pvebench_lab.simulated.simulated_hypervisor import SimulatedHypervisor


# --- plausible numbers of a simulated disk, with ratios from published measurements

BASE_IOPS: Final = 40_000.0
BASE_BYTES_PER_SECOND: Final = 900e6
SYNC_SECONDS: Final = 0.0006
"""Duration of one sync: as for an SSD with power loss protection behind a network."""
NOISE: Final = 0.03

BUS_SPEED: Final = {
    Bus.VIRTIO: (1.0, 15e-6),
    Bus.SCSI: (0.93, 18e-6),
    Bus.SATA: (0.6, 42e-6),
    Bus.IDE: (0.35, 55e-6),
    Bus.HOST: (1.1, 10e-6),
    Bus.LXC: (1.05, 10e-6),
}
"""Bus -> factor of the IOPS, and the host's CPU seconds per I/O: older controllers cost more."""
_FORMAT_FACTOR: Final = {Format.RAW: 1.0, Format.QCOW2: 0.85, Format.VMDK: 0.6}
_CACHE_FACTORS: Final = {
    Cache.NONE: (1.0, 0.8),
    Cache.DIRECTSYNC: (0.95, 0.05),
    Cache.WRITETHROUGH: (1.6, 0.05),
    Cache.WRITEBACK: (1.6, 1.1),
    Cache.UNSAFE: (1.6, 1.3),
}
"""Cache mode -> factors of reads and of writes."""


SIMULATED: Final = (simulated_fio.simulate, *simulated_tools.TOOLS)
"""Functions that simulate a command; None: it belongs to another tool."""


@dataclass(slots=True, kw_only=True)
class SimulatedDisk:
    """`DiskModel` with the speed of a disk with these options.

    Attributes:
        shift: factor of all rates; the effect of an upgrade.
    """

    name: str
    disk: Disk
    rng: random.Random
    shift: float = 1.0

    def iops(self, direction: str, *, bs: int, depth: float = 1, fsync: bool = False) -> float:
        """Return its I/O per second, without noise."""
        disk = self.disk
        factor = BUS_SPEED[disk.bus][0] * _FORMAT_FACTOR[disk.format]
        factor *= _CACHE_FACTORS[disk.cache][direction != "read"]
        factor *= 1.05 if disk.iothread else 1.0
        factor *= self.shift
        factor /= 1 + 0.02 * disk.chain
        if fsync:
            # Every write waits for its sync, unless the host ignores syncs.
            return factor / (SYNC_SECONDS if disk.cache is not Cache.UNSAFE else SYNC_SECONDS / 20)
        return min(BASE_IOPS * depth / (depth + 8), BASE_BYTES_PER_SECOND / bs) * factor

    def rate(self, direction: str, *, bs: int, depth: float = 1) -> float:
        """Return its I/O per second, with noise."""
        return self.iops(direction, bs=bs, depth=depth) * (1 + self.rng.gauss(0.0, NOISE))


# --- state of a simulated node outside of this process, and its faults

VM_KIND: Final = "simulated-vm"
VOLUME_KIND: Final = "simulated-volume"
"""Kinds of the journal entries of the simulated driver."""


def _nothing() -> None:
    pass


class Reality:
    """Existing VMs and volumes.

    Args:
        moment: called before and after every change; a test may end the process there.
    """

    def __init__(self, moment: Callable[[], None] = _nothing) -> None:
        self.vms: set[str] = set()
        self.unmarked: set[str] = set()
        """VMs whose creation, a task of the node, has not reached their ownership marker."""
        self.volumes: set[str] = set()
        self.moment = moment

    def start_vm(self, name: str) -> None:
        """Add a VM: first without its marker, as Proxmox does."""
        self._change(lambda: self.unmarked.add(name))
        self.await_vm(name)
        self.moment()

    def await_vm(self, name: str) -> None:
        """Wait for the end of the creation of a VM, if it is being created."""
        if name in self.unmarked:
            self.unmarked.discard(name)
            self.vms.add(name)

    def end_vm(self, name: str) -> None:
        """End a VM, if it exists."""
        self._change(lambda: self.vms.discard(name))

    def make_volume(self, name: str) -> None:
        """Add a volume."""
        self._change(lambda: self.volumes.add(name))

    def remove_volume(self, name: str) -> None:
        """Remove a volume, if it exists."""
        self._change(lambda: self.volumes.discard(name))

    def _change(self, change: Callable[[], None]) -> None:
        self.moment()
        change()
        self.moment()


def undo_simulated(journal: Journal, reality: Reality) -> list[str]:
    """Undo every open change of the simulated driver; return a line about each."""
    lines = []

    def end_vm(name: str) -> None:
        reality.await_vm(name)
        reality.end_vm(name)

    undo = {VM_KIND: end_vm, VOLUME_KIND: reality.remove_volume}
    for number, kind, details in journal.pending():
        if kind in undo and "name" in details:
            undo[kind](details["name"])
            journal.close(number)
            lines.append(f"removed {kind} {details['name']}")
    return lines


class Fault(StrEnum):
    """Fault that has been observed with a real driver."""

    BOOT_HANGS = "boot_hangs"
    ATTACH_FAILS = "attach_fails"
    WRONG_CACHE = "wrong_cache"
    QEMU_EXITS = "qemu_exits"
    TOOL_FAILS = "tool_fails"
    GUEST_HANGS = "guest_hangs"
    OUTPUT_TRUNCATED = "output_truncated"
    DETACH_FAILS = "detach_fails"
    TOOL_HANGS = "tool_hangs"


class Faults:
    """Random faults, determined by a seed.

    Args:
        rates: fault -> probability at each opportunity, 0 to 1.
    """

    def __init__(self, seed: int, rates: Mapping[Fault, float] | None = None) -> None:
        self._random = random.Random(f"faults/{seed}")  # noqa: S311 # not for secrets
        self._rates = dict(rates or {})

    def strikes(self, fault: Fault) -> bool:
        """Return whether `fault` happens now."""
        rate = self._rates.get(fault, 0.0)
        return rate > 0 and self._random.random() < rate


START_SECONDS: Final = 0.3
_OPERATIONS_PER_SECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """Running tool with its result, and its start in simulated seconds."""

    played: SimulatedOutput
    begun: float

    @property
    def ends(self) -> float:
        """Its end in simulated seconds."""
        return self.begun + START_SECONDS * self.played.moves_data + self.played.seconds

    def operations(self, now: float, *, per_second: float = _OPERATIONS_PER_SECOND) -> int:
        """Return the operations so far; 0 during the tool's start-up."""
        active = min(now, self.ends) - self.begun - START_SECONDS
        return max(0, round(active * per_second)) if self.played.moves_data else 0


class SimulatedGuest(Guest):
    """`model.ports.Guest` that simulates tools in simulated time."""

    def __init__(self, node: SimulatedHypervisor) -> None:
        self._node = node
        self._files: dict[str, bytes] = {}
        self._ends = 0.0
        self.alive = True
        self.job: SimulatedJob | None = None

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Simulate the programs that the runner uses."""
        self._check()
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("test -f "):
            path = argv[2].removeprefix("test -f ")
            return Completed(int(path not in self._files), b"", b"")
        if any("iflag=direct" in word for word in argv):
            return Completed(0, argv[-1].encode(), b"")  # each sampled block has data
        if argv[0] == "/bin/kill" and self.job is not None:
            self._ends = self._node.clock.monotonic()
        return Completed(0, b"", b"")

    def start(self, argv: list[str]) -> int:
        self._check()
        now, disk = self._node.clock.monotonic(), self._disk()
        outputs = (tool(argv, self._files, disk) for tool in SIMULATED)
        played = next((output for output in outputs if output is not None), None)
        # Other programs take no time.
        self.job = SimulatedJob(played, now) if played else None
        self._ends = self.job.ends if self.job else now
        return 1

    def _disk(self) -> SimulatedDisk:
        node = self._node
        if node.plugged is None:
            raise HypervisorGone("simulated: the disk was removed")
        name, disk = node.plugged.name, node.plugged.disk
        return SimulatedDisk(name=name, disk=disk, rng=node.rng, shift=node.shift(disk))

    def poll(self, pid: int) -> Completed | None:
        self._check()
        if self._node.clock.monotonic() < self._ends:
            return None
        if self._node.faults.strikes(Fault.TOOL_HANGS):
            self._ends = math.inf  # it hangs without I/O
            return None
        if self._node.faults.strikes(Fault.TOOL_FAILS):
            return Completed(1, b"", b"simulated: the tool failed")
        return Completed(0, b"", b"")

    def read_file(self, path: str) -> bytes:
        self._check()
        played = self.job.played if self.job else None
        if played is not None and path == played.output:
            truncated = self._node.faults.strikes(Fault.OUTPUT_TRUNCATED)
            text = played.text
            return (text[: len(text) // 2] if truncated else text).encode("utf-8")
        if played is not None and path in played.logs:
            return played.logs[path].encode("utf-8")
        return self._files[path]

    def write_file(self, path: str, content: bytes) -> None:
        self._check()
        self._files[path] = content

    def _check(self) -> None:
        if not self.alive:
            raise HypervisorGone("simulated: QEMU has exited")
        if self._node.faults.strikes(Fault.GUEST_HANGS):
            self.alive = False
            self._node.clock.sleep(15.0)
            raise GuestTimeout("simulated: no response of the guest agent")
