"""Audit of the disks of all VMs: effective settings, findings, measured difference. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pvebench.advice.recommendation import Choice, Doubt, Recommendation, Standing, compare
from pvebench.advice.sentences import PURPOSES, gain_data, gain_text, ids_text, regression_text
from pvebench.analysis.joint_difference import JointDifference
from pvebench.analysis.metric_verdict import count_text
from pvebench.drivers.proxmox.vm.drive import (
    DIRECT,
    SLOT,
    effective,
    is_krbd,
    is_on,
    kind_of,
    parse_drive,
)
from pvebench.model.audit import AuditedCluster, AuditedVm
from pvebench.model.buses import BUSES
from pvebench.model.definition import configuration_text
from pvebench.sanitize import one_line
from pvebench.store.current import Trend
from pvebench.verdicts.ranking import LEAST_RUNS, writes_unflushed

_COMPARED: Final = ("bus", "format", "cache", "aio", "iothread")
"""Options that decide which measured configuration is nearest, the most important first."""
_REPORTED: Final = (*_COMPARED, "discard", "scsihw")
_CHANGED: Final = ("cache", "aio", "iothread")
"""Of these, options that a drive string can change on the same slot."""
_SINGLE: Final = "virtio-scsi-single"
_MACHINE: Final = re.compile(r"-(?P<major>[0-9]{1,9})\.[0-9]")
_CREATED: Final = re.compile(r"creation-qemu=(?P<major>[0-9]{1,9})")
_VOLUME_CHAINS: Final = 10
"""Major version of the machine type from which on disks are block devices with volume chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a disk or its VM.

    Attributes:
        severe: whether data is at risk, or the VM may not start.
        changes: options of the drive string that remedy it; None removes one.
    """

    text: str
    severe: bool = False
    changes: Mapping[str, str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedDisk:
    """A disk with its findings.

    Attributes:
        storage: ID of its storage; empty: not on a storage.
        effective: what the options mean, with Proxmox VE's defaults.
        measured: nearest measured configuration; None: none on this storage.
        exact: whether that one has the same options.
        advice: recommendation whose configuration is significantly faster than the measured one.
        gain: the gain of that configuration.
        commands: lines that apply findings and the recommendation.
    """

    vm: AuditedVm
    slot: str
    storage: str
    effective: Mapping[str, str]
    findings: tuple[Finding, ...]
    measured: Choice | None
    exact: bool
    advice: Recommendation | None
    gain: JointDifference | None
    commands: tuple[str, ...]

    @property
    def best(self) -> Choice | None:
        """Return the recommended configuration."""
        return self.advice.chosen if self.advice else None


def audit(
    cluster: AuditedCluster, advice: Sequence[Recommendation], trends: Mapping[str, Trend]
) -> tuple[AuditedDisk, ...]:
    """Return every disk: the largest gain first, then severe findings, then others."""
    found = [
        _disk(vm, slot, text, cluster, advice, trends)
        for vm in cluster.vms
        for slot, text in sorted(vm.config.items())
        if SLOT.match(slot) and not _is_cdrom(text)
    ]
    return tuple(sorted(found, key=_order))


def _is_cdrom(text: str) -> bool:
    volid, options = parse_drive(text)
    return options.get("media") == "cdrom" or volid in ("none", "cdrom")


def _order(one: AuditedDisk) -> tuple[float, bool, int, int]:
    severe = any(finding.severe for finding in one.findings)
    return -(one.gain.ratio if one.gain else 0.0), not severe, -len(one.findings), one.vm.vmid


def _disk(
    vm: AuditedVm,
    slot: str,
    text: str,
    cluster: AuditedCluster,
    advice: Sequence[Recommendation],
    trends: Mapping[str, Trend],
) -> AuditedDisk:
    volid, options = parse_drive(text)
    storage = volid.partition(":")[0] if ":" in volid else ""
    kind = cluster.storages.get(storage, {})
    extension = volid.rpartition(".")[2]
    found = effective(slot, options, scsihw=vm.config.get("scsihw", "lsi"), storage=kind)
    found["format"] = extension if extension in ("qcow2", "vmdk") else "raw"
    used = {name: found[name] for name in _REPORTED}
    findings = tuple(_findings(vm, slot, options, used, kind))
    same = [one for one in advice if one.storage in cluster.names.get(storage, ())]
    own = [one for one in same if one.node == vm.node] or (same if _is_shared(kind) else [])
    nearest, exact, faster, gain = _measured(used, own, trends)
    best = faster.chosen if faster else None
    changes = {key: value for one in findings for key, value in (one.changes or {}).items()}
    return AuditedDisk(
        vm=vm,
        slot=slot,
        storage=storage,
        effective=used,
        findings=findings,
        measured=nearest,
        exact=exact,
        advice=faster,
        gain=gain,
        commands=tuple(_commands(vm, slot, text, used, best, changes)),
    )


def _is_shared(kind: Mapping[str, str]) -> bool:
    """Return whether the storage has the same disks on all nodes, so that their results count."""
    return is_on(kind.get("shared", "")) or kind_of(kind).of_server


def _findings(
    vm: AuditedVm,
    slot: str,
    options: Mapping[str, str],
    used: Mapping[str, str],
    kind: Mapping[str, str],
) -> Iterator[Finding]:
    yield from _cache_findings(options, used, kind)
    yield from _bus_findings(options, used)
    name, chained = kind.get("type", ""), is_on(kind.get("snapshot-as-volume-chain", ""))
    thin = kind_of(kind).thin or used["format"] == "qcow2"
    if thin and used["discard"] == "0":
        text = "discard is off on thin storage: deleted data keeps its space"
        yield Finding(text=text, changes={"discard": "on"})
    if is_on(options.get("snapshot", "")):
        text = "snapshot=1: all writes are lost when the VM stops"
        yield Finding(text=text, severe=True, changes={"snapshot": None})
    if chained and used["format"] == "qcow2" and _has_old_machine(vm):
        text = "a snapshot chain needs machine version 10.0; with this one the VM does not start"
        yield Finding(text=text, severe=True)
    if name in ("nfs", "cifs") and used["format"] == "qcow2" and not chained:
        text = "a snapshot of qcow2 on NFS or CIFS stops the VM for minutes if the image is large"
        yield Finding(text=text)
    if "parent" in vm.config:
        yield Finding(text=f"has snapshots, the newest is {vm.config['parent']}")
    if slot in vm.pending:
        yield Finding(text="changed, in use only after the VM was stopped and started")
    agent = vm.config.get("agent", "").partition(",")[0]
    if not is_on(agent.removeprefix("enabled=")):
        yield Finding(text="no guest agent: backups do not freeze the file systems")


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
    slow = used["scsihw"] if not used["scsihw"].startswith("virtio") else ""
    if not BUSES[used["bus"]].hotplug or slow:
        yield Finding(text=f"emulated controller {slow or used['bus']}: slow, no I/O thread")
    if is_on(options.get("iothread", "")) and used["iothread"] == "0":
        text = f"iothread=1 has no effect with {used['scsihw'] or used['bus']}"
        yield Finding(text=f"{text}; it needs virtio-scsi-single")


def _has_old_machine(vm: AuditedVm) -> bool:
    """Return whether the next start uses a machine version without volume chains.

    Proxmox VE pins Windows without a version to that of the VM's creation (Machine.pm).
    """
    match = _MACHINE.search(vm.config.get("machine", ""))
    if match is None and vm.config.get("ostype", "").startswith("w"):
        match = _CREATED.search(vm.config.get("meta", "creation-qemu=0"))
    return match is not None and int(match["major"]) < _VOLUME_CHAINS


# --- What the measurements of the same storage say.


def _measured(
    used: Mapping[str, str], advice: Sequence[Recommendation], trends: Mapping[str, Trend]
) -> tuple[Choice | None, bool, Recommendation | None, JointDifference | None]:
    """Return the nearest choice, whether it is equal, the advice that beats it, and the gain.

    That is the largest certain gain, only of advice that is not `Measure first`, from real runs.
    """
    best: tuple[Choice, bool, Recommendation, JointDifference] | None = None
    nearest: tuple[Choice, bool] | None = None
    for one in advice:
        ranked = sorted(one.choices, key=lambda choice: _distance(used, choice))
        near = ranked[0]
        exact = not any(_distance(used, near))
        nearest = nearest or (near, exact)
        if one.standing is Standing.MEASURE or Doubt.SIMULATED in one.doubts:
            continue
        if near is one.chosen or min(near.least_runs, one.chosen.least_runs) < LEAST_RUNS:
            continue
        if writes_unflushed(replace(near.definition, cache=used["cache"])):
            continue  # the disk in use has no comparable result
        gain = compare(near, one.chosen, trends)
        if gain.low > 0 and (best is None or gain.ratio > best[3].ratio):
            best = near, exact, one, gain
    if best is not None:
        return best
    return (*(nearest or (None, False)), None, None)


def _distance(used: Mapping[str, str], choice: Choice) -> tuple[bool, ...]:
    options = choice.definition.options
    controller = used["scsihw"] not in ("", options.get("scsihw"))
    return (controller, *(used[name] not in ("", options.get(name)) for name in _COMPARED))


def _commands(
    vm: AuditedVm,
    slot: str,
    text: str,
    used: Mapping[str, str],
    best: Choice | None,
    changes: Mapping[str, str | None],
) -> Iterator[str]:
    """Yield `qm` lines with the whole drive string, since `qm set` replaces it.

    None has a key with a pending change, which it would discard. Another controller needs its
    driver in the guest: Windows without it does not start.
    """
    volid, known = parse_drive(text)
    note, controller, more = _suggested(slot, known, used, best)
    if note:
        yield note
    if controller and "scsihw" not in vm.pending:
        yield f"qm set {vm.vmid} --scsihw {shlex.quote(controller)}"
    kept = {**known, **changes, **more}
    line = ",".join([volid, *(f"{key}={value}" for key, value in kept.items() if value)])
    if kept != known and line != text and slot not in vm.pending:
        yield f"qm set {vm.vmid} --{slot} {shlex.quote(line)}"


def _suggested(
    slot: str, known: Mapping[str, str], used: Mapping[str, str], best: Choice | None
) -> tuple[str, str, Mapping[str, str]]:
    """Return a note about a missing driver, another controller, and options of the drive.

    Each may be empty.
    """
    old = used["scsihw"]
    virtio = old.startswith("virtio")
    if best is None:
        single = virtio and is_on(known.get("iothread", "")) and old != _SINGLE
        return "", _SINGLE if single else "", {}
    options = best.definition.options
    if options["bus"] != used["bus"]:
        note = f"# {slot} -> {options['bus']}: needs the driver in the guest and another slot"
        return note, "", {}
    controller = options.get("scsihw", old) if used["bus"] == "scsi" else old
    if controller != old and not virtio:
        note = f"# scsihw {old} -> {controller}: needs the driver in the guest for all SCSI disks"
        return note, "", {}
    more = {name: options[name] for name in _CHANGED if used[name] not in ("", options[name])}
    return "", controller if controller != old else "", more


# --- Text

NOT_VISIBLE: Final = (
    "Not visible through the API: sync of ZFS volumes, mount options, NFS exports, write caches of "
    "drives, backup jobs, the depth of snapshots, and options that a running QEMU does not use yet."
)
_PLAN: Final = (
    "pvebench changes nothing. A line needs `qm pending VMID` after it, and most need a stopped VM."
)


def audit_lines(cluster: AuditedCluster, disks: Sequence[AuditedDisk]) -> Iterator[str]:
    """Yield the audit as Markdown, the largest gain first; disks without a line are counted."""
    yield f"## {count_text(len(disks), 'disk')} of {count_text(len(cluster.vms), 'VM')}"
    yield from _shared(disks)
    silent = 0
    for one in disks:
        if not one.findings and one.gain is None:
            silent += 1
            continue
        yield ""
        yield f"### VM {one.vm.vmid} ({one_line(one.vm.name) or 'no name'}), {one.slot}"
        yield f"- In use: {_options(one)}."
        yield from (f"- {finding.text}." for finding in one.findings)
        yield f"- {measured_text(one)}"
        yield from (f"- `{one_line(line)}`" for line in one.commands)
    yield ""
    if silent:
        yield f"Without findings: {count_text(silent, 'disk')}."
    yield from (f"Not read: {one_line(text)}." for text in cluster.unread)
    yield NOT_VISIBLE
    yield _PLAN


def _shared(disks: Sequence[AuditedDisk]) -> Iterator[str]:
    """Yield how many VMs use each configuration that was measured to be slower."""
    users: dict[str, set[int]] = {}
    for one in disks:
        if one.gain is not None and one.exact and one.measured is not None:
            slower = 1 - 1 / (1 + one.gain.ratio)
            name = configuration_text(one.measured.definition)
            text = f"{name} on {one.storage}, measured {slower:.0%} slower here"
            users.setdefault(text, set()).add(one.vm.vmid)
    for text, vms in sorted(users.items(), key=lambda it: -len(it[1])):
        yield f"- {count_text(len(vms), 'VM')} with {text}."


def _options(one: AuditedDisk) -> str:
    known = {key: value for key, value in one.effective.items() if value}
    return ", ".join(f"{key} {one_line(value)}" for key, value in known.items())


def measured_text(one: AuditedDisk) -> str:
    """Return what the nearest measured configuration says."""
    if one.measured is None:
        return f"No measurement on {one.storage or 'this volume'}."
    near = configuration_text(one.measured.definition)
    kind = "Measured with the same options" if one.exact else f"Nearest measured: {near}"
    if one.gain is None or one.advice is None:
        return f"{kind}: no faster configuration known."
    best = configuration_text(one.advice.chosen.definition)
    runs = f"{ids_text(one.advice.chosen.runs)}; of the slower one: {ids_text(one.measured.runs)}"
    found = f"{kind}, {PURPOSES[one.advice.purpose]}: {best} is {gain_text(one.gain)}."
    return " ".join((found, *regression_text(one.advice), f"Run IDs: {runs}"))


def audit_data(cluster: AuditedCluster, disks: Sequence[AuditedDisk]) -> dict[str, Any]:
    """Return the audit as plain data."""
    return {
        "disks": [
            {
                "vmid": one.vm.vmid,
                "node": one.vm.node,
                "name": one.vm.name,
                "slot": one.slot,
                "storage": one.storage,
                "effective": dict(one.effective),
                "findings": [{"text": it.text, "severe": it.severe} for it in one.findings],
                "nearest": one.measured.scenario if one.measured else None,
                "nearest_is_equal": one.exact,
                "nearest_runs": list(one.measured.runs) if one.measured else [],
                "best": one.best.scenario if one.best else None,
                "best_runs": list(one.best.runs) if one.best else [],
                "purpose": one.advice.purpose.value if one.advice else None,
                "gain": gain_data(one.gain),
                "commands": list(one.commands),
            }
            for one in disks
        ],
        "not_read": list(cluster.unread),
        "not_visible": NOT_VISIBLE,
    }
