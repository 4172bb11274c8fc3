"""Which storage of the cluster it is, as far as the API shows it: its configuration.

The disks below a storage of the nodes are not in it. `pvebench check` says so.
"""

from __future__ import annotations

from typing import Any, Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.model.storage_identity import Identity

_KEYS: Final = (
    "type",
    "path",
    "server",
    "export",
    "share",
    "subdir",
    "pool",
    "data-pool",
    "namespace",
    "monhost",
    "vgname",
    "thinpool",
    "portal",
    "target",
    "volume",
)
"""Of storage.cfg, what names the place of the data. Others, such as `content`, are no identity."""


def identity_of(api: Api, storage: str) -> Identity:
    """Return what the cluster's configuration says of a storage; empty: the token may not see it.

    Raises:
        DriverError: the server does not answer.
    """
    rows = api.get("/storage")
    row: dict[str, Any] = next((one for one in rows if one["storage"] == storage), {})
    return {key: str(row[key]) for key in _KEYS if row.get(key)}
