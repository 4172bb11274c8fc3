"""The ZFS pools of a node: which one a storage lies on, how fragmented it is, and its scrub.

Told by the API to those with Sys.Audit on `/`, and by ssh (`state` of `node.sh`) under the same
names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.storage_types import ClusterStorage
from pvebench.errors import DriverError

_NO_ZFS: Final = "not installed"
"""In the answer to disks/zfs of a node without zfsutils-linux."""
_PERCENT: Final = re.compile(r"\d{1,3}%")
RUNS: Final = " in progress"
"""Follows what a scan is, in the words of `zpool status`, while it runs."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of a node.

    Attributes:
        fragmentation: of its free space, as a share; None: not known.
        scan: what `zpool status` says of its scan.
    """

    name: str
    fragmentation: float | None
    scan: str


def zfs_pools(api: Api, node: str) -> Iterator[Pool]:
    """Yield the node's ZFS pools.

    A pool that the server cannot be asked about, such as one whose name has one letter
    (`pve-storage-id`), is left out.

    Raises:
        AccessDenied: the token may not look. Rejected: `zpool list` fails there.
    """
    path = f"/nodes/{node}/disks/zfs"
    try:
        rows = api.get(path)
    except Rejected as error:
        if _NO_ZFS in error.text:
            return
        raise
    for row in rows:
        with contextlib.suppress(Rejected):
            scan = str(api.get(f"{path}/{row['name']}").get("scan", ""))
            told = row.get("frag")
            yield Pool(row["name"], None if told is None else float(told) / 100, scan)


class PoolNames:
    """Which pool a storage lies on, as the cluster's storage.cfg has it; asked once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: Mapping[str, str] | None = None

    def below(self, storage: ClusterStorage) -> str:
        """Return its name; empty: the storage is on none, or that cannot be known now."""
        if storage.type != "zfspool":
            return ""
        if self._known is None:
            with contextlib.suppress(DriverError):
                rows = self._api.get("/storage", type="zfspool")
                # A pool, or a dataset of it.
                pools = {row["storage"]: row.get("pool") or "" for row in rows}
                self._known = {name: pool.partition("/")[0] for name, pool in pools.items()}
        return (self._known or {}).get(storage.id, "")


def read_state(text: str, pool: str) -> dict[str, float]:
    """Return what `state` of `node.sh` says of a pool; what it does not say is absent.

    Returns:
        `zfs_fragmentation`, a share; `zfs_scan`, 1 while it is scrubbed or resilvered, else 0.
    """
    found: dict[str, float] = {}
    for line in _part(text, "zpool").splitlines():
        name, *columns = line.split() or [""]
        if name == pool and len(columns) == len(_COLUMNS):
            share = dict(zip(_COLUMNS, columns, strict=True))["fragmentation"]
            if _PERCENT.fullmatch(share):
                found["zfs_fragmentation"] = int(share[:-1]) / 100
    for told in re.split(r"^ *pool: ", _part(text, "scrub"), flags=re.MULTILINE)[1:]:
        head, whole, _ = told.partition("\nconfig:")
        if whole and head.partition("\n")[0] == pool:
            found["zfs_scan"] = float(bool(re.search(rf"^ *scan: .*{RUNS}", head, re.MULTILINE)))
    return found


_COLUMNS: Final = ("size", "allocated", "free", "fragmentation", "capacity", "health")
"""After a pool's name, as `node.sh` asks for them."""


def _part(text: str, name: str) -> str:
    return text.partition(f"== {name}\n")[2].partition("\n== ")[0]
