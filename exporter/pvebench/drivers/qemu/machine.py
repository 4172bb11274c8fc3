"""QEMU process: command line, sockets, start and end, cleanup after a crash."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.qmp import Channel, QemuGuest
from pvebench.drivers.responses import count, fields, text
from pvebench.drivers.storages.qemu_img import overlay_on
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    Interrupted,
    MachineError,
    OutcomeUnknown,
    ToolsMissing,
)
from pvebench.files import read_tail, remove_tree
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import KERNEL_ARGUMENTS
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB, whole_number

KIND: Final = "vm"
"""Kind of the journal entries of VMs."""
QUIT_SECONDS: Final = 30.0
"""Time limit for QEMU to write back its images' data in memory."""
BOOT_SECONDS: Final = 300.0
"""Deadline from power-on to the agent's first response. It only detects a guest that hangs, so it
is long: under TCG on a busy host a boot can take more than a minute."""
SWITCH_SECONDS: Final = 60.0
"""Deadline of each step of a hot-plug or unplug, long for the same reason."""
_TAIL_BYTES: Final = 2000
CONSOLE: Final = "console.log"
_CONSOLE_BYTES: Final = MIB
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class QemuMachine:
    """Benchmark VM. `start` starts it, `kill` ends it.

    All of its files are in one directory below `runtime`. Its UUID is on its command line, so that
    a later process can find it without relying on a process ID.
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

    @property
    def pid(self) -> int | None:
        """QEMU's process ID while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def qmp(self) -> Channel:
        """The control channel. Raises HypervisorGone: QEMU has exited."""
        if self._qmp is None or self.pid is None:
            raise self._gone()
        return self._qmp

    def start(
        self, image: GuestImage, machine: Machine, accelerator: Accelerator, *, timeout: float
    ) -> QemuGuest:
        """Boot the guest; return it when its agent responds, within `timeout` seconds.

        After an error, the VM is removed. Raises as `launch` and `wait`.
        """
        self.launch(image, machine, accelerator)
        return self.wait(timeout=timeout)

    def launch(
        self,
        image: GuestImage,
        machine: Machine,
        accelerator: Accelerator,
        *,
        disk: Sequence[str] = (),
    ) -> None:
        """Begin the boot; `wait` returns the guest.

        Args:
            disk: options of the command line that attach a disk at power-on.

        Raises ToolsMissing, VolumeError.
        """
        self._entry = self._journal.open(KIND, {"uuid": self.uuid})
        with self._killed_by_error():
            self.directory.mkdir(parents=True, mode=0o700)
            if machine.foreign:
                overlay_on(Path(machine.image), self.directory / SYSTEM)
            self._launch([*arguments(self.uuid, image, machine, accelerator), *disk])

    def wait(self, *, timeout: float) -> QemuGuest:
        """Return the guest when its agent responds.

        Raises HypervisorGone, GuestTimeout, Interrupted.
        """
        with self._killed_by_error():
            return self._connect(timeout)

    @contextlib.contextmanager
    def _killed_by_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def _launch(self, argv: list[str]) -> None:
        # The path of a UNIX socket is limited to 107 characters; with the descriptor it is short.
        self._directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with (self.directory / "qemu.log").open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    argv,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C must only reach pvebench, which detaches the disk and ends the VM.
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise ToolsMissing(
                    f"{BINARY} is not installed",
                    next_step="run `apt-get install --no-install-recommends qemu-system-x86`",
                ) from error

    def _connect(self, timeout: float) -> QemuGuest:
        self._qmp = self._channel("QMP", "qmp.sock", negotiate=True)
        self._agent = self._channel("the guest agent", "agent.sock", negotiate=False)
        guest = QemuGuest(self._agent, self._clock)
        try:
            self._qmp.connect(timeout=10.0)
            self._agent.connect(timeout=10.0)
            # Sent before the guest has booted: the socket buffers it until the agent reads it.
            guest.ping(timeout=timeout)
        except GuestTimeout as error:
            raise GuestTimeout(
                f"no response of the guest agent within {timeout:.0f} s of power-on",
                cause="the guest hangs during its boot, or this host is overloaded",
                evidence=self.console(),
            ) from error
        except HypervisorGone:  # the channel closes before the process ends
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
            self._check()
            raise
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
        output = self._tail("qemu.log")
        return HypervisorGone(
            f"QEMU exited with status {code}" + (f": {output.splitlines()[-1]}" if output else ""),
            cause="the guest shut down or restarted, which an image may not do while it boots"
            if code == 0
            else "it was killed, ran out of memory, or rejected its options",
            evidence=f"{output}\n{self.console()}",
        )

    def console(self) -> str:
        """Return the end of the guest's console, for evidence."""
        return self._tail(CONSOLE)

    def _tail(self, name: str, most: int = _TAIL_BYTES) -> str:
        return read_tail(self.directory / name, most)

    @property
    def log_size(self) -> int:
        """Bytes of QEMU's own output so far."""
        return (self.directory / "qemu.log").stat().st_size

    def messages(self, old: int) -> str:
        """Return the end of QEMU's own output after its first `old` bytes."""
        return self._tail("qemu.log", min(_TAIL_BYTES, self.log_size - old))

    def bound_console(self) -> None:
        """Empty the console log if it is large: the guest writes it, and QEMU appends."""
        path = self.directory / CONSOLE
        with contextlib.suppress(OSError):
            if path.stat().st_size > _CONSOLE_BYTES:
                os.truncate(path, 0)

    def quit(self) -> None:
        """Let QEMU close its images, then end it. Safe to call at any time."""
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
            return  # it hangs: do not wait for it a second time
        except (DriverError, Interrupted):
            pass  # neither an error reply nor a requested stop matters: QEMU must end
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(QUIT_SECONDS)

    def kill(self) -> None:
        """End QEMU and remove its files. Safe to call at any time, also twice.

        Raises DriverError: it does not end; the next call tries again.
        """
        for channel in (self._agent, self._qmp):
            if channel is not None:
                channel.close()
        self._agent = self._qmp = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise _does_not_end(self._process.pid) from error
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1
        with contextlib.suppress(MachineError):  # the entry stays open; the next start reports it
            remove_tree(self.directory)
            if self._entry >= 0:
                self._journal.close(self._entry)
                self._entry = -1


BINARY: Final = "qemu-system-x86_64"

EMULATED_CPU: Final = "max,-erms,-fsrm"
"""CPU model under TCG. With these flags Linux copies memory by `rep movsb`, which TCG executes byte
by byte (`gen_repz` in target/i386/tcg/translate.c); without them it copies words."""
EMULATED_KERNEL: Final = " no_timer_check norandmaps"
"""Kernel arguments under TCG. On an overloaded host the timer ticks too late for Linux's test of
it, and the guest panics (`check_timer` in arch/x86/kernel/apic/io_apic.c). Under KVM, Linux omits
the test (`kvm_guest_init`). QEMU translates a program again at other addresses (`info jit`): with
random ones, 35,000 blocks at each start of fio, and twice the CPU time."""


def arguments(
    identity: str, image: GuestImage, machine: Machine, accelerator: Accelerator
) -> list[str]:
    """Return QEMU's command line for the benchmark VM, run in the VM's directory."""
    emulated = accelerator is not Accelerator.KVM
    options: list[tuple[str, ...]] = [
        ("-name", f"pvebench-{identity[:8]},debug-threads=on"),
        ("-uuid", identity),
        # i440fx is Proxmox's default for Linux guests.
        ("-machine", f"type=pc,accel={accelerator},usb=off"),
        ("-cpu", EMULATED_CPU if emulated else "host" + _ENLIGHTENED * bool(machine.foreign)),
        ("-smp", cpus_option(machine, accelerator)),
        ("-m", f"{machine.memory_bytes // MIB}M"),
        ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *(_of_installed() if machine.foreign else _of_image(image, emulated=emulated)),
        ("-chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off"),
        ("-mon", "chardev=qmp,mode=control"),
        ("-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off"),
        ("-device", "virtio-serial-pci"),
        ("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
        ("-chardev", f"file,id=console,path={CONSOLE},append=on"),
        ("-device", "isa-serial,chardev=console"),
        ("-device", "virtio-rng-pci"),
    ]
    return [BINARY, *chain.from_iterable(options)]


SYSTEM: Final = "system.qcow2"
"""Overlay on the image of a guest with another system, in the VM's directory."""
_ENLIGHTENED: Final = ",hv_relaxed,hv_vapic,hv_spinlocks=0x1fff,hv_time"
"""As Proxmox sets for Windows (`get_hyperv_enlightenments` in PVE/QemuServer/CPUConfig.pm)."""


def _of_image(image: GuestImage, *, emulated: bool) -> list[tuple[str, ...]]:
    return [
        ("-kernel", str(image.kernel), "-initrd", str(image.initramfs)),
        ("-append", KERNEL_ARGUMENTS + (EMULATED_KERNEL if emulated else "")),
    ]


def _of_installed() -> list[tuple[str, ...]]:
    """Boot the overlay from SATA, for which each system has a driver, and without a network."""
    return [
        ("-drive", f"file={SYSTEM},if=none,id=system,format=qcow2,cache=unsafe"),
        ("-device", "ahci,id=sata", "-device", "ide-hd,bus=sata.0,drive=system"),
        ("-device", "VGA", "-rtc", "base=localtime"),
    ]


def cpus_option(machine: Machine, accelerator: Accelerator) -> str:
    """Return the number of the guest's CPUs and its maximum, which under TCG is at least two.

    With a maximum of one CPU, QEMU assumes a guest without parallelism (no CF_PARALLEL, see
    `mttcg_start_vcpu_thread`) and translates `lock` instructions, which are Linux's memory
    barriers, without one; before 8.1 fences too. But I/O threads run in parallel to that CPU: they
    and the guest then miss each other's notifications, and the disk hangs with completed I/O.
    """
    if accelerator is Accelerator.KVM:
        return str(machine.cpus)
    return f"cpus={machine.cpus},maxcpus={max(2, machine.cpus)}"


_VERSION: Final = fields(qemu=fields(major=count, minor=count, micro=count), package_=text)


def qemu_facts(qmp: Channel) -> dict[str, str]:
    """Return QEMU's version and machine type. Raises HypervisorGone."""
    version: dict[str, Any] = qmp.ask("query-version", shape=_VERSION)
    number = version["qemu"]
    machine: str = qmp.ask("qom-get", {"path": "/machine", "property": "type"}, shape=text)
    return {
        "qemu": f"{number['major']}.{number['minor']}.{number['micro']}",
        "qemu_package": version.get("package") or "",
        "machine": machine.removesuffix("-machine"),
    }


def prove_kvm(
    image: GuestImage, runtime: Path, *, journal: Journal, clock: Clock, timeout: float
) -> Callable[[], None]:
    """Return a function that boots a guest under KVM and ends it. It raises DriverError."""

    def prove() -> None:
        vm = QemuMachine(runtime, journal=journal, clock=clock)
        small = Machine(memory_bytes=768 * MIB, cpus=1)
        try:
            vm.start(image, small, Accelerator.KVM, timeout=timeout)
        except OSError as error:
            raise DriverError(
                f"cannot start QEMU: {error}", next_step="make the program executable by this user"
            ) from error
        finally:
            vm.kill()

    return prove


END_SECONDS: Final = 30.0
"""Time limit for the end of a killed QEMU: its last I/O must complete first."""


def _does_not_end(pid: int) -> DriverError:
    return DriverError(
        f"QEMU process {pid} did not end",
        cause="its I/O hangs: the disk or server does not respond",
        next_step="check the storage, and the kernel log with `dmesg`",
    )


def _directory(runtime: Path, identity: str) -> Path:
    return runtime / identity[:8]


def undo_vm(runtime: Path, details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND: end the VM that runs in its directory below `runtime`."""
    identity = details["uuid"]
    if not _UUID.fullmatch(identity):
        return f"VM {identity!r} not changed: the journal entry is damaged, that is not a UUID"
    directory = _directory(runtime, identity)
    deadline, ended = time.monotonic() + END_SECONDS, set[int]()
    while left := [
        pid for pid in processes_with(identity) if _end_process(pid, identity, directory)
    ]:
        ended.update(left)
        if time.monotonic() > deadline:
            raise _does_not_end(left[0])
        time.sleep(0.05)
    remove_tree(directory)
    others = ", ".join(str(pid) for pid in processes_with(identity))
    kept = f"; process {others} not changed: it runs in another directory" if others else ""
    return f"ended VM {identity} (leftover processes: {len(ended)}){kept}"


def _end_process(pid: int, identity: str, directory: Path) -> bool:
    """Kill a process if it is the VM of that directory; return whether it is.

    The descriptor is opened first, so that the checked process is the signaled one even if its ID
    is reused.
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
    """Return whether a process has this working directory, which may have been removed."""
    current = Path(f"/proc/{pid}/cwd")
    if directory.exists():
        return directory.samefile(current)
    return str(current.readlink()) == f"{directory.resolve()} (deleted)"


def processes_with(identity: str) -> list[int]:
    """Return the processes that have `-uuid identity` on their command line."""
    numbers = (whole_number(entry.name) for entry in Path("/proc").iterdir())
    return [pid for pid in numbers if pid is not None and _has_uuid(pid, identity)]


def _has_uuid(pid: int, identity: str) -> bool:
    with contextlib.suppress(OSError):
        return f"-uuid\0{identity}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
