"""An audit of the disks of all VMs as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pvebench.advice.audit import AuditedDisk
from pvebench.advice.text import PURPOSES, gain_data, gain_text, ids_text, regression_text
from pvebench.analysis.verdict import count_text
from pvebench.model.audit import AuditedCluster
from pvebench.model.definition import configuration_text
from pvebench.sanitize import one_line

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
