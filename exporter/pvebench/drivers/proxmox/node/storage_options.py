"""Options of the cluster's storages that affect results, as facts of a node's environment.

GET /storage returns each storage with its options to a token with Datastore.Audit (`storage.index`
of the recordings); GET /storage/{storage} needs Datastore.Allocate. SSH adds the values of ZFS, LVM
or the mount (`options` of `node.sh`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.vm.drive import ClusterStorage, kind_of
from pvebench.errors import AccessDenied, PvebenchError, ServerGone, VolumeError
from pvebench.model.environment import storage_fact
from pvebench.model.volume import UNSEEN, Identity

DEFAULT: Final = "default"
UNKNOWN: Final = "unknown"
_OFF: Final = frozenset({"", "0"})
_VALUE: Final = re.compile(r"[A-Za-z0-9_=,.:/+-]{1,200}")
_LINE: Final = re.compile(rf"([a-z0-9_]{{1,30}})[ \t]+({_VALUE.pattern})")
_PRIVATE: Final = re.compile(r"\w*(addr|user|username|pass|password|domain|credentials|[ug]id)=")
"""Mount options that name servers and people, and do not affect the speed."""
_LINES: Final = 10


def configured(row: Mapping[str, Any]) -> dict[str, str]:
    """Return type and options of a row of GET /storage; empty: the token does not see it."""
    options = {key: _shown(row.get(key)) for key in ("type", *kind_of(row).options) if row}
    return {key: DEFAULT if text in _OFF else text for key, text in options.items()}


def effective(output: str) -> dict[str, str]:
    """Return option -> value from the response to `options`, one per line."""
    matches = map(_LINE.fullmatch, output.splitlines()[:_LINES])
    return {match[1]: _shown(match[2]) for match in matches if match}


def _shown(value: object) -> str:
    """Return a value without its private parts."""
    words = ("" if value is None else str(value)).split(",")
    text = ",".join(word for word in words if not _PRIVATE.match(word))
    return text if not text or _VALUE.fullmatch(text) else UNKNOWN


class StorageOptions:
    """Options of a node's storages at the last request. Owned by one worker thread.

    Args:
        storages: name in packs -> cluster storage.

    Attributes:
        on_node: the node over SSH; None: only storage.cfg is known.
    """

    def __init__(self, api: Api, storages: Mapping[str, ClusterStorage]) -> None:
        self.on_node: NodeSsh | None = None
        self._api = api
        self._storages = storages
        self._options: dict[str, dict[str, str]] = {}
        self._effective: dict[str, dict[str, str]] = {}
        self._unread: dict[str, VolumeError] = {}
        """Storage that the node could not read so far -> why."""

    def refresh(self) -> dict[str, str]:
        """Return fact -> value, now; without those of a storage that the node cannot read.

        Raises ServerGone: the node has not responded over SSH yet. Others as the API.
        """
        self._unread.clear()
        rows = {str(row["storage"]): row for row in self._api.get("/storage")}
        for name, storage in self._storages.items():
            options = configured(rows.get(storage.id, {})) or {"options": UNKNOWN}
            try:
                self._options[name] = options | self._on_node(storage.id)
            except VolumeError as error:
                self._options[name], self._unread[name] = options, error
        return {
            storage_fact(name, key): value
            for name, options in self._options.items()
            for key, value in options.items()
        }

    def _on_node(self, storage: str) -> dict[str, str]:
        """Return the values on the node; the last known ones while it does not return them.

        Unknown values would be a change of the environment, and volumes would be replaced.

        Raises VolumeError: the node cannot read this storage. ServerGone: it does not respond.
        """
        if self.on_node is None:
            return {}
        try:
            output = self.on_node.ask("options", storage)
        except PvebenchError as error:
            if storage not in self._effective:
                kind = VolumeError if isinstance(error, VolumeError) else ServerGone
                raise kind(
                    f"options of storage {storage} on its node are unknown: {error.reason}",
                    cause=error.cause,
                    next_step=error.next_step,
                    evidence=error.evidence,
                ) from error
        else:
            self._effective[storage] = effective(output.decode("utf-8", "replace"))
        return self._effective[storage]

    def of_new_volume(self, storage: str) -> str:
        """Return the options that a volume has that is created now.

        Raises VolumeError: the node cannot read the storage. Others as `refresh`.
        """
        if storage not in self._options or storage in self._unread:
            self.refresh()
        if storage in self._unread:
            raise self._unread[storage]
        return " ".join(f"{key}={value}" for key, value in self._options[storage].items())


# --- Identity of a cluster storage: its configuration, as far as the API shows it
#
# The API does not name the drives below a storage; only a drive with a unique use is known.

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
"""Keys of storage.cfg that identify the location of the data; others, such as `content`, do not."""


_LIST: Final = {"include-partitions": 1, "skipsmart": 1}
_OF_CEPH: Final = ("osdid-list", "journals", "db", "wal")


def identity_of(api: Api, storage: str, drives: Sequence[Mapping[str, Any]]) -> Identity:
    """Return a storage's identity from the cluster's configuration; empty: not visible.

    Args:
        drives: of the node.

    Raises DriverError: the server does not respond.
    """
    rows = api.get("/storage")
    row: dict[str, Any] = next((entry for entry in rows if entry["storage"] == storage), {})
    found = {key: str(row[key]) for key in _KEYS if row.get(key)}
    use = kind_of(found).drive_use
    return found if use is None else {**found, "drive": _drive(use, drives)}


def _drive(use: str, drives: Sequence[Mapping[str, Any]]) -> str:
    """Return the node's only drive with a use; the API names no other link to a storage."""
    names = {
        str(row.get("parent") or row["devpath"])
        for row in drives
        if row.get("used") == use and not any(row.get(name) for name in _OF_CEPH)
    }
    chosen = [row for row in drives if row["devpath"] in names and not row.get("parent")]
    if not use or len(chosen) != 1:
        return UNSEEN
    model, serial, transport = (str(chosen[0].get(name)) for name in ("model", "serial", "type"))
    facts = f"{model}, serial …{serial[-4:]}, {transport}"
    return f"{facts} (only {use} drive of the node)"


def drives_of(api: Api, node: str) -> list[Mapping[str, Any]]:
    """Return the drives and partitions of a node, without SMART; empty: not available."""
    with contextlib.suppress(AccessDenied, Rejected):
        return list(api.get(f"/nodes/{node}/disks/list", **_LIST))
    return []
