"""A Debian in a VM that plays the host: booted, reached by ssh, ended and gone.

QEMU emulates it (TCG): nested guests hang where this was written under KVM, and a machine that
only plays a host need not be quick. Its disks are sparse files that it may break: four of virtio
(`vdb` to `vde`), and one of SATA (`sda`), which has a write cache to turn off. What it writes is
gone with it.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hostvm.image import HostVmMissing, Image, image
from testing.packs import ROOT
from testing.prometheus import free_port

BOOT_SECONDS: Final = 600.0
"""Long: under emulation, beside others."""
DISK_BYTES: Final = 3 << 30
NBD_PORT: Final = 10809
"""There."""
_DISKS: Final = ("d1", "d2", "d3", "d4")
OF_ZFS: Final = ("zvol", "zfs-ssd-cache")
"""Storages of `storages.sh`."""
HOME: Final = "/opt/pvebench"
"""Where the checkout is there."""
_SENT: Final = ("exporter", "scenarios", "tests/hostvm", "tests/e2e")


def python(*words: str) -> list[str]:
    """Return the words of that Debian's Python with the checkout's modules."""
    path = f"PYTHONPATH={HOME}/exporter:{HOME}/tests:{HOME}/site"
    return ["env", path, "python3", *words]


class HostVmError(RuntimeError):
    """The VM did not do what it was asked; the message says what it said."""


@dataclass
class HostVm:
    """A running machine; made by `running_host`.

    Attributes:
        directory: its disks, console and known_hosts.
        port: of its ssh, on 127.0.0.1.
        nbd_port: on 127.0.0.1, of an NBD server there on NBD_PORT.
        boot_seconds: until it answered.
    """

    directory: Path
    image: Image
    port: int
    nbd_port: int
    process: subprocess.Popen[bytes]
    boot_seconds: float = 0.0

    @property
    def key_file(self) -> Path:
        """Of the users root and pvebench."""
        return self.image.keys / "user_key"

    @property
    def known_hosts(self) -> Path:
        """Its host key, known before it boots."""
        return self.directory / "known_hosts"

    def run(self, command: str, *, seconds: float = 300.0, stdin: bytes = b"") -> str:
        """Return what a command of root's says. Raises HostVmError: it failed or took too long."""
        return self._ssh(["bash", "-euc", command], seconds=seconds, stdin=stdin)

    def storage(self, verb: str, *words: str, seconds: float = 300.0) -> str:
        """Return what `storages.sh` says. Raises HostVmMissing: it is one of ZFS, which lacks."""
        if verb == "make" and words[0] in OF_ZFS and self.image.zfs:
            raise HostVmMissing(self.image.zfs)
        script = f"{HOME}/tests/hostvm/storages.sh"
        return self._ssh(["bash", script, verb, *words], seconds=seconds).strip()

    def send(self) -> None:
        """Bring the checkout's code there."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in _SENT:
                archive.add(ROOT / name, name, filter=_no_caches)
        self.run(f"tar -x -C {HOME}", stdin=packed.getvalue())

    def pvebench(self, *words: str, seconds: float = 300.0) -> str:
        """Return what a pvebench in the VM prints; outcomes that need a look are no failure."""
        return self._ssh(python("-m", "pvebench", *words), seconds=seconds, good=(0, 9))

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs words there, as root."""
        options = ["BatchMode=yes", f"UserKnownHostsFile={self.known_hosts}", "ConnectTimeout=60"]
        options += ["ServerAliveInterval=15", "ServerAliveCountMax=8", "LogLevel=ERROR"]
        ssh = ["ssh", "-F", "none", "-i", str(self.key_file), "-p", str(self.port)]
        given = [word for option in options for word in ("-o", option)]
        return [*ssh, *given, "root@127.0.0.1", shlex.join(words)]

    def _ssh(
        self,
        words: Sequence[str],
        *,
        seconds: float,
        stdin: bytes = b"",
        good: Sequence[int] = (0,),
    ) -> str:
        try:
            done = subprocess.run(
                self.command(words), input=stdin, capture_output=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            raise HostVmError(f"{shlex.join(words)}: not over after {seconds:.0f} s") from error
        if done.returncode not in good:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-2000:]
            raise HostVmError(f"{shlex.join(words)}: exit code {done.returncode}: {said}")
        return done.stdout.decode("utf-8", "replace")

    def wait(self) -> None:
        """Wait until it answers. Raises HostVmError with the end of its console."""
        began = time.monotonic()
        while time.monotonic() - began < BOOT_SECONDS:
            if self.process.poll() is not None:
                break
            try:
                self.run("true", seconds=20)
            except HostVmError:
                time.sleep(1)
                continue
            self.boot_seconds = time.monotonic() - began
            return
        told = (self.directory / "console").read_text("utf-8", "replace")[-2000:]
        raise HostVmError(f"it did not answer within {BOOT_SECONDS:.0f} s; its console:\n{told}")

    def close(self) -> None:
        """End it as a power cut does: nothing of it is kept."""
        self.process.kill()
        self.process.wait(60)


def _no_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return None if "__pycache__" in entry.name else entry


def _qemu(known: Image, directory: Path, ports: Sequence[tuple[int, int]]) -> list[str]:
    words = ["setpriv", "--pdeathsig", "KILL", "nice", "qemu-system-x86_64", "-nodefaults"]
    words += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]
    words += ["-m", "3G", "-display", "none", "-device", "virtio-rng-pci"]
    words += ["-kernel", str(known.kernel), "-initrd", str(known.initrd), "-append"]
    words += ["root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet mitigations=off"]
    words += ["-chardev", f"file,id=console,path={directory}/console"]
    words += ["-device", "isa-serial,chardev=console"]
    forwarded = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in ports)
    words += ["-netdev", f"user,id=net,restrict=on{forwarded}"]
    words += ["-device", "virtio-net-pci,netdev=net"]
    words += ["-drive", f"if=none,id=root,format=qcow2,file={directory}/root.qcow2,cache=unsafe"]
    words += ["-device", "virtio-blk-pci,drive=root"]
    for name in (*_DISKS, "sata"):
        file = f"file={directory}/{name}.raw,discard=unmap,detect-zeroes=off"
        words += ["-drive", f"if=none,id={name},format=raw,{file}", "-device"]
        device = "ide-hd,bus=ide.0" if name == "sata" else "virtio-blk-pci"
        words += [f"{device},drive={name},serial=pvebench-{name}"]
    return words


@contextmanager
def running_host(directory: Path) -> Iterator[HostVm]:
    """Yield a machine in an empty directory; nothing of it runs afterwards.

    Raises:
        HostVmMissing: this machine lacks what it needs.
        HostVmError: it does not boot.
    """
    known, port, nbd_port = image(), free_port(), free_port()
    backing = ["-f", "qcow2", "-F", "raw", "-b", str(known.disk), f"{directory}/root.qcow2"]
    subprocess.run(["qemu-img", "create", "-q", *backing], check=True)
    for name in (*_DISKS, "sata"):
        with (directory / f"{name}.raw").open("wb") as disk:
            disk.truncate(DISK_BYTES)
    key = (known.keys / "host_key.pub").read_text("utf-8")
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}", "utf-8")
    with (directory / "qemu.log").open("wb") as log:
        process = subprocess.Popen(
            _qemu(known, directory, [(port, 22), (nbd_port, NBD_PORT)]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    machine = HostVm(directory, known, port, nbd_port, process)
    try:
        machine.wait()
        machine.send()
        yield machine
    finally:
        machine.close()
