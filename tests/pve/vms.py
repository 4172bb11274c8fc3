"""A VM's configuration: what is in force, what is pending, what a hot-plug does to either."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pve.drives import LIVE, NEW, SLOT, UNUSED, parse, render, size_text
from pve.machines import Machine
from pve.refusals import Refused, bad_parameter, failure
from pve.storage import Volumes

FAST = frozenset(
    {"name", "hotplug", "description", "tags", "onboot", "protection", "startup", "shares"}
)
THROTTLES = ("mbps", "iops")
NO_EFFECT = frozenset(
    {
        "detect_zeroes",
        "serial",
        "wwn",
        "model",
        "backup",
        "replicate",
        "rerror",
        "werror",
        "scsiblock",
        "shared",
        "size",
        "format",
        "snapshot",
    }
)
"""Options of a disk in its slot that are written at once, but do nothing until it is re-plugged."""


@dataclass
class Vm:
    """One VM. `config` is in force; `pending` and `dropped` wait for the next cold start."""

    vmid: int
    node: str
    machine: Machine
    volumes: Volumes
    config: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    flock: threading.RLock = field(default_factory=threading.RLock)
    lock_seconds: float = 10.0
    started: float = 0.0
    held: dict[str, set[str]] = field(default_factory=dict)
    """volid -> snapshots that need it: it cannot be freed (`try_deallocate_drive`)."""
    hastate: str = ""
    """As HA keeps it; empty: it is none of HA's."""

    @property
    def running(self) -> bool:
        return self.machine.alive()

    @property
    def digest(self) -> str:
        text = json.dumps([self.config, self.pending, sorted(self.dropped)], sort_keys=True)
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def shown(self, *, current: bool) -> dict[str, Any]:
        merged = dict(self.config)
        if not current:
            merged |= self.pending
            for key in self.dropped:
                merged.pop(key, None)
        return {**merged, "digest": self.digest}

    def pending_rows(self) -> list[dict[str, Any]]:
        rows = []
        for key in sorted({*self.config, *self.pending}):
            row: dict[str, Any] = {"key": key}
            if key in self.config:
                row["value"] = self.config[key]
            if key in self.pending:
                row["pending"] = self.pending[key]
            elif key in self.dropped:
                row["delete"] = 1
            rows.append(row)
        return [*rows, {"key": "digest", "value": self.digest}]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the configuration as Proxmox does, or fail as it does."""
        if not self.flock.acquire(timeout=self.lock_seconds):
            raise failure(
                f"can't lock file '/var/lock/qemu-server/lock-{self.vmid}.conf' - got timeout"
            )
        try:
            yield
        finally:
            self.flock.release()

    def refuse_lock(self) -> None:
        if "lock" in self.config:
            raise failure(f"VM is locked ({self.config['lock']})")

    def check_digest(self, digest: str | None) -> None:
        if digest and digest != self.digest:
            raise failure("checksum mismatch (file change by other user?)")

    def update(self, params: Mapping[str, Any], *, force: bool = False) -> None:
        """One config call: all deletes, then all adds, then whatever can be applied."""
        wanted = dict(params)
        drops = _keys(wanted.pop("delete", ""))
        if not drops and not wanted and "revert" not in params:
            raise failure("no options specified")
        for key in _keys(wanted.pop("revert", "")):
            self._unwait(key)
            self.dropped.discard(key)
        for key in drops:
            if str(self.config.get("protection", "0")) == "1" and SLOT.match(key):
                raise failure(f"can't remove drive '{key}' - protection mode enabled")
            self._unwait(key)
            if key in self.config:
                self.dropped.add(key)
        for key, value in wanted.items():
            self.dropped.discard(key)
            text = self._normal(str(value)) if SLOT.match(key) else value
            if self.config.get(key) == text:
                self.pending.pop(key, None)
            else:
                self.pending[key] = text
                self._claim(key)
        if self.running:
            self._hotplug({*drops, *params}, force=force)
        else:
            self.apply(force=force)

    def _claim(self, slot: str) -> None:
        """A volume that is to be plugged in is not unused any more, even while that is pending."""
        if SLOT.match(slot):
            volid = parse(str(self.pending[slot]))[0]
            for name in [n for n, v in self.config.items() if UNUSED.match(n) and v == volid]:
                del self.config[name]

    def _unwait(self, key: str) -> None:
        """Drop what is pending; a volume that was to be plugged in is unused again."""
        waiting = str(self.pending.pop(key, ""))
        if SLOT.match(key) and waiting and "media=cdrom" not in waiting:
            self._keep(parse(waiting)[0])

    def _normal(self, value: str) -> str:
        volid, options = parse(value)
        new = NEW.match(volid)
        if new and options.get("media") != "cdrom":
            form = options.get("format") or "raw"
            name = self.volumes.next_name(new["storage"], self.vmid, form)
            size = int(float(new["size"]) * (1 << 30))
            volid = self.volumes.allocate(new["storage"], self.vmid, name, size, form)
        try:
            options["size"] = size_text(self.volumes.size(volid))
        except RuntimeError as error:
            raise failure(str(error)) from error
        return render(volid, options)

    def apply(self, *, force: bool = False) -> None:
        """Make everything pending real: the VM is off."""
        for key in sorted(self.dropped):
            self._drop(key, force=force)
        for key in list(self.pending):
            self._set(key)

    def _drop(self, key: str, *, force: bool) -> None:
        self.dropped.discard(key)
        value = str(self.config.pop(key, ""))
        if UNUSED.match(key) or (SLOT.match(key) and force):
            volid = parse(value)[0]
            if self.held.get(volid):
                self.config[key] = value
                raise failure(f"unable to delete '{volid}' - volume is still in use (snapshot?)")
            self.volumes.free(volid)
        elif SLOT.match(key) and "media=cdrom" not in value:
            self._keep(parse(value)[0])

    def retain(self, volid: str) -> None:
        """Keep a volume, from which a disk was moved away, as unused."""
        self._keep(volid)

    def backs_up(self, volid: str) -> bool:
        drives = (parse(str(value)) for key, value in self.config.items() if SLOT.match(key))
        return any(one == volid and options.get("backup") != "0" for one, options in drives)

    def _keep(self, volid: str) -> None:
        used = {parse(str(value))[0] for key, value in self.config.items() if SLOT.match(key)}
        if volid not in used:
            number = next(n for n in range(256) if f"unused{n}" not in self.config)
            self.config[f"unused{number}"] = volid

    def _set(self, key: str) -> None:
        old, value = str(self.config.get(key, "")), self.pending.pop(key)
        self.config[key] = value
        if not SLOT.match(key):
            return
        volid = parse(str(value))[0]
        for name in [n for n, v in self.config.items() if UNUSED.match(n) and v == volid]:
            del self.config[name]
        if old and parse(old)[0] != volid and "media=cdrom" not in old:
            self._keep(parse(old)[0])

    def _hotplug(self, touched: set[str], *, force: bool) -> None:
        """Apply what can be applied live, of the keys of this call only."""
        allowed = "disk" in str(self.config.get("hotplug", "network,disk,usb"))
        errors = {}
        for key in sorted(self.dropped & touched):
            try:
                if UNUSED.match(key) or key in FAST:
                    self._drop(key, force=force)
                elif LIVE.match(key) and allowed:
                    self._unplug(key)
                    self._drop(key, force=force)
            except RuntimeError as error:
                errors[key] = f"hotplug problem - {error}"
        for key in [key for key in self.pending if key in touched]:
            try:
                if key in FAST:
                    self._set(key)
                elif LIVE.match(key) and allowed:
                    self._plug(key)
            except RuntimeError as error:
                errors[key] = f"hotplug problem - {error}"
        if errors:
            raise bad_parameter(errors)

    def _unplug(self, slot: str) -> None:
        if slot in str(self.config.get("boot", "")):
            raise RuntimeError(f"can't unplug bootdisk '{slot}'")
        self.machine.unplug(slot)

    def _plug(self, slot: str) -> None:
        value = str(self.pending[slot])
        old = str(self.config.get(slot, ""))
        if old and parse(old)[0] == parse(value)[0]:
            self._change_in_place(slot, old, value)
            return
        if old:
            self._unplug(slot)
        self.machine.plug(slot, value, str(self.config.get("scsihw", "lsi")))
        self._set(slot)

    def _change_in_place(self, slot: str, old: str, value: str) -> None:
        volid, before = parse(old)
        _, after = parse(value)
        written = {
            key: text
            for key, text in after.items()
            if key in NO_EFFECT or key.startswith(THROTTLES)
        }
        kept = {
            key: text
            for key, text in before.items()
            if key not in NO_EFFECT and not key.startswith(THROTTLES)
        }
        self.config[slot] = render(volid, {**kept, **written})
        if self.config[slot] == value:
            del self.pending[slot]

    def start(self) -> list[str]:
        """Apply what is pending and power on; return warnings."""
        if self.running and self.config.get("lock") == "backup":
            return []  # a backup may have started QEMU by itself: it is only told to go on
        self.refuse_lock()
        if self.running:
            raise failure(f"VM {self.vmid} already running")
        self.apply()
        self._need_volumes()
        warnings = self.machine.start(self.config)
        self.started = time.monotonic()
        hardware = self.config.get("scsihw", "lsi")
        for key, value in self.config.items():
            threaded = key.startswith("scsi") and SLOT.match(key) and "iothread=1" in str(value)
            if threaded and hardware != "virtio-scsi-single":
                warnings.append("WARN: iothread is only valid with virtio-scsi-single")
        return warnings

    def _need_volumes(self) -> None:
        for key, value in self.config.items():
            if SLOT.match(key) and (volid := parse(str(value))[0]) not in ("none", "cdrom"):
                try:
                    self.volumes.path(volid)
                except RuntimeError as error:
                    raise failure(str(error)) from error

    def stop(self) -> None:
        if not self.running:
            return
        self.refuse_lock()
        self.machine.stop()
        self.apply()

    def remove(self, states: Iterable[str] = (), *, unreferenced: bool = False) -> None:
        """Free every volume of the VM that its configuration names (`destroy_vm` in PVE).

        Args:
            states: volumes of its snapshots' memory.
            unreferenced: also whatever is named after its number, on any storage of the node.
        """
        named = {
            parse(str(value))[0]
            for key, value in {**self.config, **self.pending}.items()
            if SLOT.match(key) or UNUSED.match(key) or key in ("efidisk0", "tpmstate0")
        }
        for volid in self.volumes.owned(self.vmid):
            if unreferenced or volid in {*named, *states}:
                with suppress(Refused):  # only a warning in the log
                    self.volumes.free(volid)


def _keys(text: str) -> list[str]:
    return [key for key in str(text).replace(";", ",").split(",") if key]
