"""A Proxmox node that runs containers, as far as `node.sh` is asked of it, in simulated time.

What answers is a model of `node.sh`, with `pct` and the container's `remote_commands.sh` below it;
all that asks is pvebench's own: `NodeContainers`, `NodeSsh`, the journal and the undo. That the
model answers as the program does is held against that itself in
tests/proxmox/test_simulated_node.py.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.drivers.proxmox.vm.vm_create import NodeContext
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import OutcomeUnknown, ServerGone
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.guest import Completed
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.units import GIB
from pvebench.model.volume import Volume
from pvebench_lab.lxc.proxmox_backend import NodeContainers
from pvebench_lab.simulated.simulated_hypervisor import PluggedDisk, SimulatedGuest
from testing.faulty_node import Fault, Faults, FaultyGuest, FaultyHypervisor
from testing.simulated_faults import Trouble

VMIDS: Final = (9500, 9504)
Plays = Callable[[PluggedDisk | None], SimulatedGuest]
"""Returns what plays a tool in a container, also for a question whose asker is gone."""
TAKEN: Final = 9501
"""Number of a container that somebody made by hand."""
WAIT_SECONDS: Final = 300.0
"""So long `node.sh` waits for its turn."""
NODE_FAULTS: Final = (
    "node away",
    "node's answer lost",
    "question late",
    "node program killed",
    "pct fails",
    "container ends",
    "container changed",
)
_REFUSED: Final = 96
_OK: Final = Completed(0, b"", b"")


@dataclass
class Container:
    """One that exists. Its mark is not to be seen before it is made."""

    owner: str
    mark: str
    storage: str
    size_bytes: int
    memory: str
    cores: str
    made_at: float = 0.0
    runs: int = 0
    frozen: bool = False
    direct: bool = True
    rooms: dict[str, SimulatedGuest | None] = field(default_factory=dict)
    """Directories of tools that were started in it; None: called off."""


def node_rates(seed: int) -> list[float]:
    """Return how often each of NODE_FAULTS strikes in a schedule."""
    rng = random.Random(f"node/{seed}")
    return [rng.choice((0.0, 0.005, 0.03, 0.1)) for _ in NODE_FAULTS]


class SimulatedNode:
    """What exists on the node whoever lives, and what is still on its way to it.

    Attributes:
        now: seconds, over all lives.
        moment: as `Reality.moment`.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = lambda: 0.0
        self.moment: Callable[[], None] = lambda: None
        self.containers: dict[int, Container] = {
            TAKEN: Container("somebody", "", "local", GIB, "512", "1", runs=1)
        }
        self.turns: dict[str, str] = {}
        self.busy: dict[str, float] = {}
        """Mark -> until when its turn is taken."""
        self.frozen: set[str] = set()
        self._late: list[tuple[float, str, bytes, Plays]] = []
        self._starts = 1

    def names(self, owner: str = "") -> set[str]:
        """Return who exists; of one that runs that, too, where it is not the owner's."""
        return {
            f"{one.owner}container {vmid} {one.mark}" + " runs" * bool(one.runs)
            for vmid, one in self.containers.items()
            if not owner or one.owner == owner
        }

    def have_neighbour(self, owner: str) -> None:
        """Have another instance's container come, or go."""
        known = next((vmid for vmid, one in self.containers.items() if one.owner == owner), None)
        if known is not None:
            del self.containers[known]
        elif free := set(range(VMIDS[0], VMIDS[1] + 1)) - set(self.containers):
            self.containers[max(free)] = Container(owner, "", "local", GIB, "512", "1", runs=1)

    def arrive_late(self, seconds: float, owner: str, question: bytes, plays: Plays) -> None:
        self._late.append((self.now() + seconds, owner, question, plays))

    def catch_up(self) -> None:
        """Have happen what was to happen until now."""
        due = [one for one in self._late if one[0] <= self.now()]
        self._late = [one for one in self._late if one[0] > self.now()]
        for _, owner, question, plays in due:
            self.answer(owner, question, _Nobody(self, plays))

    def answer(self, owner: str, question: bytes, line: Any) -> Completed:
        """Return what `node.sh` answers.

        Args:
            line: knows the time that is to pass, and what plays tools.
        """
        verb, _, rest = question.partition(b"\n")
        words = rest.decode("utf-8", "replace").splitlines()
        try:
            said = getattr(self, f"_{verb.decode()}")(owner, words, rest, line)
        except _Refused as refused:
            return Completed(_REFUSED, b"", f"pvebench-node: {refused}".encode())
        return said if isinstance(said, Completed) else Completed(0, said.encode(), b"")

    def _archive(self, *_: Any) -> str:
        return "there\n"

    def _state(self, *_: Any) -> str:
        return "== md\nnot available\n"

    def _look(self, owner: str, words: list[str], rest: bytes, line: Any) -> str:
        found = (vmid for vmid in self.containers if words[1] == f"7:{vmid % 100}")
        vmid = next(found, None)
        if vmid is None or not self.containers[vmid].runs:
            return ""
        done = sum(
            guest.job.operations(line.time())
            for guest in self.containers[vmid].rooms.values()
            if guest is not None and guest.job is not None
        )
        sectors = done * 8
        stat = f"{done} 0 {sectors} 0 {done} 0 {sectors} " + "0 " * 10
        return f"/sys/dev/block/{words[1]}/stat\0{stat}\n"

    def _take_turn(self, vmid: int, mark: str, line: Any) -> None:
        left = self.busy.get(mark, 0.0) - self.now()
        if left > 0:
            line.spend(min(left, WAIT_SECONDS))
        if left > WAIT_SECONDS:
            raise _Refused(f"container {vmid} is still being made or looked at")

    def _make(self, owner: str, words: list[str], rest: bytes, line: Any) -> str:
        vmid, mark = int(words[0]), words[1]
        self._take_turn(vmid, mark, line)
        if self.turns.get(mark):
            raise _Refused(f"container {vmid} was created or cancelled before")
        self.turns[mark] = "made"
        if vmid in self.containers:
            raise _Refused(f"container {vmid} already exists")
        if line.strikes("pct fails"):
            raise _Refused(f"pct create {vmid}: no space left in thin pool")
        memory, cores, storage, gibibytes = words[3:7]
        took = line.choose((2.0, 2.0, 30.0, 500.0))
        self.containers[vmid] = Container(
            owner, mark, storage, round(float(gibibytes) * GIB), memory, cores, self.now() + took
        )
        self.busy[mark] = self.now() + took
        line.spend(took)
        return ""

    def _find(self, words: list[str]) -> tuple[int, Container | None]:
        vmid = int(words[0])
        found = self.containers.get(vmid)
        made = found is not None and found.made_at <= self.now()
        return vmid, found if found is not None and made and found.mark == words[1] else None

    def _ours(self, words: list[str], line: Any) -> tuple[int, Container]:
        vmid, found = self._find(words)
        if found is None:
            raise _Refused(
                f"container {vmid} not changed: not found, or without this marker and tag"
            )
        if found.mark in self.frozen:
            self._take_turn(vmid, found.mark, line)
            self.frozen.discard(found.mark)
            found.frozen = False
        return vmid, found

    def _start(self, owner: str, words: list[str], rest: bytes, line: Any) -> str:
        vmid, found = self._ours(words, line)
        if not found.runs:
            if line.strikes("pct fails"):
                raise _Refused(f"pct start {vmid}: startup for container '{vmid}' failed")
            line.spend(1.0)
            self._starts += 1
            found.runs, found.frozen, found.rooms = self._starts, False, {}
            found.direct = not line.strikes("container changed")
        return ""

    def _stop(self, owner: str, words: list[str], rest: bytes, line: Any) -> str:
        _, found = self._ours(words, line)
        line.spend(0.5)
        found.runs = 0
        return ""

    def _remove(self, owner: str, words: list[str], rest: bytes, line: Any) -> str:
        self._take_turn(int(words[0]), words[1], line)
        self.turns[words[1]] = "off"
        vmid, found = self._find(words)
        if vmid not in self.containers:
            return ""
        if found is None:
            raise _Refused(f"container {vmid} not changed: without this marker and tag")
        self.frozen.discard(found.mark)
        line.spend(2.0)
        del self.containers[vmid]
        return ""

    def _container(self, owner: str, words: list[str], rest: bytes, line: Any) -> str:
        vmid, found = self._find(words)
        if vmid not in self.containers:
            return "gone\n"
        if found is None:
            return "making\n" if self.containers[vmid].made_at > self.now() else "stranger\n"
        lines = [
            "ours",
            f"cores: {found.cores}",
            f"memory: {found.memory}",
            f"mp0: {found.storage}:vm-{vmid}-disk-1,mp=/mnt/test,backup=0",
        ]
        if found.runs:
            device = f"7:{vmid % 100}"
            last = int(found.cores) - 1
            lines += [
                f"pid: {found.runs}",
                f"cpus: 0-{last}" if last else "cpus: 0",
                "limit: ",
                f"mount: 99 1 {device} / /mnt/test rw - ext4 /dev/loop{vmid % 100} rw",
                f"sectors: {found.size_bytes // 512}",
                f"direct: {int(found.direct)}",
                f"below: block special file|7|{vmid % 100:x}|1|0",
            ]
        return "".join(f"{one}\n" for one in lines)

    def _forget(self, owner: str, words: list[str], rest: bytes, line: Any) -> str | Completed:
        vmid, found = self._ours(words, line)
        if not found.runs:
            raise _Refused(f"container {vmid} does not run")
        line.spend(0.5)
        if line.strikes("node program killed"):
            found.frozen = True
            self.frozen.add(found.mark)
            return Completed(137, b"", b"")
        return "0\n"

    def _run(self, owner: str, words: list[str], rest: bytes, line: Any) -> Completed:
        _, found = self._ours(words, line)
        if not found.runs:
            return Completed(1, b"", b"lxc-attach: Container is not running")
        if found.frozen:
            line.spend(float(words[2]))
            return Completed(124, b"", b"")
        if line.strikes("container ends"):
            found.runs = 0
            return Completed(137, b"", b"")
        return self._program(found, rest, line)

    def _program(self, found: Container, rest: bytes, line: Any) -> Completed:
        """What a program in it, one of `ContainerTools`, does."""
        _, _, _, length, text = rest.split(b"\n", 4)
        argv = shlex.split(text[: int(length)].decode())
        if argv[:2] == ["sh", "-c"] and argv[3:4] == ["pvebench"]:
            return _rows(found, argv[4:], text[int(length) :], line)
        if argv[0] == "cat":
            with suppress(KeyError):  # of a late one, the file may be gone
                return Completed(0, _played(found).read_file(argv[-1]), b"")
            return Completed(1, b"", f"cat: {argv[-1]}: No such file or directory".encode())
        if argv[:2] == ["sh", "-c"] and argv[3:4] == ["sh"]:
            _files(found, line)._files[argv[4]] = text[int(length) :]
            return _OK
        _files(found, line)
        return _played(found).run(argv)


def _files(found: Container, line: Any) -> SimulatedGuest:
    """Return what has the container's files; each tool of it is one more that shares them."""
    known = found.rooms.get("")
    if known is None:
        cache = Cache.NONE if found.direct else Cache.WRITEBACK
        disk = Disk(bus=Bus.LXC, format=Format.RAW, cache=cache)
        volid = f"{found.storage}:{found.size_bytes}"
        volume = Volume(
            storage=found.storage, volid=volid, format="raw", size_bytes=found.size_bytes
        )
        known = found.rooms[""] = line.plays(PluggedDisk(volume, disk))
    return known


def _played(found: Container) -> SimulatedGuest:
    return next(one for one in reversed(found.rooms.values()) if one is not None)


def _rows(found: Container, words: list[str], stdin: bytes, line: Any) -> Completed:
    """What `remote_commands.sh` does in it, of which a directory is made but once."""
    verb, place, *rest = words
    files = _files(found, line)
    match verb:
        case "start" if place in found.rooms:
            return Completed(97, b"", b"")
        case "recall" if found.rooms.get(place) is not None:
            return Completed(0, b"1\n", b"")
        case "start":
            tool = line.plays(files._node.plugged)
            tool._files = files._files
            tool.start(rest)
            found.rooms[place] = tool
            return Completed(0, b"1\n", b"")
        case "recall":
            found.rooms[place] = None
            return Completed(0, b"never\n", b"")
        case "poll" if (tool := found.rooms.get(place)) is None:  # a late poll: another is there
            raise _Refused(f"{place} is not there")
        case "poll":
            ended = tool.poll(1)
            told = b"%d\n0\n" % ended.exit_code + ended.stderr if ended else b"running\n"
            return Completed(0, told, b"")
        case "void":
            found.rooms[place] = None
        case "end":
            pass  # its files are read until another tool begins
        case "write":
            files._files[place] = stdin
    return _OK


class _Refused(Exception):
    """What `refuse` of node.sh says."""


@dataclass
class _Nobody:
    """Who asked is gone: nothing waits for an answer."""

    node: SimulatedNode
    plays: Plays

    def spend(self, seconds: float) -> None:
        """Nobody's time passes."""

    def strikes(self, what: str) -> bool:
        return False

    def choose(self, values: Sequence[float]) -> float:
        return values[0]

    def time(self) -> float:
        return 0.0


@dataclass
class _OfTools:
    """Those of the world's faults that a tool in a container has."""

    faults: Callable[[], Faults]

    def strikes(self, fault: Fault) -> bool:
        return fault is not Fault.GUEST_HANGS and self.faults().strikes(fault)


class SimulatedSsh(SshConnection):
    """The way to the node: an `SshConnection` whose line, and what is behind it, fail.

    Args:
        owner: prefix of the names of what is made over it.
    """

    def __init__(
        self,
        node: SimulatedNode,
        owner: str,
        clock: Any,
        trouble: Trouble,
        faults: Callable[[], Faults],
    ) -> None:
        super().__init__(SimpleNamespace(where="lab"))  # type: ignore[arg-type] # all that is asked of it
        self._node, self._owner, self._clock, self._trouble = node, owner, clock, trouble
        self._deadline = float("inf")
        self.world: Any = SimpleNamespace(
            clock=clock, faults=_OfTools(faults), rng=random.Random(0), shift=lambda _: 1.0
        )

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        node, self._deadline = self._node, float("inf")
        self._clock.pass_time(0.02)
        node.catch_up()
        node.moment()
        if self.strikes("node away"):
            raise ServerGone("lab cannot be used by ssh: simulated")
        if self.strikes("question late"):
            node.arrive_late(self._trouble.rng.choice((1.0, 60.0)), self._owner, stdin, self.plays)
            self.spend(5.0)
            raise OutcomeUnknown("lab did not tell how a command ended: simulated")
        if self.strikes("node program killed"):
            return Completed(137, b"", b"")
        self._deadline = self._clock.monotonic() + timeout
        done = node.answer(self._owner, stdin, self)
        node.moment()
        if self.strikes("node's answer lost"):
            raise OutcomeUnknown("lab did not tell how a command ended: simulated")
        return done

    def spend(self, seconds: float) -> None:
        """Wait for what takes time there, which no stop ends; not beyond the question's time."""
        self._clock.pass_time(seconds)
        if self._clock.monotonic() > self._deadline:
            raise OutcomeUnknown("lab did not tell how a command ended: simulated")
        if self.strikes("node's answer lost"):
            raise OutcomeUnknown("lab did not tell how a command ended: simulated")

    def strikes(self, what: str) -> bool:
        return self._trouble.strikes(what)

    def choose(self, values: Sequence[float]) -> float:
        return self._trouble.rng.choice(values) if not self._trouble.calm else values[0]

    def time(self) -> float:
        return float(self._clock.monotonic())

    def plays(self, plugged: PluggedDisk | None) -> SimulatedGuest:
        world = SimpleNamespace(**vars(self.world) | {"plugged": plugged})
        return FaultyGuest(world)  # type: ignore[arg-type] # all that it asks of a world

    def close(self) -> None:
        """There is no line."""


class _Api:
    """Tells which numbers are free; what is made meanwhile it does not know yet."""

    refused: frozenset[str] = frozenset()

    def __init__(self, node: SimulatedNode, trouble: Trouble) -> None:
        self._node, self._trouble = node, trouble

    def get(self, path: str, **params: Any) -> Any:
        if params["vmid"] in self._node.containers and self._trouble.rng.random() < 0.8:
            raise Rejected("nextid", f"VM {params['vmid']} already exists", status=400)
        return params["vmid"]


class VmBeside(FaultyHypervisor):
    """A simulated VM that a container is measured beside."""

    vmid, device = 100, None

    def needs_bytes(self, scenario: Scenario) -> int:
        return 0

    def statistics(self) -> str:
        return ""


def containers_of(
    node: SimulatedNode, ssh: SimulatedSsh, trouble: Trouble, journal: Journal
) -> NodeContainers:
    """Return pvebench's own containers on the simulated node."""
    made = NodeContainers(
        NodeSsh(ssh),
        NodeContext(
            api=_Api(node, trouble),  # type: ignore[arg-type] # all that is asked of it
            node="lab",
            pool="bench",
            vmids=VMIDS,
            image=None,  # type: ignore[arg-type] # its root is on the node
            journal=journal,
            clock=SystemClock(),
            storages={"local": ClusterStorage(id="local", type="lvmthin")},
        ),
    )
    made._archive = "ab" * 32
    return made
