"""Snapshots and backups of the benchmark VM.

A snapshot covers the one volume that is plugged in then; a volume's chain is made of such ones.
Proxmox keeps them in the VM's configuration, which does not change a volume's name; it removes them
with the volume, and frees no volume that a snapshot needs (`snapshot_create` in
PVE/AbstractConfig.pm, `try_deallocate_drive` in PVE/QemuServer.pm).

Backups during runs create archives. The marker of the VM in an archive's notes proves that pvebench
created it, or the log of an own backup task that names an archive without notes: other backups of
the same VM stay. An archive can be listed and removed only as long as the VM is in the pool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import readable
from pvebench.drivers.proxmox.api.tasks import (
    SEARCH_SECONDS,
    Tasks,
    newest_task,
    runs_task,
    tasks_of,
    was_killed,
)
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, active_storages
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.errors import Busy, DriverError
from pvebench.log import log
from pvebench.model.disk import ChainKind, Format
from pvebench.model.ports import Clock, Journal, of_kinds, remember
from pvebench.model.units import show_bytes

SNAPSHOT_SECONDS: Final = 600.0
"""Time limit of a snapshot, a rollback or a removal, which copies data."""
_DIGITS: Final = 12
_TEMPORARY: Final = "op"


class VmSnapshots:
    """Snapshots of the volumes of a VM.

    Every method raises as `BenchVm.change`, and AccessDenied without the right VM.Snapshot.
    """

    def __init__(self, vm: BenchVm) -> None:
        self._api = vm.access.api
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


# --- Archives

BACKUP: Final = "vzdump"
"""Type of the tasks of backups; one that waits for another backup runs, too."""
KIND: Final = "proxmox-backup"
"""Kind of a journal entry of an archive to remove."""
_KEYS: Final = frozenset({"node", "vmid", "storage", "mark", "newest"})
_NAMED: Final = re.compile(
    r"creating (?:vzdump archive '(?P<place>[^']*/)|Proxmox Backup Server archive ')"
    r"(?P<name>[^']{1,200})'"
)
"""Line of a backup's log with a path whose last part is the archive's name, or with a snapshot."""
_REMOVE_SECONDS: Final = 300.0
LOCK_MINUTES: Final = 1
"""Maximum wait of a backup for another one; 0 is the node's default of three hours."""
_WAIT_SECONDS: Final = 60.0 * LOCK_MINUTES + 10.0


def notes(mark: str) -> str:
    """Return the notes of the archives of the VM with this marker."""
    return f"pvebench {mark}, removed automatically"


def expect_archive(vm: BenchVm, storage: str, size_bytes: int = 0) -> None:
    """Record that an archive of the VM, of at most so many bytes, is about to be created."""
    details = _of_vm(vm, newest_task(vm.access.api, vm.access.node, BACKUP, str(vm.vmid)))
    details |= {"most": show_bytes(size_bytes)} if size_bytes else {}
    vm.access.journal.open(KIND, {**details, "storage": storage})


def _of_vm(vm: BenchVm, newest: str = "") -> dict[str, str]:
    node = vm.access.node
    return {"node": node, "vmid": str(vm.vmid), "mark": vm.mark, "newest": newest}


def remove_archives(vm: BenchVm) -> list[str]:
    """Remove the recorded archives of a VM; return a line about each record.

    A record on a storage that the token no longer sees is closed: it was deleted, or left the pool.

    Raises DriverError: not possible at present; the records stay.
    """
    lines = []
    api, clock, journal = vm.access.api, vm.access.clock, vm.access.journal
    for number, details in of_kinds(journal, KIND):
        if not details.keys() >= _KEYS or details["mark"] != vm.mark:
            continue
        began = _own_tasks(api, details)[:1]
        if began and was_killed(str(began[0].get("status"))):
            lines.append(_left_by(_named(api, details["node"], began[0]["upid"]), details))
            remember(journal, lines[-1])
            journal.close(number)
            continue
        vm.require_unlocked("remove its backup")
        _wait_for_backup(api, clock, details)
        if details["storage"] in {str(row["storage"]) for row in api.get("/storage")}:
            count = _remove(api, clock, details)
            lines.append(f"removed {count} backups of VM {vm.vmid} on {details['storage']}")
        else:
            lines.append(_unchecked(details, "the storage is gone or not in the pool"))
            remember(journal, lines[-1])
        journal.close(number)
    return lines


def _left_by(named: re.Match[str] | None, details: Mapping[str, str]) -> str:
    """Return the files of a killed backup (`exec_backup_task` in PVE/VZDump.pm), and its lock."""
    vmid, most = details["vmid"], details.get("most", "an unknown size")
    place, name = named.group("place", "name") if named else ("dump/", f"vzdump-qemu-{vmid}-*")
    base = f"{place}{name.partition('.')[0]}"
    # Proxmox Backup Server, which has no place on the node, discards an incomplete backup.
    files = f"{base}.vma.dat (up to {most}), {base}.tmp or an archive may remain; remove them there"
    return readable(
        f"a backup of VM {vmid} to storage {details['storage']} on {details['node']} was killed; "
        f"{'' if place is None else f'{files}; '}if the VM is still locked, run `qm unlock {vmid}`"
    )


def remove_unrecorded(vm: BenchVm) -> int:
    """Remove the archives of a VM without records, of a lost journal; return their number.

    Raises DriverError: not possible at present, or a backup runs.
    """
    vm.require_unlocked("remove its backups")
    api, clock = vm.access.api, vm.access.clock
    storages = active_storages(api, vm.access.node, "backup")
    return sum(_remove(api, clock, {**_of_vm(vm), "storage": storage}) for storage in storages)


def _wait_for_backup(api: Api, clock: Clock, details: Mapping[str, str]) -> None:
    """Wait for the end of a backup that does not lock the VM yet: its archive appears later.

    If pvebench was killed while it requested the backup, its task may not be in the list yet.

    Raises Busy: it does not end.
    """
    appears = clock.monotonic() + SEARCH_SECONDS
    of_vm = details["node"], BACKUP, details["vmid"]
    for _ in attempts(clock, seconds=_WAIT_SECONDS, pause=1.0):
        late = clock.monotonic() >= appears or newest_task(api, *of_vm) != details["newest"]
        if late and not runs_task(api, *of_vm):
            return
    raise Busy(
        f"a backup of VM {details['vmid']} runs on {details['node']}",
        cause="it waits for another backup, or a backup job includes the VM",
        next_step="no action needed; pvebench retries later",
    )


def try_to_remove(vm: BenchVm) -> None:
    """Remove the recorded archives of a VM in use, if possible at present; else records stay."""
    try:
        for line in remove_archives(vm):
            log.info("backups of an operation", result=line)
    except DriverError as error:
        log.warning("backups of an operation remain; pvebench retries", reason=error.reason)


def close_lost(journal: Journal, node: str, marks: set[str]) -> list[str]:
    """Close the records of VMs that are gone; return a line about each, with what to do.

    Args:
        marks: markers of the VMs that still exist, or may exist.
    """
    lines = []
    for number, details in of_kinds(journal, KIND):
        if details.get("node") != node or details.get("mark") in marks:
            continue
        lines.append(_unchecked(details, "the VM is gone"))
        remember(journal, lines[-1])
        journal.close(number)
    return lines


def _unchecked(details: Mapping[str, str], why: str) -> str:
    return (
        f"backups on {details.get('storage')} of VM {details.get('vmid')} not checked: {why}; "
        f"remove those whose notes are {notes(details.get('mark', ''))!r}"
    )


def own_archives(api: Api, path: str, vmid: str, mark: str) -> list[str]:
    """Return the volids of a VM's archives in a storage's content that pvebench created."""
    rows = api.get(path, content="backup", vmid=vmid)
    return sorted(row["volid"] for row in rows if notes(mark) in str(row.get("notes", "")))


def _without_notes(api: Api, path: str, details: Mapping[str, str]) -> list[str]:
    """Return the volids of archives without notes that logs of own tasks name, since the record.

    A backup gets its name before its notes, and ends well without them (`exec_backup_task` in
    PVE/VZDump.pm): a task that is stopped between the two leaves such an archive.
    """
    found = (_named(api, details["node"], row["upid"]) for row in _own_tasks(api, details))
    named = {f"{details['storage']}:backup/{one['name']}" for one in found if one}
    rows = api.get(path, content="backup", vmid=details["vmid"])
    return sorted(
        str(row["volid"]) for row in rows if row["volid"] in named and not row.get("notes")
    )


def _own_tasks(api: Api, details: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the own backup tasks of a VM since its record, in order."""
    rows = tasks_of(api, details["node"], BACKUP, details["vmid"])
    upids = [str(row["upid"]) for row in rows]
    first = upids.index(details["newest"]) + 1 if details["newest"] in upids else 0
    return [row for row in rows[first:] if f":{api.login}:" in row["upid"]]


def _named(api: Api, node: str, upid: str) -> re.Match[str] | None:
    """Return the place and name of the archive in the log of a task; None: not known yet."""
    lines = api.get(f"/nodes/{node}/tasks/{upid}/log", start=0, limit=200)
    return next(filter(None, (_NAMED.search(str(line["t"])) for line in lines)), None)


def _remove(api: Api, clock: Clock, details: Mapping[str, str]) -> int:
    path = f"/nodes/{details['node']}/storage/{details['storage']}/content"
    own = own_archives(api, path, details["vmid"], details["mark"])
    own += _without_notes(api, path, details)
    for volid in own:
        Tasks(api, details["node"], clock).run(
            partial(api.delete, f"{path}/{volid}"),
            kind="imgdel",
            what=f"remove backup {volid}",
            seconds=_REMOVE_SECONDS,
        )
    return len(own)
