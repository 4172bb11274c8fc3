"""Data of a node over SSH that its API lacks, from `node.sh`, which an administrator installs.

It drops the page cache of pvebench's volumes and kills pvebench's VM. Kinds of `node_backends.py`
add requests to it.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Final

from pvebench.drivers.driver import Finding
from pvebench.drivers.linux.block_devices import DEVICE_FUNCTIONS, parse_device, show_devices, whole
from pvebench.drivers.linux.io_counters import device_counters
from pvebench.drivers.linux.procfs import Fetched, group_seconds, pressures, read_snapshot
from pvebench.drivers.proxmox.node.node_backends import NODE_BACKENDS
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.drivers.storages.qemu_img import DAMAGED, SOUND
from pvebench.errors import (
    AccessDenied,
    DriverError,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    PvebenchError,
    SwitchFailed,
    VolumeError,
)
from pvebench.model.guest import Completed
from pvebench.model.ports import HostSnapshot
from pvebench.model.volume import BlockCounters

PROGRAM: Final = "pvebench-node"
_FUNCTIONS_HERE: Final = "# Functions of drivers/linux and of node backends are inserted here.\n"
_REQUESTS_HERE: Final = "# Requests of node backends are inserted here.\n"
_GREETING: Final = f"{PROGRAM} 4"
_ERROR: Final = re.compile(rf"({PROGRAM}: .*)\|(.*)\|(.*)")
"""Line of `refuse` in `node.sh`: error, likely cause, next step."""
REFUSED: Final = 96
"""Exit code of `node.sh` for a rejected request; programs that it runs may also use it."""
_NOT_FOUND: Final = 127
"""Exit code of a shell, and of timeout(1), for a missing program."""
_PACKAGES: Final = {"fincore": "util-linux-extra"}
"""Program of a node whose absence ends a request -> its Debian package."""
_MISSING: Final = re.compile(rf"\b({'|'.join(_PACKAGES)})\b.*(not found|No such file)")
_SIGNALLED: Final = 128
"""Offset of the exit code of a program that a signal ended."""
INSTALL: Final = "install the output of `pvebench proxmox node-script`"
_STATE_CHARACTERS: Final = 32_000
_START_TIME: Final = 19
"""Index of `starttime` after the name in /proc/PID/stat (proc_pid_stat(5))."""


@cache
def script_of_node() -> str:
    """Return the script of a node, with the requests of the installed node backends."""
    script = files("pvebench.drivers.proxmox.node").joinpath("node.sh").read_text("utf-8")
    parts = [kind.script.partition(_REQUESTS_HERE) for kind in NODE_BACKENDS.values()]
    functions = "".join([DEVICE_FUNCTIONS, *(text for text, _, _ in parts)])
    script = script.replace(_FUNCTIONS_HERE, functions.replace("#!/bin/sh\n", ""))
    return script.replace(_REQUESTS_HERE, "".join(requests for _, _, requests in parts))


class NodeSsh:
    """Requests to `node.sh` on a node. Owned by one worker thread."""

    def __init__(self, ssh: SshConnection) -> None:
        self._ssh = ssh

    @property
    def where(self) -> str:
        """Node name for messages."""
        return self._ssh.where

    def ask(self, *words: str, seconds: float = 60.0) -> bytes:
        """Return the response to a repeatable request.

        It is repeated after a lost response, or if a signal ended the script.

        Raises:
            AccessDenied: the key runs another command, or sudo requires a password.
            VolumeError: the node rejects the request.
            OutcomeUnknown: a signal ended the script twice. Others as `SshConnection.run`.
        """
        done = self._ssh.ask([PROGRAM], stdin=_request(words), timeout=seconds)
        if _signal(done):
            done = self._ssh.ask([PROGRAM], stdin=_request(words), timeout=seconds)
        return self._checked(done)

    def do(self, *words: str, content: bytes = b"", seconds: float = 60.0) -> bytes:
        """Return the response to a request that must not be repeated. Raises as `ask`.

        Args:
            content: data after the words.
        """
        request = _request(words) + content
        return self._checked(self._ssh.run([PROGRAM], stdin=request, timeout=seconds))

    def run(self, *words: str, content: bytes, seconds: float, again: bool) -> Completed:
        """Run a program on the node; return its result.

        Args:
            again: repeat the program after a lost response.
        """
        run = self._ssh.ask if again else self._ssh.run
        return run([PROGRAM], stdin=_request(words) + content, timeout=seconds)

    def _checked(self, done: Completed) -> bytes:
        if not done.exit_code:
            return done.stdout
        stderr = done.stderr.decode("utf-8", "replace").strip()
        last = stderr.splitlines()[-1] if stderr else f"status {done.exit_code}"
        if number := _signal(done):
            raise OutcomeUnknown(
                f"signal {number} ended {PROGRAM} on {self._ssh.settings.where}",
                cause="it was killed, or the node is out of memory or shutting down",
                next_step="no action needed; pvebench checks the state before it changes anything",
                evidence=stderr,
            )
        if done.exit_code == REFUSED:
            error = _ERROR.fullmatch(last)
            text, cause, next_step = error.groups() if error else (last, "", "")
            raise VolumeError(
                f"{self._ssh.settings.where}: {text[:300]}",
                cause=cause or "a program on the node failed",
                next_step=next_step or "run `pvebench check`, then check the node's log",
                evidence=stderr,
            )
        if done.exit_code == _NOT_FOUND and (missing := _MISSING.search(last)):
            name = missing[1]
            raise VolumeError(
                f"{name} is not installed on {self._ssh.settings.where}",
                cause=f"package {_PACKAGES[name]} is missing there",
                next_step=f"run `apt-get install {_PACKAGES[name]}` there",
                evidence=stderr,
            )
        raise AccessDenied(
            f"{self._ssh.settings.where} does not run {PROGRAM}: {last[:300]}",
            cause="it is not installed there, the key runs another command, or sudo requires a "
            "password",
            next_step="compare authorized_keys and sudoers there with docs/proxmox.md",
            evidence=stderr,
        )

    def hello(self) -> frozenset[str]:
        """Return the programs that the node has. Raises as `ask`, and OutputUnreadable."""
        first, *others = self.ask("hello").decode("utf-8", "replace").splitlines() or [""]
        if first != _GREETING:
            raise OutputUnreadable(
                f"{self._ssh.settings.where} responds with {first[:60]!r}, expected {_GREETING!r}",
                cause=f"{PROGRAM} there belongs to another version of pvebench",
                next_step=INSTALL,
            )
        return frozenset(line.removeprefix("has ") for line in others[:50])

    def devices(self, volid: str) -> tuple[int, ...]:
        """Return the numbers of a volume's block devices.

        Raises OutputUnreadable: the response is invalid. Others as `ask`.
        """
        return parse_device(self.ask("find", volid), volid)[1]

    def drop(self, volid: str) -> int:
        """Write back and drop the node's page cache of a volume; return the bytes still cached."""
        return whole(self.ask("drop", volid), f"bytes of {volid} in the page cache")

    def start_time(self, vmid: int) -> int:
        """Return the start time of a VM's QEMU, in ticks since the node's boot.

        Raises HypervisorGone: it does not run. Others as `ask`.
        """
        counters = self._look(vmid, 0, ())
        try:
            stat = (counters / f"proc/{_pid(counters, vmid)}/stat").read_text("ascii")
            return int(stat.rpartition(")")[2].split()[_START_TIME])
        except (OSError, ValueError, IndexError) as error:
            raise HypervisorGone(f"VM {vmid} does not run on {self.where}") from error

    def kill_vm(self, vmid: int, mark: str, started: int) -> None:
        """Kill QEMU of pvebench's VM by SIGKILL; return after its end. Raises as `ask`.

        Args:
            started: its `start_time`, to end no other process.
        """
        self.do("kill", str(vmid), mark, str(started))

    def is_damaged(self, volid: str) -> bool:
        """Return whether a qcow2 file that is not in use has errors; unused clusters are none.

        Raises OutputUnreadable: qemu-img could not check it. Others as `ask`.
        """
        code = whole(self.ask("check", volid), f"exit code of qemu-img check for {volid}")
        if code not in (*SOUND, DAMAGED):
            raise OutputUnreadable(f"qemu-img check of {volid} failed on {self.where}: {code}")
        return code == DAMAGED

    def state(self) -> str:
        """Return the state of md, ZFS, dm and the disks as text, or why it is unknown."""
        try:
            return self.ask("state").decode("utf-8", "replace")[:_STATE_CHARACTERS]
        except (DriverError, OutputUnreadable) as error:
            return f"not available: {error.reason}"

    def snapshot(
        self, vmid: int, devices: tuple[int, ...] = (), container: int = 0
    ) -> HostSnapshot:
        """Return the current counters of node, VM, container and devices.

        Unreadable counters are absent.
        """
        start = time.monotonic()
        try:
            counters = self._look(vmid, container, devices)
            at = (start + time.monotonic()) / 2  # the counters were read at some time in between
            shot = read_snapshot(counters, pid=_pid(counters, vmid), devices=devices, at=at)
            used = group_seconds(counters / f"sys/fs/cgroup/lxc/{container}/cpu.stat")
            inside = {"container": used} if used is not None else {}
            return replace(
                shot,
                cpu_seconds={**shot.cpu_seconds, **inside},
                pressure_seconds=pressures(counters),
            )
        except (PvebenchError, OSError, ValueError, IndexError):
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={})

    def counters(self, device: int) -> BlockCounters:
        """Return a block device's counters since the node's boot.

        Raises SwitchFailed: the node has no such device. Others as `ask`.
        """
        try:
            return device_counters(self._look(0, 0, (device,)), device)
        except (OSError, ValueError, IndexError) as error:
            number = show_devices((device,))
            raise SwitchFailed(f"no counters of device {number} on {self.where}") from error

    def _look(self, vmid: int, container: int, devices: tuple[int, ...]) -> Fetched:
        numbers = show_devices(devices) or "0:0"
        return Fetched.read(self.ask("look", str(vmid), numbers, str(container)))

    def close(self) -> None:
        """Close the connection."""
        self._ssh.close()


def _signal(done: Completed) -> int:
    """Return the number of the signal that ended a program; 0: none."""
    number = done.exit_code - _SIGNALLED
    return number if 0 < number < signal.NSIG else 0


def _request(words: tuple[str, ...]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()


def _pid(counters: Fetched, vmid: int) -> int | None:
    path = counters / f"run/qemu-server/{vmid}.pid"
    text = path.read_text("ascii").strip() if path.is_file() else ""
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


_GIVES: Final = {
    "pvesm": "device bytes and caches of the volume",
    "fincore": "verifies that a volume's page cache is empty before each run",
    "kvm": "KVM exits per I/O (requires CONFIG_DEBUG_FS and root)",
    "zpool": "ZFS pools, scrub and cache in the evidence",
    "dmsetup": "device mapper in the evidence",
    "smartctl": "disk health in the evidence",
    "pct": "containers (`lxc: true` in a pack)",
}
_NEEDED: Final = frozenset({"pvesm", "fincore"})


def check_node(node: NodeSsh) -> Iterator[Finding]:
    """Yield whether the node responds over SSH, and the use of each program. Changes nothing."""
    try:
        has = node.hello()
    except PvebenchError as error:
        yield "ssh", False, str(error)
        return
    yield "ssh", True, "CPU by QEMU thread, pressure, verified dropping of caches"
    for name, gives in _GIVES.items():
        available = name in has
        lacking = f"missing: {gives}" + (
            f" (package {_PACKAGES[name]})" if name in _PACKAGES else ""
        )
        yield f"ssh {name}", available or name not in _NEEDED, gives if available else lacking
