"""Zvols, and files on ZFS, made with pvebench's own code: run in the VM that plays the host.

zvols.py PARENT BYTES <{name: options}      prints {name: [path, {option: what ZFS says}]}
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench_lab.storages.pools import Zfs


def create(parent: str, size_bytes: int, volumes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    made = {}
    for name, options in volumes.items():
        disk = Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE, **options)
        path = Zfs().create(f"{parent}/{name}", "e2e", disk, size_bytes)
        made[name] = [str(path), Zfs().effective(f"{parent}/{name}")]
    return made


if __name__ == "__main__":
    json.dump(create(sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)), sys.stdout)
