"""Backup, move, restore and snapshots of the attached disk while the guest uses it.

The commands are those that Proxmox VE gives its own QEMU, as far as QEMU 7.2 has them. Without
Proxmox's `backup` command, `blockdev-backup` intercepts the guest's writes in the same way: a write
to a block that is not yet saved waits for its copy.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.qemu.block_graph import LATENCIES, Names, own_statistics
from pvebench.drivers.qemu.qmp import Channel, CommandRefused
from pvebench.drivers.responses import count, fields, rows, text
from pvebench.drivers.storages.contract import Node, SnapshotStorage
from pvebench.errors import OperationFailed, OperationUnfinished
from pvebench.model.disk import Bus
from pvebench.model.ports import Clock, Progress
from pvebench.model.rules import Operations
from pvebench.model.volume import Plug
from pvebench.model.workload import FLEECING, NEIGHBOR, SNAPSHOT_RAM

_BOUNDS_NS: Final = tuple(round(10_000 * 10 ** (step / 20)) for step in range(137))
"""10 us to 63 s; each bound is 12% above the one before."""
_CBW_SECONDS: Final = 4
"""Proxmox's 45 s overflow in QEMU 7.2, which counts nanoseconds in 32 bits."""
_WORKERS: Final = 16
_CANCEL_SECONDS: Final = 60.0
_MIGRATED: Final = ("completed", "failed", "cancelled")
_MIGRATION: Final = fields(status=text, ram_=fields(transferred=count), error__desc_=text)
_MEMORY: Final = fields(base__memory=count)
_JOBS: Final = rows(
    fields(id=text, status=text, current__progress=count, total__progress=count, error_=text)
)


class DiskOperation:
    """`model.ports.Operation` of driver `qemu`.

    Args:
        plug: the disk that is attached as `names`.
        target_rate: bytes per second that the target can write; 0: no limit.
    """

    bounds: Sequence[float] = tuple(bound / 1e9 for bound in _BOUNDS_NS)
    look_seconds = 0.1

    def __init__(
        self,
        qmp: Channel,
        names: Names,
        storage: SnapshotStorage,
        plug: Plug,
        clock: Clock,
        *,
        name: str,
        target_rate: int,
    ) -> None:
        self._qmp = qmp
        self._names = names
        self._storage = storage
        self._volume, self._disk = plug.volume, plug.disk
        self._clock = clock
        self._name = name
        self._rate = target_rate
        self._memory: Node = {}
        self._memory_bytes = 0
        self._job = f"job{names.number}"
        self._nodes: list[str] = []
        self._limits = ""
        self._begun = self._running = self._completing = False
        self._bytes = 0

    def prepare(self) -> None:
        device = f"/machine/peripheral/{self._names.device}/virtio-backend"
        if self._disk.bus is not Bus.VIRTIO:
            device = self._names.device
        bounds = {"id": device, "boundaries": list(_BOUNDS_NS)}
        self._qmp.execute("block-latency-histogram-set", bounds)
        self._require_space()
        prepare: dict[str, Callable[[], object]] = {
            "snapshot": lambda: None,
            SNAPSHOT_RAM: self._add_memory,
            "delete-snapshot": self._take_snapshot,
            NEIGHBOR: lambda: None,
        }
        prepare.get(self._name, self._add_target)()

    def _require_space(self) -> None:
        """Require space for all that the operation creates. Raises NoSpace."""
        if self._name == SNAPSHOT_RAM:
            summary = self._qmp.ask("query-memory-size-summary", shape=_MEMORY)
            self._memory_bytes = summary["base-memory"]
        volume = self._volume
        need = Operations().space(
            self._name,
            volume.storage,
            volume_bytes=volume.size_bytes,
            memory_bytes=self._memory_bytes,
        )
        self._storage.require_space(sum(need.values()))

    def begin(self) -> None:
        begin: dict[str, Callable[[], None]] = {
            "backup": lambda: self._back_up(self._names.format),
            FLEECING: self._back_up_by_fleecing,
            "move": self._move,
            "restore": lambda: self._back_up(f"archive{self._names.number}"),
            "snapshot": self._take_snapshot,
            SNAPSHOT_RAM: self._save_memory,
            "delete-snapshot": self._delete_snapshot,
            NEIGHBOR: lambda: None,
        }
        begin[self._name]()
        self._begun = True

    def look(self) -> Progress:
        if self._running and self._name == SNAPSHOT_RAM:
            self._step_memory()
        elif self._running:
            self._step()
        stats = own_statistics(self._names, self._disk, self._qmp)
        bins = [stats.get(key, {}).get("bins") or [] for key in LATENCIES]
        operations = ("rd_operations", "wr_operations", "flush_operations")
        return Progress(
            operations=sum(stats[key] for key in operations),
            latencies=[sum(same) for same in zip(*bins, strict=True)],
            bytes=self._bytes,
            ended=self._begun and not self._running,
        )

    def _step(self) -> None:
        """Complete a job that is ready; note the end of one that is over."""
        job = self._state()
        if job is None:
            raise OperationFailed(f"{self._name}: QEMU lost its job")
        self._bytes = job["current-progress"]
        if job["status"] == "ready" and not self._completing:
            self._qmp.execute("job-complete", {"id": self._job})
            self._completing = True
        if job["status"] == "concluded":
            self._qmp.execute("job-dismiss", {"id": self._job})
            self._running = False
            if error := job.get("error"):
                raise OperationFailed(f"{self._name} failed: {error}")

    def _state(self) -> Mapping[str, Any] | None:
        jobs = self._qmp.ask("query-jobs", shape=_JOBS)
        return next((job for job in jobs if job["id"] == self._job), None)

    def _add(self, name: str, node: Mapping[str, Any]) -> str:
        full = f"{name}{self._names.number}"
        self._qmp.execute("blockdev-add", {**node, "node-name": full})
        self._nodes.append(full)
        return full

    def _file(self, label: str, *, overlay: bool = False, full: bool = False) -> Node:
        node = self._storage.add_file(self._volume, self._disk, label, overlay=overlay, full=full)
        cache = {"direct": self._disk.cache.direct, "no-flush": self._disk.cache.no_flush}
        return {**node, "cache": cache, "discard": "unmap"}

    def _add_target(self) -> None:
        file = self._add("target", self._file("target"))
        if self._rate:
            limits = {"bps-write": self._rate}
            self._limits = f"target{self._names.group}"
            group = {"qom-type": "throttle-group", "id": self._limits, "limits": limits}
            self._qmp.execute("object-add", group)
            node = {"driver": "throttle", "throttle-group": self._limits, "file": file}
            self._add("slow", node)
        if self._name == FLEECING:
            self._add("fleece", self._file("fleece"))
        if self._name == "restore":
            self._add("archive", self._file("archive", full=True))

    @property
    def _target(self) -> str:
        return f"{'slow' if self._rate else 'target'}{self._names.number}"

    def _start(self, command: str, arguments: Mapping[str, Any]) -> None:
        job = {"job-id": self._job, "auto-dismiss": False}
        self._qmp.execute(command, {**arguments, **job})
        self._running = True

    def _back_up(self, source: str) -> None:
        arguments = {"device": source, "target": self._target, "sync": "full"}
        self._start("blockdev-backup", {**arguments, "x-perf": {"max-workers": _WORKERS}})

    def _back_up_by_fleecing(self) -> None:
        """Save old data to the fleecing image, and back up the state from both."""
        node = {
            "driver": "copy-before-write",
            "file": self._names.format,
            "target": f"fleece{self._names.number}",
            "on-cbw-error": "break-snapshot",
            "cbw-timeout": _CBW_SECONDS,
        }
        cbw = self._add("cbw", node)
        drive = {"path": f"/machine/peripheral/{self._names.device}", "property": "drive"}
        self._qmp.execute("qom-set", {**drive, "value": cbw})
        self._back_up(self._add("access", {"driver": "snapshot-access", "file": cbw}))

    def _move(self) -> None:
        arguments = {"device": self._names.format, "target": self._target, "sync": "full"}
        self._start("blockdev-mirror", arguments)

    def _take_snapshot(self) -> None:
        """Put an overlay above the volume. As in Proxmox, the vCPUs stand still meanwhile."""
        self._qmp.execute("stop")
        try:
            self._put_overlay()
        finally:
            self._qmp.execute("cont")

    def _put_overlay(self) -> None:
        file = self._file("overlay", overlay=True)
        overlay = self._add("overlay", {"driver": "qcow2", "file": file, "backing": None})
        graph = {"node": self._names.format, "overlay": overlay}
        self._qmp.execute("blockdev-snapshot", graph)

    def _add_memory(self) -> None:
        size = self._memory_bytes
        self._memory = self._storage.add_file(self._volume, self._disk, "memory", size_bytes=size)

    def _save_memory(self) -> None:
        """Write the state of the VM to a file while it runs.

        Upstream QEMU has no `savevm-start`, and its `snapshot-save` stops the VM all the time. A
        migration to a file saves as Proxmox does: the VM stops only for what is left at the end.
        """
        capability = {"capability": "pause-before-switchover", "state": True}
        self._qmp.execute("migrate-set-capabilities", {"capabilities": [capability]})
        self._qmp.execute("migrate-set-parameters", {"max-bandwidth": self._rate})
        path = shlex.quote(str(self._memory["filename"]))
        self._qmp.execute("migrate", {"uri": f"exec:cat > {path}"})
        self._running = True

    def _step_memory(self) -> None:
        """Put the overlay above the volume when the VM has stopped, and let it go on."""
        state = self._migration()
        if state["status"] == "pre-switchover":
            self._put_overlay()
            self._qmp.execute("migrate-continue", {"state": "pre-switchover"})
            state = self._wait_for_migration()
        if state["status"] == "failed":
            self._running = False
            raise OperationFailed(f"{self._name} failed: {state.get('error-desc')}")
        if state["status"] == "completed":
            self._running = False
            self._qmp.execute("cont")

    def _migration(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._qmp.ask("query-migrate", shape=_MIGRATION)
        self._bytes = (state.get("ram") or {}).get("transferred", self._bytes)
        return state

    def _wait_for_migration(self) -> Mapping[str, Any]:
        """Wait for its end. Raises OperationUnfinished."""
        for _ in attempts(self._clock, seconds=_CANCEL_SECONDS, pause=0.01):
            if (state := self._migration())["status"] in _MIGRATED:
                return state
        raise OperationUnfinished(f"{self._name} did not end")

    def _delete_snapshot(self) -> None:
        """Write what is in the overlay to the volume, which the guest uses again after that."""
        arguments = {"device": f"overlay{self._names.number}", "base-node": self._names.format}
        self._start("block-commit", arguments)

    def cancel(self) -> None:
        """End a job that runs. Raises OperationUnfinished."""
        if self._running and self._name == SNAPSHOT_RAM:
            self._qmp.execute("migrate_cancel")  # the VM goes on
            if self._wait_for_migration()["status"] == "completed":
                self._qmp.execute("cont")  # it was too late
            self._running = False
        if self._running and self._limits:  # copies in flight must end first
            limits = {"path": f"/objects/{self._limits}", "property": "limits"}
            self._qmp.execute("qom-set", {**limits, "value": {"bps-write": 0}})
        for _ in attempts(self._clock, seconds=_CANCEL_SECONDS, pause=0.1):
            job = self._state() if self._running else None
            if job is not None and job["status"] == "concluded":
                self._qmp.execute("job-dismiss", {"id": self._job})
            if job is None or job["status"] == "concluded":
                self._running = False
                return
            with suppress(CommandRefused):  # it is about to end
                self._qmp.execute("job-cancel", {"id": self._job})
        raise OperationUnfinished(f"{self._name} did not end after it was canceled")

    def remove(self) -> None:
        """Remove its nodes and files, after the disk was unplugged. Raises DriverError."""
        for node in reversed(self._nodes):
            self._qmp.execute("blockdev-del", {"node-name": node})
        if self._limits:
            self._qmp.execute("object-del", {"id": self._limits})
        self.remove_files()

    def remove_files(self) -> None:
        """Remove its files, which no QEMU has open."""
        self._storage.remove_files(self._volume)
