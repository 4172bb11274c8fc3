"""A bootable BIOS ISO of the same kernel and initramfs, for hypervisors without direct boot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError
from pvebench.guest.recipe import KERNEL_ARGUMENTS

_EPOCH: Final = 1_700_000_000
"""Every time in the ISO, so that the same content is the same file."""
_BOOT_FILES: Final = {
    "isolinux.bin": "usr/lib/ISOLINUX/isolinux.bin",
    "ldlinux.c32": "usr/lib/syslinux/modules/bios/ldlinux.c32",
}


def make_iso(root: Path, kernel: Path, initramfs: Path, work: Path, target: Path) -> None:
    """Write the ISO to `target`; the boot loader comes from packages unpacked below `root`.

    Raises:
        GuestImageError: xorriso failed.
    """
    tree = work / "iso"
    (tree / "isolinux").mkdir(parents=True)
    for name, source in _BOOT_FILES.items():
        (tree / "isolinux" / name).write_bytes((root / source).read_bytes())
    (tree / "isolinux" / "isolinux.cfg").write_text(
        f"default pvebench\nlabel pvebench\n kernel /vmlinuz\n initrd /initramfs\n"
        f" append {KERNEL_ARGUMENTS}\n"
    )
    (tree / "vmlinuz").write_bytes(kernel.read_bytes())
    (tree / "initramfs").write_bytes(initramfs.read_bytes())
    for path in sorted(tree.rglob("*"), reverse=True):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (_EPOCH, _EPOCH))
    os.utime(tree, (_EPOCH, _EPOCH))
    command = [
        "xorriso", "-as", "mkisofs", "-quiet", "-V", "PVEBENCH", "-R",
        "-uid", "0", "-gid", "0",
        "-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat", "-no-emul-boot",
        "-boot-load-size", "4", "-boot-info-table", "-o", str(target), str(tree),
    ]  # fmt: skip
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise GuestImageError(f"xorriso failed: {done.stderr.strip()}")
