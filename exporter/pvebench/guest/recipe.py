"""Content of the guest: packages, programs, kernel modules, scripts."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Final

from pvebench.model.disk import modules_of

FORMAT: Final = 3
"""Layout of the image directory and its manifest."""

COMPRESSION: Final = 6
"""Level of gzip for the ISO's initramfs: level 9 takes three times as long for half a percent."""

KERNEL_ARGUMENTS: Final = "console=ttyS0 quiet panic=1 random.trust_cpu=on cryptomgr.notests"
"""Without KVM, the kernel's tests of its ciphers are a quarter of a boot."""

KERNEL_PACKAGE: Final = {"debian": "linux-image-amd64", "ubuntu": "linux-image-generic"}
"""Distribution (ID of os-release) -> package of the latest generic kernel. Ubuntu is untested."""

NOT_NEEDED: Final = (
    "adduser|base-passwd|cpio|debconf|debianutils|dpkg|dracut-.*|gcc-.*|init.*|klibc-utils|lib.*-perl"
    "|lib(klibc|perl|python|systemd-shared).*|linux-base|login.defs|logsave|lsb-base|media-types|mount"
    "|netbase|passwd|perl.*|python3.*|systemd|sysvinit-utils|tar|tzdata|udev|usrmerge"
)
"""Pattern of dependencies for maintainer scripts, services and plotting, which are not downloaded.
If one of them has a library that a program needs, the build fails and names it."""

PROGRAMS: Final = {
    "bonnie++": "bonnie++",
    "dd": "coreutils",
    "fio": "fio",
    "hdparm": "hdparm",
    "ioping": "ioping",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "qemu-ga": "qemu-guest-agent",
    "sysbench": "sysbench",
}
"""Program -> package of its version."""

PACKAGES: Final = tuple(
    sorted({*PROGRAMS.values(), "busybox-static", "isolinux", "syslinux-common"})
)

MERGED: Final = ("bin", "lib", "lib64", "sbin")
"""Directories that are links into usr, as on an installed Debian. Some packages have their files
in the directory, others (all of Debian 13) in usr."""

MODULE_PLACE: Final = "usr/lib/modules/"
"""Prefix of the kernel modules' paths."""

MODULES: Final = (
    # buses and disks
    "virtio_pci",
    *modules_of(hotplug=True),
    "virtio_console",
    "virtio_rng",
    *modules_of(hotplug=False),
    "sym53c8xx",
    "mptspi",
    "megaraid_sas",
    "sd_mod",
    "sr_mod",
    # checksums and hashes that file systems request by name, not as dependencies
    "crc32c_generic",
    "crc32c-intel",
    "crypto_user",
    # file systems
    "ext4",
    "isofs",
)
"""Loaded by the guest's init, in an order that satisfies their dependencies."""

FILESYSTEM_MODULES: Final = {
    "xfs": ("xfs",),
    "btrfs": ("xxhash_generic", "blake2b_generic", "sha256_generic", "btrfs"),
}
"""Filesystem -> modules to load before it is created or mounted. Not loaded at the boot: a guest
without KVM takes seconds for them (btrfs times its checksums), and most guests never need them."""


FILESYSTEM_TOOL: Final = "/usr/bin/pvebench-filesystem"
MOUNT_POINT: Final = "/mnt/test"
"""Mount point of the only file system."""

SCRIPTS: Final = {
    "init": "init.sh",
    "usr/bin/pvebench-disk": "pvebench-disk.sh",
    FILESYSTEM_TOOL.lstrip("/"): "pvebench-filesystem.sh",
}
"""Path in the guest -> script of pvebench."""


def script(name: str) -> bytes:
    """Return one of the guest's shell scripts, shipped as package data."""
    return resources.files("pvebench.guest").joinpath(name).read_bytes()


def recipe_digest() -> str:
    """Return a digest of everything that determines the image, except the packages' versions."""
    text = json.dumps(
        [
            FORMAT,
            COMPRESSION,
            KERNEL_ARGUMENTS,
            PACKAGES,
            NOT_NEEDED,
            PROGRAMS,
            MERGED,
            MODULES,
            FILESYSTEM_MODULES,
        ],
        sort_keys=True,
    )
    scripts = b"".join(script(name) for name in SCRIPTS.values())
    return hashlib.sha256(text.encode() + scripts).hexdigest()
