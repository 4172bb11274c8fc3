"""One seed's story: a simulated pvebench among faults, deaths and neighbours, seen from outside.

A schedule has some lives. Each but the last ends by death at some moment or by a stop; in the last
one the faults end after a while, and then everything has to come right within a bound.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pvebench.config import Settings
from pvebench.drivers.backend_router import BackendRouter
from pvebench.drivers.clocks import START, SimulatedClock
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.errors import AlreadyRunning, Interrupted, ServerGone
from pvebench.model.disk import Bus
from pvebench.model.ports import StorageFunctions, VmFunctions
from pvebench.model.run import Run
from pvebench.model.workload import Case
from pvebench.scheduler.plan import Assignment
from pvebench.scheduler.worker import Worker
from pvebench.service.housekeeping import Configuration, Reloader
from pvebench.service.startup import assignments
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench_lab.lxc.proxmox_container import undo_containers
from pvebench_lab.simulated.simulated_hypervisor import simulated_site
from testing.cluster_crashes import play_cluster
from testing.faulty_node import Fault, Faults, FaultyHypervisor, Reality, undo_simulated
from testing.null_journal import NullJournal
from testing.packs import SMALL
from testing.simulated_copies import FIRST, Copies, on_machine
from testing.simulated_faults import (
    PORT_FAULTS,
    SELDOM,
    Fate,
    Killed,
    MortalClock,
    Trouble,
    UnreliableHypervisor,
    WaitsForEver,
    WrongProbe,
    troubled,
)
from testing.simulated_node import (
    NODE_FAULTS,
    SimulatedNode,
    SimulatedSsh,
    VmBeside,
    containers_of,
    node_rates,
)
from testing.simulated_rules import PAUSE_SECONDS, Broken, Existing, Told, look_at_runs

MAX_DEATHS: Final = 3
MOMENTS: Final = 400
"""About so many moments a cycle of the pack below has; a life has a few cycles at most."""
RUNS, STEPS = 8, 150
"""After so many runs or steps a life that did not die is stopped, or its faults end if it is the
last."""
CALM_SECONDS: Final = 3600.0
"""So long each case may take to a good run after the faults have ended."""
OWN: Final = "a."
OTHER: Final = "b."
"""Prefixes of the names of this instance and of its neighbour on the same node."""
PACKS: Final = (
    SMALL,
    SMALL.replace("[virtio, scsi]", "[virtio, sata]"),
    SMALL.replace("axes:", "host: true\nlxc: true\naxes:"),
)
NODE_PACKS: Final = (
    SMALL.replace("[virtio, scsi]", "[scsi]").replace("axes:", "lxc: true\naxes:"),
    SMALL.replace("axes:", "lxc: true\naxes:").replace("size: 64M", "size: 32M"),
    SMALL,
)
"""Of schedules in which containers are those of a Proxmox node."""
CHAIN_PACKS: Final = (
    SMALL.replace("[raw]", "[qcow2]").replace("axes:", "fixed: {chain: 2}\naxes:")
    + "  - fio: {rw: randwrite, bs: 4k, touch: first}\n",
    SMALL,
)
"""Of schedules in which a volume has snapshots."""
OPERATION_PACKS: Final = (
    # As short as the others: the minimum window of an operation is that before scaling.
    SMALL.replace("[virtio, scsi]", "[scsi]")
    .replace("64M", "640M")
    .replace("ramp: 1s", "ramp: 10s")
    .replace("runtime: 2s", "runtime: 20s\n  scale: 0.1")
    + "  - fio: {rw: randwrite, bs: 4k, during: [backup, restore, delete-snapshot, neighbor]}\n"
    + "  - fio: {rw: randread, bs: 4k, vms: 2}\n",
    SMALL,
)
"""Of schedules with operations during runs, and with a further VM."""
BAD: Final = (b"pack: [", b"\xff\xfe", b"pack: small\nevery: 0s\n", b"a: &a [*a]\n")
"""What a hand may leave in the pack's file."""


@dataclass
class Schedule:
    """What a seed's story came to."""

    seed: int
    deaths: int = 0
    stops: int = 0
    broken: Broken = field(default_factory=Broken)
    outcomes: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)


def play(seed: int, directory: Path) -> Schedule:
    """Play the schedule of one seed; nothing of it stays in `directory`."""
    home = directory / str(seed)
    if seed % 8 == 0:
        return _played_on_cluster(seed, home)
    story = _Story(seed, home)
    names = random.Random(f"names/{seed}")  # a cycle's is also the seed of its order

    def name() -> uuid.UUID:
        return uuid.UUID(int=names.getrandbits(128), version=4)

    try:
        once = mock.patch("pvebench.store.state_directory._LOCK_SECONDS", 0.0)
        with mock.patch("uuid.uuid4", name), once, on_machine(home, "a"):
            story.play()
    finally:
        shutil.rmtree(home)
    return story.schedule


def _played_on_cluster(seed: int, home: Path) -> Schedule:
    """Play one whose VMs are those of a cluster."""
    try:
        lives, outcomes = play_cluster(seed, home)
    finally:
        shutil.rmtree(home)
    struck = Counter({"answer of the cluster lost": lives.lost})
    return Schedule(seed, lives.deaths, 0, lives.broken, outcomes, struck)


@cache
def _empty_database(where: Path) -> bytes:
    """Return a new database: a migration for each seed would be most of the time."""
    path = where / "empty.db"
    with closing(Store(path, simulated=True)) as store:
        store.identities.record("lab", "local", {"uuid": FIRST})
    content = path.read_bytes()
    path.unlink()
    return content


class _Counted(Faults):
    """The world's faults, counted."""

    def __init__(self, seed: int, rates: Mapping[Fault, float]) -> None:
        super().__init__(seed, rates)
        self.struck: Counter[str] = Counter()

    def strikes(self, fault: Fault) -> bool:
        hit = super().strikes(fault)
        self.struck[str(fault).replace("_", " ")] += hit
        return hit


class _Neighbour:
    """Another instance on the same node, and things that nobody's journal knows."""

    def __init__(
        self, reality: Reality, node: SimulatedNode, existing: Existing, cases: Sequence[Case]
    ) -> None:
        self._reality, self._existing, self._cases = reality, existing, cases
        self._node = node
        self._world = FaultyHypervisor(
            node="lab",
            seed=0,
            clock=SimulatedClock(),
            journal=NullJournal(),
            reality=reality,
            instance=OTHER,
        )
        reality.start_vm("100")
        reality.make_volume("vm-100-disk-0")
        self._note()

    def act(self, rng: random.Random) -> None:
        """Begin or end a VM or volume, at no moment of ours."""
        moment, self._reality.moment = self._reality.moment, lambda: None
        scenario = rng.choice(self._cases).scenario
        if rng.random() < 0.3:
            self._world.shutdown()
        else:
            self._world.boot(scenario.machine)
            self._world.volume(scenario)
        self._reality.moment = moment
        self._node.have_neighbour(OTHER)
        self._note()

    def _note(self) -> None:
        everything = self._reality.vms | self._reality.volumes | self._node.names()
        self._existing.others = {name for name in everything if not name.startswith(OWN)}


class _Story:
    """The state directory, the node and the people around the lives of one schedule."""

    def __init__(self, seed: int, home: Path) -> None:
        self.rng = random.Random(f"crash/{seed}")
        self.state = home / "state"
        self.state.mkdir(parents=True)
        (self.state / "pvebench.db").write_bytes(_empty_database(home.parent))
        self.pack = home / "pack.yaml"
        self.cases = _known_cases(home.parent)
        self.schedule = Schedule(seed)
        self.broken = self.schedule.broken
        self.copies = Copies(self.state, self.broken, random.Random(f"copies/{seed}"))
        self.told, self.reality, self.node = Told(), Reality(), SimulatedNode()
        self.on_node = seed % 2 == 1
        special = {4: CHAIN_PACKS, 6: OPERATION_PACKS}
        self.packs = NODE_PACKS if self.on_node else special.get(seed % 8, PACKS)
        self.existing = Existing(self.reality, self.node, OWN, self.broken)
        cases = list(self.cases.values())
        self.neighbour = _Neighbour(self.reality, self.node, self.existing, cases)
        self.now = START
        rates = {name: self._rate(rare=name in SELDOM) for name in PORT_FAULTS}
        rates |= dict(zip(NODE_FAULTS, node_rates(seed), strict=True))
        self.trouble = Trouble(random.Random(f"ports/{seed}"), rates)
        rare = set(Fault) - {Fault.GUEST_HANGS, Fault.QEMU_EXITS}
        self.faults = _Counted(seed, {one: self._rate(rare=one in rare) for one in Fault})

    def _rate(self, *, rare: bool) -> float:
        """Return how often a fault strikes where it could: some of them at most once in a run."""
        return self.rng.choice((0.0, 0.0, 0.0, 0.05, 0.2) if rare else (0.0, 0.0, 0.0, 0.002, 0.02))

    def play(self) -> None:
        lives = self.rng.randint(0, MAX_DEATHS)
        for dies_at in [*(self.rng.randrange(1, MOMENTS) for _ in range(lives)), None]:
            self.write_pack(self.packs[0].encode())
            with ExitStack() as stack:
                _Life(self, Fate(dies_at), stack, last=dies_at is None).live()
            self.copies.act_between_lives(self.reality)
            self.now += timedelta(seconds=self.rng.choice((2, 3600)))
        self.schedule.struck = self.trouble.struck + self.faults.struck
        with closing(Store(self.state / "pvebench.db", simulated=True)) as store:
            undo_simulated(store.journal, self.reality)
            self._undo_containers(store)
            self.existing.look()
            if pending := store.journal.pending():
                self.broken.add("orphaned", f"the journal is not empty: {pending}")
            look_at_runs(store, self.told, self.cases, self.broken)
            self.schedule.outcomes.update(str(run.outcome) for run in store.runs(limit=100_000))

    def _undo_containers(self, store: Store) -> None:
        """Undo them on a node that has had time, and see that nothing of ours comes after that."""
        later = SimulatedClock()
        hour = (self.now - START).total_seconds() + 3600.0
        self.node.now, self.node.moment = (lambda: hour), (lambda: None)
        calm = Trouble(random.Random(0), {}, calm=True)
        ssh = SimulatedSsh(self.node, OWN, _Idle(later), calm, lambda: Faults(0))
        undo_containers(NodeSsh(ssh), "lab", store.journal)
        self.existing.look_for_orphans("after the last undo")

    def creations_end(self) -> None:
        """Let the node end what it creates: a creation goes on after a kill of its client."""
        for name in sorted(self.reality.unmarked):
            self.reality.await_vm(name)

    def write_pack(self, content: bytes) -> None:
        fresh = self.pack.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(self.pack)


@dataclass
class _Idle:
    """A clock that nobody waits by."""

    clock: SimulatedClock

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def pass_time(self, seconds: float) -> None:
        pass


class _Life:
    """One process, from its start to its death or stop."""

    def __init__(self, story: _Story, fate: Fate, stack: ExitStack, *, last: bool) -> None:
        self._story, self._last = story, last
        self._rng, self._broken = story.rng, story.broken
        state = StateDirectory(story.state, exclusive=True)
        stack.callback(state.close)
        store = stack.enter_context(closing(Store(state.database, simulated=True)))
        stack.enter_context(troubled(store._engine, fate, story.trouble))
        story.trouble.calm = False
        self._clock = MortalClock(fate, story.now, story.trouble)
        story.reality.moment = fate.moment
        self._journal = store.journal
        make_world = VmBeside if story.on_node else FaultyHypervisor
        self._world = make_world(
            node="lab",
            seed=self._rng.randrange(10_000),
            clock=self._clock,
            reality=story.reality,
            journal=self._journal,
            faults=story.faults,
            instance=OWN,
        )
        base, clock = (story.now - START).total_seconds(), self._clock
        story.node.now = lambda: base + clock.monotonic()
        story.node.moment = fate.moment
        self._ssh = SimulatedSsh(story.node, OWN, clock, story.trouble, lambda: self._world.faults)
        settings = Settings(driver="simulated", node="lab", state=story.state, packs=(story.pack,))

        def load() -> Configuration:
            return Configuration(settings, _loaded(story.pack))

        self._reloader = Reloader(None, load(), load=load)
        self._worker = self._make_worker(LiveResults(store))
        self._seen, self._runs, self._steps, self._calm_at = len(story.told.runs), 0, 0, 0.0
        self._last_runs: dict[str, Run] = {}

    def _make_worker(self, results: LiveResults) -> Worker:
        site, trouble = simulated_site(self._world), self._story.trouble
        measures: Any = self._world
        if self._story.on_node:
            there = containers_of(self._story.node, self._ssh, trouble, self._journal)
            measures = BackendRouter(measures, {Bus.LXC: there}, volumes={Bus.LXC: there})
        hypervisor = UnreliableHypervisor(measures, self._clock, trouble)
        return Worker(
            site=replace(
                site,
                hypervisor=hypervisor,
                vms=VmFunctions(
                    take_snapshots=(
                        self._world if self._story.on_node else hypervisor
                    ).take_snapshots,
                    operate=self._world.operate,
                    further_vm=lambda number: UnreliableHypervisor(  # type: ignore[arg-type,return-value] # stands in
                        self._world.further_vm(number), self._clock, trouble
                    ),
                ),
                probe=WrongProbe(site.probe, trouble),
                storages=StorageFunctions(identify=self._story.copies.device.identify),
            ),
            assignments=self._reloader.current.assignments,
            results=results,
            notify=self._story.told.runs.append,
            between=self._between,
        )

    def live(self) -> None:
        """Be started, work, and end in whatever way."""
        story = self._story
        try:
            undo_simulated(self._journal, story.reality)
            undo_containers(NodeSsh(self._ssh), "lab", self._journal)
            story.creations_end()
            story.existing.look_for_orphans("after the undo at a start", self._marks())
            self._worker.run()
        except Killed:
            story.schedule.deaths += 1
        except Interrupted:
            story.schedule.stops += 1
            story.existing.look_for_orphans("after a stop", self._marks())
        except ServerGone as error:
            # A stop when the node is away: what could not be removed stays in the journal.
            if not self._clock._stopped.is_set():
                self._broken.add("ended", f"{error}")
            story.schedule.stops += 1
            story.existing.look_for_orphans("after a stop", self._marks())
        except WaitsForEver:
            self._broken.add("stuck", "waits for what does not come")
        except Exception as error:  # noqa: BLE001 # whatever it is, it ended the service
            self._broken.add("ended", f"{type(error).__name__}: {error}")
        story.now += timedelta(seconds=self._clock.monotonic())

    def _marks(self) -> set[str]:
        return {details["mark"] for _, _, details in self._journal.pending() if "mark" in details}

    def _between(self, worker: Worker) -> None:
        """Do what happens around a process between two of its steps."""
        self._steps += 1
        self._story.existing.look()
        self._look_at_tries()
        if self._story.trouble.calm:
            self._look_at_progress()
            return
        if self._rng.random() < 0.05:
            self._story.neighbour.act(self._rng)
        if self._rng.random() < 0.05:
            self._let_a_rival_try()
        if self._story.copies.rng.random() < 0.05:
            self._story.copies.act()
        if self._rng.random() < 0.05:
            self._story.write_pack(
                self._rng.choice((*BAD, *(text.encode() for text in self._story.packs)))
            )
        if self._runs >= RUNS or self._steps >= STEPS:
            self._end_faults() if self._last else self._clock.stop()
        changed = self._reloader.check()
        if changed is not None:
            worker.assign(changed.assignments)

    def _let_a_rival_try(self) -> None:
        with suppress(AlreadyRunning):
            StateDirectory(self._story.state, exclusive=True).close()
            self._broken.add("shared", "a second instance took the state directory")

    def _look_at_tries(self) -> None:
        """See that a case which failed is left alone for a while, where the clock can tell."""
        runs = self._story.told.runs
        for run in runs[self._seen :]:
            if run.outcome.good and self._story.copies.device.uuid != FIRST:
                self._broken.add("moved", f"{run.case.slug} has a result of another device")
            before = self._last_runs.get(run.case.key)
            self._last_runs[run.case.key] = run
            if before is None or before.outcome.good or self._story.trouble.rates["clock set"]:
                continue
            if (run.started - before.finished).total_seconds() < PAUSE_SECONDS:
                self._broken.add("unbounded", f"{run.case.slug} failed, and was tried at once")
        self._runs += len(runs) - self._seen
        self._seen = len(runs)

    def _end_faults(self) -> None:
        self._story.trouble.calm = True
        self._story.copies.device.uuid = FIRST
        self._world.faults._rates.clear()  # further VMs share them
        self._story.write_pack(self._story.packs[0].encode())
        self._calm_at, self._calm_from = self._clock.monotonic(), len(self._story.told.runs)

    def _look_at_progress(self) -> None:
        good = {
            run.case.key for run in self._story.told.runs[self._calm_from :] if run.outcome.good
        }
        expected = {case.key for one in self._worker.assignments for case in one.matrix.cases}
        if expected <= good:
            self._clock.stop()
        elif self._clock.monotonic() - self._calm_at > CALM_SECONDS:
            self._broken.add("stuck", f"no good run of {len(expected - good)} cases within an hour")
            self._clock.stop()


_READ: dict[bytes, list[Assignment]] = {}
"""A pack's text -> what it asks for: reading the same good ones again is a fifth of the time."""


def _loaded(path: Path) -> list[Assignment]:
    text = path.read_bytes()
    if text not in _READ:
        settings = Settings(driver="simulated", node="lab", packs=(path,))
        _READ[text] = assignments(settings)
    return _READ[text]


@cache
def _known_cases(where: Path) -> dict[str, Case]:
    """Return key -> case of all packs of the schedules."""
    path, found = where / "known.yaml", {}
    for text in (*PACKS, *NODE_PACKS, *CHAIN_PACKS, *OPERATION_PACKS):
        path.write_text(text, "utf-8")
        found |= {case.key: case for one in _loaded(path) for case in one.matrix.cases}
    path.unlink()
    return found
