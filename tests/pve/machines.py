"""What runs under the API: here a cheap stand-in, whose guest is this machine's shell."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from pve.drives import parse

AGENT_COMMANDS = (
    *("guest-ping", "guest-info", "guest-exec", "guest-exec-status", "guest-file-open"),
    *("guest-file-read", "guest-file-write", "guest-file-close"),
)
_Ended = subprocess.CompletedProcess[bytes]
_BESIDE = ThreadPoolExecutor(max_workers=8)
"""Runs the guests' programs: an agent starts one and answers."""


def _finish(process: subprocess.Popen[bytes], given: bytes) -> _Ended:
    try:
        out, err = process.communicate(given, timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return _Ended(process.args, process.returncode, out, err)


class AgentRefusal(Exception):
    """The agent's own error."""


class AgentSilence(Exception):
    """The agent does not answer."""


class Machine(Protocol):
    """QEMU with a guest. Slots are Proxmox's: `scsi1`."""

    def start(self, config: Mapping[str, Any]) -> list[str]:
        """Power on; return QEMU's complaints, each a warning. Raises RuntimeError."""

    def stop(self) -> None: ...

    def alive(self) -> bool: ...

    def plug(self, slot: str, value: str, scsihw: str) -> None:
        """Raises RuntimeError with QEMU's words."""

    def unplug(self, slot: str) -> None:
        """Raises RuntimeError with QEMU's words."""

    def blockstat(self) -> dict[str, dict[str, int]]: ...

    def qmp_status(self) -> str:
        """Return `running`, `io-error` …"""

    def versions(self) -> tuple[str, str]:
        """Return running-qemu and running-machine."""

    def monitor(self, command: str) -> str: ...

    def agent(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Raises AgentRefusal, AgentSilence."""


class CheapMachine:
    """No QEMU: slots are entries in a table, programs run in a directory of this machine."""

    blocked: Collection[str] = ()
    """Commands that the agent's configuration blocks."""

    def __init__(self, directory: Path, volumes: Any, *, qemu: Callable[[], str]) -> None:
        self._root = directory
        self._volumes = volumes
        self._installed_qemu = qemu
        self._qemu = ""
        self._running = False
        self.slots: dict[str, str] = {}
        self.programs: dict[int, Future[_Ended]] = {}
        self._pids = itertools.count(10_000_000)
        """Numbers that no process of this machine has."""
        self.hung = False
        """The guest does not let go of disks, and its agent is silent."""
        self.agent_dead = False
        self.full = False
        """A write found no room: QEMU has stopped the guest (status running, io-error)."""
        self.frozen = False
        """A backup has frozen the guest's file systems: its agent answers, but runs nothing."""

    def start(self, config: Mapping[str, Any]) -> list[str]:
        self.slots = {}
        if str(config.get("kvm", "1")) == "0" and str(config.get("cpu", "")).startswith("host"):
            raise RuntimeError("CPU model 'host' requires KVM or HVF")
        for slot, value in config.items():
            if slot[:3] in ("scs", "vir", "sat", "ide") and slot[-1].isdigit():
                self._open(slot, str(value))
        shutil.rmtree(self._root, ignore_errors=True)
        (self._root / "run/pvebench").mkdir(parents=True)
        self._running, self.hung, self.agent_dead, self.frozen = True, False, False, False
        self.full = False
        self._qemu = self._installed_qemu()
        return []

    def _open(self, slot: str, value: str) -> None:
        volid, options = parse(value)
        self._volumes.path(volid)
        direct = options.get("cache", "none") in ("none", "directsync")
        if options.get("aio") == "native" and not direct:
            raise RuntimeError(
                "aio=native was specified, but it requires cache.direct=on, which was not "
                "specified."
            )
        self.slots[slot] = value

    def stop(self) -> None:
        self._running = False
        self.slots = {}

    def alive(self) -> bool:
        return self._running

    def plug(self, slot: str, value: str, scsihw: str) -> None:
        try:
            self._open(slot, value)
        except RuntimeError as error:
            # The words of `sw.aio-native-with-writeback` in the recordings of 8.4 and 9.2.
            as_node = f"blockdev 'drive-{slot}' failed : VM qmp command 'blockdev-add' failed -"
            what = as_node if int(self._qemu.partition(".")[0]) >= 10 else "drive failed:"
            raise RuntimeError(f"adding {what} {error}") from error

    def unplug(self, slot: str) -> None:
        if self.hung or self.full:
            raise RuntimeError(f"error on hot-unplugging device '{slot}' - still busy in guest?\n")
        self.slots.pop(slot, None)

    def qmp_status(self) -> str:
        return "io-error" if self.full else "running"

    def blockstat(self) -> dict[str, dict[str, int]]:
        names = ("rd_operations", "wr_operations", "flush_operations", "rd_bytes", "wr_bytes")
        return {slot: dict.fromkeys([*names, "unmap_operations"], 0) for slot in self.slots}

    def versions(self) -> tuple[str, str]:
        return self._qemu, f"pc-i440fx-{self._qemu.rpartition('.')[0]}+pve0"

    def monitor(self, command: str) -> str:
        if command != "info iothreads":
            return f"{command}\n"
        names = [
            f"iothread-virtio{slot}" if slot.startswith("scsi") else f"iothread-{slot}"
            for slot, value in self.slots.items()
            if "iothread=1" in value
        ]
        return "".join(f"{name}:\n  thread_id=1\n" for name in names)

    def _refuse(self, command: str) -> None:
        if self.hung or self.agent_dead or self.full:
            raise AgentSilence
        if f"guest-{command}" in self.blocked:
            raise AgentRefusal(f"Command guest-{command} has been disabled")
        if self.frozen and command in ("exec", "exec-status", "file-read", "file-write"):
            raise AgentRefusal(
                f"The command guest-{command} has been disabled: not allowed "
                "while file systems are frozen"
            )

    def agent(self, command: str, arguments: Mapping[str, Any]) -> Any:
        self._refuse(command)
        match command:
            case "ping":
                return {}
            case "info":  # as `agent.info` of the recordings
                rows = [
                    {"name": name, "enabled": name not in self.blocked} for name in AGENT_COMMANDS
                ]
                return {"version": "7.2.22", "supported_commands": rows}
            case "exec":
                return {"pid": self._exec(arguments["command"], arguments["input"])}
            case "exec-status":
                return self._status(int(arguments["pid"]))
            case "file-read":
                try:
                    return self._inside(arguments["file"]).read_bytes()
                except OSError as error:
                    raise AgentRefusal(
                        f"failed to open file '{arguments['file']}' (mode: 'r'): {error.strerror}"
                    ) from error
            case "file-write":
                self._inside(arguments["file"]).write_bytes(arguments["content"])
                return None
        raise AgentRefusal(f"The command guest-{command} has not been found")

    def _status(self, pid: int) -> dict[str, Any]:
        """Tell how a program ended, once."""
        found = self.programs.get(pid)
        if found is None:
            raise AgentRefusal("Invalid parameter 'pid'")
        if not found.done():
            return {"exited": 0}
        done = self.programs.pop(pid).result()
        # A signal's number is told otherwise; nothing here asks for it.
        code = abs(done.returncode)
        return {"exited": 1, "exitcode": code, "out": done.stdout, "err": done.stderr}

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _exec(self, argv: list[str], given: bytes) -> int:
        if any("/usr/bin/pvebench-disk" in word for word in argv):
            pid = next(self._pids)
            self.programs[pid] = Future()
            self.programs[pid].set_result(self._disk(argv[-1]))
            return pid
        inside = [word.replace("/run/pvebench", f"{self._root}/run/pvebench") for word in argv]
        inside = [self._device(word) for word in inside]
        process = subprocess.Popen(
            inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.programs[process.pid] = _BESIDE.submit(_finish, process, given)
        return process.pid

    def _device(self, word: str) -> str:
        """Return a word with the files behind the guest's devices in it."""

        def path(match: re.Match[str]) -> str:
            value = self.slots.get(match[1])
            return str(self._volumes.path(parse(value)[0])) if value else match[0]

        return re.sub(r"/dev/test-(\w+)", path, word)

    def _disk(self, serial: str) -> subprocess.CompletedProcess[bytes]:
        for slot, value in self.slots.items():
            volid, options = parse(value)
            if options.get("serial") == serial:
                cache = (
                    "write-through"
                    if options.get("cache") in ("writethrough", "directsync")
                    else "write-back"
                )
                text = (
                    f"device=/dev/test-{slot} size_bytes={self._volumes.size(volid)} "
                    f"write_cache={cache} rotational={int('ssd=1' not in value)}\n"
                )
                return subprocess.CompletedProcess([], 0, text.encode(), b"")
        return subprocess.CompletedProcess([], 1, b"", b"no such disk\n")
