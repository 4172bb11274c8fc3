"""Wear of the drives below a path, from their own counters, as smartctl(8) reports them in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.linux.block_devices import devices_below, sysfs
from pvebench.drivers.linux.host_tools import HostTools
from pvebench.errors import PvebenchError, ToolFailed
from pvebench.model.storage_use import Wear
from pvebench.sanitize import one_line

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 1 << 20
_NVME_UNIT_BYTES: Final = 512_000
"""Size of a data unit (NVM Express Base Specification, SMART / Health Information)."""
_OPEN_FAILED: Final = 2
"""Bit of the exit status: the drive could not be opened, see smartctl(8)."""
_SILENT: Final = "the drives do not report it"
NOT_INSTALLED: Final = "smartctl (package smartmontools) is not installed"
_STATISTICS: Final = ("Percentage Used Endurance Indicator", "Logical Sectors Written")
"""Device statistics of ATA (ACS-4, 9.5), whose meaning is the same for all drives."""


_OBSTACLES: Final = {
    "usb": "a USB bridge hides the drive",
    "standby|sleep|stopped": "the drive is in standby",
    "raid|cciss|areca|3ware|hpt": "a RAID controller hides its drives",
}
"""Pattern of a message of smartctl -> why it reads no wear."""


def wear_below(path: Path) -> Wear | str:
    """Return the wear of the most worn drive below a path, or why it is unknown.

    It is unknown if one of several drives does not report it.
    """
    try:
        found = {name for device in devices_below(path) for name in _drives(sysfs(device))}
        return most_worn([_report(name) for name in sorted(found)])
    except ToolFailed:
        return NOT_INSTALLED
    except (OSError, PvebenchError):
        return _SILENT


def most_worn(reports: Sequence[bytes]) -> Wear | str:
    """Return the wear of the most worn of some drives, or why it is unknown.

    Args:
        reports: output of smartctl for each drive.
    """
    try:
        answers = [parse_wear(report) or _why_unknown(report) for report in reports]
    except PermissionError:
        return "smartctl needs root"
    except (ValueError, ArithmeticError, AttributeError, LookupError, TypeError):
        return _SILENT
    reasons = [reason for reason in answers if isinstance(reason, str)]
    wears = [wear for wear in answers if isinstance(wear, Wear)]
    return reasons[0] if reasons else max(wears, key=lambda wear: wear.used, default=_SILENT)


def _why_unknown(output: bytes) -> str:
    """Return which drive does not report its wear, and what smartctl says about it."""
    content: dict[str, Any] = json.loads(output)
    name = str(content.get("device", {}).get("name", "")).removeprefix("/dev/")
    said = " ".join(str(message["string"]) for message in content["smartctl"].get("messages", ()))
    obstacles = (
        words for pattern, words in _OBSTACLES.items() if re.search(pattern, said, re.IGNORECASE)
    )
    reason = next(obstacles, one_line(said)[:100] or "the drive does not report it")
    return f"{name}: {reason}" if name else _SILENT


def _drives(device: Path) -> Iterator[str]:
    """Yield the names of the disks below a device's directory in sysfs; those of RAIDs too."""
    below = device.resolve(strict=True)
    below = below.parent if (below / "partition").exists() else below
    members = sorted(below.glob("slaves/*"))
    for member in members:
        yield from _drives(member)
    if not members:
        yield below.name


def _report(name: str) -> bytes:
    """Return the report on a disk. Raises PvebenchError: smartctl is missing or does not end."""
    command = ["smartctl", "--json", "--all", "--log=devstat", f"/dev/{name.replace('!', '/')}"]
    return HostTools().run(command, timeout=_SECONDS).stdout[:_MAX_BYTES]


def parse_wear(output: bytes) -> Wear | None:
    """Return the wear in the JSON of smartctl; None: not reported.

    Raises ValueError: no JSON. PermissionError: this user may not query the drive.
    """
    content: dict[str, Any] = json.loads(output)
    if b"Permission denied" in output and content["smartctl"]["exit_status"] & _OPEN_FAILED:
        raise PermissionError("smartctl: permission denied")
    readings = [_of_nvme(content), _of_ata(content), _of_sas(content)]
    readings.append((content.get("endurance_used", {}).get("current_percent"), 0))
    used = next((percent for percent, _ in readings if percent is not None), None)
    written = next((size for _, size in readings if size), 0)
    if isinstance(used, bool) or not isinstance(used, int) or used < 0 or written < 0:
        return None
    return Wear(used / 100, written)


def _of_nvme(content: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the used percentage of the life, None if it is not reported, and bytes written."""
    log = content.get("nvme_smart_health_information_log", {})
    return log.get("percentage_used"), log.get("data_units_written", 0) * _NVME_UNIT_BYTES


def _of_ata(content: Mapping[str, Any]) -> tuple[Any, int]:
    pages = content.get("ata_device_statistics", {}).get("pages", [])
    rows = [row for page in pages for row in page.get("table", ())]
    values = {row["name"]: row["value"] for row in rows if row.get("flags", {}).get("valid")}
    used, sectors = (values.get(name) for name in _STATISTICS)
    return used, (sectors or 0) * content.get("logical_block_size", 0)


def _of_sas(content: Mapping[str, Any]) -> tuple[Any, int]:
    """As `_of_nvme`, for smartctl 7.4; from 7.5 on, all drives have `endurance_used`."""
    written = content.get("scsi_error_counter_log", {}).get("write", {})
    gigabytes = float(written.get("gigabytes_processed", 0))
    return content.get("scsi_percentage_used_endurance_indicator"), round(gigabytes * 1e9)
