"""A simulated guest: answers the few programs that the runner uses, in simulated time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pvebench.drivers.simulated.faults import Fault
from pvebench.drivers.simulated.jobs import SimulatedJob, read_job
from pvebench.drivers.simulated.numbers import fio_document, iops_log
from pvebench.drivers.simulated.tools import Printed, print_tool
from pvebench.errors import GuestSilent, HypervisorGone
from pvebench.model.ports import Completed

if TYPE_CHECKING:
    # The world makes its guest; the guest looks at the world's clock, disk and faults.
    from pvebench.drivers.simulated.world import World


class SimulatedGuest:
    """`model.ports.Guest`: runs the job files that it is given, in simulated time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._files: dict[str, bytes] = {}
        self._document: dict[str, Any] = {}
        self._ends = 0.0
        self._printed: Printed | None = None
        self.alive = True
        self.job: SimulatedJob | None = None

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
        """Answer the few programs that the runner uses. See the port."""
        self._check()
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("test -f "):
            path = argv[2].removeprefix("test -f ")
            return Completed(int(path not in self._files), b"", b"")
        if argv[0] == "/bin/kill" and self.job is not None:
            self._ends = self._world.clock.monotonic()
        return Completed(0, b"", b"")

    def start(self, argv: list[str]) -> int:
        """Begin a job. See the port."""
        self._check()
        now = self._world.clock.monotonic()
        if argv[0] == "/bin/sleep":
            self.job, self._ends = None, now + float(argv[1])
            return 1
        if argv[0] != "fio":
            return self._start_tool(argv[-1], now)
        self._printed = None
        self.job = read_job(self._files[argv[-1]].decode("utf-8"), begun=now)
        self._ends = self.job.ends
        return 1

    def _start_tool(self, command: str, now: float) -> int:
        """Begin one of the tools beside fio, or something that takes no time."""
        plugged = self._world.plugged
        if plugged is None:
            raise HypervisorGone("simulated: the disk is gone")
        self._printed = print_tool(command, plugged.disk, self._world.rng, begun=now)
        self.job = self._printed.job if self._printed else None
        self._ends = self.job.ends if self.job else now
        return 1

    def poll(self, pid: int) -> Completed | None:
        """Return how the job ended. See the port."""
        self._check()
        if self._world.clock.monotonic() < self._ends:
            return None
        if self._world.faults.strikes(Fault.TOOL_FAILS):
            return Completed(1, b"", b"simulated: the tool failed")
        return Completed(0, b"", b"")

    def read_file(self, path: str) -> bytes:
        """Return a file; results and logs of the last job are made up. See the port."""
        self._check()
        if self._printed is not None and path == self._printed.path:
            text = self._printed.text
        elif path.endswith(".json"):
            text = self._result()
        elif path.endswith("_iops.log") and self.job and self._document:
            text = iops_log(self._document, self.job.interval_ms, self._world.rng)
        else:
            return self._files[path]
        return text.encode("utf-8")

    def _result(self) -> str:
        plugged, job = self._world.plugged, self.job
        if plugged is None or job is None:
            raise HypervisorGone("simulated: the disk is gone")
        shift = self._world.shift(plugged.disk)
        self._document = fio_document(plugged.disk, job.workload, self._world.rng, shift=shift)
        # Who reads the result can tell which disk it is of, whatever it was taken for.
        self._document["jobs"][0]["jobname"] = plugged.name
        if job.whole_bytes:
            self._document["jobs"][0]["write"]["io_bytes"] = job.whole_bytes
        text = json.dumps(self._document)
        truncated = self._world.faults.strikes(Fault.OUTPUT_TRUNCATED)
        return text[: len(text) // 2] if truncated else text

    def write_file(self, path: str, content: bytes) -> None:
        """Keep a file. See the port."""
        self._check()
        self._files[path] = content

    def _check(self) -> None:
        if not self.alive:
            raise HypervisorGone("simulated: QEMU has exited")
        if self._world.faults.strikes(Fault.GUEST_HANGS):
            self.alive = False
            self._world.clock.sleep(15.0)
            raise GuestSilent("simulated: the guest agent does not answer")
