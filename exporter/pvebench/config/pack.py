"""Packs: lists of cases to measure, one YAML file each.

Only `pack_model` imports the schema, which includes the options of all tools: few commands read a
pack.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from pvebench.config.document import Document, message_of, read_document, validate
from pvebench.errors import ConfigError, Problem
from pvebench.fields import MAX_NAME, resolve_paths
from pvebench.model.disk import Bus, Cache, Format
from pvebench.model.scenario import Filesystem, Machine
from pvebench.model.units import MIB, format_size, whole_number
from pvebench.model.workload import Conduct, Workload
from pvebench.shipped import shipped
from pvebench.workloads import TOOLS
from pvebench.workloads.fault_dip import MIN_OPERATION_SECONDS, TOO_SHORT
from pvebench.workloads.fio_job import ALIASES, EXPLAINED, SET_ELSEWHERE, pack_options
from pvebench.workloads.tool import ToolOptions

if TYPE_CHECKING:
    from pvebench.config.pack_keys import OptionValue, PackFile


@cache
def pack_model() -> type[PackFile]:
    """Return the schema of packs; its import takes long."""
    from pvebench.config.pack_keys import PackFile  # noqa: PLC0415 # see above

    return PackFile


# --- Packs by name: `quick` is the nearest `quick.yaml`, or the shipped one.

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
"""Name of a pack; anything with a dot or a slash is a path, used unchanged."""


def shipped_packs() -> dict[str, Path]:
    """Return name -> file of the packs that come with pvebench."""
    return {path.stem: path for path in sorted(shipped("scenarios").glob("*.yaml"))}


def find_pack(pack: Path, directories: Sequence[Path], settings: Path | None = None) -> Path | None:
    """Return a path unchanged; for a name the file in the first directory, else the shipped file.

    The settings file is no pack, whatever its name.

    A file of this name without `.yaml` comes last. Other file types, such as a pipe or a dangling
    link, are returned too: the error of reading them is more precise.
    """
    if not _NAME.fullmatch(str(pack)):
        return pack
    name = str(pack)
    nearest = [directory / f"{name}.yaml" for directory in directories]
    own = shipped_packs().get(name)
    literal = [directory / name for directory in directories]
    candidates = [*nearest, *([own] if own else []), *literal]
    own_settings = settings and settings.absolute()
    candidates = [path for path in candidates if path.absolute() != own_settings]
    return next((path for path in candidates if _exists(path)), None)


def _exists(path: Path) -> bool:
    # Not pathlib's, which raises for an unreadable directory.
    return os.path.lexists(path) and not os.path.isdir(path)  # noqa: PTH112 # see above


def unknown_pack(name: str, directories: Sequence[Path]) -> str:
    """Return the message for an unknown pack name, with the searched directories."""
    searched = ", ".join(str(directory.absolute()) for directory in directories)
    return f"no {name}.yaml in {searched}; {_unknown_shipped(name)}"


def check_exists(path: Path) -> None:
    """Check that a pack's file exists; otherwise suggest available packs.

    Raises:
        ConfigError: the file does not exist. Other problems appear when it is read.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            message = f"link to the missing file {path.readlink()}"
            raise ConfigError([Problem(str(path), 0, 0, message)]) from error
        known = path.stem in shipped_packs()
        hint = (
            f"for the shipped pack, write {path.stem} without .yaml"
            if known
            else _unknown_shipped(path.stem)
        )
        raise ConfigError([Problem(str(path), 0, 0, f"file not found; {hint}")]) from error
    except (OSError, ValueError):
        # A NUL in a path is a ValueError.
        return


def _unknown_shipped(name: str) -> str:
    known = list(shipped_packs())
    near = difflib.get_close_matches(name[:MAX_NAME], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
    return f"no shipped pack {name[:MAX_NAME]}; {hint}"


# --- The pack itself.


DEFAULT_STORAGE: Final = "local"
DEFAULTS: Final = {"bus": Bus.SCSI, "format": Format.RAW, "cache": Cache.NONE}
"""Options of a pack without them, as Proxmox VE creates disks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A resolved pack: cases, workloads and intervals.

    Attributes:
        source, published: origin of a published test that the pack reproduces; else empty.
        relative_to: slug of the scenario that results are relative to; empty: none.
        axes: option -> values; fixed options are axes with one value. Includes `storage`.
        places: line and column in the file of `storage`, `axes` and `workloads`.
        excludes: combinations that the pack excludes.
        variants: options that override the first value of each axis; one more scenario each.
        host: whether each storage has a host case.
        lxc: whether each storage has a container case.
        every_seconds: interval of each case.
        file_name, file_bytes: test file of scenarios with a filesystem.
        fill_passes, fill_compress: number of fills, and compressible share of the data in percent.
        scale: factor of the command line for sizes and times.
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
    places: Mapping[str, tuple[int, int]]
    scale: float = 1.0


def load_pack(path: Path, *, scale: float = 1.0) -> Pack:
    """Return the pack in `path`; `scale` multiplies the pack's own scale.

    Raises:
        ConfigError: with all problems of the file.
    """
    check_exists(path)
    document = read_document(path)
    file = validate(document, pack_model())
    guest = resolve_paths(file.guest, path.parent.absolute())
    factor = file.measure.scale * scale
    measure = file.measure
    volume_bytes = _whole_mib(file.volume.size * factor, least=16)
    file_bytes = file.volume.file or file.volume.size // 2
    fixed = {"storage": DEFAULT_STORAGE, **DEFAULTS, **file.fixed.explicit()}
    axes = {key: (value,) for key, value in fixed.items()} | file.axes.explicit()
    used_bytes = min(_whole_mib(file_bytes * factor, least=8), volume_bytes)
    return Pack(
        name=file.pack,
        title=file.title or file.pack,
        source=" ".join(file.source.split()),
        published=file.published or "",
        relative_to=file.relative_to,
        tier=file.tier,
        path=path,
        every_seconds=file.every,
        seed=file.seed,
        axes=axes,
        excludes=tuple(exclude.explicit() for exclude in file.exclude),
        variants=tuple(variant.explicit() for variant in file.variants),
        host=file.host,
        lxc=file.lxc,
        volume_bytes=volume_bytes,
        machine=Machine(
            memory_bytes=guest.memory,
            cpus=guest.cpus,
            os=guest.os,
            image=str(guest.image or ""),
            template=guest.template or 0,
            fio=str(guest.fio or ""),
        ),
        file_name=file.volume.file_name,
        file_bytes=used_bytes,
        fill_passes=file.volume.fill,
        fill_compress=file.volume.compress,
        conduct=Conduct(
            settle_seconds=measure.settle, noisy_ratio=measure.noisy, repeats=measure.repeats
        ),
        workloads=_workloads(
            document, file, factor, used_bytes if _uses_file(file, axes) else volume_bytes
        ),
        places=_places(document),
        scale=scale,
    )


def _places(document: Document) -> dict[str, tuple[int, int]]:
    """Return `Pack.places`; storages that the file does not name are at its axes."""
    storages = [(section, "storage") for section in ("axes", "fixed")]
    places = {
        "storage": next(filter(document.has, storages), ("axes",)),
        "axes": ("axes",),
        "workloads": ("workloads",),
    }
    problems = {name: document.problem(place, "") for name, place in places.items()}
    return {name: (problem.line, problem.column) for name, problem in problems.items()}


def _whole_mib(size: float, *, least: int) -> int:
    """Return a multiple of 1 MiB in bytes, which suits every format and sector size."""
    return max(least, round(size / MIB)) * MIB


def _uses_file(file: PackFile, axes: Mapping[str, tuple[OptionValue, ...]]) -> bool:
    """Return whether a case works on the test file, which is smaller than the volume."""
    kinds = {*axes.get("filesystem", ()), *(v.explicit().get("filesystem") for v in file.variants)}
    return file.lxc or bool(kinds - {None, Filesystem.NONE})


def _workloads(
    document: Document, file: PackFile, factor: float, most: int
) -> tuple[Workload, ...]:
    """Return the workloads; `factor` multiplies sizes and times.

    Args:
        most: bytes that each of them can use.

    Raises:
        ConfigError: several entries define the same workload, or one cannot be run as it is.
    """
    by_slug: dict[str, tuple[int, Workload]] = {}
    problems: list[Problem] = []
    for index, options, workload in _entries(file, factor, most):
        name, area = options.area
        if area > most:
            sizes = f"{format_size(area)} exceeds the volume or test file; use at most"
            message = f"{name}: {sizes} {format_size(most)}"
            problems.append(document.problem(("workloads", index, workload.tool, name), message))
        if workload.slug in by_slug:
            message = f"same workload as entry {by_slug[workload.slug][0] + 1}: {workload.slug}"
            problems.append(document.problem(("workloads", index), message))
        by_slug.setdefault(workload.slug, (index, workload))
    during = any(workload.during for _, workload in by_slug.values())
    if during and file.measure.runtime < MIN_OPERATION_SECONDS:
        place = ("measure", "runtime")
        problems.append(document.problem(place, f"measure.runtime: {TOO_SHORT}"))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return tuple(workload for _, workload in by_slug.values())


def _entries(
    file: PackFile, factor: float, most: int
) -> Iterator[tuple[int, ToolOptions, Workload]]:
    """Yield the index of an entry, and the options and workload of each combination."""
    measure = file.measure
    ramp = measure.ramp * factor
    for index, entry in enumerate(file.workloads):
        steady = measure.steady if TOOLS[entry.tool].open_ended else None
        for option in entry.options:
            options = option if factor == 1.0 else option.scaled(factor, most)
            runtime = max(1.0, (getattr(option, "runtime", None) or measure.runtime) * factor)
            workload = options.workload(ramp_seconds=ramp, runtime_seconds=runtime)
            yield index, options, replace(workload, steady=steady.rule() if steady else None)


# --- Packs from fio's own options.


def pack_of_fio(text: str) -> str:
    """Return a pack with the jobs of a command line or a job file of fio, as YAML.

    Comments explain the options that are not in it.

    Raises:
        ConfigError: a job cannot be measured as it is.
    """
    try:
        jobs = fio_jobs(text)
    except ValueError as error:
        raise ConfigError([Problem("fio", 0, 0, str(error))]) from error
    notes = dict.fromkeys(["direct: pvebench always bypasses the page cache, as direct=1"])
    workloads, faults = [], dict[str, None]()
    for job in jobs:
        try:
            workload = pack_options(job)
        except ValueError as error:
            faults |= dict.fromkeys(str(error).splitlines())
        else:
            workloads.append({"fio": workload})
            notes |= dict.fromkeys(_notes(job, workload))
    pack = {"pack": "from-fio", **_sections(jobs, faults), "workloads": workloads}
    _check_fio(pack, faults)
    notes |= {"jobs: pvebench measures one at a time": None} if len(jobs) > 1 else {}
    entries = dict.fromkeys(f"  - {flow_text(entry, braces=False)}\n" for entry in workloads)
    lines = [f"{key}: {flow_text(pack[key])}\n" for key in pack if key != "workloads"]
    return "".join((*(f"# {note}\n" for note in notes), *lines, "workloads:\n", *entries))


def _sections(jobs: Sequence[Mapping[str, str]], faults: dict[str, None]) -> dict[str, Any]:
    """Return the sections of a pack that all jobs share; add what differs to `faults`."""
    sections: dict[str, Any] = {}
    for key, (section, name) in _OF_THE_PACK.items():
        values = {job[key] for job in jobs if key in job and "%" not in job[key]}
        if len(values) > 1:
            faults[f"{key}: differs between the jobs; a pack has one"] = None
        for value in values:
            seconds = "" if section == "volume" or whole_number(value) is None else "s"
            sections.setdefault(section, {})[name] = f"{value}{seconds}"
    return sections


def _check_fio(pack: Mapping[str, Any], faults: dict[str, None]) -> None:
    """Raise ConfigError for the faults, or without any for those of the pack."""
    try:
        pack_model().model_validate(pack)
    except ValidationError as error:
        faults = faults or dict.fromkeys(message_of(dict(fault)) for fault in error.errors())
    if faults:
        raise ConfigError([Problem("fio", 0, 0, fault) for fault in faults])


def _notes(job: Mapping[str, str], workload: Mapping[str, Any]) -> Iterator[str]:
    """Yield why options of a job are not in its workload, where a user may miss them."""
    for name in job:
        if name in EXPLAINED and name in SET_ELSEWHERE and name not in _OF_THE_PACK:
            yield f"{name}: {EXPLAINED[name].removesuffix('; remove it')}"
        elif _WRITTEN_AS.get(name, name) not in {*workload, *SET_ELSEWHERE}:
            yield f"{name}: fio ignores it with {workload['rw']} and {workload['ioengine']}"


_WRITTEN_AS: Final = {**ALIASES, "rwmixwrite": "rwmixread", "rate": "rate_iops"}
_OF_THE_PACK: Final = {
    "runtime": ("measure", "runtime"),
    "ramp_time": ("measure", "ramp"),
    "size": ("volume", "size"),
}
"""Option of fio -> section and key of a pack."""


def flow_text(value: object, *, braces: bool = True) -> str:
    """Return a value as YAML in one line."""
    if not isinstance(value, Mapping):
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = ", ".join(f"{key}: {flow_text(inner)}" for key, inner in value.items())
    return f"{{{text}}}" if braces else text


_COMMAND: Final = re.compile(r"(?:^|[;&|])[\s$#]*(?:sudo\s+)?fio\s", re.MULTILINE)


def fio_jobs(text: str) -> list[dict[str, str]]:
    """Return the options of each job in a command line of fio, or in a job file.

    Raises:
        ValueError: it is neither.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()[:1] not in ("", "#", ";")]
    in_file = any(line.startswith("[") for line in lines)
    words = [*map(_word_of_line, lines)] if in_file else _words(text)
    shared: dict[str, str] = {}
    jobs: list[dict[str, str]] = []
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = "1" if following.startswith("-") else following
        if name == "name" and value != "global":
            jobs.append({**shared})
        (jobs[-1] if jobs else shared)[name] = value
    return jobs or [shared]


def _word_of_line(line: str) -> str:
    """Return a line of a job file as the option of a command line."""
    if line.startswith("["):
        return f"--name={line.strip('[]')}"
    name, equals, value = line.partition("=")
    return f"--{name.strip()}={value.strip() if equals else 1}"


def _words(command: str) -> list[str]:
    """Return the words of a pasted command line; forums turn two hyphens into a dash."""
    command = re.sub(r"\\\r?\n", " ", re.sub("[–—]", "--", command))
    if len(_COMMAND.findall(command)) > 1:
        raise ValueError("several commands; pass them one by one")
    try:
        words = shlex.split(command.lstrip("$# "))
    except ValueError as error:
        raise ValueError("a quotation mark is missing") from error
    if not any(word.startswith("-") for word in words):
        raise ValueError("no options of fio; pass a command line such as 'fio --name=a --rw=read'")
    return words


KEYS_OF_FACTS: Final = {
    **{name: f"guest.{name}" for name in ("cpus", "os", "image", "template")},
    "memory_bytes": "guest.memory",
    "volume_bytes": "volume.size",
    "file_bytes": "volume.file",
    "file_name": "volume.file_name",
    "fill_passes": "volume.fill",
    "fill_compress": "volume.compress",
    "ramp_seconds": "measure.ramp",
    "runtime_seconds": "measure.runtime",
}
"""Fact of a definition -> its key in a pack, if that has another name."""
