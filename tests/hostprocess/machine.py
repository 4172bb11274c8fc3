"""A host in a process: User-mode Linux with disks of its own, booted in two seconds.

Its kernel has device mapper, md, NFS, CIFS, btrfs and xfs, whatever this machine's kernel has, and
needs neither root nor KVM. It sees the programs and the checkout of this machine read-only, below
an overlay in its memory. Its disks are sparse files, which survive its end, as disks do. It has one
CPU; QEMU in it is ten times slower than outside.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testing.packs import ROOT

PROGRAM: Final = "linux.uml"
BOOT_SECONDS: Final = 180.0
"""Long: beside others."""
MEMORY: Final = "1G"
"""Of guests and of what it writes besides its disks; taken when used."""
_INIT: Final = ROOT / "tests" / "hostprocess" / "init"
_REGISTERS: Final = ROOT / "tests" / "hostprocess" / "whole_registers.c"
_PACKAGES: Final = {
    PROGRAM: "user-mode-linux",
    "dmsetup": "dmsetup",
    "ganesha.nfsd": "nfs-ganesha-vfs",
    "lvcreate": "lvm2",
    "mdadm": "mdadm",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.xfs": "xfsprogs",
    "modprobe": "kmod",
    "mount.cifs": "cifs-utils",
    "rpcbind": "rpcbind",
    "smbd": "samba",
    "tcc": "tcc",
    "thin_check": "thin-provisioning-tools",
}
"""Program -> Debian's package."""
_WATCHED: Final = '(read -r _ <&2; kill -KILL 0) & exec "$0" "$@" 2>/dev/null'
"""Shell that runs a program until standard error, a pipe, ends: all processes of a group end with
the process that started them, however that ends."""
GOOD: Final = (0, 9)
"""Exit codes of a pvebench that measured: outcomes that need a look are no failure."""


class HostProcessMissing(RuntimeError):
    """This machine lacks what a host in a process needs; the message says what."""


class HostProcessError(RuntimeError):
    """It did not do what it was asked; the message says what it said."""


def need_host_process(*programs: str) -> None:
    """Raise HostProcessMissing with all that is lacking, for the host and for these programs."""
    places = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    names = (PROGRAM, "modprobe", "tcc", *programs)
    lacking = sorted({_PACKAGES[name] for name in names if not shutil.which(name, path=places)})
    if lacking:
        raise HostProcessMissing(f"apt-get install --no-install-recommends {' '.join(lacking)}")


def alive(group: int) -> list[int]:
    """Return the processes of a group that still run; dead ones may wait for their parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(path.parent.name))
    return found


def wait_until_gone(group: int, seconds: float = 30.0) -> bool:
    """Return whether no process of a group runs any longer."""
    deadline = time.monotonic() + seconds
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(group)


@dataclass
class HostProcess:
    """A running host; made by `running_host_process`.

    Attributes:
        directory: its console and what it shares with this machine.
        boot_seconds: until it answered.
    """

    directory: Path
    process: subprocess.Popen[bytes]
    boot_seconds: float = 0.0
    _lines: bytes = b""
    _count: int = field(default=0)

    @property
    def shared(self) -> Path:
        """`/run/shared` there."""
        return self.directory / "shared"

    def run(
        self,
        command: str,
        *,
        seconds: float = 300.0,
        stdin: bytes = b"",
        good: Sequence[int] = (0,),
    ) -> str:
        """Return what a bash script says. Raises HostProcessError: it failed or took too long."""
        self._count += 1
        name = f"command-{self._count}"
        if stdin:
            (self.shared / f"{name}.in").write_bytes(stdin)
            command = f"exec </run/shared/{name}.in\n{command}"
        self.start(name, command)
        code = self._answer(name, seconds)
        said, errors = (
            (self.shared / f"{name}.{end}").read_text("utf-8", "replace") for end in ("out", "err")
        )
        if code not in good:
            output = (errors or said).strip()[-2000:]
            raise HostProcessError(f"{command}: exit code {code}: {output}")
        return said

    def start(self, name: str, command: str) -> None:
        """Start a bash script and wait for nothing."""
        (self.shared / name).write_text(command, "utf-8")
        assert self.process.stdin
        self.process.stdin.write(f"{name}\n".encode())
        self.process.stdin.flush()

    def storage(self, verb: str, *words: str, seconds: float = 300.0) -> str:
        """Return what `storages.sh` says."""
        script = ROOT / "tests" / "hostvm" / "storages.sh"
        return self.run(shlex.join(["bash", str(script), verb, *words]), seconds=seconds).strip()

    def python(self, *words: str) -> str:
        """Return the command line of this Python with this checkout's modules."""
        path = f"PYTHONPATH={ROOT}/exporter:{ROOT}/tests"
        return shlex.join(["env", path, sys.executable, *words])

    def pvebench(self, *words: str, seconds: float = 300.0) -> str:
        """Return what this checkout's pvebench prints in there."""
        return self.run(
            self.python("-m", "hostprocess.patient", *words), seconds=seconds, good=GOOD
        )

    def _answer(self, name: str, seconds: float) -> int:
        """Return the exit code of a script."""
        for line in self._console(seconds):
            words = line.split()
            if words[:2] == [b"done", name.encode()]:
                return int(words[2])
        ended = self.process.poll() is not None
        why = "it ended" if ended else f"no answer after {seconds:.0f} s"
        self.close()  # what hangs would also keep the next command waiting
        output = (self.directory / "console").read_text("utf-8", "replace")[-2000:]
        raise HostProcessError(f"{name}: {why}; the end of its console:\n{output}")

    def _console(self, seconds: float) -> Iterator[bytes]:
        """Yield lines of its console until its end or the limit, and keep them in a file."""
        out = self.process.stdout
        assert out
        deadline = time.monotonic() + seconds
        with (
            selectors.DefaultSelector() as selector,
            (self.directory / "console").open("ab") as log,
        ):
            selector.register(out, selectors.EVENT_READ)
            while selector.select(max(deadline - time.monotonic(), 0)):
                read = os.read(out.fileno(), 65536)
                if not read:
                    return
                log.write(read)
                log.flush()
                *lines, self._lines = (self._lines + read).split(b"\n")
                yield from lines

    def wait(self) -> None:
        """Wait until it answers. Raises HostProcessError with the end of its console."""
        began = time.monotonic()
        self._answer("boot", BOOT_SECONDS)
        self.boot_seconds = time.monotonic() - began

    def close(self) -> None:
        """End it as a loss of power does: of what it did, its disks and `shared` remain."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        # The kernel ends what it had traced a moment later.
        wait_until_gone(self.process.pid)
        for end in (self.process.stdin, self.process.stdout):
            if end:
                with suppress(BrokenPipeError):
                    end.close()


def _command(directory: Path, disks: Sequence[Path], memory: str) -> list[str]:
    words = ["bash", "-c", _WATCHED, PROGRAM, f"mem={memory}", "quiet"]
    words += ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={_INIT}"]
    words += [f"uml_dir={directory}/", "umid=uml", "con=null", "ssl=null", "con0=fd:0,fd:1"]
    words += [f"SHARED={directory}/shared", f"DISKS={len(disks)}"]
    return [*words, *(f"ubd{number}={disk}" for number, disk in enumerate(disks))]


def _with_whole_registers(directory: Path) -> dict[str, str]:
    """Return the environment in which the program boots on each CPU."""
    library = directory / "whole_registers.so"
    subprocess.run(["tcc", "-shared", "-nostdlib", "-o", library, _REGISTERS], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def make_disks(directory: Path, count: int, size: int) -> list[Path]:
    """Return new sparse files of `size` bytes."""
    disks = [directory / f"disk{number}" for number in range(count)]
    for path in disks:
        with path.open("wb") as disk:
            disk.truncate(size)
    return disks


@contextmanager
def running_host_process(
    directory: Path, disks: Sequence[Path], memory: str = MEMORY
) -> Iterator[HostProcess]:
    """Yield a host with these disks; nothing of it runs afterwards.

    Raises:
        HostProcessMissing: this machine lacks what it needs.
        HostProcessError: it does not boot.
    """
    need_host_process()
    (directory / "shared").mkdir(exist_ok=True)
    environment = _with_whole_registers(directory)
    watched, ours = os.pipe()
    try:
        process = subprocess.Popen(
            _command(directory, disks, memory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=watched,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(watched)
    machine = HostProcess(directory, process)
    try:
        machine.wait()
        yield machine
    finally:
        machine.close()
        os.close(ours)
