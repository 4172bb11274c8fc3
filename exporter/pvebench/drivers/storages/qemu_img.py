"""Images of volumes, made with qemu-img as Proxmox makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.host_tools import run_program
from pvebench.errors import VolumeError
from pvebench.model.disk import Disk, Format, Preallocation

SOUND: Final = (0, 3)
"""Exit codes of `qemu-img check` without errors; 3: unused clusters only."""
DAMAGED: Final = 2
"""Its exit code for an image with errors; others say that it could not check (qemu-img(1))."""


def create_image(
    path: str | Path, disk: Disk, size_bytes: int, *, base: Path | None = None
) -> None:
    """Run qemu-img create. Raises VolumeError."""
    options = create_options(disk, base=str(base) if base else "")
    run_qemu_img("create", "-q", *options, str(path), str(size_bytes))


def run_qemu_img(*arguments: str) -> str:
    """Run qemu-img; return its output. Raises VolumeError."""
    command = ["qemu-img", *arguments]
    done = run_program(command)
    if done.returncode:
        raise VolumeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def take_internal(path: Path, count: int) -> None:
    """Take the missing internal snapshots; without any, return to the newest one."""
    info = json.loads(run_qemu_img("info", "--output=json", str(path)))
    taken = len(info.get("snapshots", []))
    if taken == count:
        run_qemu_img("snapshot", "-a", f"pvebench{count}", str(path))
    for number in range(taken, count):
        run_qemu_img("snapshot", "-c", f"pvebench{number + 1}", str(path))


def overlay_on(base: Path, overlay: Path) -> None:
    """Create an overlay on an image that is never written. Raises VolumeError."""
    below = ("-b", str(base.absolute()), "-F", image_format(base))
    run_qemu_img("create", "-q", "-f", "qcow2", *below, str(overlay))


def image_format(image: Path) -> str:
    """Return the format of an image to boot. Raises VolumeError: missing, in use or no disk."""
    step = "correct guest.image in the pack, or create it: see docs/windows.md"
    try:
        text = run_qemu_img("info", "--backing-chain", "--output=json", str(image))
    except VolumeError as error:
        error.next_step = "shut down the VM that uses it" if "lock" in error.happened else step
        raise
    form = str(json.loads(text)[0]["format"])
    with image.open("rb") as disk:  # any file is a raw image
        if form == "raw" and disk.read(512)[510:] != b"\x55\xaa":
            raise VolumeError(f"{image}: raw, without a boot sector", next_step=step)
    return form


def overlay_options(disk: Disk, base: Path) -> list[str]:
    """Return qemu-img's options for an overlay on a volume.

    As pve-storage 9.0.4 and later create it: subclusters are mandatory for the preallocation of an
    overlay. With `overlay_cluster`: as qemu-img's own defaults, which version 8 uses for clones.
    """
    options = f"extended_l2=on,cluster_size=128k,preallocation={disk.preallocation}"
    if disk.overlay_cluster:
        options = f"cluster_size={disk.overlay_cluster}"
    return ["-f", "qcow2", "-o", options, "-b", str(base), "-F", str(disk.format)]


def create_options(disk: Disk, *, base: str = "") -> list[str]:
    """Return qemu-img's options for a new volume, as Proxmox uses them for a directory.

    Args:
        base: a raw image that the volume overlays.
    """
    options: dict[str, str] = {}
    match disk.format:
        case Format.RAW:
            if disk.preallocation is not Preallocation.METADATA:
                options["preallocation"] = str(disk.preallocation)
        case Format.QCOW2:
            if disk.cluster_size:
                options["cluster_size"] = str(disk.cluster_size)
            if disk.extended_l2:
                options["extended_l2"] = "on"
            # An overlay starts empty: missing blocks are read from its base.
            options["preallocation"] = "off" if base else str(disk.preallocation)
        case Format.VMDK:
            pass
    text = ",".join(f"{key}={value}" for key, value in options.items())
    below = ["-b", base, "-F", "raw"] if base else []
    return ["-f", str(disk.format), *(["-o", text] if text else []), *below]
