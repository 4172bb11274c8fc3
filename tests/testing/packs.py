"""Packs, worlds and workers for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pvebench.config import Pack, load_pack
from pvebench.drivers.storages import KINDS
from pvebench.errors import ConfigError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.run import Run
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.status import Phase
from pvebench.model.storage_use import SpaceNeed
from pvebench.model.units import GIB
from pvebench.model.workload import Case, Workload
from pvebench.scheduler.plan import Matrix, expand
from pvebench.workloads import TOOLS

ROOT = Path(__file__).resolve().parents[2]
QUICK = ROOT / "scenarios" / "quick.yaml"
STORAGES = {"local": KINDS["dir"].holds}

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


def tool_workload(
    tool: str, options: Mapping[str, Any], *, ramp_seconds: float = 1, runtime_seconds: float = 1
) -> Workload:
    """Return what a pack's options for a tool mean."""
    given = TOOLS[tool].options.model_validate(dict(options))
    return given.workload(ramp_seconds=ramp_seconds, runtime_seconds=runtime_seconds)


def tool_refusal(directory: Path, tool: str, options: Mapping[str, Any]) -> str:
    """Return what is said of a pack's options for a tool, without the place."""
    entry = f"  - {json.dumps({tool: options})}\n"
    path = write_pack(directory, SMALL.partition("  - fio:")[0] + entry)
    with pytest.raises(ConfigError) as caught:
        load_pack(path)
    return str(caught.value).replace(str(path), "").partition(": ")[2]


def matrix_of(directory: Path, text: str) -> Matrix:
    """Return the cases of a pack on node `lab`."""
    return expand(load_pack(write_pack(directory, text)), node="lab", storages=STORAGES)


def space_of(matrix: Matrix) -> dict[str, int]:
    """Return the bytes that its cases need on each storage."""
    return SpaceNeed(STORAGES).add(*matrix.cases).total()


def quick() -> tuple[Pack, Matrix]:
    pack = load_pack(QUICK)
    return pack, expand(pack, node="lab", storages=STORAGES)


@dataclass
class Recorder:
    """Remembers phases and runs."""

    phases: list[tuple[str, Phase]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def __call__(self, case: Case, phase: Phase, seconds: float) -> None:
        self.phases.append((case.slug, phase))


def a_case(rw: str = "randread", cache: Cache = Cache.NONE, **options: object) -> Case:
    """Return a case of fio on a volume of 1 GiB."""
    scenario = Scenario(
        node="lab",
        storage="local",
        volume_bytes=GIB,
        disk=Disk(bus=Bus.VIRTIO, format=Format.RAW, cache=cache),
        machine=Machine(memory_bytes=GIB, cpus=1),
    )
    workload = tool_workload(
        "fio", {"rw": rw, "bs": "4k", **options}, ramp_seconds=2.0, runtime_seconds=10.0
    )
    return Case(scenario=scenario, workload=workload)
