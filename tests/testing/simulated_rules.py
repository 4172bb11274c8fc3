"""What must hold in a simulated schedule whatever fails and whenever it dies: docs/trust.md.

Each rule is looked at from outside: what exists, what people were told, what the database has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pvebench.model.run import Outcome, Run
from pvebench.model.workload import Case
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from testing.faulty_node import Reality
from testing.simulated_node import SimulatedNode

RULES: Final = {
    "lost": "pvebench stores every run that it reports, with the same values",
    "doubled": "pvebench stores each run once, and no run that did not happen",
    "mislabeled": "the values of a case come from its own disk and workload, at its time",
    "foreign": "objects of other instances and users don't change",
    "unproved": "nothing changes or gets a signal without proof of ownership at that moment",
    "moved": "no result under a storage name that meant another device",
    "orphaned": "after a start, nothing remains that the journal doesn't list",
    "shared": "a state directory has one instance",
    "unbounded": "VMs, volumes, retries and the duration of a run are limited",
    "stuck": "after the faults end, each case has a successful run within an hour",
    "ended": "only a kill or a stop ends the service, no other fault",
}
"""Rule -> what it says."""
RUN_SECONDS: Final = 1800.0
"""No run of the schedules' packs takes so long, a hung tool's deadline and all replies slow."""
LEVELS: Final = 2
"""Snapshots of the chain in the schedules' packs."""
CONTAINERS: Final = 4
"""One that is used, and some whose removal was lost; there are five numbers."""
PAUSE_SECONDS: Final = 30.0
"""A case that failed comes back after a minute at the soonest."""


@dataclass
class Told:
    """What people were told: the runs of which the end was shown."""

    runs: list[Run] = field(default_factory=list)


@dataclass
class Broken:
    """The rules that a schedule broke, with what was seen."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, rule: str, line: str) -> None:
        assert rule in RULES
        self.lines.append((rule, line))

    @property
    def rules(self) -> set[str]:
        return {rule for rule, _ in self.lines}


class Existing:
    """Looks at what exists beside what is others'.

    Args:
        others: names of VMs and volumes that are not the instance's; may change.
    """

    def __init__(self, reality: Reality, node: SimulatedNode, own: str, broken: Broken) -> None:
        self._reality, self._node, self._own, self._broken = reality, node, own, broken
        self.others: set[str] = set()

    def _all(self) -> set[str]:
        vms, volumes = self._kinds()
        return vms | volumes | self._node.names()

    def look(self) -> None:
        for name in sorted(self.others - self._all()):
            self._broken.add("foreign", f"{name} is gone")
        mine = [sum(name.startswith(self._own) for name in kind) for kind in self._kinds()]
        levels = sum(name.startswith(self._own) and ".snap" in name for name in self._all())
        further = [
            sum(name.startswith(f"{self._own}vm") for name in kind) for kind in self._kinds()
        ]
        targets = sum(name == f"{self._own}operation-target" for name in self._all())
        own = [all_ - beside for all_, beside in zip(mine, further, strict=True)]
        if max(own[0], further[0]) > 1 or own[1] - levels - targets > 2 or levels > LEVELS:
            self._broken.add("unbounded", f"{mine[0]} VMs and {mine[1]} volumes at once")
        if further[1] > 2:
            self._broken.add("unbounded", f"{further[1]} volumes of further VMs at once")
        if (held := len(self._node.names(self._own))) > CONTAINERS:
            self._broken.add("unbounded", f"{held} containers at once")

    def look_for_orphans(self, when: str, known: Collection[str] = ()) -> None:
        """See what is left.

        Args:
            known: marks of containers in the journal: a node may be away for a while.
        """
        left = self._all() - self.others
        for name in sorted(one for one in left if not any(mark in one for mark in known)):
            self._broken.add("orphaned", f"{name} is left {when}")

    def _kinds(self) -> tuple[set[str], set[str]]:
        return self._reality.vms | self._reality.unmarked, self._reality.volumes


def look_at_runs(store: Store, told: Told, cases: Mapping[str, Case], broken: Broken) -> None:
    """Hold what is stored against what was told, measured and asked for."""
    stored = store.runs(limit=100_000)
    uids = Counter(run.uid for run in stored)
    by_uid = {run.uid: run for run in stored}
    for run in told.runs:
        kept = by_uid.get(run.uid)
        if kept is None:
            broken.add("lost", f"{run.case.slug} was told, but is not stored")
        elif kept.outcome is not run.outcome or set(kept.samples) != set(run.samples):
            broken.add("lost", f"{run.case.slug} is stored otherwise than it was told")
    # After the clock was set back, a second failure can have the times of the first one.
    reported = {run.uid for run in told.runs}
    times = Counter((run.case_key, run.started, run.finished) for run in stored)
    times -= Counter(
        (run.case_key, run.started, run.finished)
        for run in stored
        if run.uid in reported and run.started == run.finished
    )
    for uid, count in uids.items():
        if count > 1:
            broken.add("doubled", f"run {uid} is stored {count} times")
    for (key, started, _), count in times.items():
        if count > 1:
            broken.add("doubled", f"{key} has {count} runs of {started}")
    for one in stored:
        _look_at_run(one, store, cases[one.case_key], broken)


def _look_at_run(run: StoredRun, store: Store, case: Case, broken: Broken) -> None:
    seconds = (run.finished - run.started).total_seconds()
    if seconds < 0:
        broken.add("mislabeled", f"{case.slug} ended {-seconds:.0f} s before it began")
    if seconds > RUN_SECONDS:
        broken.add("unbounded", f"{case.slug} took {seconds:.0f} s")
    if run.outcome is not Outcome.OK:
        return
    evidence = store.evidence(run.number)
    disk = case.scenario.disk
    expected = f"simulated:{case.scenario.volume} {disk.bus} {disk.cache}"
    on_node = f"local:{case.scenario.volume_bytes} {disk.bus} {disk.cache}"
    measured = json.loads(evidence["output"])["jobs"][0]["jobname"]
    if measured != (on_node if evidence["hypervisor"].startswith("container ") else expected):
        broken.add("mislabeled", f"{case.slug} holds the numbers of {measured}")
