"""Settings of the block device below a volume: how each is read, changed, and put back.

Only of a device that is pvebench's alone: one that is claimed (`pvebench storage claim`), or a loop
device over a file of its own. What a setting was stands in the journal before it is changed. A
value is text in the words of `model.disk.Disk`: `1` and `0`, bytes, a scheduler's name.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from pvebench.drivers.linux import block_devices
from pvebench.drivers.storages.contract import MARK
from pvebench.drivers.storages.identity import check_claim
from pvebench.errors import DriverError, SwitchFailed, VolumeError
from pvebench.model.disk import DEVICE_OPTIONS, Disk, option_text
from pvebench.model.ports import Journal
from pvebench.model.units import SECTOR

KIND: Final = "device-setting"
"""Kind of the journal entries made here."""

log = structlog.get_logger()


class Tuner:
    """Settings that are changed now. Owned by one worker thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._changed: list[tuple[int, dict[str, str]]] = []

    def apply(self, device: Path, disk: Disk) -> dict[str, str]:
        """Give the device the settings that `disk` wants; return those that are in force then.

        Raises:
            SwitchFailed: the device is not pvebench's alone, or a setting is refused.
        """
        given = {name: getattr(disk, name) for name in DEVICE_OPTIONS}
        wanted = {name: option_text(value) for name, value in given.items() if value is not None}
        if wanted:
            check_own(device)
        for name, value in wanted.items():
            self._change(device, name, value)
        return {name: KNOBS[name].read(device) for name in wanted}

    def _change(self, device: Path, name: str, value: str) -> None:
        before = KNOBS[name].read(device)
        if before == value:
            return
        details = {
            "device": str(device),
            "setting": name,
            "before": before,
            "identity": identity(device),
            "boot": _boot(),
        }
        self._changed.append((self._journal.open(KIND, details), details))
        KNOBS[name].write(device, value)

    def undo(self) -> None:
        """Put everything back, newest first.

        What cannot be put back stays in the journal: the next start tries again.
        """
        while self._changed:
            entry, details = self._changed.pop()
            try:
                undo_setting(details)
            except (DriverError, OSError) as error:
                log.warning("a device's setting is not put back yet", reason=str(error), **details)
            else:
                self._journal.close(entry)


def undo_setting(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it.

    Raises:
        DriverError: the setting does not go back to what it was.
    """
    device, name, before = Path(details["device"]), details["setting"], details["before"]
    what = f"{name} of {device}"
    if not device.is_block_device() or identity(device) != details["identity"]:
        return f"left {what} alone: it is another device now, or gone"
    knob = KNOBS[name]
    if not knob.lasting and details["boot"] != _boot():
        return f"left {what} alone: the machine was started anew since it was changed"
    knob.write(device, before)
    found = knob.read(device)
    if found != before:
        raise DriverError(
            f"{what} is {found} and does not go back to {before}",
            cause="the kernel or the device refuses the value now",
            next_step="set it by hand, then `pvebench cleanup`: it looks again and forgets it",
        )
    return f"set {what} back to {before}"


def check_own(device: Path) -> None:
    """Raise SwitchFailed unless the whole device is pvebench's own."""
    if not device.is_block_device():
        raise SwitchFailed(
            f"{device} is no block device: it has no settings to change",
            next_step="use a storage of kind loop or block",
        )
    below = block_devices.sysfs(device.stat().st_rdev)
    if (below / "partition").exists():
        raise SwitchFailed(
            f"{device} is a partition: its settings are those of the whole disk",
            next_step="claim the whole disk, or leave drive_cache, read_ahead and scheduler out",
        )
    if Path(_text(below / "loop/backing_file")).name.startswith(MARK):
        return
    try:
        with device.open("rb", buffering=0) as opened:
            check_claim(opened.fileno(), device)
    except VolumeError as error:
        raise SwitchFailed(
            f"{error.happened}, and so are its settings",
            cause=error.cause,
            next_step=error.next_step,
        ) from error


def identity(device: Path) -> str:
    """Return what tells the device from another that later has its name."""
    return block_devices.identity(device.stat().st_rdev)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _boot() -> str:
    return _text(Path("/proc/sys/kernel/random/boot_id"))


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


def _file(device: Path) -> Path:
    return block_devices.sysfs(device.stat().st_rdev) / "queue" / "scheduler"


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
            cause="that needs root, or the device does not have the setting",
            evidence=said,
        )
    return done.stdout


_PACKAGES: Final = {"hdparm": "hdparm", "blockdev": "util-linux"}
