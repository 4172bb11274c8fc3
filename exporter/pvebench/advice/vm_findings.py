"""Findings about disks and VMs, by their configuration alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.drivers.driver import AuditedCluster, AuditedVm
from pvebench.drivers.proxmox.vm.drive import (
    DIRECT,
    OTHER_VOLUMES,
    SLOT,
    VOLUME_CHAINS,
    effective,
    is_krbd,
    is_on,
    is_thin,
    kind_of,
    parse_drive,
    test_slots,
)
from pvebench.model.disk import BUSES

REPORTED: Final = ("bus", "format", "cache", "aio", "iothread", "discard", "scsihw")
"""Options of a disk that an audit reports."""
_MACHINE: Final = re.compile(r"(pc-(i440fx|q35)|pc|q35)(-(?P<major>\d{1,9})\.[\d.]+(\+pve\d+)?)?")
_CREATED: Final = re.compile(r"creation-qemu=(?P<major>[0-9]{1,9})")
_FREEZE: Final = ("freeze-fs", "freeze-fs-on-backup", "guest-fsfreeze")
"""Names of one option of `agent`; up to version 9.1 only the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a disk or its VM.

    Attributes:
        severe: whether data is at risk, or the VM may not start.
        changes: options of the drive string, or the VM's machine, that remedy it; None removes one.
    """

    text: str
    severe: bool = False
    changes: Mapping[str, str | None] | None = None


def next_config(vm: AuditedVm) -> dict[str, str]:
    """Return the configuration of the VM's next start."""
    return {key: text for key, text in {**vm.config, **vm.pending}.items() if text}


def storage_of(text: str) -> str:
    """Return the storage of a drive; empty: it is not on a storage."""
    volid = parse_drive(text)[0]
    return volid.partition(":")[0] if ":" in volid and volid[0] != "/" else ""


def effective_options(
    config: Mapping[str, str], slot: str, text: str, kind: Mapping[str, str]
) -> dict[str, str]:
    """Return what the options of a drive mean, with Proxmox VE's defaults."""
    volid, options = parse_drive(text)
    # A path has the format of its option, a volume that of its name.
    form = options.get("format", "") if volid[:1] == "/" else volid.rpartition(".")[2]
    meaning = effective(slot, options, scsihw=config.get("scsihw", "lsi"), storage=kind)
    meaning["format"] = form if form in ("qcow2", "vmdk") else "raw"
    return {name: meaning[name] for name in REPORTED}


def _also_pending(
    vm: AuditedVm, findings_of: Callable[[Mapping[str, str]], Iterable[Finding]]
) -> Iterator[Finding]:
    """Yield the findings of a configuration, then those that only its pending changes have.

    The latter have no remedy, as a command would discard the change.
    """
    now = tuple(findings_of(vm.config))
    yield from now
    for finding in findings_of(next_config(vm)):
        if finding.text not in {it.text for it in now}:
            yield Finding(text=f"pending change: {finding.text}", severe=finding.severe)


def disk_findings(vm: AuditedVm, slot: str, kind: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what concerns a disk; `kind`: options of its storage."""
    yield from _also_pending(vm, lambda config: _findings(config, slot, kind))
    if slot in vm.pending:
        yield Finding(text="changed, in use only after the VM was stopped and started")


def _findings(config: Mapping[str, str], slot: str, kind: Mapping[str, str]) -> Iterator[Finding]:
    if slot not in config:
        return
    _, options = parse_drive(config[slot])
    used = effective_options(config, slot, config[slot], kind)
    yield from _cache_findings(options, used, kind)
    yield from _bus_findings(options, used)
    name, chained = kind.get("type", ""), is_on(kind.get("snapshot-as-volume-chain", ""))
    if is_thin(kind, used["format"]) and used["discard"] == "0":
        text = "discard is off on thin storage: deleted data keeps its space"
        yield Finding(text=text, changes={"discard": "on"})
    if is_on(options.get("snapshot", "")):
        text = "snapshot=1: all writes are lost when the VM stops"
        yield Finding(text=text, severe=True, changes={"snapshot": None})
    if chained and used["format"] == "qcow2" and (machine := _newer_machine(config)):
        text = "a snapshot chain needs machine version 10.0; with this one the VM does not start"
        yield Finding(text=text, severe=True, changes={"machine": machine})
    if name in ("nfs", "cifs") and used["format"] == "qcow2" and not chained:
        text = "a snapshot of qcow2 on NFS or CIFS stops the VM for minutes if the image is large"
        yield Finding(text=text)


def vm_findings(vm: AuditedVm, cluster: AuditedCluster) -> tuple[Finding, ...]:
    """Return what concerns a VM, not one of its disks."""
    return tuple(_also_pending(vm, lambda config: _vm_findings(config, vm, cluster)))


def _vm_findings(
    config: Mapping[str, str], vm: AuditedVm, cluster: AuditedCluster
) -> Iterator[Finding]:
    keys = (*OTHER_VOLUMES, "hookscript")
    drives = [text for key, text in config.items() if SLOT.match(key) or key in keys]
    for storage in sorted({*map(storage_of, drives)} - {""}):
        if absence := cluster.absence(storage, vm.node):
            yield Finding(text=f"storage {storage} {absence}: the VM does not start", severe=True)
    controller = config.get("scsihw", "lsi")
    if not controller.startswith("virtio") and any("scsi" in slot for slot in test_slots(config)):
        yield Finding(text=f"emulated controller {controller}: slow, no I/O thread")
    if (lock := config.get("lock")) == "suspended":
        yield Finding(text="suspended to disk: its start resumes it, with the options of before")
    elif lock:
        text = f"locked ({lock}): Proxmox VE rejects its start and changes; if no task of it runs"
        yield Finding(text=f"{text}, `qm unlock {vm.vmid}` removes the lock")
    if "args" in config:
        yield Finding(text="args passes options to QEMU that pvebench does not read")
    if "parent" in config:
        yield Finding(text=f"has snapshots, the newest is {config['parent']}")
    default, agent = parse_drive(config.get("agent", ""))
    if not is_on(agent.get("enabled", default)):
        yield Finding(text="no guest agent: backups do not freeze the file systems")
    elif off := [name for name in _FREEZE if not is_on(agent.get(name, "1"))]:
        yield Finding(text=f"{off[0]}=0: backups do not freeze the file systems")


def _cache_findings(
    options: Mapping[str, str], used: Mapping[str, str], kind: Mapping[str, str]
) -> Iterator[Finding]:
    name, asked, direct = kind.get("type", ""), options.get("aio"), used["cache"] in DIRECT
    if used["cache"] == "unsafe":
        text = "cache=unsafe ignores flushes: data is lost if the host crashes"
        yield Finding(text=text, severe=True, changes={"cache": None})
    if asked == "native" and not direct:
        text = "aio=native with the page cache: the VM does not start"
        yield Finding(text=text, severe=True, changes={"aio": None})
    if asked == "io_uring" and (kind_of(kind).uring_hangs or (is_krbd(kind) and not direct)):
        text = f"aio=io_uring on {'krbd' if name == 'rbd' else name} can hang; Proxmox VE avoids it"
        yield Finding(text=text, severe=True, changes={"aio": None})


def _bus_findings(options: Mapping[str, str], used: Mapping[str, str]) -> Iterator[Finding]:
    if not BUSES[used["bus"]].hotplug:
        yield Finding(text=f"emulated controller {used['bus']}: slow, no I/O thread")
    if is_on(options.get("iothread", "")) and used["iothread"] == "0":
        text = f"iothread=1 has no effect with {used['scsihw'] or used['bus']}"
        yield Finding(text=f"{text}; it needs virtio-scsi-single")


def _newer_machine(config: Mapping[str, str]) -> str:
    """Return a machine type with volume chains; empty: the next start uses one, or it is unknown.

    Proxmox VE pins Windows without a version to that of the VM's creation (Machine.pm).
    """
    machine = config.get("machine", "pc")
    match = version = _MACHINE.search(machine)
    if match and not match["major"] and config.get("ostype", "").startswith("w"):
        version = _CREATED.search(config.get("meta", "")) or _CREATED.search("creation-qemu=0")
    if not match or not version or int(version["major"] or VOLUME_CHAINS) >= VOLUME_CHAINS:
        return ""
    chipset = "q35" if "q35" in match[0] else "i440fx"
    return machine.replace(match[0], f"pc-{chipset}-{VOLUME_CHAINS}.0", 1)
