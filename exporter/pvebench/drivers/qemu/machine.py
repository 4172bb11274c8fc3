"""One QEMU process: its command line, its sockets, its beginning and end, what a crash left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.qmp import Channel, QemuGuest
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    Interrupted,
    MachineError,
    OutcomeUnknown,
    ToolsMissing,
)
from pvebench.files import remove_tree
from pvebench.guest import KERNEL_ARGUMENTS, GuestImage
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB

KIND: Final = "vm"
"""Kind of the journal entries made here."""
QUIT_SECONDS: Final = 30.0
"""How long QEMU may take to write back what its images hold in memory."""
_TAIL_BYTES: Final = 2000
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class QemuMachine:
    """A running benchmark VM. Made by `start`, ended by `kill`.

    Everything it leaves on disk is in one directory below `runtime`; its UUID is on its command
    line, so that a later process can find it without trusting a process number.
    """

    def __init__(self, runtime: Path, *, journal: Journal, clock: Clock) -> None:
        self.uuid = str(uuid.uuid4())
        self.directory = _directory(runtime, self.uuid)
        self._journal = journal
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._directory_fd = -1
        self._entry = -1
        self._qmp: Channel | None = None
        self._agent: Channel | None = None
        self.boot_seconds = 0.0
        """From power-on to the agent's first answer."""

    @property
    def pid(self) -> int | None:
        """QEMU's process number while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def qmp(self) -> Channel:
        """The control channel.

        Raises:
            HypervisorGone: QEMU has exited.
        """
        if self._qmp is None or self.pid is None:
            raise self._gone()
        return self._qmp

    def start(
        self,
        image: GuestImage,
        machine: Machine,
        accelerator: Accelerator,
        *,
        timeout: float,
        disk: Sequence[str] = (),
    ) -> QemuGuest:
        """Boot the guest; return it once its agent answers, within `timeout` seconds.

        After any error nothing of the VM is left.

        Args:
            disk: options of the command line that plug a disk at power-on.

        Raises:
            ToolsMissing, HypervisorGone, GuestSilent, Interrupted.
        """
        self._entry = self._journal.open(KIND, {"uuid": self.uuid})
        try:
            begun = self._clock.monotonic()
            self._launch([*arguments(self.uuid, image, machine, accelerator), *disk])
            guest = self._meet(timeout)
        except BaseException:
            self.kill()
            raise
        self.boot_seconds = self._clock.monotonic() - begun
        return guest

    def _launch(self, argv: list[str]) -> None:
        self.directory.mkdir(parents=True, mode=0o700)
        # A UNIX socket's path may have 107 characters; through the descriptor it is short.
        self._directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with (self.directory / "qemu.log").open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    argv,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C is for us: the VM is ended in order, after its disk is unplugged.
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise ToolsMissing(
                    f"{BINARY} is not installed",
                    next_step="install it: apt-get install --no-install-recommends qemu-system-x86",
                ) from error

    def _meet(self, timeout: float) -> QemuGuest:
        self._qmp = self._channel("QMP", "qmp.sock", negotiate=True)
        self._qmp.connect(timeout=10.0)
        self._agent = self._channel("the guest agent", "agent.sock", negotiate=False)
        self._agent.connect(timeout=10.0)
        guest = QemuGuest(self._agent, self._clock)
        try:
            # Sent before the guest is up: the socket keeps it until the agent reads it.
            guest.ping(timeout=timeout)
        except GuestTimeout as error:
            raise GuestTimeout(
                f"the guest's agent did not answer within {timeout:.0f} s of power-on",
                cause="the guest hangs while booting, or this host is overloaded",
                evidence=self.console(),
            ) from error
        return guest

    def _channel(self, name: str, socket: str, *, negotiate: bool) -> Channel:
        path = f"/proc/self/fd/{self._directory_fd}/{socket}"
        return Channel(name, path, negotiate=negotiate, check=self._check)

    def _check(self) -> None:
        self._clock.sleep(0)
        if self.pid is None:
            raise self._gone()

    def _gone(self) -> HypervisorGone:
        code = self._process.poll() if self._process else None
        said = self._tail("qemu.log")
        return HypervisorGone(
            f"QEMU has exited with status {code}" + (f": {said.splitlines()[-1]}" if said else ""),
            cause="it was killed, ran out of memory, or refused its options",
            evidence=f"{said}\n{self.console()}",
        )

    def console(self) -> str:
        """Return the end of the guest's console, for evidence."""
        return self._tail("console.log")

    def _tail(self, name: str) -> str:
        try:
            return (self.directory / name).read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""

    def quit(self) -> None:
        """Let QEMU close its images in order, then end it. Safe to call at any time."""
        try:
            if self._process is not None and self.pid is not None and self._qmp is not None:
                self._ask_to_quit(self._qmp, self._process)
        finally:
            self.kill()

    @staticmethod
    def _ask_to_quit(qmp: Channel, process: subprocess.Popen[bytes]) -> None:
        try:
            qmp.execute("quit", timeout=QUIT_SECONDS)
        except OutcomeUnknown:
            return  # it hangs: no use in waiting as long again
        except (DriverError, Interrupted):
            pass  # whatever it answers, and also when we are to stop: what counts is that it ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(QUIT_SECONDS)

    def kill(self) -> None:
        """End QEMU and remove what it left. Safe to call at any time, also twice."""
        for channel in (self._agent, self._qmp):
            if channel is not None:
                channel.close()
        self._agent = self._qmp = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1
        with contextlib.suppress(MachineError):  # the entry stays open: the next start says it
            remove_tree(self.directory)
            if self._entry >= 0:
                self._journal.close(self._entry)
                self._entry = -1


BINARY: Final = "qemu-system-x86_64"


def arguments(
    identity: str, image: GuestImage, machine: Machine, accelerator: Accelerator
) -> list[str]:
    """Return QEMU's command line for the benchmark VM, run in the VM's directory."""
    cpu = "host" if accelerator is Accelerator.KVM else "max"
    return [
        BINARY,
        "-name",
        f"pvebench-{identity[:8]},debug-threads=on",
        "-uuid",
        identity,
        # i440fx is what Proxmox gives a Linux guest unless told otherwise.
        "-machine",
        f"type=pc,accel={accelerator},usb=off",
        "-cpu",
        cpu,
        "-smp",
        cpus_option(machine, accelerator),
        "-m",
        f"{machine.memory_bytes // MIB}M",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-kernel",
        str(image.kernel),
        "-initrd",
        str(image.initramfs),
        "-append",
        KERNEL_ARGUMENTS,
        "-chardev",
        "socket,id=qmp,path=qmp.sock,server=on,wait=off",
        "-mon",
        "chardev=qmp,mode=control",
        "-chardev",
        "socket,id=agent,path=agent.sock,server=on,wait=off",
        "-device",
        "virtio-serial-pci",
        "-device",
        "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
        "-chardev",
        "file,id=console,path=console.log",
        "-device",
        "isa-serial,chardev=console",
        "-device",
        "virtio-rng-pci",
    ]


def cpus_option(machine: Machine, accelerator: Accelerator) -> str:
    """Return how many CPUs the guest has, and how many it might get: under TCG at least two.

    With room for a single CPU QEMU takes the guest for alone (no CF_PARALLEL, see
    `mttcg_start_vcpu_thread`) and translates `lock` instructions, which are Linux's memory
    barriers, without one; before 8.1 fences too. But the I/O threads run beside that CPU: they
    and the guest then miss each other's notifications, and the disk hangs with its I/O done.
    """
    if accelerator is Accelerator.KVM:
        return str(machine.cpus)
    return f"cpus={machine.cpus},maxcpus={max(2, machine.cpus)}"


def prove_kvm(
    image: GuestImage, runtime: Path, *, journal: Journal, clock: Clock, timeout: float
) -> Callable[[], None]:
    """Return a function that boots a guest under KVM and ends it; it raises DriverError if not."""

    def prove() -> None:
        vm = QemuMachine(runtime, journal=journal, clock=clock)
        small = Machine(memory_bytes=768 * MIB, cpus=1)
        try:
            vm.start(image, small, Accelerator.KVM, timeout=timeout)
        except OSError as error:
            raise DriverError(
                f"QEMU could not be started: {error}",
                next_step="start the same program by hand: it must be executable by this user",
            ) from error
        finally:
            vm.kill()

    return prove


END_SECONDS: Final = 10.0
"""How long a killed QEMU may take to be gone: its last I/O must come back first."""


def _directory(runtime: Path, identity: str) -> Path:
    return runtime / identity[:8]


def undo_vm(runtime: Path, details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND: end the VM that runs in its directory below `runtime`."""
    identity = details["uuid"]
    if not _UUID.fullmatch(identity):
        return f"left VM {identity!r} alone: the journal entry is damaged, that is no UUID"
    directory = _directory(runtime, identity)
    deadline, ended = time.monotonic() + END_SECONDS, set[int]()
    while left := [
        pid for pid in processes_with(identity) if _end_process(pid, identity, directory)
    ]:
        ended.update(left)
        if time.monotonic() > deadline:
            raise DriverError(f"QEMU process {left[0]} does not end", cause="its I/O hangs")
        time.sleep(0.05)
    remove_tree(directory)
    others = ", ".join(str(pid) for pid in processes_with(identity))
    alone = f"; left process {others} alone: it runs elsewhere" if others else ""
    return f"ended VM {identity} ({len(ended)} process left of it){alone}"


def _end_process(pid: int, identity: str, directory: Path) -> bool:
    """Kill a process if it is the VM of that directory; return whether it is.

    The descriptor is opened first: what is looked at then is what is signalled, whatever becomes
    of the number.
    """
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if _has_uuid(pid, identity) and _runs_in(pid, directory):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _runs_in(pid: int, directory: Path) -> bool:
    """Tell whether a process works in a directory, or did until that was removed."""
    here = Path(f"/proc/{pid}/cwd")
    if directory.exists():
        return directory.samefile(here)
    return str(here.readlink()) == f"{directory.resolve()} (deleted)"


def processes_with(identity: str) -> list[int]:
    """Return the processes that have `-uuid identity` on their command line."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if _has_uuid(pid, identity)]


def _has_uuid(pid: int, identity: str) -> bool:
    with contextlib.suppress(OSError):
        return f"-uuid\0{identity}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
