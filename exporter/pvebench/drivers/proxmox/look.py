"""What a plugged disk really is: by Proxmox's word, QEMU's and the guest's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.agent import AgentGuest
from pvebench.drivers.proxmox.drive import read_back
from pvebench.drivers.proxmox.vm import BenchVm
from pvebench.errors import GuestSilent, HypervisorGone, SwitchFailed
from pvebench.model.disk import Disk
from pvebench.model.ports import Clock
from pvebench.model.volume import Attachment, BlockCounters, Plug

_SEEN_SECONDS: Final = 20.0
"""How long the guest may take to see a disk that QEMU has."""
_COMMANDS: Final = ("info block -v", "info iothreads")
UNVERIFIED: Final = ("aio", "preallocation")
"""QEMU tells its aio nowhere; how much of a file is allocated is the storage's own business."""


@dataclass(frozen=True, slots=True)
class Plugged:
    """The test disk that is in the VM now: in which slot, and what the guest knows it by."""

    plug: Plug
    slot: str
    serial: str


def look(
    vm: BenchVm, guest: AgentGuest, clock: Clock, plugged: Plugged, *, volume_format: str
) -> Attachment:
    """Return the plugged disk as it is.

    Args:
        volume_format: as the storage tells it.

    Raises:
        SwitchFailed: QEMU does not have it. GuestSilent: the guest does not see it.
    """
    slot = plugged.slot
    config, status = vm.config(), vm.status()
    seen = find_in_guest(guest, clock, plugged.serial)
    if slot not in status.get("blockstat", {}):
        raise SwitchFailed(f"QEMU has no disk in {slot}")
    told = {command: vm.monitor(command) for command in _COMMANDS}
    effective = read_back(
        slot, str(config.get(slot, "")), scsihw=str(config.get("scsihw", "lsi")),
        volume_format=volume_format,
    )  # fmt: skip
    effective["size_bytes"] = seen.get("size_bytes", "")
    effective["cache"] = _seen_cache(effective["cache"], plugged.plug.disk, seen)
    effective["iothread"] = _seen_iothread(effective["iothread"], slot, told)
    raw = {"config": config, "monitor": told, "guest": seen}
    return Attachment(
        device=seen["device"], effective=effective, unverified=UNVERIFIED,
        raw=json.dumps(raw, indent=1, sort_keys=True),
    )  # fmt: skip


def find_in_guest(guest: AgentGuest, clock: Clock, serial: str) -> dict[str, str]:
    """Wait until the guest has the disk; return what it says of it (`device=…` words).

    Raises:
        GuestSilent: it does not see it.
    """
    deadline = clock.monotonic() + _SEEN_SECONDS
    while True:
        done = guest.run(["/usr/bin/pvebench-disk", serial], timeout=_SEEN_SECONDS)
        if done.exit_code == 0:
            words = done.stdout.decode("utf-8", "replace").split()
            return dict(word.split("=", 1) for word in words)
        if clock.monotonic() > deadline:
            raise GuestSilent(f"the guest does not see the disk within {_SEEN_SECONDS:.0f} s")
        clock.sleep(0.5)


def _seen_cache(configured: str, disk: Disk, seen: Mapping[str, str]) -> str:
    """Return the cache mode, if what the guest sees of it agrees with what is configured."""
    sees = "write-back" if disk.cache.write_cache else "write-through"
    if seen.get("write_cache") == sees:
        return configured
    return f"{configured}, but the guest sees {seen.get('write_cache')}"


def _seen_iothread(configured: str, slot: str, told: Mapping[str, str | None]) -> str:
    """Return whether the disk has an I/O thread, by QEMU's own word where it may be asked."""
    text = told["info iothreads"]
    if text is None:
        return configured
    names = (f"iothread-{slot}:", f"iothread-virtio{slot}:")
    return str(int(any(name in text for name in names)))


def block_counters(status: Mapping[str, Any], slot: str) -> BlockCounters:
    """Return QEMU's counters of the disk in `slot` from an answer of status/current.

    Raises:
        HypervisorGone: QEMU does not say, or has stopped the VM.
    """
    if status.get("qmpstatus") == "io-error":
        raise HypervisorGone(
            "QEMU has stopped the VM after an I/O error", cause="the storage is full"
        )
    mine = status.get("blockstat", {}).get(slot)
    if mine is None:
        raise HypervisorGone(
            f"QEMU tells nothing of {slot} (status {status.get('qmpstatus')})",
            cause="the VM was stopped, or its monitor is busy",
        )
    return BlockCounters(
        read_operations=int(mine["rd_operations"]),
        write_operations=int(mine["wr_operations"]),
        flush_operations=int(mine["flush_operations"]),
        read_bytes=int(mine["rd_bytes"]),
        write_bytes=int(mine["wr_bytes"]),
        unmap_operations=int(mine.get("unmap_operations", 0)),
    )
