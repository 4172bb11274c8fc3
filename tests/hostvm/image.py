"""The machine of tests/hostvm before it boots: Debian 12 with Debian's kernel.

Everything is kept in a cache outside the repository and made once; a change of what is in it makes
it anew. ZFS's modules are built in a Debian of their own, of which only the modules are taken, and
where that fails the machine is without, and says why.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testing.packs import ROOT
from testing.sshd import make_key

SUITE: Final = "bookworm"
PYTHON: Final = "3.11"
"""That release's."""
PROGRAMS: Final = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "qemu-system-x86_64": "qemu-system-x86",
    "ssh": "openssh-client",
}
"""Program -> Debian's package."""
_SYSTEM: Final = (
    "systemd systemd-sysv udev dbus kmod linux-image-amd64 initramfs-tools openssh-server "
    "openssh-client python3 procps iproute2 ca-certificates e2fsprogs"
)
_TOOLS: Final = "fio ioping bonnie++ sysbench hdparm util-linux-extra smartmontools"
_STORAGES: Final = (
    "mdadm lvm2 thin-provisioning-tools xfsprogs btrfs-progs dosfstools cifs-utils samba "
    "nfs-kernel-server nfs-common open-iscsi tgt bcache-tools zfsutils-linux"
)
_LAB: Final = "qemu-system-x86 qemu-utils lxc apparmor"
PACKAGES: Final = (*_SYSTEM.split(), *_TOOLS.split(), *_STORAGES.split(), *_LAB.split())
_ZFS: Final = ("linux-image-amd64", "linux-headers-amd64", "zfs-dkms")
_MASKED: Final = (
    "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer "
    "e2scrub_reap.service fstrim.timer man-db.timer mdcheck_continue.timer mdcheck_start.timer "
    "mdmonitor.service mdmonitor-oneshot.timer nfs-blkmap.service smartmontools.service "
    "lxc.service lxc-net.service lxc-monitord.service "
    "zfs-zed.service zfs-mount.service zfs-share.service zfs-import-cache.service "
    "zfs-import-scan.service zfs-load-module.service zfs-volume-wait.service "
    "systemd-udev-settle.service systemd-networkd-wait-online.service "
    "getty@tty1.service serial-getty@ttyS0.service systemd-timesyncd.service"
)
"""What nobody needs here."""
_LATER: Final = (
    "smbd.service nmbd.service samba-ad-dc.service nfs-server.service rpcbind.service "
    "rpcbind.socket open-iscsi.service iscsid.service iscsid.socket tgt.service"
)
"""What a storage's script starts when it is wanted."""
_NETWORK: Final = "[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\n"
_IMAGE_BYTES: Final = 4 << 30
"""Sparse."""


class HostVmMissing(RuntimeError):
    """This machine lacks what the VM needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Image:
    """What boots, in the cache.

    Attributes:
        disk: ext4, the root file system; must not be written to.
        keys: has `host_key.pub` and `user_key`, of root and of the user `pvebench`.
        zfs: why there are no modules of ZFS; empty: they are there.
    """

    disk: Path
    kernel: Path
    initrd: Path
    keys: Path
    zfs: str


def need_host_vm() -> None:
    """Raise HostVmMissing with all that is lacking."""
    lacking = sorted({pkg for name, pkg in PROGRAMS.items() if not _where(name)})
    if lacking:
        raise HostVmMissing(f"apt-get install --no-install-recommends {' '.join(lacking)}")
    if os.geteuid():
        raise HostVmMissing("a Debian with users of its own is made by root only")


def _where(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def image() -> Image:
    """Return what boots; the first time it is made, in a quarter of an hour and 8 GB."""
    need_host_vm()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pvebench-hostvm"
    base.mkdir(parents=True, exist_ok=True)
    root = _bootstrapped(base, "root", PACKAGES)
    zfs = _zfs_modules(base, root)
    recipe = Path(__file__).read_bytes() + (ROOT / "requirements.lock").read_bytes()
    recipe += zfs.encode()
    done = base / f"image-{hashlib.sha256(recipe).hexdigest()[:16]}"
    if not done.exists():
        for old in base.glob("image-*"):
            shutil.rmtree(old)
        made = base / "image-new"
        made.mkdir()
        _configure(root, made)
        _pack(root, made)
        made.rename(done)
    kernel, initrd = done / "vmlinuz", done / "initrd.img"
    return Image(disk=done / "root.ext4", kernel=kernel, initrd=initrd, keys=done, zfs=zfs)


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _bootstrapped(base: Path, name: str, packages: Sequence[str]) -> Path:
    """Return a directory with a Debian of these packages in it; made if it is not there."""
    wanted = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    root = base / f"{name}-{wanted}"
    if not root.exists():
        for old in base.glob(f"{name}-*"):
            shutil.rmtree(old)
        print(f"== a Debian of {len(packages)} packages, with what they need", flush=True)
        made = base / f"{name}-new"
        options = ["--quiet", "--variant=minbase", "--components=main,contrib"]
        _run("nice", "mmdebstrap", *options, f"--include={','.join(packages)}", SUITE, made)
        made.rename(root)
    return root


def _zfs_modules(base: Path, root: Path) -> str:
    """Put ZFS's modules into `root`, built for its kernel; return why not, or nothing."""
    try:
        builder = _bootstrapped(base, "zfs", _ZFS)
    except RuntimeError as error:
        return f"zfs-dkms was not built: {str(error).splitlines()[-1]}"
    (kernel,) = (root / "lib/modules").iterdir()
    built = builder / "lib/modules" / kernel.name / "updates/dkms"
    if not (built / "zfs.ko").exists():
        return f"zfs-dkms built no module for the kernel {kernel.name}"
    shutil.copytree(built, kernel / "updates/dkms", dirs_exist_ok=True)
    _in(root, "depmod", kernel.name)
    return ""


def _configure(root: Path, made: Path) -> None:
    """Users, keys, what starts, and what pvebench needs of Python."""
    for name in ("host_key", "user_key"):
        make_key(made / name)
    _keys(root, made)
    _write(root / "etc/systemd/network/eth0.network", _NETWORK)
    _write(root / "etc/fstab", "")
    _write(root / "etc/hostname", "hostvm\n")
    _write(root / "etc/hosts", "127.0.0.1 localhost hostvm\n")
    _write(root / "etc/initramfs-tools/conf.d/small", "MODULES=list\n")
    _write(root / "etc/initramfs-tools/modules", "virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n")
    _write(root / "etc/modprobe.d/pvebench.conf", f"options zfs zfs_arc_max={256 << 20}\n")
    _in(root, "systemctl", "enable", "systemd-networkd.service", "ssh.service")
    _in(root, "systemctl", "mask", *_MASKED.split())
    _in(root, "systemctl", "disable", *_LATER.split())
    _in(root, "update-initramfs", "-u")
    _python(root / "opt/pvebench/site")


def _keys(root: Path, made: Path) -> None:
    if "pvebench:" not in (root / "etc/passwd").read_text("utf-8"):
        _in(root, "useradd", "--system", "--create-home", "--shell", "/bin/sh", "pvebench")
    for old in (root / "etc/ssh").glob("ssh_host_*"):
        old.unlink()
    for end in ("", ".pub"):
        shutil.copy(made / f"host_key{end}", root / f"etc/ssh/ssh_host_ed25519_key{end}")
    key = (made / "user_key.pub").read_text("utf-8")
    _write(root / "root/.ssh/authorized_keys", key)
    # As docs/ssh.md says.
    _write(root / "home/pvebench/.ssh/authorized_keys", f"restrict {key}")
    _in(root, "chown", "-R", "pvebench:", "/home/pvebench")


def _python(site: Path) -> None:
    """The libraries of pvebench for that Debian's Python, not this machine's."""
    shutil.rmtree(site, ignore_errors=True)
    tags = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(36, 16, -1)]
    foreign = ["--implementation=cp", f"--python-version={PYTHON}", "--only-binary=:all:"]
    foreign += [*tags, "--platform=manylinux2014_x86_64", "--target", str(site)]
    lock = ["--require-hashes", "-r", str(ROOT / "requirements.lock")]
    _run(sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", *foreign, *lock)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _in(root: Path, *command: str) -> None:
    _run("chroot", root, *command)


def _pack(root: Path, made: Path) -> None:
    """Write the disk, and take out what QEMU itself loads."""
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy((root / "boot").glob(f"{name}-*").__next__(), made / name)
    with (made / "root.ext4").open("wb") as disk:
        disk.truncate(_IMAGE_BYTES)
    quick = ["-q", "-F", "-O", "^has_journal", "-m", "0"]
    _run(_where("mkfs.ext4") or "mkfs.ext4", *quick, "-d", root, made / "root.ext4")
