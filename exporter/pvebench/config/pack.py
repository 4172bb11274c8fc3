"""Packs: what is measured. One YAML file under `scenarios/` each."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pvebench.config.document import Document, read_document, validate
from pvebench.config.pack_keys import OptionValue, PackFile
from pvebench.errors import ConfigError, Problem
from pvebench.model.scenario import Machine
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Conduct, Workload
from pvebench.shipped import shipped
from pvebench.workloads import TOOLS

# --- Packs by name: `quick` is the nearest `quick.yaml`, or the one that comes with pvebench.

_MOST_NAME: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
"""What is joined to a directory: anything with a dot or a slash is a path, and used as it is."""


def is_pack_name(given: Path) -> bool:
    """Return whether this is a name, not a path."""
    return _NAME.fullmatch(str(given)) is not None


def shipped_packs() -> dict[str, Path]:
    """Return name -> file of the packs that come with pvebench."""
    return {path.stem: path for path in sorted(shipped("scenarios").glob("*.yaml"))}


def pack_named(name: str, places: Sequence[Path]) -> Path | None:
    """Return the file of the pack `name`: of the first of `places` that has one, else our own.

    A file that is called so without `.yaml` comes last. What is there but no file, such as a pipe
    or a link that leads nowhere, is returned too: reading it tells what it is.
    """
    nearest = [place / f"{name}.yaml" for place in places]
    ours = shipped_packs().get(name)
    literal = [place / name for place in places]
    candidates = [*nearest, *([ours] if ours else []), *literal]
    return next((path for path in candidates if _is_there(path)), None)


def _is_there(path: Path) -> bool:
    # Not pathlib's: of a directory that may not be looked into it raises.
    return os.path.lexists(path) and not os.path.isdir(path)  # noqa: PTH112 # see above


def no_such_pack(name: str, places: Sequence[Path]) -> str:
    """Return the complaint about a name that no pack has, with where it was looked for."""
    looked = ", ".join(str(place.absolute()) for place in places)
    return f"there is no {name}.yaml in {looked}, and {_none_of_ours(name)}"


def check_there(path: Path) -> None:
    """Lead who names a pack's file that is not there to the packs that are.

    Raises:
        ConfigError: it is not there; where that cannot be told, reading it tells why.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            to = f"is a link to {path.readlink()}, which is not there"
            raise ConfigError([Problem(str(path), 0, 0, to)]) from error
        ours = path.stem in shipped_packs()
        hint = (
            f"that of pvebench has the name {path.stem} alone" if ours else _none_of_ours(path.stem)
        )
        raise ConfigError([Problem(str(path), 0, 0, f"is not there; {hint}")]) from error
    except (OSError, ValueError):
        # A NUL in a path is a ValueError.
        return


def _none_of_ours(name: str) -> str:
    known = list(shipped_packs())
    near = difflib.get_close_matches(name[:_MOST_NAME], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"those that do are {', '.join(known)}"
    return f"no pack called {name[:_MOST_NAME]} comes with pvebench; {hint}"


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
        steady = measure.steady if TOOLS[entry.tool].open_ended else None
        for options in entry.options:
            workload = options.workload(ramp_seconds=ramp, runtime_seconds=runtime)
            yield index, replace(workload, steady=steady.rule() if steady else None)
