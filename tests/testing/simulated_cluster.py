"""The cluster of tests/pve in simulated time: no server, no threads, guests that cost nothing.

All that asks is pvebench's own: `ProxmoxHypervisor`, the agent's guest, the connection without its
socket, the journal and the undo. The cluster answers as tests/pve does for every test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from proxmoxer.core import ResourceException
from requests.exceptions import ConnectionError as ConnectionLost

from pve.cluster import Cluster
from pve.drives import parse
from pve.listed import unlisted
from pve.machines import AgentRefusal, AgentSilence, CheapMachine
from pve.refusals import Refused
from pve.tasks import Task, Tasks
from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.proxmox.api.connection import Api, Server, Token
from pvebench.drivers.proxmox.vm.agent import LAUNCH
from pvebench.drivers.vm_lifecycle import _FIND
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.guest import Completed
from pvebench.model.volume import Volume
from pvebench.runner.prepare import _SCRIPT, SAMPLES
from pvebench_lab.simulated.simulated_hypervisor import PluggedDisk, SimulatedGuest

BOOT_SECONDS: Final = 5.0


class Killed(BaseException):
    """SIGKILL of pvebench."""


class LateTasks(Tasks):
    """Tasks that the node works off some requests later, by any client."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._waiting: list[tuple[int, Task, Callable[[Task], None], Callable[[], None]]] = []

    def _begin(self, task: Task, work: Callable[[Task], None], undo: Callable[[], None]) -> None:
        self._waiting.append((self._rng.choice((0, 0, 1, 3)), task, work, undo))

    def catch_up(self) -> None:
        """Work off what is due, in order."""
        due = [one for one in self._waiting if one[0] <= 0]
        self._waiting = [(left - 1, *rest) for left, *rest in self._waiting if left > 0]  # type: ignore[misc] # the rest of each row
        for _, task, work, undo in due:
            self._work(task, work, undo)


class SimulatedMachine(CheapMachine):
    """QEMU whose guest plays tools in simulated time."""

    def __init__(self, directory: Path, volumes: Any, clock: SimulatedClock, seed: int) -> None:
        super().__init__(directory, volumes, qemu=lambda: "9.2.0")
        self._clock = clock
        self._up_at = 0.0
        self._pid = 0
        self._done: dict[int, Completed] = {}
        self._jobs: dict[str, tuple[SimulatedGuest, list[str]]] = {}
        self.world: Any = SimpleNamespace(
            clock=clock, rng=random.Random(seed), shift=lambda _: 1.0, plugged=None
        )

    def start(self, config: Mapping[str, Any]) -> list[str]:
        self.slots, self._running, self._qemu = {}, True, self._installed_qemu()
        for slot, value in config.items():
            if slot[:3] in ("scs", "vir", "sat", "ide") and slot[-1].isdigit():
                self._open(slot, str(value))
        self._up_at = self._clock.monotonic() + BOOT_SECONDS
        self._jobs, self._done = {}, {}
        return []

    def blockstat(self) -> dict[str, dict[str, int]]:
        """Counters that grow while a job runs."""
        jobs = [tool.job for tool, _ in self._jobs.values() if tool.job]
        now = self._clock.monotonic()
        done = sum(job.operations(now) for job in jobs)
        flushes = sum(job.operations(now, per_second=job.played.flushes_per_second) for job in jobs)
        row = dict.fromkeys(("rd_operations", "wr_operations"), done)
        row |= dict.fromkeys(("rd_bytes", "wr_bytes"), done * 4096)
        return {
            slot: {**row, "flush_operations": flushes, "unmap_operations": 0} for slot in self.slots
        }

    def agent(self, command: str, arguments: Mapping[str, Any]) -> Any:
        if self._clock.monotonic() < self._up_at:
            raise AgentSilence
        match command:
            case "ping":
                return {}
            case "exec":
                self._pid += 1
                self._done[self._pid] = self._run(arguments["command"])
                return {"pid": self._pid}
            case "exec-status":
                done = self._done.pop(int(arguments["pid"]))
                return {"exited": 1, "exitcode": done.exit_code, "out": done.stdout, "err": b""}
            case "file-read":
                return self._read(arguments["file"])
        return None

    def _run(self, argv: list[str]) -> Completed:
        if argv[:3] == ["/bin/sh", "-c", _FIND]:
            found = self._disk(argv[-1])
            return Completed(found.returncode, found.stdout, b"")
        if argv[:3] == ["/bin/sh", "-c", _SCRIPT]:
            return Completed(0, b"%d" % SAMPLES, b"")
        if argv[:3] == ["/bin/sh", "-c", LAUNCH]:
            self._launch(argv[4], argv[6:])
        return Completed(0, b"", b"")

    def _launch(self, place: str, words: list[str]) -> None:
        """Do what the script does: write files, run a program, note which results it leaves."""
        at = words.index("--")
        files = dict(zip(words[:at:2], words[1:at:2], strict=True))
        end = words.index("--", at + 1)
        volid = next((parse(one)[0] for slot, one in self.slots.items() if slot != "ide2"), "")
        disk = Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE)
        volume = Volume(storage="local", volid=volid, format="raw", size_bytes=1)
        self.world.plugged = PluggedDisk(volume, disk)
        tool = SimulatedGuest(self.world)
        tool._files |= {path: content.encode() for path, content in files.items()}
        tool.start(words[end + 1 :])
        self._jobs[place] = tool, words[at + 1 : end]

    def _read(self, path: str) -> bytes:
        tool, results = self._jobs[path.rpartition("/")[0]]
        done = tool.poll(1)
        if done is None:
            raise AgentRefusal(f"failed to open file '{path}' (mode: 'r'): No such file")
        parts = [b"%d\n" % done.exit_code, done.stdout, done.stderr]
        for result in results:
            try:
                parts.append(tool.read_file(result))
            except KeyError:
                parts.append(b"")
        return b"".join(b"%d %d\n%s" % (at, len(one), one) for at, one in enumerate(parts))


class Directly(Api):
    """A connection without a socket, whose process may be killed at one of its requests.

    Args:
        moment: called before and after each request, with its method and path.
        lost: whether the answer to a request is lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        token: Token,
        clock: SimulatedClock,
        *,
        moment: Callable[[str], None] = lambda _: None,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(Server(host="pve1", fingerprint="00"), token, clock)
        self._cluster, self._who = cluster, str(token)
        self._moment, self._lost, self._time = moment, lost, clock

    def _send(self, method: str, path: str, sent: Mapping[str, Any]) -> Any:
        self._moment(f"{method} {path}")
        self._time.sleep(0.02)
        tasks = self._cluster.tasks
        assert isinstance(tasks, LateTasks)
        tasks.catch_up()
        try:
            answer = self._answer(method, path, dict(sent))
        except Refused as error:
            raise ResourceException(error.status, "", error.reason, errors=error.errors) from None
        self._moment(f"{method} {path}")
        if self._lost():
            raise ConnectionLost("simulated")
        return answer

    def _answer(self, method: str, path: str, sent: dict[str, Any]) -> Any:
        name, found = self._cluster.schema.endpoint(method, path)
        wrong = unlisted(name, [key for key in sent if key != "filename" or "upload" not in path])
        assert not wrong or "upload" in path, wrong
        if "upload" in path:
            blob = sent.pop("filename")
            sent |= {"filename": blob.name, "blob": blob.read()}
            plain = {key.replace("-", "_"): value for key, value in {**sent, **found}.items()}
            return self._cluster.post_nodes_storage_upload(self._who, **plain)
        words = {key: one if isinstance(one, list) else str(one) for key, one in sent.items()}
        return self._cluster.call(self._who, name, {**words, **found})


def simulated_cluster(directory: Path, clock: SimulatedClock, rng: random.Random) -> Cluster:
    """Return a cluster whose tasks end by and by."""
    return Cluster(
        directory,
        tasks=LateTasks(rng),
        make_machine=lambda vmid, place, volumes, _: SimulatedMachine(place, volumes, clock, vmid),
    )
