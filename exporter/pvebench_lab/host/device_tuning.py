"""Settings of the block device below a volume: reading, changing and restoring them.

Only for a device that only pvebench uses: a claimed one (`pvebench storage claim`), or a loop
device of its own file. The journal has the old value before a change. Values are text as in
`model.disk.Disk`: `1` and `0`, bytes, a scheduler's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.block_devices import identity as identity_of
from pvebench.drivers.linux.block_devices import sysfs
from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import MARK
from pvebench.drivers.storages.identity import check_claim
from pvebench.errors import DriverError, SwitchFailed, VolumeError
from pvebench.log import log
from pvebench.model.disk import DEVICE_OPTIONS, Disk, option_text
from pvebench.model.ports import Journal
from pvebench.model.units import SECTOR

KIND: Final = "device-setting"
"""Kind of the journal entries of these settings."""


class Tuner:
    """Changed settings. Owned by one worker thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._changed: list[tuple[int, dict[str, str]]] = []

    def apply(self, device: Path, disk: Disk) -> dict[str, str]:
        """Apply the device options of `disk`; return the effective values.

        Raises:
            SwitchFailed: others use the device too, or it rejects a setting.
        """
        options = {name: getattr(disk, name) for name in DEVICE_OPTIONS}
        values = {name: option_text(value) for name, value in options.items() if value is not None}
        if values:
            check_own(device)
        for name, value in values.items():
            self._change(device, name, value)
        return {name: DEVICE_SETTINGS[name].read(device) for name in values}

    def _change(self, device: Path, name: str, value: str) -> None:
        before = DEVICE_SETTINGS[name].read(device)
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
        DEVICE_SETTINGS[name].write(device, value)

    def undo(self) -> None:
        """Restore all settings, newest first.

        A setting that cannot be restored stays in the journal: the next start tries again.
        """
        while self._changed:
            entry, details = self._changed.pop()
            try:
                undo_setting(details)
            except (DriverError, OSError) as error:
                log.warning("restoring device setting failed", reason=str(error), **details)
            else:
                self._journal.close(entry)


def undo_setting(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it.

    Raises:
        DriverError: the old value was not restored.
    """
    device, name, before = Path(details["device"]), details["setting"], details["before"]
    what = f"{name} of {device}"
    if not device.is_block_device() or identity(device) != details["identity"]:
        return f"{what} not changed: the device was replaced or removed"
    try:
        check_own(device)
    except SwitchFailed as error:
        return f"{what} not changed: {error.happened}"
    knob = DEVICE_SETTINGS[name]
    if not knob.lasting and details["boot"] != _boot():
        return f"{what} not changed: the machine was restarted since the change"
    knob.write(device, before)
    value = knob.read(device)
    if value != before:
        raise DriverError(
            f"{what} is still {value}, cannot restore {before}",
            cause="the kernel or the device rejects the value",
            next_step="set it by hand, then run `pvebench cleanup`",
        )
    return f"restored {what} to {before}"


def check_own(device: Path) -> None:
    """Raise SwitchFailed unless only pvebench uses the whole device."""
    if not device.is_block_device():
        raise SwitchFailed(
            f"{device} is not a block device, so it has no device settings",
            next_step="use a storage of kind loop or block",
        )
    below = sysfs(device.stat().st_rdev)
    if (below / "partition").exists():
        raise SwitchFailed(
            f"{device} is a partition; device settings apply to the whole disk",
            next_step="claim the whole disk, or remove drive_cache, read_ahead and scheduler",
        )
    if Path(_text(below / "loop/backing_file")).name.startswith(MARK):
        return
    try:
        with device.open("rb", buffering=0) as opened:
            check_claim(opened.fileno(), device)
    except VolumeError as error:
        raise SwitchFailed(
            f"device settings: {error.happened}", cause=error.cause, next_step=error.next_step
        ) from error


def identity(device: Path) -> str:
    """Return the device's identity, as distinct from a later device of the same name."""
    return identity_of(device.stat().st_rdev)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _boot() -> str:
    return _text(Path("/proc/sys/kernel/random/boot_id"))


_WRITE_CACHING: Final = re.compile(r"write-caching\s*=\s*([01])\b")
_SELECTED: Final = re.compile(r"\[([^]]+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSetting:
    """Setting of a device.

    Attributes:
        read: returns the effective value. Raises SwitchFailed.
        write: requests another value; `read` returns whether it is effective. Raises SwitchFailed.
        lasting: whether the device keeps it when the machine is restarted.
    """

    read: Callable[[Path], str]
    write: Callable[[Path, str], object]
    lasting: bool = False


def _read_drive_cache(device: Path) -> str:
    """Return 1 or 0: the write cache of an ATA drive."""
    output = _run("hdparm", "-W", str(device))
    match = _WRITE_CACHING.search(output)
    if match is None:
        raise SwitchFailed(
            f"{device} does not report its write cache",
            cause="it is not an ATA drive; hdparm supports no others",
            next_step="remove drive_cache for this storage",
            evidence=output,
        )
    return match[1]


def _read_scheduler(device: Path) -> str:
    text = _read(_file(device))
    match = _SELECTED.search(text)
    return match[1] if match else text.strip()  # a device with only one has no brackets


def _select_scheduler(device: Path, value: str) -> None:
    path = _file(device)
    known = _read(path).replace("[", "").replace("]", "").split()
    if value not in known:
        raise SwitchFailed(
            f"{device} has no I/O scheduler {value}; it has {', '.join(known)}",
            cause="the kernel lacks its module, or the device supports none",
        )
    try:
        path.write_text(value, "ascii")
    except OSError as error:
        raise SwitchFailed(
            f"cannot set the I/O scheduler of {device}: {error.strerror}", cause="this needs root"
        ) from error


DEVICE_SETTINGS: Final = {
    "drive_cache": DeviceSetting(
        read=_read_drive_cache,
        # The drive first writes back the content of a cache that is switched off.
        write=lambda device, value: _run("hdparm", f"-W{value}", str(device)),
        lasting=True,
    ),
    # In bytes; the kernel keeps whole pages only.
    "read_ahead": DeviceSetting(
        read=lambda device: str(int(_run("blockdev", "--getra", str(device))) * SECTOR),
        write=lambda device, value: _run(
            "blockdev", "--setra", str(int(value) // SECTOR), str(device)
        ),
    ),
    "scheduler": DeviceSetting(read=_read_scheduler, write=_select_scheduler),
}
"""Option of the disk -> setting of the device below it."""


def _file(device: Path) -> Path:
    return sysfs(device.stat().st_rdev) / "queue" / "scheduler"


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise SwitchFailed(f"cannot read {path}: {error.strerror}") from error


def _run(*command: str) -> str:
    try:
        done = run_program(command)
    except OSError as error:
        raise SwitchFailed(
            f"cannot start {command[0]}: {error.strerror}",
            next_step=f"run `apt-get install {_PACKAGES[command[0]]}`",
        ) from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise SwitchFailed(
            f"{' '.join(command)} failed: {output.splitlines()[-1] if output else done.returncode}",
            cause="this needs root, or the device does not have the setting",
            evidence=output,
        )
    return done.stdout


_PACKAGES: Final = {"hdparm": "hdparm", "blockdev": "util-linux"}
