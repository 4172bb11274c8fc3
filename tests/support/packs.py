"""Packs, worlds and workers for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pvebench.config import Pack, load_pack
from pvebench.drivers.simulated import Fault, Faults, SimulatedClock, World, simulated_site
from pvebench.drivers.simulated.clock import START
from pvebench.model.guard import Guard
from pvebench.model.rules import STORAGE_KINDS
from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.plan import Assignment, Matrix, expand
from pvebench.scheduler.worker import Worker
from pvebench.store import Store

ROOT = Path(__file__).resolve().parents[2]
QUICK = ROOT / "scenarios" / "quick.yaml"
STORAGES = {"local": STORAGE_KINDS["dir"]}

SMALL = """\
pack: small
title: Two scenarios
every: 10m
axes:
  bus: [virtio, scsi]
  format: [raw]
  cache: [none]
volume:
  size: 64M
measure:
  ramp: 1s
  runtime: 2s
workloads:
  - fio: {rw: randread, bs: 4k, iodepth: 8}
"""


def write_pack(directory: Path, text: str = SMALL, name: str = "pack.yaml") -> Path:
    path = directory / name
    path.write_text(text, "utf-8")
    return path


def quick() -> tuple[Pack, Matrix]:
    pack = load_pack(QUICK)
    return pack, expand(pack, node="lab", storages=STORAGES)


@dataclass
class Recorder:
    """An observer that remembers."""

    phases: list[tuple[str, Phase]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        self.phases.append((case.slug, phase))

    def finished(self, run: Run) -> None:
        self.runs.append(run)


@dataclass
class Simulation:
    """A worker on a simulated node, with everything around it."""

    store: Store
    world: World
    worker: Worker
    recorder: Recorder


def simulate(
    directory: Path, *, seed: int = 1, cycles: int | None = 1, pack: Path = QUICK,
    faults: Mapping[Fault, float] | None = None, start: datetime = START,
    guards: Callable[[SimulatedClock, Store], Sequence[Guard]] = lambda *_: (),
) -> Simulation:  # fmt: skip
    store = Store(directory / "pvebench.db", simulated=True)
    clock = SimulatedClock(start)
    world = World(
        node="lab", seed=seed, clock=clock, journal=store.journal, faults=Faults(seed, faults)
    )
    loaded = load_pack(pack)
    matrix = expand(loaded, node="lab", storages=STORAGES)
    recorder = Recorder()
    worker = Worker(
        site=simulated_site(world), assignments=[Assignment(loaded, matrix)], store=store,
        observer=recorder, cycles=cycles, guards=guards(clock, store),
    )  # fmt: skip
    return Simulation(store, world, worker, recorder)
