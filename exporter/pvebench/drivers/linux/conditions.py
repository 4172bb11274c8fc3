"""Conditions that slow down a host's disks: heat, a smaller ZFS cache, a RAID check.

They come from node_exporter's page or from /proc and /sys, under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.resources.abc import Traversable
from typing import Final

from pvebench.model.units import kernel_number

_DRIVES: Final = frozenset({"nvme", "drivetemp"})
"""Drivers of hwmon for drives: drivers/nvme/host/hwmon.c and drivers/hwmon/drivetemp.c of Linux."""
_SENSOR: Final = "temp1"
"""Sensor of the whole drive, with its maker's limit; other sensors have none."""
_MILLI: Final = 1000.0
"""Per degree Celsius; Linux' Documentation/hwmon/sysfs-interface.rst."""
_ARC: Final = re.compile(r"^size\s+4\s+(\d{1,18})$", re.MULTILINE)
_ARRAY: Final = re.compile(r"^md\w* : ", re.MULTILINE)
_SYNCS: Final = re.compile(r" (?:check|resync|recovery|reshape) = *\d+\.\d%")
"""Output of `status_resync` in drivers/md/md.c of Linux; a pending sync has no percentage."""
_SYNCING: Final = frozenset({"check", "resync", "recovering"})
"""States of node_exporter's collector mdadm, which does not report reshapes."""

Sample = tuple[str, Mapping[str, str], float]


def of_page(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the conditions on a page of node_exporter, as in `HostSnapshot.conditions`.

    Its collectors hwmon, zfs and mdadm are enabled by default.
    """
    drives: set[str] = set()
    arrays: dict[str, dict[str, float]] = {}
    values: dict[str, dict[str, float]] = {"temp": {}, "max": {}}
    conditions: dict[str, float] = {}
    names = {"node_hwmon_temp_celsius": "temp", "node_hwmon_temp_max_celsius": "max"}
    for name, labels, value in samples:
        if name == "node_hwmon_chip_names" and labels.get("chip_name") in _DRIVES:
            drives.add(labels.get("chip", ""))
        elif name in names and labels.get("sensor") == _SENSOR:
            values[names[name]][labels.get("chip", "")] = value
        elif name == "node_zfs_arc_size":
            conditions["zfs_cache"] = value
        elif name in {"node_md_state", "node_md_blocks_synced"}:
            arrays.setdefault(labels.get("device", ""), {})[labels.get("state", "")] = value
    if arrays:
        conditions["md_sync"] = float(any(map(_syncs, arrays.values())))
    known = drives & values["temp"].keys() & values["max"].keys()
    return conditions | _margin(values["max"][chip] - values["temp"][chip] for chip in known)


def _syncs(array: Mapping[str, float]) -> bool:
    """Return whether an array is syncing; a pending sync has no synced blocks yet."""
    return bool(array.get("")) and any(array.get(state) for state in _SYNCING)


def of_files(root: Traversable) -> dict[str, float]:
    """Return the conditions in /proc and /sys below `root`, as in `HostSnapshot.conditions`."""
    conditions = _margin(_margins(root / "sys/class/hwmon"))
    with suppress(OSError):
        if size := _ARC.search((root / "proc/spl/kstat/zfs/arcstats").read_text("ascii")):
            conditions["zfs_cache"] = float(size[1])
    with suppress(OSError):
        arrays = (root / "proc/mdstat").read_text("ascii")
        if _ARRAY.search(arrays):
            conditions["md_sync"] = float(bool(_SYNCS.search(arrays)))
    return conditions


def _margins(chips: Traversable) -> Iterable[float]:
    with suppress(OSError):
        for chip in sorted(chips.iterdir(), key=lambda path: path.name):
            with suppress(OSError, ValueError):  # a chip without a limit, a drive in standby
                if (chip / "name").read_text("ascii").strip() in _DRIVES:
                    limit, now = (_number(chip / f"{_SENSOR}_{part}") for part in ("max", "input"))
                    yield (limit - now) / _MILLI


def _number(path: Traversable) -> int:
    return kernel_number(path.read_text("ascii"))


def _margin(margins: Iterable[float]) -> dict[str, float]:
    least = min(margins, default=None)
    return {} if least is None else {"disk_margin": least}
