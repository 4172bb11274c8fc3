"""The environments block: what results were measured with, and what changed when. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.metrics.snapshot import Snapshot

ENVIRONMENTS_SHOWN: Final = 20
"""Of each node; older ones are in the store."""


def collect_environments(snapshot: Snapshot, families: Families) -> None:
    """The environments of each node, and which is the newest."""
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    for environment in snapshot.environments:
        by_node.setdefault(environment["node"], []).append(environment)
    for entries in by_node.values():
        entries.sort(key=lambda entry: float(entry["last_seen"]))
        for entry in entries[-ENVIRONMENTS_SHOWN:]:
            labels = _environment_labels(entry, simulated=snapshot.simulated)
            families.add(catalog.ENVIRONMENT_START, labels, entry["first_seen"])
            families.add(catalog.ENVIRONMENT_END, labels, entry["last_seen"])
        for labels in _changes(sorted(entries, key=lambda entry: float(entry["first_seen"]))):
            families.add(catalog.ENVIRONMENT_CHANGE, labels, 1)
        newest = _environment_labels(entries[-1], simulated=snapshot.simulated)
        families.add(catalog.ENVIRONMENT_INFO, newest, 1)
        families.add(catalog.NODE_INFO, newest, 1)


def _changes(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return what changed with each of the last environments, oldest first.

    A fact that is unknown in one of them (its VM did not start) is compared over it.
    """
    known: dict[str, str] = {}
    found: list[list[dict[str, str]]] = []
    for entry in entries:
        facts: Mapping[str, str] = entry["facts"]
        about = {"node": entry["node"], "environment": entry["slug"]}
        found.append(
            [
                {**about, "fact": name, "before": known[name], "after": value}
                for name, value in facts.items()
                if known.get(name, value) != value
            ]
        )
        known |= facts
    return [labels for changes in found[-ENVIRONMENTS_SHOWN:] for labels in changes]


def _environment_labels(entry: Mapping[str, Any], *, simulated: bool) -> dict[str, str]:
    facts = entry["facts"]
    return {
        "node": entry["node"],
        "environment": entry["slug"],
        "pve_version": facts.get("pve", ""),
        "kernel_version": facts.get("kernel", ""),
        "qemu_version": facts.get("qemu", ""),
        "machine": facts.get("machine", ""),
        "accel": facts.get("accel", ""),
        "guest_kernel": facts.get("guest_kernel", ""),
        "fio_version": facts.get("fio", ""),
        "cpu_model": facts.get("cpu_model", ""),
        "microcode": facts.get("microcode", ""),
        "cpus": facts.get("cpus", ""),
        "governor": facts.get("governor", ""),
        "simulated": str(int(simulated)),
    }
