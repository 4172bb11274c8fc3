"""A simulated guest: answers the few programs that the runner uses, in simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.drivers.simulated.reality import Fault
from pvebench.drivers.simulated.simulated_disk import SimulatedDisk
from pvebench.errors import GuestSilent, HypervisorGone
from pvebench.model.ports import Completed
from pvebench.workloads import ROOMS, Played

if TYPE_CHECKING:
    # The world makes its guest; the guest looks at the world's clock, disk and faults.
    from pvebench.drivers.simulated.world import World

START_SECONDS: Final = 0.3
_OPERATIONS_PER_SECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A running tool: what will come of it, and when it began in simulated seconds."""

    played: Played
    begun: float

    @property
    def ends(self) -> float:
        """When it will end."""
        return self.begun + START_SECONDS * self.played.moves_data + self.played.seconds

    def operations(self, now: float, *, per_second: float = _OPERATIONS_PER_SECOND) -> int:
        """Return the operations so far; none before the tool has started up."""
        active = min(now, self.ends) - self.begun - START_SECONDS
        return max(0, round(active * per_second)) if self.played.moves_data else 0


class SimulatedGuest:
    """`model.ports.Guest`: plays the tools that it is told to start, in simulated time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._files: dict[str, bytes] = {}
        self._ends = 0.0
        self.alive = True
        self.job: SimulatedJob | None = None

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Answer the few programs that the runner uses."""
        self._check()
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("test -f "):
            path = argv[2].removeprefix("test -f ")
            return Completed(int(path not in self._files), b"", b"")
        if argv[0] == "/bin/kill" and self.job is not None:
            self._ends = self._world.clock.monotonic()
        return Completed(0, b"", b"")

    def start(self, argv: list[str]) -> int:
        self._check()
        now, disk = self._world.clock.monotonic(), self._disk()
        plays = (room.play(argv, self._files, disk) for room in ROOMS.values())
        played = next((one for one in plays if one is not None), None)
        # What is none of the tools takes no time.
        self.job = SimulatedJob(played, now) if played else None
        self._ends = self.job.ends if self.job else now
        return 1

    def _disk(self) -> SimulatedDisk:
        world = self._world
        if world.plugged is None:
            raise HypervisorGone("simulated: the disk is gone")
        name, disk = world.plugged.name, world.plugged.disk
        return SimulatedDisk(name=name, disk=disk, rng=world.rng, shift=world.shift(disk))

    def poll(self, pid: int) -> Completed | None:
        self._check()
        if self._world.clock.monotonic() < self._ends:
            return None
        if self._world.faults.strikes(Fault.TOOL_HANGS):
            self._ends = math.inf  # it asks for nothing more, and never ends
            return None
        if self._world.faults.strikes(Fault.TOOL_FAILS):
            return Completed(1, b"", b"simulated: the tool failed")
        return Completed(0, b"", b"")

    def read_file(self, path: str) -> bytes:
        self._check()
        played = self.job.played if self.job else None
        if played is not None and path == played.output:
            truncated = self._world.faults.strikes(Fault.OUTPUT_TRUNCATED)
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
        if self._world.faults.strikes(Fault.GUEST_HANGS):
            self.alive = False
            self._world.clock.sleep(15.0)
            raise GuestSilent("simulated: the guest agent does not answer")
