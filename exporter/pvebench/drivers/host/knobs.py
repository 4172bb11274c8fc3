"""Settings of a block device of this machine: how each is read and written.

A value is text in the words of `model.disk.Disk`: `1` and `0`, bytes, a scheduler's name.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final, Protocol

from pvebench.errors import SwitchFailed

SECTOR: Final = 512
"""Bytes; the unit of blockdev --setra."""
_WRITE_CACHING: Final = re.compile(r"write-caching\s*=\s*([01])\b")
_IN_FORCE: Final = re.compile(r"\[([^]]+)\]")


class Knob(Protocol):
    """One setting of a device.

    Attributes:
        lasting: whether the device itself keeps it when the machine is started anew.
    """

    lasting: bool

    def read(self, device: Path) -> str:
        """Return what is in force. Raises SwitchFailed."""

    def write(self, device: Path, value: str) -> None:
        """Ask for another value; whether it took, `read` tells. Raises SwitchFailed."""


class DriveCache:
    """The write cache of an ATA drive, by hdparm -W."""

    lasting = True

    def read(self, device: Path) -> str:
        """Return 1 or 0."""
        said = _run("hdparm", "-W", str(device))
        found = _WRITE_CACHING.search(said)
        if found is None:
            raise SwitchFailed(
                f"{device} does not tell whether its write cache is on",
                cause="it is no ATA drive: hdparm knows no other",
                next_step="leave drive_cache out for this storage",
                evidence=said,
            )
        return found[1]

    def write(self, device: Path, value: str) -> None:
        """Switch it on or off; the drive writes back what it holds first."""
        _run("hdparm", f"-W{value}", str(device))


class ReadAhead:
    """How many bytes the kernel reads ahead, by blockdev."""

    lasting = False

    def read(self, device: Path) -> str:
        """Return bytes."""
        return str(int(_run("blockdev", "--getra", str(device))) * SECTOR)

    def write(self, device: Path, value: str) -> None:
        """Set bytes; the kernel keeps whole pages only."""
        _run("blockdev", "--setra", str(int(value) // SECTOR), str(device))


class Scheduler:
    """The I/O scheduler, in sysfs."""

    lasting = False

    def read(self, device: Path) -> str:
        """Return its name."""
        text = _read(_file(device))
        found = _IN_FORCE.search(text)
        return found[1] if found else text.strip()  # a device with one only has no brackets

    def write(self, device: Path, value: str) -> None:
        """Choose one of those that the kernel has for the device."""
        path = _file(device)
        known = _read(path).replace("[", "").replace("]", "").split()
        if value not in known:
            raise SwitchFailed(
                f"{device} has no I/O scheduler {value}; it has {', '.join(known)}",
                cause="the kernel lacks its module, or the device takes none",
            )
        try:
            path.write_text(value, "ascii")
        except OSError as error:
            raise SwitchFailed(
                f"the I/O scheduler of {device} cannot be set: {error.strerror}",
                cause="that needs root",
            ) from error


KNOBS: Final[dict[str, Knob]] = {
    "drive_cache": DriveCache(),
    "read_ahead": ReadAhead(),
    "scheduler": Scheduler(),
}
"""Option of the disk -> the setting of the device below it."""


def sysfs(device: Path) -> Path:
    """Return the directory of a block device below /sys."""
    number = device.stat().st_rdev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")


def _file(device: Path) -> Path:
    return sysfs(device) / "queue" / "scheduler"


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise SwitchFailed(f"{path} cannot be read: {error.strerror}") from error


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SwitchFailed(
            f"{command[0]} cannot be started: {error.strerror}",
            next_step=f"install it: apt-get install {_PACKAGES[command[0]]}",
        ) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise SwitchFailed(
            f"{' '.join(command)} failed: {said.splitlines()[-1] if said else done.returncode}",
            cause="that needs root, or the device does not have the setting", evidence=said,
        )  # fmt: skip
    return done.stdout


_PACKAGES: Final = {"hdparm": "hdparm", "blockdev": "util-linux"}
