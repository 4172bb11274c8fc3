"""Audit of the disks of all VMs: findings, measured difference, commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pvebench.advice.recommendation import Choice, Doubt, Recommendation, Standing, compare
from pvebench.advice.recommendation_text import (
    PURPOSES,
    gain_data,
    gain_text,
    ids_text,
    regression_text,
)
from pvebench.advice.vm_findings import (
    Finding,
    disk_findings,
    effective_options,
    next_config,
    storage_of,
    vm_findings,
)
from pvebench.drivers.driver import AuditedCluster, AuditedVm
from pvebench.drivers.proxmox.vm.drive import SLOT, is_on, kind_of, parse_drive
from pvebench.model.definition import configuration_text
from pvebench.model.units import count_text
from pvebench.sanitize import one_line
from pvebench.store.live_results import Trend
from pvebench.verdicts.ranking import Gap, writes_unflushed

_COMPARED: Final = ("bus", "format", "cache", "aio", "iothread")
"""Options that decide which measured configuration is nearest, the most important first."""
_CHANGED: Final = ("cache", "aio", "iothread")
"""Of these, options that a drive string can change on the same slot."""
_SINGLE: Final = "virtio-scsi-single"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedDisk:
    """A disk with its findings.

    Attributes:
        storage: ID of its storage; empty: not on a storage.
        effective: what the options mean, with Proxmox VE's defaults.
        measured: nearest measured configuration; None: none on this storage.
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
    advice: Recommendation | None
    gain: Gap | None
    commands: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether the nearest measured configuration has the same options."""
        return self.measured is not None and not any(_distance(self.effective, self.measured))


def audit(
    cluster: AuditedCluster, advice: Sequence[Recommendation], trends: Mapping[str, Trend]
) -> tuple[AuditedDisk, ...]:
    """Return every disk: the largest gain first, then severe findings, then others."""
    disks = [
        _disk(vm, slot, text, cluster, advice, trends)
        for vm in cluster.vms
        for slot, text in sorted({**next_config(vm), **vm.config}.items())
        if SLOT.match(slot) and not _is_cdrom(text)
    ]
    return tuple(sorted(disks, key=_order))


def _is_cdrom(text: str) -> bool:
    volid, options = parse_drive(text)
    return options.get("media") == "cdrom" or volid in ("none", "cdrom")


def _order(disk: AuditedDisk) -> tuple[float, bool, int, int]:
    severe = any(finding.severe for finding in disk.findings)
    return -(disk.gain.ratio if disk.gain else 0.0), not severe, -len(disk.findings), disk.vm.vmid


def _disk(
    vm: AuditedVm,
    slot: str,
    text: str,
    cluster: AuditedCluster,
    advice: Sequence[Recommendation],
    trends: Mapping[str, Trend],
) -> AuditedDisk:
    storage = storage_of(text)
    kind = cluster.storages.get(storage, {})
    used = effective_options(vm.config, slot, text, kind)
    findings = [*disk_findings(vm, slot, kind)]
    same = [advised for advised in advice if advised.storage in cluster.names.get(storage, ())]
    shared = is_on(kind.get("shared", "")) or kind_of(kind).of_server  # the same disks on all nodes
    recommendations = [advised for advised in same if advised.node == vm.node] or (
        same if shared else []
    )
    nearest, faster, gain = _measured(used, recommendations, trends)
    return AuditedDisk(
        vm=vm,
        slot=slot,
        storage=storage,
        effective=used,
        findings=tuple(findings),
        measured=nearest,
        advice=faster,
        gain=gain,
        commands=tuple(_commands(vm, slot, text, used, faster, findings)),
    )


# --- What the measurements of the same storage say.


def _measured(
    used: Mapping[str, str], advice: Sequence[Recommendation], trends: Mapping[str, Trend]
) -> tuple[Choice | None, Recommendation | None, Gap | None]:
    """Return the nearest choice, the advice that beats it, and the gain.

    That is the largest certain gain, only of advice that is not `Measure first`, from real runs.
    """
    best: tuple[Choice, Recommendation, Gap] | None = None
    nearest: Choice | None = None
    for advised in advice:
        near = min(advised.choices, key=lambda choice: _distance(used, choice))
        nearest = nearest or near
        if advised.standing is Standing.MEASURE or Doubt.SIMULATED in advised.doubts:
            continue
        if near is advised.chosen:
            continue
        if writes_unflushed(replace(near.definition, cache=used["cache"])):
            continue  # the disk in use has no comparable result
        gain = compare(near, advised.chosen, trends)
        if gain.low > 0 and (best is None or gain.ratio > best[2].ratio):
            best = near, advised, gain
    return best or (nearest, None, None)


def _distance(used: Mapping[str, str], choice: Choice) -> tuple[bool, ...]:
    options = choice.definition.options
    controller = used["scsihw"] not in ("", options.get("scsihw"))
    return (controller, *(used[name] not in ("", options.get(name)) for name in _COMPARED))


def _commands(
    vm: AuditedVm,
    slot: str,
    text: str,
    used: Mapping[str, str],
    advice: Recommendation | None,
    findings: Sequence[Finding],
) -> Iterator[str]:
    """Yield `qm` lines with the whole drive string, since `qm set` replaces it.

    None has a key with a pending change, which it would discard. Another controller needs its
    driver in the guest: Windows without it does not start.
    """
    volid, known = parse_drive(text)
    note, controller, more = _suggested(slot, known, used, advice.chosen if advice else None)
    if note:
        yield note
    changes = {key: value for it in findings for key, value in (it.changes or {}).items()}
    for key, value in (("machine", changes.pop("machine", "")), ("scsihw", controller)):
        if value and key not in vm.pending:
            yield f"qm set {vm.vmid} --{key} {shlex.quote(value)}"
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
    printed: set[tuple[int, str]] = set()
    for disk in disks:
        if not disk.findings and disk.gain is None:
            silent += 1
            continue
        yield ""
        yield f"### {_title(disk.vm)}, {disk.slot}"
        yield f"- In use: {_options(disk)}."
        yield from (f"- {finding.text}." for finding in disk.findings)
        yield f"- {measured_text(disk)}"
        new = [line for line in disk.commands if (disk.vm.vmid, line) not in printed]
        yield from (f"- `{one_line(line)}`" for line in new)
        printed.update((disk.vm.vmid, line) for line in new)
    yield ""
    for vm in cluster.vms:
        if texts := [one_line(finding.text) for finding in vm_findings(vm, cluster)]:
            yield f"- {_title(vm)}: {'; '.join(texts)}."
    if silent:
        yield f"Without findings: {count_text(silent, 'disk')}."
    yield from (f"Not read: {one_line(text)}." for text in cluster.unread)
    yield NOT_VISIBLE
    yield _PLAN


def _title(vm: AuditedVm) -> str:
    return f"VM {vm.vmid} ({one_line(vm.name) or 'no name'})"


def _shared(disks: Sequence[AuditedDisk]) -> Iterator[str]:
    """Yield how many VMs use each configuration that was measured to be slower."""
    users: dict[str, set[int]] = {}
    for disk in disks:
        if disk.gain is not None and disk.exact and disk.measured is not None:
            slower = 1 - 1 / (1 + disk.gain.ratio)
            name = configuration_text(disk.measured.definition)
            text = f"{name} on {disk.storage}, measured {slower:.0%} slower here"
            users.setdefault(text, set()).add(disk.vm.vmid)
    for text, vms in sorted(users.items(), key=lambda it: -len(it[1])):
        yield f"- {count_text(len(vms), 'VM')} with {text}."


def _options(disk: AuditedDisk) -> str:
    known = {key: value for key, value in disk.effective.items() if value}
    return ", ".join(f"{key} {one_line(value)}" for key, value in known.items())


def measured_text(disk: AuditedDisk) -> str:
    """Return what the nearest measured configuration says."""
    if disk.measured is None:
        return f"No measurement on {disk.storage or 'this volume'}."
    near = configuration_text(disk.measured.definition)
    kind = "Measured with the same options" if disk.exact else f"Nearest measured: {near}"
    if disk.gain is None or disk.advice is None:
        return f"{kind}: no faster configuration known."
    best = configuration_text(disk.advice.chosen.definition)
    runs = f"{ids_text(disk.advice.chosen.runs)}; of the slower one: {ids_text(disk.measured.runs)}"
    found = f"{kind}, {PURPOSES[disk.advice.purpose]}: {best} is {gain_text(disk.gain)}."
    return " ".join((found, *regression_text(disk.advice), f"Run IDs: {runs}"))


def audit_data(cluster: AuditedCluster, disks: Sequence[AuditedDisk]) -> dict[str, Any]:
    """Return the audit as plain data."""
    return {
        "disks": [
            {
                "vmid": disk.vm.vmid,
                "node": disk.vm.node,
                "name": disk.vm.name,
                "slot": disk.slot,
                "storage": disk.storage,
                "effective": dict(disk.effective),
                "findings": _finding_data(disk.findings),
                "nearest": disk.measured.scenario if disk.measured else None,
                "nearest_is_equal": disk.exact,
                "nearest_runs": list(disk.measured.runs) if disk.measured else [],
                "best": disk.advice.chosen.scenario if disk.advice else None,
                "best_runs": list(disk.advice.chosen.runs) if disk.advice else [],
                "purpose": disk.advice.purpose.value if disk.advice else None,
                "gain": gain_data(disk.gain),
                "commands": list(disk.commands),
            }
            for disk in disks
        ],
        "vms": [
            {"vmid": vm.vmid, "node": vm.node, "findings": _finding_data(vm_findings(vm, cluster))}
            for vm in cluster.vms
        ],
        "not_read": list(cluster.unread),
        "not_visible": NOT_VISIBLE,
    }


def _finding_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [{"text": finding.text, "severe": finding.severe} for finding in findings]
