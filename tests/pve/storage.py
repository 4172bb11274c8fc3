"""Storages with real files behind them, whatever their type."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pve.refusals import bad_parameter, failure

FILES = ("dir", "nfs", "cifs", "btrfs")
_FORMATS = {
    "lvmthin": ("raw",),
    "lvm": ("raw",),
    "zfspool": ("raw",),
    "rbd": ("raw",),
    "btrfs": ("raw",),
}


@dataclass
class Storage:
    """One storage of the cluster.

    Attributes:
        nodes: those that have it; empty: all.
        avail: free bytes that it claims to have.
        enabled, mounted: with one of them off it is inactive, and without any space.
        preallocates: its option `preallocation: full`: else a volume takes no space until written.
        pool: of ZFS, or a dataset of one.
        options: further ones, as GET /storage shows them.
    """

    name: str
    type: str
    directory: Path
    content: str = "images,iso"
    nodes: tuple[str, ...] = ()
    avail: int = 100 << 30
    enabled: bool = True
    mounted: bool = True
    shared: bool = False
    preallocates: bool = False
    pool: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    volume_chain: bool = False
    """Its option snapshot-as-volume-chain."""

    @property
    def active(self) -> bool:
        return self.enabled and self.mounted

    def activate(self) -> None:
        """Refuse as `activate_storage` in PVE/Storage.pm and `DirPlugin.pm` do."""
        if not self.enabled:
            raise failure(f"storage '{self.name}' is disabled")
        if not self.mounted:
            raise failure(
                f"unable to activate storage '{self.name}' - directory is expected to be a mount "
                f"point but is not mounted: '{self.directory}'"
            )

    @property
    def formats(self) -> tuple[str, ...]:
        if self.type == "lvm" and self.volume_chain:
            return ("qcow2", "raw")
        return _FORMATS.get(self.type, ("raw", "qcow2", "vmdk"))


Book = dict[str, tuple[Path, str, int]]
"""volid -> path, format, owner (0: an ISO)."""


class Volumes:
    """All volumes and ISO files that one node sees.

    Args:
        shared: the book of what is on shared storages, the same for all nodes.
    """

    def __init__(self, storages: dict[str, Storage], node: str, shared: Book) -> None:
        self.storages = storages
        self._node = node
        self._own: Book = {}
        self._shared = shared
        self._notes: dict[str, str] = {}

    def share(self, other: Volumes) -> None:
        """See on shared storages what `other` sees, and let it see what is made here."""
        self._shared = other._shared

    @property
    def _found(self) -> Book:
        return {**self._shared, **self._own}

    def _book(self, volid: str) -> Book:
        storage = self.storages[volid.partition(":")[0]]
        return self._shared if storage.shared else self._own

    def _directory(self, place: Storage) -> Path:
        return place.directory if place.shared else place.directory / self._node

    def storage(self, name: str) -> Storage:
        if name not in self.storages:
            raise failure(f"storage '{name}' does not exist")
        return self.storages[name]

    def path(self, volid: str) -> Path:
        if volid not in self._found:
            raise RuntimeError(f"volume '{volid}' does not exist")
        return self._found[volid][0]

    def format(self, volid: str) -> str:
        self.path(volid)
        return self._found[volid][1]

    def size(self, volid: str) -> int:
        path = self.path(volid)
        if self._found[volid][1] in ("raw", "iso", "vma.zst"):
            return path.stat().st_size
        info = subprocess.run(
            ["qemu-img", "info", "-U", "--output=json", str(path)], capture_output=True, check=True
        )
        return int(json.loads(info.stdout)["virtual-size"])

    def owned(self, vmid: int) -> list[str]:
        """Return a VM's disks."""
        return [
            volid
            for volid, (_, form, owner) in self._found.items()
            if owner == vmid and form != "vma.zst"
        ]

    def owner(self, volid: str) -> int:
        self.path(volid)
        return self._found[volid][2]

    def has_snapshots(self, volid: str) -> bool:
        """Return whether a volume can have snapshots (`volume_has_feature` of the plugins)."""
        storage = self.storages[volid.partition(":")[0]]
        if storage.type in FILES or storage.type == "lvm":
            return self.format(volid) == "qcow2"
        return storage.type in ("lvmthin", "zfspool", "rbd")

    def dump(self, storage: str, name: str) -> Path:
        """Return the path of an archive, in an existing directory."""
        place = self.storage(storage)
        place.activate()
        if "backup" not in place.content:
            raise failure(f"storage '{storage}' does not support backups")
        path = self._directory(place) / "dump" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def keep_backup(self, storage: str, vmid: int, name: str, size: int, notes: str) -> str:
        path = self.dump(storage, name)
        volid = f"{storage}:backup/{name}"
        with path.open("wb") as file:
            file.truncate(size)
        self._book(volid)[volid] = (path, "vma.zst", vmid)
        self._notes[volid] = notes
        return volid

    def archives(self, vmid: int) -> list[str]:
        return [
            v for v, (_, form, owner) in self._found.items() if (form, owner) == ("vma.zst", vmid)
        ]

    def next_name(self, storage: str, vmid: int, form: str) -> str:
        stems = {
            volid.rpartition("/")[2].partition(":")[2] or volid.rpartition("/")[2]
            for volid in self._found
            if volid.startswith(f"{storage}:")
        }
        taken = {stem.partition(".")[0] for stem in stems}
        number = next(n for n in itertools.count() if f"vm-{vmid}-disk-{n}" not in taken)
        ending = f".{form}" if self.storage(storage).type in FILES else ""
        return f"vm-{vmid}-disk-{number}{ending}"

    def _volid(self, storage: str, vmid: int, name: str) -> str:
        inside = f"{vmid}/{name}" if self.storage(storage).type in FILES else name
        return f"{storage}:{inside}"

    def allocate(self, storage: str, vmid: int, name: str, size: int, form: str) -> str:
        place = self.storage(storage)
        place.activate()
        if "images" not in place.content:
            raise failure(f"storage '{storage}' does not support content-type 'images'")
        if form not in place.formats:
            raise failure(f"unsupported format '{form}'")
        ending = name.rpartition(".")[2] if "." in name else ""
        if place.type in FILES and ending != form:
            raise bad_parameter({"format": f"different storage formats ({form} != {ending})"})
        volid = self._volid(storage, vmid, name)
        path = self._directory(place) / "images" / str(vmid) / name
        if volid in self._found:
            raise failure(f"disk image '{path}' already exists")
        if place.preallocates and size > place.avail:
            raise failure(
                f"unable to create image: qemu-img: {path}: Could not write zeros for "
                f"preallocation: No space left on device"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "raw":
            with path.open("wb") as file:
                file.truncate(size)
        else:
            command = ["qemu-img", "create", "-q", "-f", form, str(path), str(size)]
            subprocess.run(command, check=True)
        self._book(volid)[volid] = (path, form, vmid)
        return volid

    def free(self, volid: str) -> None:
        """Remove a volume; one that is not there any more is no error, as in Proxmox."""
        if volid not in self._found:
            return
        self.storage(volid.partition(":")[0]).activate()
        self.path(volid).unlink(missing_ok=True)
        del self._book(volid)[volid]

    def rename(self, volid: str, new: str) -> str:
        """Give a volume another ID; return that."""
        book = self._book(volid)
        book[new] = book.pop(volid)
        return new

    def refuse_iso(self, storage: str) -> None:
        if "iso" not in self.storage(storage).content:
            raise failure(f"storage '{storage}' does not support 'iso' content")

    def upload(self, storage: str, name: str, content: bytes) -> str:
        place = self.storage(storage)
        place.activate()
        if not name.endswith((".iso", ".img")):
            raise bad_parameter({"filename": "wrong file extension"})
        self.refuse_iso(storage)
        path = self._directory(place) / "template/iso" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        volid = f"{storage}:iso/{name}"
        self._book(volid)[volid] = (path, "iso", 0)
        return volid

    def listed(self, storage: str, content: str, vmid: int | None) -> list[dict[str, Any]]:
        self.storage(storage).activate()
        rows = []
        for volid, (_, form, owner) in self._found.items():
            kind = {"iso": "iso", "vma.zst": "backup"}.get(form, "images")
            if not volid.startswith(f"{storage}:") or content not in ("", kind):
                continue
            if vmid is not None and owner != vmid:
                continue
            row: dict[str, Any] = {
                "volid": volid,
                "format": form,
                "content": kind,
                "size": self.size(volid),
            }
            row |= {"notes": self._notes[volid]} if self._notes.get(volid) else {}
            rows.append(row | ({"vmid": owner} if owner else {}))
        return rows


def parse_size(text: str) -> int:
    factor = {"M": 1 << 20, "G": 1 << 30}.get(text[-1], 0)
    return int(text[:-1]) * factor if factor else int(text) * 1024
