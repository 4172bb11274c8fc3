"""What a node tells by ssh that its API does not: `node.sh`, which an administrator put there.

What is here changes nothing on the node but its page cache of our volumes, so there is nothing to
undo; what is done about containers is in `container.py`.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from pvebench.drivers.driver import Finding
from pvebench.drivers.host.remote_machine import parse_device, whole
from pvebench.drivers.linux.block_devices import BELOW, show_devices
from pvebench.drivers.linux.cgroups import group_seconds
from pvebench.drivers.linux.procfs import Fetched, device_counters, pressures, read_snapshot
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import (
    AccessDenied,
    DriverError,
    OutcomeUnknown,
    OutputUnreadable,
    PvebenchError,
    SwitchFailed,
    VolumeError,
)
from pvebench.model.ports import Completed, Hold, HoldKind, HostSnapshot
from pvebench.model.volume import BlockCounters
from pvebench.model.workload import Case

PROGRAM: Final = "pvebench-node"
_BELOW_HERE: Final = "# below.sh of drivers/storages is put here.\n"
NODE_SCRIPT: Final = (
    files("pvebench.drivers.proxmox.node")
    .joinpath("node.sh")
    .read_text("utf-8")
    .replace(_BELOW_HERE, BELOW.removeprefix("#!/bin/sh\n"))
)
_GREETING: Final = f"{PROGRAM} 3"
REFUSED: Final = 96
"""Exit code of what `node.sh` does not do; a program that it runs may end so as well."""
_SIGNALLED: Final = 128
"""Added to the number of the signal that ended a program."""
_UNKNOWN: Final = "no such question"
_ANEW: Final = "install the one of this pvebench: `pvebench proxmox node-script`"
_NO_CONTAINERS: Final = f"{PROGRAM} there makes no containers: that was taken out of it; {_ANEW}"
_STATE_CHARACTERS: Final = 32_000


class NodeSsh:
    """The questions of `node.sh`, to one node. Owned by one worker thread."""

    def __init__(self, ssh: SshConnection) -> None:
        self._ssh = ssh

    @property
    def where(self) -> str:
        """For people."""
        return self._ssh.where

    def ask(self, *words: str, seconds: float = 60.0) -> bytes:
        """Return the answer to something that can be asked again when that is lost.

        That it is, too, where the program there is killed.

        Raises:
            AccessDenied: the key runs something else, or sudo wants a password.
            VolumeError: the node refuses the question.
            OutcomeUnknown: its program was killed twice; others as `SshConnection.run`.
        """
        done = self._ssh.ask([PROGRAM], stdin=_question(words), timeout=seconds)
        if _signal(done):
            done = self._ssh.ask([PROGRAM], stdin=_question(words), timeout=seconds)
        return self._checked(done)

    def do(self, *words: str, content: bytes = b"", seconds: float = 60.0) -> bytes:
        """As `ask`, of something that is not to be done twice.

        Args:
            content: follows the words.
        """
        question = _question(words) + content
        return self._checked(self._ssh.run([PROGRAM], stdin=question, timeout=seconds))

    def run(self, *words: str, content: bytes, seconds: float, again: bool) -> Completed:
        """Return how a program ended that the node runs for us.

        Args:
            again: it can be run again when the answer is lost.
        """
        run = self._ssh.ask if again else self._ssh.run
        return run([PROGRAM], stdin=_question(words) + content, timeout=seconds)

    def _checked(self, done: Completed) -> bytes:
        if not done.exit_code:
            return done.stdout
        said = done.stderr.decode("utf-8", "replace").strip()
        last = said.splitlines()[-1] if said else f"status {done.exit_code}"
        if number := _signal(done):
            raise OutcomeUnknown(
                f"{PROGRAM} on {self._ssh.settings.where} was ended by signal {number}",
                cause="somebody killed it, or the node is short of memory or being shut down",
                next_step="none: what is true there is asked before anything else is changed",
                evidence=said,
            )
        if done.exit_code == REFUSED:
            raise VolumeError(
                f"{self._ssh.settings.where}: {last[:300]}",
                cause="the volume went away, or a program of the node is missing",
                next_step="`pvebench check` tells what the node has",
                evidence=said,
            )
        raise AccessDenied(
            f"{self._ssh.settings.where} does not run {PROGRAM}: {last[:300]}",
            cause="it is not installed there, the key runs another command, or sudo wants a "
            "password",
            next_step="compare authorized_keys and sudoers there with docs/proxmox.md",
            evidence=said,
        )

    def hello(self) -> frozenset[str]:
        """Return what the node has. Raises as `ask`, and OutputUnreadable."""
        first, *others = self.ask("hello").decode("utf-8", "replace").splitlines() or [""]
        if first != _GREETING:
            raise OutputUnreadable(
                f"{self._ssh.settings.where} answers {first[:60]!r}, not {_GREETING!r}",
                cause=f"{PROGRAM} there is of another pvebench",
                next_step=_ANEW,
            )
        return frozenset(line.removeprefix("has ") for line in others[:50])

    def makes_containers(self) -> bool:
        """Return whether its program knows that question; nothing is made. Raises as `ask`."""
        try:
            self.ask("make")  # without a word of what
        except VolumeError as error:
            return _UNKNOWN not in error.happened
        return True

    def devices(self, volid: str) -> tuple[int, ...]:
        """Return the numbers of the block devices that a volume is, or lies on.

        Raises:
            OutputUnreadable: the node says something else. Others as `ask`.
        """
        return parse_device(self.ask("find", volid), volid)[1]

    def drop(self, volid: str) -> int:
        """Write back and drop the node's page cache of a volume; return the bytes still cached."""
        return whole(self.ask("drop", volid), f"bytes of {volid} in the page cache")

    def state(self) -> str:
        """Return the state of md, ZFS, dm and the disks, for people; or why it is not known."""
        try:
            return self.ask("state").decode("utf-8", "replace")[:_STATE_CHARACTERS]
        except (DriverError, OutputUnreadable) as error:
            return f"not available: {error.reason}"

    def snapshot(
        self, vmid: int, devices: tuple[int, ...] = (), container: int = 0
    ) -> HostSnapshot:
        """Return the counters of node, VM, container and devices now.

        What cannot be read is absent.
        """
        asked = time.monotonic()
        try:
            found = self._look(vmid, container, devices)
            at = (asked + time.monotonic()) / 2  # they are of some moment in between
            shot = read_snapshot(found, pid=_pid(found, vmid), devices=devices, at=at)
            used = group_seconds(found / f"sys/fs/cgroup/lxc/{container}/cpu.stat")
            inside = {"container": used} if used is not None else {}
            return replace(
                shot, cpu_seconds={**shot.cpu_seconds, **inside}, pressure_seconds=pressures(found)
            )
        except (PvebenchError, OSError, ValueError, IndexError):
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={})

    def counters(self, device: int) -> BlockCounters:
        """Return a block device's counters since the node was started.

        Raises:
            SwitchFailed: the node has no such device. Others as `ask`.
        """
        try:
            return device_counters(self._look(0, 0, (device,)), device)
        except (OSError, ValueError, IndexError) as error:
            number = show_devices((device,))
            raise SwitchFailed(f"{self.where} has no counters of device {number}") from error

    def _look(self, vmid: int, container: int, devices: tuple[int, ...]) -> Fetched:
        numbers = show_devices(devices) or "0:0"
        return Fetched.read(self.ask("look", str(vmid), numbers, str(container)))

    def close(self) -> None:
        """End the connection."""
        self._ssh.close()


def _signal(done: Completed) -> int:
    """Return the number of the signal that ended a program; 0: none did."""
    number = done.exit_code - _SIGNALLED
    return number if 0 < number < signal.NSIG else 0


def _question(words: tuple[str, ...]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()


def _pid(found: Fetched, vmid: int) -> int | None:
    path = found / f"run/qemu-server/{vmid}.pid"
    text = path.read_text("ascii").strip() if path.is_file() else ""
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


@dataclass(slots=True)
class ContainerGuard:
    """`model.guard.Guard`: rows in containers need a program on the node that can make them.

    Asked before anything is made for them.
    """

    node: NodeSsh
    _able: bool = False
    """Whether it could: nobody installs an older one."""

    def enter(self, case: Case) -> Hold | None:
        if self._able or not case.scenario.disk.in_container:
            return None
        reason = f"{self.node.where}: {_NO_CONTAINERS}"
        try:
            self.node.hello()
            self._able = self.node.makes_containers()
        except OutputUnreadable as error:  # of another version
            reason = f"{error.happened}: {_ANEW}"
        except PvebenchError:
            return None  # the run itself says what is wrong with the way there
        return None if self._able else Hold(kind=HoldKind.AWAY, reason=reason, skip=True)

    def leave(self, case: Case) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """`model.ports.HostProbe`: the node, its VM, and the devices of the volume that is plugged in.

    Attributes:
        vmid: returns the VM's number; 0: there is none.
        devices: returns the devices' numbers; empty: they are not known.
        container: returns the container's number; 0: none runs.
    """

    node: NodeSsh
    vmid: Callable[[], int]
    devices: Callable[[], tuple[int, ...]]
    container: Callable[[], int] = lambda: 0

    def snapshot(self) -> HostSnapshot:
        """Return the counters now; what cannot be read is absent."""
        return self.node.snapshot(self.vmid(), self.devices(), self.container())


_GIVES: Final = {
    "pvesm": "device bytes of the very volume, and its caches",
    "fincore": "shows that the page cache of a volume is empty before each run",
    "kvm": "KVM exits for each I/O (needs CONFIG_DEBUG_FS and root)",
    "zpool": "ZFS pools, scrub and cache in the evidence",
    "dmsetup": "device mapper in the evidence",
    "smartctl": "health of the disks in the evidence",
    "pct": "containers (`lxc: true` in a pack)",
}
_NEEDED: Final = frozenset({"pvesm", "fincore"})


def check_node(node: NodeSsh) -> Iterator[Finding]:
    """Yield whether the node answers by ssh, and what each piece gives. Changes nothing."""
    try:
        has = node.hello()
        makes = "pct" not in has or node.makes_containers()
    except PvebenchError as error:
        yield "ssh", False, str(error)
        return
    finally:
        node.close()
    yield "ssh", True, "CPU by QEMU thread, pressure, caches that are dropped for certain"
    for name, gives in _GIVES.items():
        there = name in has
        lacking = f"not there: {gives}" + (" (package util-linux-extra)" * (name == "fincore"))
        yield f"ssh {name}", there or name not in _NEEDED, gives if there else lacking
    if not makes:
        yield "ssh containers", True, _NO_CONTAINERS
