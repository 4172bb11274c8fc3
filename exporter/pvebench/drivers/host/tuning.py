"""Changing settings of the device below a volume, and putting them back.

Only of a device that is pvebench's alone: one with its mark (`pvebench storage claim`), or a loop
device over a file of its own. What a setting was stands in the journal before it is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from pvebench.drivers.host.knobs import KNOBS, sysfs
from pvebench.drivers.qemu.devices import carries_mark
from pvebench.drivers.qemu.storages import MARK
from pvebench.errors import DriverError, SwitchFailed
from pvebench.model.disk import DEVICE_OPTIONS, Disk, option_text
from pvebench.model.ports import Journal

KIND: Final = "device-setting"
"""Kind of the journal entries made here."""
_IDENTITY: Final = ("loop/backing_file", "device/wwid", "wwid", "device/serial", "dm/uuid", "size")
"""Files of a device's sysfs directory that tell it from another of the same name."""

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
            "device": str(device), "setting": name, "before": before,
            "identity": identity(device), "boot": _boot(),
        }  # fmt: skip
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
        raise DriverError(f"{what} is {found} and does not go back to {before}")
    return f"set {what} back to {before}"


def check_own(device: Path) -> None:
    """Raise SwitchFailed unless the whole device is pvebench's own."""
    if not device.is_block_device():
        raise SwitchFailed(
            f"{device} is no block device: it has no settings to change",
            next_step="use a storage of kind loop or block",
        )
    below = sysfs(device)
    if (below / "partition").exists():
        raise SwitchFailed(
            f"{device} is a partition: its settings are those of the whole disk",
            next_step="claim the whole disk, or leave drive_cache, read_ahead and scheduler out",
        )
    if Path(_text(below / "loop/backing_file")).name.startswith(MARK) or carries_mark(device):
        return
    raise SwitchFailed(
        f"{device} does not carry pvebench's mark; its settings are left alone",
        next_step=f"if its content may be destroyed: pvebench storage claim {device}",
    )


def identity(device: Path) -> str:
    """Return what tells the device from another that later has its name."""
    below = sysfs(device)
    return " ".join(text for name in _IDENTITY if (text := _text(below / name)))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _boot() -> str:
    return _text(Path("/proc/sys/kernel/random/boot_id"))
