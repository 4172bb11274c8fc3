"""The environments block: what results were measured with, and what changed when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.metrics.snapshot import Snapshot
from pvebench.model.environment import Episode

EPISODES_SHOWN: Final = 20
"""Of each node; older ones are in the store."""


def collect_environments(snapshot: Snapshot, families: Families) -> None:
    """The environments of each node, which is the newest, and what changed with each.

    An environment that came back is told by its newest episode: one series can say one start.
    """
    by_node: dict[str, list[Episode]] = {}
    for episode in snapshot.episodes:
        by_node.setdefault(episode.node, []).append(episode)
    for episodes in by_node.values():
        newest_of_each = {one.environment: one for one in episodes[-EPISODES_SHOWN:]}
        for one in newest_of_each.values():
            labels = _environment_labels(one, simulated=snapshot.simulated)
            families.add(catalog.ENVIRONMENT_START, labels, one.started.timestamp())
            families.add(catalog.ENVIRONMENT_END, labels, one.finished.timestamp())
        for labels in _changes(episodes):
            families.add(catalog.ENVIRONMENT_CHANGE, labels, 1)
        newest = _environment_labels(episodes[-1], simulated=snapshot.simulated)
        families.add(catalog.ENVIRONMENT_INFO, newest, 1)
        families.add(catalog.NODE_INFO, newest, 1)


def _changes(episodes: Sequence[Episode]) -> list[dict[str, str]]:
    """Return what changed with each of the last episodes, oldest first, each change once.

    A fact that is unknown in one of them is compared over it.
    """
    known: dict[str, str] = {}
    found: list[list[dict[str, str]]] = []
    for episode in episodes:
        about = {"node": episode.node, "environment": episode.slug}
        found.append(
            [
                {**about, "fact": name, "before": known[name], "after": value}
                for name, value in episode.facts.items()
                if known.get(name, value) != value
            ]
        )
        known |= episode.facts
    last = (labels for changes in found[-EPISODES_SHOWN:] for labels in changes)
    return list({tuple(labels.values()): labels for labels in last}.values())


def _environment_labels(episode: Episode, *, simulated: bool) -> dict[str, str]:
    facts = episode.facts
    return {
        "node": episode.node,
        "environment": episode.slug,
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
