"""Registry of the kinds of storages on this machine, for drivers `qemu` and `host`.

A kind is one line here, or an entry point in the group `pvebench.storages`.
"""

from __future__ import annotations

from typing import Final

from pvebench.drivers.storages.contract import Kind
from pvebench.plugins import Registry

KINDS: Final = Registry[Kind](
    "storages",
    lambda plugin: isinstance(plugin, Kind),
    {
        "dir": "pvebench.drivers.storages.directory:DIR",
        "block": "pvebench.drivers.storages.block:BLOCK",
    },
)
"""Name in the settings -> the kind."""
