"""Snapshots of the benchmark VM, each of which covers the one volume that is plugged in then.

A volume's chain is made of such snapshots. Proxmox keeps them in the VM's configuration, which does
not change a volume's name; it removes them with the volume, and frees no volume that a snapshot
needs (`snapshot_create` in PVE/AbstractConfig.pm, `try_deallocate_drive` in PVE/QemuServer.pm).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.model.disk import ChainKind, Format

SNAPSHOT_SECONDS: Final = 600.0
"""Time limit of a snapshot, a rollback or a removal, which copies data."""
_DIGITS: Final = 12
_TEMPORARY: Final = "op"


class VmSnapshots:
    """Snapshots of the volumes of a VM.

    Every method raises as `BenchVm.change`, and AccessDenied without the right VM.Snapshot.
    """

    def __init__(self, api: Api, vm: BenchVm) -> None:
        self._api = api
        self._vm = vm

    def depth(self, volid: str) -> int:
        """Return the number of snapshots in the volume's chain."""
        return sum(name != _name(volid, _TEMPORARY) for name in self._of(volid))

    def _of(self, volid: str) -> list[str]:
        rows = self._api.get(f"{self._vm.path}/snapshot")
        return sorted(row["name"] for row in rows if row["name"].startswith(_name(volid, "")))

    def extend(self, volid: str, depth: int) -> None:
        """Take the missing snapshots of the plugged volume, or else return to the newest one.

        The VM is off, as a rollback requires.
        """
        present = self.depth(volid)
        for level in range(present, depth):
            self._take(_name(volid, str(level)))
        if present >= depth:
            self._request("POST", f"{_name(volid, str(depth - 1))}/rollback", "qmrollback")

    def begin(self, volid: str, **options: Any) -> str:
        """Begin to take the snapshot of an operation; return the task."""
        named = {**_parameters(_name(volid, _TEMPORARY)), **options}
        return self._vm.tasks.begin(
            lambda: self._api.post(f"{self._vm.path}/snapshot", **named), kind="qmsnapshot"
        )

    def begin_removal(self, volid: str) -> str:
        """Begin to remove the snapshot of an operation; return the task."""
        path = f"{self._vm.path}/snapshot/{_name(volid, _TEMPORARY)}"
        return self._vm.tasks.begin(lambda: self._api.delete(path), kind="qmdelsnapshot")

    def take_temporary(self, volid: str) -> None:
        """Take the snapshot that an operation removes."""
        self._take(_name(volid, _TEMPORARY))

    def _take(self, name: str) -> None:
        self._vm.run_task(
            lambda: self._api.post(f"{self._vm.path}/snapshot", **_parameters(name)),
            kind="qmsnapshot",
            what=f"snapshot {name}",
            seconds=SNAPSHOT_SECONDS,
        )

    def _request(self, method: str, name: str, kind: str) -> None:
        call = {"POST": self._api.post, "DELETE": self._api.delete}[method]
        self._vm.run_task(
            lambda: call(f"{self._vm.path}/snapshot/{name}"),
            kind=kind,
            what=f"{kind} {name}",
            seconds=SNAPSHOT_SECONDS,
        )

    def remove(self, volid: str, *, temporary: bool = False) -> None:
        """Remove the volume's snapshots, the newest first, or only that of an operation."""
        only = _name(volid, _TEMPORARY)
        for name in reversed(self._of(volid)):
            if name == only or not temporary:
                self._request("DELETE", name, "qmdelsnapshot")


def _parameters(name: str) -> dict[str, Any]:
    return {"snapname": name, "description": "by pvebench, removed automatically"}


def _name(volid: str, level: str) -> str:
    digest = hashlib.sha256(volid.encode()).hexdigest()
    return f"pvebench-{digest[:_DIGITS]}-{level}"


def chain_kind(api: Api, storage: ClusterStorage, volume_format: str) -> ChainKind:
    """Return the place of a volume's snapshots, from the storage's configuration.

    Raises as `Api`.
    """
    if volume_format != Format.QCOW2:
        return ChainKind.STORAGE
    rows = api.get("/storage")
    row: dict[str, Any] = next((entry for entry in rows if entry["storage"] == storage.id), {})
    chained = str(row.get("snapshot-as-volume-chain") or "0") not in ("0", "")
    return ChainKind.VOLUME if chained else ChainKind.INTERNAL
