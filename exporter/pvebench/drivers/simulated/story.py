"""The story of the demo's year: upgrades, and the shapes of regressions that upgrades have brought.

The shapes are those of real cases: sync writes on ZFS that were ignored (openzfs PR 17131), an
idle guest that cost more host CPU (pve-qemu 3da0240), guests that froze for seconds (Proxmox
kernel 29cb6fc), random reads with an I/O thread that lost 40 % (QEMU dd67c1d7). Versions, dates
and sizes are invented, so that all of them fit into one year.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.model.workload import Case

Matches = Callable[[Case], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """New versions on some nodes.

    Attributes:
        days: before the end of the year.
        facts: what changes in the environment.
        nodes: where; empty: everywhere.
    """

    days: float
    facts: Mapping[str, str]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a version did to some cases while it ran; factors on the undisturbed values.

    Attributes:
        begin, end: days before the end of the year; `end` 0: it still stands.
        speed: on rates; latencies get the inverse.
        cpu: on host CPU.
        stall: longest latency in seconds, at least.
    """

    begin: float
    end: float
    matches: Matches
    speed: float = 1.0
    cpu: float = 1.0
    stall: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A year: the first environment, what came over it, what that did."""

    days: float
    facts: Mapping[str, str]
    upgrades: tuple[Upgrade, ...]
    effects: tuple[Effect, ...]

    def environment(self, node: str, days: float) -> dict[str, str]:
        """Return the facts of a node so many days before the end."""
        facts = dict(self.facts)
        for upgrade in self.upgrades:
            if days <= upgrade.days and node in (upgrade.nodes or (node,)):
                facts |= upgrade.facts
        return facts

    def effects_on(self, case: Case) -> tuple[Effect, ...]:
        """Return what ever concerns a case."""
        return tuple(effect for effect in self.effects if effect.matches(case))


def _syncs_on_zfs(case: Case) -> bool:
    return case.scenario.storage == "local-zfs" and bool(case.workload.parameters.get("fsync"))


def _idles(case: Case) -> bool:
    return case.workload.tool == "idle"


def _on_second_node(case: Case) -> bool:
    return case.scenario.node == "pve2" and case.workload.tool == "fio"


def _reads_with_thread(case: Case) -> bool:
    return case.scenario.disk.iothread and case.workload.parameters.get("rw") == "randread"


YEAR: Final = Story(
    days=365.0,
    facts={
        "pve": "8.2.2", "kernel": "6.8.4-3-pve", "qemu": "8.1.5-6", "zfs": "2.2.3", "accel": "kvm",
        "machine": "pc-i440fx-8.1", "fio": "simulated", "cpu_model": "Simulated CPU, 8 cores",
        "cpus": "8", "governor": "performance", "guest_kernel": "6.1.0",
    },
    upgrades=(
        Upgrade(days=300, facts={"pve": "8.3.0", "kernel": "6.8.12-4-pve", "qemu": "9.0.2-4"}),
        Upgrade(days=240, facts={"kernel": "6.11.11-1-pve", "zfs": "2.2.7"}),
        Upgrade(days=212, facts={"kernel": "6.11.11-2-pve", "zfs": "2.2.7-2"}),
        Upgrade(days=180, facts={"pve": "8.3.5", "qemu": "9.2.0-1"}),
        Upgrade(days=130, facts={"qemu": "9.2.0-5"}),
        Upgrade(days=90, facts={"pve": "8.4.1", "kernel": "6.14.5-1-pve"}, nodes=("pve2",)),
        Upgrade(days=62, facts={"kernel": "6.14.8-2-pve"}, nodes=("pve2",)),
        Upgrade(days=20, facts={"pve": "9.0.3", "kernel": "6.14.11-1-pve", "qemu": "10.0.2-4"}),
    ),
    effects=(
        Effect(begin=240, end=212, matches=_syncs_on_zfs, speed=6.0),
        Effect(begin=180, end=130, matches=_idles, cpu=3.5),
        Effect(begin=90, end=62, matches=_on_second_node, stall=4.0),
        Effect(begin=20, end=0, matches=_reads_with_thread, speed=0.6),
    ),
)  # fmt: skip
