"""Benchmark container of a node: creation, start, stop and removal over SSH and `pct`.

`proxmox_container.sh` performs the operations and verifies the ownership marker each time. The
journal entry precedes creation. After a lost response, the request is never repeated: a container
is created only once under its marker, and removal waits for a running creation.
"""

from __future__ import annotations

import gzip
import io
import re
import secrets
import shlex
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar, Final

from pvebench.drivers.proxmox.node.node_backends import LEFT_HERE, OrphanGuest
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.vm.bench_vm import NodeAccess
from pvebench.drivers.proxmox.vm.leftover_vms import undo_guests
from pvebench.drivers.proxmox.vm.vm_create import free_ids, no_free_id
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import (
    DriverError,
    HypervisorGone,
    OutcomeUnknown,
    PvebenchError,
    SwitchFailed,
    ToolFailed,
    VolumeError,
)
from pvebench.guest.archives import DIRECTORY, EPOCH, FILE, KIND_BITS, LINK, Entry, entries_of
from pvebench.guest.recipe import FILESYSTEM_TOOL, MODULE_PLACE, MOUNT_POINT
from pvebench.log import log
from pvebench.model.guest import Completed
from pvebench.model.ports import Journal, of_kinds
from pvebench.model.scenario import Machine
from pvebench.model.units import GIB, MIB
from pvebench_lab.remote_tools import RemoteCommands, RemoteTools

KIND: Final = "proxmox-container"
"""Kind of this module's journal entries."""
_MAKE_SECONDS: Final = 600.0
"""Time limit of creation, seconds; it creates a file system and unpacks 100 MB."""
_REMOVE_SECONDS: Final = 400.0
"""Time limit of removal, seconds; it waits for a running creation."""
_POWER_SECONDS: Final = 120.0
_BEYOND_SECONDS: Final = 15.0
"""Additional time for the response of a program, seconds."""
_TIMED_OUT: Final = 124
"""Exit code of timeout(1)."""
_EXISTS: Final = "already exists"
"""Part of the error if another guest has the ID: `check_vmid_unused` in PVE/Cluster.pm of
pve-cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """Options of a new container, in the format of `pct create`.

    Attributes:
        archive: digest of the root file system archive on the node.
        storage: storage of the mount point's volume; `root`: storage of the root file system.
    """

    archive: str
    machine: Machine
    storage: str
    size_bytes: int
    root: str


def make_container(node: NodeSsh, access: NodeAccess, options: ContainerOptions) -> BenchContainer:
    """Create a container with a free ID of the range.

    Raises:
        NotOwned: every ID of the range is taken.
        VolumeError: pct rejects it. Others as `NodeSsh.do`.
    """
    journal = access.journal
    for vmid in free_ids(access.api, access.vmids):
        container = BenchContainer(node, vmid, secrets.token_hex(16))
        details = {"node": access.node, "vmid": str(vmid), "mark": container.mark}
        container.entry = journal.open(KIND, details)
        try:
            container.make(access.pool, options)
        except VolumeError as error:
            taken = _EXISTS in error.happened
            _give_up(container, journal, taken=taken)
            if not taken:
                raise
            continue  # the ID was taken in between
        return container
    raise no_free_id(access)


def _give_up(container: BenchContainer, journal: Journal, *, taken: bool) -> None:
    """Undo a creation that pct rejected; if that is not possible yet, keep the journal entry.

    Args:
        taken: another guest has the ID, so there is nothing of pvebench.
    """
    try:
        result = _undo(container)
    except CreationInterrupted as error:
        if not taken:
            log.warning("container creation failed", container=container.vmid, result=str(error))
            return
    except DriverError:
        return  # a later attempt undoes it
    else:
        if result == _STRANGER and not taken:
            log.warning("container creation failed", container=container.vmid, result=result)
    journal.close(container.entry)


class CreationInterrupted(VolumeError):
    """Running or interrupted creation of a container, whose owner is unknown."""

    def __init__(self, vmid: int) -> None:
        # pct writes the marker after it unpacked the root. Volumes created before are not in the
        # configuration, so only a search by VM ID finds them.
        super().__init__(
            "creation running or interrupted, owner unknown",
            cause="the node went down or pct was killed during pct create",
            next_step="if nothing uses it, run on the node: "
            f"umount -R /var/lib/lxc/{vmid}/rootfs (not after a restart); pct unlock {vmid}; "
            f"pct destroy {vmid}; then for each storage: pvesm list STORAGE --vmid {vmid}, "
            "and pvesm free for each volume",
        )


class BenchContainer:
    """Container with pvebench's ownership marker. Owned by one worker thread."""

    def __init__(self, node: NodeSsh, vmid: int, mark: str) -> None:
        self.vmid = vmid
        self.mark = mark
        self.entry = -1
        """Journal entry; -1: none to close."""
        self._node = node
        self._words = str(vmid), mark

    def make(self, pool: str, options: ContainerOptions) -> None:
        """Create the container, once. Raises VolumeError, and as `NodeSsh.do`."""
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
        """Start the container; do nothing if it runs."""
        self._node.ask("start", *self._words, seconds=_POWER_SECONDS)

    def stop(self) -> None:
        """Stop the container; do nothing if it does not run."""
        self._node.ask("stop", *self._words, seconds=_POWER_SECONDS)

    def remove(self) -> None:
        """Stop and remove the container with its volumes; do nothing if it does not exist.

        Raises VolumeError: it is not owned, has a foreign volume, was migrated, or pct fails.
        """
        self._node.ask("remove", *self._words, seconds=_REMOVE_SECONDS)

    def tell(self) -> dict[str, str]:
        """Return its properties: configuration keys, `pid` while it runs, mounts.

        Raises HypervisorGone: it is gone or not owned.
        """
        state, *lines = self._lines()
        if state != _OURS:
            raise HypervisorGone(
                f"container {self.vmid} on {self._node.where} is {state[:60] or 'unknown'}",
                cause="it was removed, migrated or changed outside pvebench",
                next_step="no action needed; pvebench creates another for the next case",
            )
        pairs = (line.partition(": ") for line in lines)
        return {key: value for key, _, value in pairs}

    def state(self) -> str:
        """Return `gone`, `ours`, `making` or `stranger` (not owned)."""
        return self._lines()[0]

    def _lines(self) -> list[str]:
        output = self._node.ask("container", *self._words)
        return output.decode("utf-8", "replace").splitlines() or [""]

    def drop_caches(self) -> bytes:
        """Drop the node's page cache of its files; return the remaining bytes, from `node.sh`."""
        return self._node.ask("forget", *self._words, seconds=_POWER_SECONDS)

    # --- `drivers.ssh.connection.Shell` in the running container

    @property
    def where(self) -> str:
        """Name of the container in messages."""
        return f"container {self.vmid} of {self._node.where}"

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        return self._run(argv, stdin, timeout, again=True)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        return self._run(argv, stdin, timeout, again=False)

    def close(self) -> None:
        """Do nothing: others share the connection to the node."""

    def _run(self, argv: Sequence[str], stdin: bytes, timeout: float, *, again: bool) -> Completed:
        command = shlex.join(argv).encode()
        done = self._node.run(
            "run",
            *self._words,
            str(int(timeout) + 1),
            str(len(command)),
            content=command + stdin,
            seconds=timeout + _BEYOND_SECONDS,
            again=again,
        )
        if done.exit_code == _TIMED_OUT:
            raise OutcomeUnknown(f"{argv[0]} in {self.where} did not end within {timeout:.0f} s")
        if done.exit_code:
            self._check(done)
        return done

    def _check(self, done: Completed) -> None:
        """Raise HypervisorGone if the program ended with its container."""
        if "pid" not in self.tell():
            raise HypervisorGone(
                f"{self.where} stopped",
                cause="it was killed or stopped, possibly out of memory",
                next_step="no action needed; pvebench restarts it for the next case",
                evidence=done.stderr.decode("utf-8", "replace"),
            )


_EMPTY: Final = f"find {MOUNT_POINT} -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {{}} +"


class ContainerTools(RemoteTools):
    """`model.ports.Guest` in a running container.

    Args:
        filesystem: type of the mounted file system, which Proxmox created.
    """

    def __init__(self, container: BenchContainer, filesystem: str) -> None:
        super().__init__(RemoteCommands(container), f"/tmp/{MARK}{secrets.token_hex(8)}", None)  # noqa: S108 # a directory of this instance only
        self._filesystem = filesystem

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        if argv[0] == FILESYSTEM_TOOL:
            return self._prepare(argv[1:], timeout)
        return super().run(argv, stdin=stdin, timeout=timeout)

    def _prepare(self, command: list[str], timeout: float) -> Completed:
        """Replace the guest's script: Proxmox created and mounted the file system."""
        if command[0] == "unmount":
            return super().run(["sync"], timeout=timeout)
        kind, mount_options = command[2], "".join(command[3:])
        if kind != self._filesystem or mount_options:
            raise SwitchFailed(
                f"file system mismatch: requested {kind} {mount_options}, found {self._filesystem}"
            )
        if command[0] == "make":
            return super().run(["sh", "-c", _EMPTY], timeout=timeout)
        return Completed(0, b"", b"")

    def write_file(self, path: str, content: bytes) -> None:
        # Jobs use the guest's paths, which on a host would need an ownership marker.
        done = self._commands.shell.ask(["sh", "-c", 'cat >"$1"', "sh", path], stdin=content)
        if done.exit_code:
            raise ToolFailed(f"writing {path} in {self._commands.where} failed")

    def forget(self) -> None:
        """Drop the state of programs that ended with the container."""
        self._running.clear()
        self._done.clear()


def gibibytes(size_bytes: int) -> str:
    """Return a size in GiB for `pct`; whole MiB need at most ten decimals.

    pct drops fractions of a MiB (`create_disks` in PVE/LXC.pm).
    """
    whole, rest = divmod(size_bytes // MIB * MIB, GIB)
    return f"{whole}{f'{rest / GIB:.10f}'[1:].rstrip('0').rstrip('.')}"


def undo_containers(
    on_node: NodeSsh | None, node: str, journal: Journal, *, but: Collection[int] = ()
) -> list[str]:
    """Remove every container of a node with an open journal entry; return a line about each.

    Containers that cannot be removed yet are reported and stay open.

    Args:
        on_node: SSH access to the node; None: not configured.
        but: journal entries of containers in use.
    """

    def undo(details: Mapping[str, str]) -> Iterator[str]:
        if on_node is None:
            raise PvebenchError(
                "proxmox.ssh is missing in the settings", next_step="set it as it was before"
            )
        container = BenchContainer(on_node, int(details["vmid"]), details["mark"])
        yield f"container {container.vmid} on {node} {_undo(container)}"

    return undo_guests(
        journal,
        KIND,
        undo,
        node=node,
        what="container {vmid} on {node}",
        concerns=lambda number, _: number not in but,
    )


class OrphanContainer(OrphanGuest):
    """Container that some pvebench created."""

    kind: ClassVar[str] = "container"


def find_containers(node: NodeSsh, name: str, journal: Journal) -> list[OrphanContainer]:
    """Return the containers of a node with an ownership marker. Raises as `NodeSsh.ask`."""
    known = {details.get("mark") for _, details in of_kinds(journal, KIND)}
    listing = node.ask("containers").decode("utf-8", "replace")
    return [
        OrphanContainer(
            node=name,
            vmid=int(match["vmid"]),
            mark=match["mark"],
            status=match["status"],
            why=LEFT_HERE if match["mark"] in known else "",
        )
        for match in _LISTED.finditer(listing)
    ]


_LISTED: Final = re.compile(
    r"^(?P<vmid>\d{1,9}) (?P<mark>[0-9a-f]{32}) (?P<status>running|stopped)$", re.MULTILINE
)


def remove_container(node: NodeSsh, orphan: OrphanGuest, journal: Journal) -> str:
    """Remove the container and its journal entries; return a line about it.

    Raises VolumeError: it still exists.
    """
    done = _undo(BenchContainer(node, orphan.vmid, orphan.mark))
    for number, details in of_kinds(journal, KIND):
        if details.get("mark") == orphan.mark:
            journal.close(number)
    return f"container {orphan.vmid} on {orphan.node} {done}"


def _undo(container: BenchContainer) -> str:
    """Remove the container, or prevent its creation; return a description of the result.

    Raises:
        CreationInterrupted: its owner is unknown, but may become known.
        DriverError: it still exists; remove it later.
    """
    state = container.state()
    try:
        container.remove()  # cancels the creation of a missing one
    except VolumeError as error:
        if _BUSY in error.happened:
            raise  # it has the marker once its creation ended
        state = container.state()
        if state in (_OURS, "gone"):  # gone from this node, but another node has it
            raise
        if state == "making":
            raise CreationInterrupted(container.vmid) from error
        return _STRANGER
    return "already gone" if state == "gone" else "removed with its volumes"


_OURS: Final = "ours"
_BUSY: Final = "is still being made"
"""Part of the error of `node.sh` if creation takes longer than removal waits."""
_STRANGER: Final = "not changed: no ownership marker of this pvebench"


def container_archive(initramfs: bytes) -> bytes:
    """Return the guest's files as an archive for `pct create`: no modules, but a first process.

    Equal content results in equal bytes.
    """
    members = {
        path: entry for path, entry in entries_of(initramfs) if not path.startswith(MODULE_PLACE)
    }
    first = files("pvebench_lab.lxc").joinpath("container-init.sh").read_bytes()
    members["usr/sbin/init"] = Entry(FILE | 0o755, first)
    members[MOUNT_POINT.lstrip("/")] = Entry(DIRECTORY | 0o755)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path, entry in members.items():
            if (kind := _TAR_KINDS.get(entry.mode & KIND_BITS)) is not None:
                tar.addfile(_tar_header(path, entry, kind), io.BytesIO(entry.content))
    return packed.getvalue()


_TAR_KINDS: Final = {DIRECTORY: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE, FILE: tarfile.REGTYPE}


def _tar_header(path: str, entry: Entry, kind: bytes) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path)
    header.type, header.mode, header.mtime = kind, entry.mode & ~KIND_BITS, EPOCH
    if kind == tarfile.SYMTYPE:
        header.linkname = entry.content.decode()
    elif kind == tarfile.REGTYPE:
        header.size = len(entry.content)
    return header
