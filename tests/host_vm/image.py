"""A Debian machine for tests, as an image: Debian's kernel, every storage that it offers, sshd.

Built outside the repository from Debian's packages (debootstrap), once; needs root for that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RELEASE: Final = "bookworm"
DISK_BYTES: Final = 3 << 30
TOOLS: Final = {"debootstrap": "debootstrap", "mke2fs": "e2fsprogs", "ssh-keygen": "openssh-client"}
"""Program -> Debian's package."""
PACKAGES: Final = (
    *("systemd-sysv", "udev", "dbus", "openssh-server", "linux-image-amd64", "initramfs-tools"),
    *("lvm2", "thin-provisioning-tools", "mdadm", "bcache-tools", "xfsprogs", "btrfs-progs"),
    *("nfs-kernel-server", "samba", "cifs-utils", "tgt", "open-iscsi", "e2fsprogs"),
    *("fio", "ioping", "hdparm", "sysbench", "bonnie++", "util-linux-extra"),
    *("iproute2", "kmod", "procps", "python3", "zstd"),
)
_NETWORK: Final = """\
[Match]
Name=eth0
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
"""


class VmMissing(RuntimeError):
    """This machine lacks what the image needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Image:
    """A machine's disk, kernel and initramfs, and the key that opens its root account."""

    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "root.ext4"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.directory / "initrd.img"

    @property
    def key(self) -> Path:
        return self.directory / "user_key"

    @property
    def host_key(self) -> Path:
        return self.directory / "host_key"


def cache_directory() -> Path:
    """Return where the image is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pvebench" / "host-vm"


def need_image() -> Image:
    """Return the image, built if it is not there yet. Raises VmMissing."""
    image = Image(cache_directory())
    if not image.disk.exists():
        _build(image)
    return image


def _build(image: Image) -> None:
    lacking = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if lacking or os.geteuid() != 0:
        what = f"apt-get install {' '.join(lacking)}" if lacking else "run as root"
        raise VmMissing(f"no image of a host can be built here: {what}")
    image.directory.mkdir(parents=True, exist_ok=True)
    root = image.directory / "root"
    if not (root / "etc/debian_version").exists():
        shutil.rmtree(root, ignore_errors=True)
        include = f"--include={','.join(PACKAGES)}"
        _run("nice", "debootstrap", "--variant=minbase", include, RELEASE, str(root), _mirror())
    finish(image, root)
    shutil.rmtree(root)


def finish(image: Image, root: Path) -> None:
    """Make the image of an installed tree."""
    for key in (image.key, image.host_key):
        key.unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    _configure(image, root)
    for name, path in (("vmlinuz", image.kernel), ("initrd.img", image.initramfs)):
        shutil.copy(next((root / "boot").glob(f"{name}-*")), path)
    new = image.disk.with_suffix(".new")
    new.unlink(missing_ok=True)
    size = f"{DISK_BYTES >> 20}M"
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(new), size)
    new.replace(image.disk)


def _configure(image: Image, root: Path) -> None:
    for path, text in _files(image):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    (root / "root/.ssh").chmod(0o700)
    (root / "etc/ssh/ssh_host_ed25519_key").chmod(0o600)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    for name in ("systemd-networkd", "ssh"):
        link = wants / f"{name}.service"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/lib/systemd/system/{name}.service")
    # Started by the test that wants them, with what it has made.
    for name in ("nfs-server", "smbd", "nmbd", "samba-ad-dc", "tgt", "iscsid", "open-iscsi"):
        mask = root / f"etc/systemd/system/{name}.service"
        if name in ("nmbd", "samba-ad-dc"):
            mask.unlink(missing_ok=True)
            mask.symlink_to("/dev/null")
        else:
            (wants / f"{name}.service").unlink(missing_ok=True)


def _files(image: Image) -> Iterator[tuple[str, str]]:
    public = image.key.with_suffix(".pub").read_text("ascii")
    yield "root/.ssh/authorized_keys", public
    yield "etc/ssh/ssh_host_ed25519_key", image.host_key.read_text("ascii")
    yield "etc/ssh/ssh_host_ed25519_key.pub", image.host_key.with_suffix(".pub").read_text("ascii")
    yield "etc/hostname", "hostvm\n"
    yield "etc/hosts", "127.0.0.1 localhost hostvm\n"
    yield "etc/fstab", "/dev/vda / ext4 errors=remount-ro 0 1\n"
    yield "etc/systemd/network/eth0.network", _NETWORK
    yield "etc/udev/rules.d/80-net-setup-link.rules", ""


def _mirror() -> str:
    """Return where this machine's own packages come from."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Release: {RELEASE}"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = said.stdout.split()
    if not found:
        raise VmMissing(f"this machine's apt knows no {RELEASE} of Debian to build it from")
    return found[0]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")
