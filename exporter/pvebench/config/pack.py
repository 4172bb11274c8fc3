"""Packs: what is measured. One YAML file under `scenarios/` each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pvebench.config.document import Document, read_document, validate
from pvebench.config.options import OptionValue
from pvebench.config.pack_file import PackFile
from pvebench.config.pack_names import check_there
from pvebench.errors import ConfigError, Problem
from pvebench.model.conduct import Conduct
from pvebench.model.scenario import Machine
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Workload
from pvebench.workloads import ROOMS

DEFAULT_STORAGE: Final = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack, resolved: what is measured, how, and how often.

    Attributes:
        source, published: of a pack that reproduces a published test; else empty.
        relative_to: slug of the scenario that results are shown relative to; empty: none.
        axes: option -> values; fixed options are axes with one value. Includes `storage`.
        excludes: combinations that the pack leaves out on purpose.
        variants: options put over the first value of each axis; one more scenario each.
        host: whether each storage has a row of the host itself.
        lxc: whether each storage has a row of a container.
        every_seconds: how often each case is due.
        file_name, file_bytes: the test file of scenarios with a filesystem.
        fill_passes, fill_compress: how the volume or the file is filled.
        scale: what the command line multiplied its sizes and times by.
    """

    name: str
    title: str
    source: str
    published: str
    relative_to: str
    tier: str
    path: Path
    every_seconds: float
    seed: int
    axes: Mapping[str, tuple[OptionValue, ...]]
    excludes: tuple[Mapping[str, OptionValue], ...]
    variants: tuple[Mapping[str, OptionValue], ...]
    host: bool
    lxc: bool
    volume_bytes: int
    machine: Machine
    file_name: str
    file_bytes: int
    fill_passes: int
    fill_compress: int
    conduct: Conduct
    workloads: tuple[Workload, ...]
    scale: float = 1.0


def load_pack(path: Path, *, scale: float = 1.0) -> Pack:
    """Return the pack in `path`; `scale` multiplies the pack's own scale.

    Raises:
        ConfigError: with every fault of the file.
    """
    check_there(path)
    document = read_document(path)
    file = validate(document, PackFile)
    factor = file.measure.scale * scale
    measure = file.measure
    volume_bytes = _whole_mib(file.volume.size * factor, least=16)
    file_bytes = file.volume.file or file.volume.size // 2
    fixed = {"storage": DEFAULT_STORAGE, **file.fixed.given()}
    axes = {key: (value,) for key, value in fixed.items()} | file.axes.given()
    return Pack(
        name=file.pack,
        title=file.title,
        source=" ".join(file.source.split()),
        published=file.published or "",
        relative_to=file.relative_to,
        tier=file.tier,
        path=path,
        every_seconds=file.every,
        seed=file.seed,
        axes=axes,
        excludes=tuple(exclude.given() for exclude in file.exclude),
        variants=tuple(variant.given() for variant in file.variants),
        host=file.host,
        lxc=file.lxc,
        volume_bytes=volume_bytes,
        machine=Machine(memory_bytes=file.guest.memory // KIB * KIB, cpus=file.guest.cpus),
        file_name=file.volume.file_name,
        file_bytes=min(_whole_mib(file_bytes * factor, least=8), volume_bytes),
        fill_passes=file.volume.fill,
        fill_compress=file.volume.compress,
        conduct=Conduct(
            settle_seconds=measure.settle, noisy_ratio=measure.noisy, repeats=measure.repeats
        ),
        workloads=_workloads(document, file, factor),
        scale=scale,
    )


def _whole_mib(size: float, *, least: int) -> int:
    """Return whole MiB in bytes, so that every format and sector size fits."""
    return max(least, round(size / MIB)) * MIB


def _workloads(document: Document, file: PackFile, factor: float) -> tuple[Workload, ...]:
    """Return what is run; `factor` multiplies times.

    Raises:
        ConfigError: entries mean the same workload.
    """
    found: dict[str, tuple[int, Workload]] = {}
    problems: list[Problem] = []
    for index, workload in _entries(file, factor):
        if workload.slug in found:
            message = f"same workload as entry {found[workload.slug][0] + 1}: {workload.slug}"
            problems.append(document.problem(("workloads", index), message))
        found.setdefault(workload.slug, (index, workload))
    if problems:
        raise ConfigError(problems)
    return tuple(workload for _, workload in found.values())


def _entries(file: PackFile, factor: float) -> Iterator[tuple[int, Workload]]:
    """Yield an entry's place and each workload that it means."""
    measure = file.measure
    ramp, runtime = measure.ramp * factor, max(1.0, measure.runtime * factor)
    for index, entry in enumerate(file.workloads):
        steady = measure.steady if ROOMS[entry.tool].open_ended else None
        for options in entry.options:
            workload = options.workload(ramp_seconds=ramp, runtime_seconds=runtime)
            yield index, replace(workload, steady=steady.rule() if steady else None)
