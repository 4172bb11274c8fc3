"""A benchmark container of one node: made, marked, started, stopped, removed, by ssh and `pct`.

What is done there is in `node.sh`, which proves the mark each time. The journal comes first. A lost
answer is never followed by the same again: a container is made but once under its mark, and whoever
removes it waits for who makes it.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import spoken
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.vm.bench_vm import VmPlace
from pvebench.drivers.proxmox.vm.vm_create import is_free
from pvebench.errors import (
    DriverError,
    HypervisorGone,
    NotOwned,
    OutcomeUnknown,
    PvebenchError,
    VolumeError,
)
from pvebench.model.ports import Completed, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import GIB, MIB

log = structlog.get_logger()

KIND: Final = "proxmox-container"
"""Kind of the journal entries made here."""
ROOT_BYTES: Final = GIB
"""Of a container's root, in `node.sh`."""
_MAKE_SECONDS: Final = 600.0
"""It takes a file system, and the unpacking of a hundred megabytes."""
_REMOVE_SECONDS: Final = 400.0
"""It waits for one that is still being made."""
_POWER_SECONDS: Final = 120.0
_BEYOND_SECONDS: Final = 15.0
"""What an answer may take longer than the program that it is about."""
_TIMED_OUT: Final = 124
"""Exit code of timeout(1)."""
_EXISTS: Final = "already exists"
"""Of a number that another guest has: `check_vmid_unused` in PVE/Cluster.pm of pve-cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """What a new container is, in the words of `pct create`.

    Attributes:
        archive: digest of its root file system, which the node has.
        storage: where the volume of the mount point is made; `root`: that of its root.
    """

    archive: str
    machine: Machine
    storage: str
    size_bytes: int
    root: str


def make_container(
    node: NodeSsh, api: Api, place: VmPlace, journal: Journal, options: ContainerOptions
) -> BenchContainer:
    """Make a container with a number that is free in the range.

    Raises:
        NotOurs: every number of the range is taken.
        VolumeError: pct refuses. Others as `NodeSsh.do`.
    """
    first, last = place.vmids
    for vmid in range(first, last + 1):
        if not is_free(api, vmid):
            continue
        made = BenchContainer(node, vmid, secrets.token_hex(16))
        details = {"node": place.node, "vmid": str(vmid), "mark": made.mark}
        made.entry = journal.open(KIND, details)
        try:
            made.make(place.pool, options)
        except VolumeError as error:
            taken = _EXISTS in error.happened
            _give_up(made, journal, taken=taken)
            if not taken:
                raise
            continue  # somebody was quicker
        return made
    raise NotOwned(
        f"all VM numbers from {first} to {last} are taken",
        next_step="give another range in the settings, or see what is there: pvebench check",
    )


def _give_up(made: BenchContainer, journal: Journal, *, taken: bool) -> None:
    """Undo a making that pct refused; what cannot be undone yet stays in the journal.

    Args:
        taken: the number is somebody's, so that nothing there is ours.
    """
    try:
        left = _undo(made)
    except BrokenOff as error:
        if not taken:
            log.warning("a failed making", container=made.vmid, found=str(error))
            return
    except DriverError:
        return  # it is undone later
    else:
        if left == _STRANGER and not taken:
            log.warning("a failed making", container=made.vmid, found=left)
    journal.close(made.entry)


class BrokenOff(VolumeError):
    """Of a container that is being made, or whose making was broken off, nobody can tell whose."""

    def __init__(self, vmid: int) -> None:
        # pct writes the mark when it has unpacked the root. What it made until then is not in the
        # configuration, so that only a search for the number finds it.
        super().__init__(
            "its making was broken off, or goes on, and it does not say whose it is",
            cause="the node went down, or pct was killed there, in the middle of pct create",
            next_step="if it is nobody's, on the node: "
            f"umount -R /var/lib/lxc/{vmid}/rootfs (not after a restart); pct unlock {vmid}; "
            f"pct destroy {vmid}; of each storage: pvesm list STORAGE --vmid {vmid}, "
            "and pvesm free what was left",
        )


class BenchContainer:
    """One container that carries our mark. Owned by one worker thread."""

    def __init__(self, node: NodeSsh, vmid: int, mark: str) -> None:
        self.vmid = vmid
        self.mark = mark
        self.entry = -1
        """Of the journal; -1: none that is ours to close."""
        self._node = node
        self._words = str(vmid), mark

    def make(self, pool: str, options: ContainerOptions) -> None:
        """Make it, once. Raises VolumeError, and as `NodeSsh.do`."""
        self._node.do(
            "make",
            *self._words,
            options.archive,
            str(options.machine.memory_bytes // MIB),
            str(options.machine.cpus),
            options.storage,
            gibibytes(options.size_bytes),
            options.root,
            pool,
            seconds=_MAKE_SECONDS,
        )

    def start(self) -> None:
        """Start it; fine if it runs."""
        self._node.ask("start", *self._words, seconds=_POWER_SECONDS)

    def stop(self) -> None:
        """End all that runs in it; fine if nothing does."""
        self._node.ask("stop", *self._words, seconds=_POWER_SECONDS)

    def remove(self) -> None:
        """Stop and remove it with its volumes; fine if it is gone, or was never made.

        Raises:
            VolumeError: it is not ours, somebody gave it a volume or moved it, or pct refuses.
        """
        self._node.ask("remove", *self._words, seconds=_REMOVE_SECONDS)

    def tell(self) -> dict[str, str]:
        """Return what it is: keys of its configuration, `pid` while it runs, what is mounted.

        Raises:
            HypervisorGone: it is gone, or somebody else's.
        """
        state, *lines = self._told()
        if state != _OURS:
            raise HypervisorGone(
                f"container {self.vmid} on {self._node.where} is {state[:60] or 'not told'}",
                cause="somebody removed, moved or changed it",
                next_step="none: another is made for the next case",
            )
        pairs = (line.partition(": ") for line in lines)
        return {key: value for key, _, value in pairs}

    def state(self) -> str:
        """Return `gone`, `ours`, `making` or `stranger`: somebody's."""
        return self._told()[0]

    def _told(self) -> list[str]:
        said = self._node.ask("container", *self._words)
        return said.decode("utf-8", "replace").splitlines() or [""]

    def forget_cache(self) -> bytes:
        """Drop the node's page cache of its files; return what `node.sh` says is left."""
        return self._node.ask("forget", *self._words, seconds=_POWER_SECONDS)

    def inside(self) -> Inside:
        """Return where programs are run in it."""
        return Inside(self._node, self)


class Inside:
    """`host.ssh.Shell` in a running container."""

    def __init__(self, node: NodeSsh, container: BenchContainer) -> None:
        self._node = node
        self._container = container

    @property
    def where(self) -> str:
        return f"container {self._container.vmid} of {self._node.where}"

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        return self._run(argv, stdin, timeout, again=True)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        return self._run(argv, stdin, timeout, again=False)

    def close(self) -> None:
        """The way to the node is others' too."""

    def _run(self, argv: Sequence[str], stdin: bytes, timeout: float, *, again: bool) -> Completed:
        command = shlex.join(argv).encode()
        done = self._node.run(
            "run",
            str(self._container.vmid),
            self._container.mark,
            str(int(timeout) + 1),
            str(len(command)),
            content=command + stdin,
            seconds=timeout + _BEYOND_SECONDS,
            again=again,
        )
        if done.exit_code == _TIMED_OUT:
            raise OutcomeUnknown(f"{argv[0]} in {self.where} does not end within {timeout:.0f} s")
        if done.exit_code:
            self._check(done)
        return done

    def _check(self, done: Completed) -> None:
        """Raise HypervisorGone if it was the container's end that ended the program."""
        if "pid" not in self._container.tell():
            raise HypervisorGone(
                f"{self.where} has ended",
                cause="it was killed or stopped, for instance for want of memory",
                next_step="none: it is started anew for the next case",
                evidence=done.stderr.decode("utf-8", "replace"),
            )


def gibibytes(size_bytes: int) -> str:
    """Return a size as `pct` wants it, in GiB; whole MiB have at most ten decimals.

    It cuts off what is below a MiB (`create_disks` in PVE/LXC.pm).
    """
    whole, rest = divmod(size_bytes // MIB * MIB, GIB)
    return f"{whole}{f'{rest / GIB:.10f}'[1:].rstrip('0').rstrip('.')}"


def undo_containers(
    journal: Journal, on_node: NodeSsh | None, *, node: str, but: Collection[int] = ()
) -> list[str]:
    """Undo every open container of a node; return a line about each.

    What cannot be undone yet stays open and is said.

    Args:
        on_node: the way there; None: the settings tell of none.
        but: journal entries of those that are in use.
    """
    lines = []
    for number, kind, details in journal.pending():
        if kind != KIND or number in but or details["node"] != node:
            continue
        what = f"container {details['vmid']} on {node}"
        if on_node is None:
            lines.append(f"could not remove {what} yet: the settings tell of no proxmox.ssh")
            continue
        try:
            container = BenchContainer(on_node, int(details["vmid"]), details["mark"])
            lines.append(f"{what} {_undo(container)}")
        except PvebenchError as error:  # the key's file may be away too: others are undone
            lines.append(f"could not remove {what} yet: {error}")
            continue
        journal.close(number)
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanContainer:
    """`drivers.driver.Leftover`: a container that some pvebench made."""

    node: str
    vmid: int
    mark: str
    status: str
    why: str = ""

    @property
    def text(self) -> str:
        """One line about it."""
        why = f", {self.why}" if self.why else ""
        return spoken(f"container {self.vmid} on {self.node}, {self.status}{why}, with its volumes")

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def find_containers(node: NodeSsh, name: str, journal: Journal) -> list[OrphanContainer]:
    """Return the containers of a node that carry a mark of pvebench. Raises as `NodeSsh.ask`."""
    known = {details["mark"] for _, kind, details in journal.pending() if kind == KIND}
    told = node.ask("containers").decode("utf-8", "replace")
    return [
        OrphanContainer(
            node=name,
            vmid=int(found["vmid"]),
            mark=found["mark"],
            status=found["status"],
            why=_LEFT_HERE if found["mark"] in known else "",
        )
        for found in _LISTED.finditer(told)
    ]


_LISTED: Final = re.compile(
    r"^(?P<vmid>\d{1,9}) (?P<mark>[0-9a-f]{32}) (?P<status>running|stopped)$", re.MULTILINE
)
_LEFT_HERE: Final = (
    "left when a pvebench was killed here: the next start, or pvebench cleanup, removes it"
)


def remove_container(node: NodeSsh, stray: OrphanContainer, journal: Journal) -> str:
    """Remove it, forget what the journal says of it; return a line about it.

    Raises:
        VolumeError: it is there still.
    """
    done = _undo(BenchContainer(node, stray.vmid, stray.mark))
    for number, kind, details in journal.pending():
        if kind == KIND and details["mark"] == stray.mark:
            journal.close(number)
    return f"container {stray.vmid} on {stray.node} {done}"


def _undo(container: BenchContainer) -> str:
    """Remove it, or see that it cannot come any more; return what was done, in words.

    Raises:
        BrokenOff: it does not tell whose it is; it may, later.
        DriverError: it is there still, and to be removed later.
    """
    state = container.state()
    try:
        container.remove()  # one that is gone is called off
    except VolumeError as error:
        if _BUSY in error.happened:
            raise  # it will carry the mark when its making has ended
        state = container.state()
        if state in (_OURS, "gone"):  # gone from there, but another node has it
            raise
        if state == "making":
            raise BrokenOff(container.vmid) from error
        return _STRANGER
    return "is gone already" if state == "gone" else "is removed with its volumes"


_OURS: Final = "ours"
_BUSY: Final = "is still being made"
"""Of `node.sh`, where who makes it has taken longer than who removes it waits."""
_STRANGER: Final = "is left alone: it does not carry the mark of this pvebench"
