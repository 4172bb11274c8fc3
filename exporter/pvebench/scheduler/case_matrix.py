"""From axes to cases, with a reason for every combination that is left out."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pvebench.config import Pack
from pvebench.errors import ConfigError, Problem
from pvebench.model.disk import (
    DEVICE_OPTIONS,
    LAYOUT_OPTIONS,
    Bus,
    Cache,
    Disk,
    Filesystem,
    Format,
    Layout,
    option_text,
)
from pvebench.model.rules import Rows, StorageKind, why_not, why_not_run
from pvebench.model.scenario import Scenario
from pvebench.model.workload import Case

HOST_ROW: Final = {"bus": Bus.HOST, "format": Format.RAW, "cache": Cache.NONE}
"""Options of the row that the host itself measures, without a VM."""
CONTAINER_ROW: Final = {**HOST_ROW, "bus": Bus.LXC, "filesystem": Filesystem.EXT4}
"""Options of the row that a container measures; ext4 is what Proxmox makes for one."""


@dataclass(frozen=True, slots=True)
class ExcludedCase:
    """A scenario (or case) that is not run, and why."""

    slug: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All that a pack asks for: what can be run, and what cannot."""

    cases: tuple[Case, ...]
    excluded: tuple[ExcludedCase, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A pack and its cases on one node; there is at least one case."""

    pack: Pack
    matrix: Matrix

    @property
    def node(self) -> str:
        """The node that all its cases are for."""
        return self.matrix.cases[0].scenario.node


def expand(
    pack: Pack,
    *,
    node: str,
    storages: Mapping[str, StorageKind],
    elsewhere: Collection[str] = (),
    identities: Mapping[str, str] | None = None,
    rows: Rows = Rows.BOTH,
) -> Matrix:
    """Return every case of `pack` on `node`.

    Where no VM can run, each pack has the host's own rows.

    Args:
        storages: those that the node has.
        elsewhere: storages that are configured, but not on this node.
        identities: storage -> `Scenario.identity`.

    Raises:
        ConfigError: none of its storages is configured, or nothing at all is left to run although
            the node has a storage that is asked for.
    """
    wanted = [*pack.axes["storage"], *(v["storage"] for v in pack.variants if "storage" in v)]
    missing = [str(name) for name in wanted if name not in {*storages, *elsewhere}]
    if len(missing) == len(wanted):
        known = ", ".join(sorted(storages))
        message = f"storage {', '.join(missing)} is not configured on {node}; known: {known}"
        there = min(storages, default="NAME")
        remedy = f"write axes: {{storage: [{there}]}} in the pack, or call one in the settings "
        remedy += str(missing[0])
        raise ConfigError([Problem(str(pack.path), 0, 0, message)], next_step=remedy)
    cases: list[Case] = []
    excluded: list[ExcludedCase] = []
    for plain in _scenarios(pack, node, host=pack.host or rows is Rows.HOST):
        identity = (identities or {}).get(plain.storage, "")
        scenario = _on(plain, storages.get(plain.storage), identity)
        reason = _excluded(pack, scenario) or _impossible(scenario, storages, rows)
        if reason:
            excluded.append(ExcludedCase(scenario.slug, reason))
            continue
        for workload in pack.workloads:
            case = Case(scenario=scenario, workload=workload, scale=pack.scale)
            if reason := why_not_run(scenario, workload, storages[scenario.storage]):
                excluded.append(ExcludedCase(case.slug, reason))
            else:
                cases.append(case)
    if not cases and any(name in storages for name in wanted):
        reasons = "; ".join(sorted({entry.reason for entry in excluded}))
        message = f"empty matrix: every combination is left out ({reasons})"
        raise ConfigError([Problem(str(pack.path), 0, 0, message)])
    return Matrix(cases=tuple(cases), excluded=tuple(excluded))


def _on(scenario: Scenario, storage: StorageKind | None, identity: str) -> Scenario:
    """Return the scenario as it is measured on such a storage."""
    if storage is None:
        return scenario
    return replace(scenario, host_cache=storage.host_cache, identity=identity)


def _impossible(scenario: Scenario, storages: Mapping[str, StorageKind], rows: Rows) -> str | None:
    if scenario.storage not in storages:
        return f"storage {scenario.storage} is not configured on {scenario.node}"
    if rows is Rows.HOST and scenario.disk.in_vm:
        return "this instance has no VMs, only the host and containers (driver: host)"
    if rows is Rows.VM and scenario.disk.on_host:
        return "the host itself can be measured only where pvebench runs on it"
    return why_not(scenario, storages[scenario.storage])


def _scenarios(pack: Pack, node: str, *, host: bool) -> Iterable[Scenario]:
    """Yield the rows without a VM, every combination of the axes, the variants, each once."""
    names = list(pack.axes)
    combined = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*pack.axes.values())
    ]
    first = {name: values[0] for name, values in pack.axes.items()}
    seen = set()
    variants = [{**first, **variant} for variant in pack.variants]
    # What is compared is on the same storage, with the same settings below it; and a container
    # on the file system that the guests have, if they have one.
    guests, below = [*combined, *variants], ("storage", *DEVICE_OPTIONS)
    own = [_beside(HOST_ROW, options, below) for options in guests] if host else []
    above = [_beside(CONTAINER_ROW, options, (*below, *LAYOUT_OPTIONS)) for options in guests]
    for options in [*own, *(above if pack.lxc else ()), *guests]:
        scenario = _scenario(pack, node, options)
        if scenario.slug not in seen:
            seen.add(scenario.slug)
            yield scenario


def _beside(
    row: Mapping[str, Any], guest: Mapping[str, Any], kept: Collection[str]
) -> dict[str, Any]:
    """Return a row without a VM, with what it keeps of a guest's options."""
    same = {key: guest[key] for key in kept if key in guest}
    if same.get("filesystem") is Filesystem.NONE:
        del same["filesystem"]
    return {**row, **same}


def _scenario(pack: Pack, node: str, given: Mapping[str, Any]) -> Scenario:
    options = dict(given)
    storage = str(options.pop("storage"))
    layout: dict[str, Any] = {key: options.pop(key) for key in LAYOUT_OPTIONS if key in options}
    return Scenario(
        node=node,
        storage=storage,
        disk=Disk(**options),
        machine=pack.machine,
        volume_bytes=pack.volume_bytes,
        layout=_layout(pack, layout),
    )


def _layout(pack: Pack, options: Mapping[str, Any]) -> Layout:
    layout = Layout(**options, fill_passes=pack.fill_passes, fill_compress=pack.fill_compress)
    if not layout.on_filesystem:
        return layout
    return replace(layout, file_name=pack.file_name, file_bytes=pack.file_bytes)


def _excluded(pack: Pack, scenario: Scenario) -> str | None:
    """Return the reason if the pack itself excludes the scenario."""
    options = {"storage": scenario.storage, **asdict(scenario.disk), **asdict(scenario.layout)}
    for exclude in pack.excludes:
        if all(options[key] == value for key, value in exclude.items()):
            words = ", ".join(f"{key}={option_text(value)}" for key, value in exclude.items())
            return f"excluded by the pack ({words})"
    return None


def select(matrix: Matrix, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> Matrix:
    """Keep the cases of which a slug matches a glob of `only`, if given, and none of `skip`."""
    cases: list[Case] = []
    excluded = list(matrix.excluded)
    for case in matrix.cases:
        if only and not _matches(case, only):
            excluded.append(ExcludedCase(case.slug, "not selected"))
        elif _matches(case, skip):
            excluded.append(ExcludedCase(case.slug, "skipped by selection"))
        else:
            cases.append(case)
    return replace(matrix, cases=tuple(cases), excluded=tuple(excluded))


def _matches(case: Case, globs: Sequence[str]) -> bool:
    names = (case.slug, case.scenario.slug, case.workload.slug)
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in names)


def check_slugs(packs: Sequence[tuple[Pack, Matrix]]) -> None:
    """Refuse one slug with two meanings among the packs of an instance.

    Raises:
        ConfigError: two packs mean different things by one slug; their results would be
            written into one history.
    """
    meanings: dict[tuple[str, str], tuple[str, Pack]] = {}
    problems: list[Problem] = []
    for pack, matrix in packs:
        parts = {
            ("scenario", case.scenario.slug): case.scenario.fingerprint for case in matrix.cases
        }
        parts |= {
            ("workload", case.workload.slug): case.workload.fingerprint for case in matrix.cases
        }
        for (what, slug), fingerprint in parts.items():
            known, other = meanings.setdefault((what, slug), (fingerprint, pack))
            if known != fingerprint:
                message = (
                    f"{what} {slug} means something else here than in {other.path}: same slug, "
                    f"different size, time or machine; raise its version or run one of the packs"
                )
                problems.append(Problem(str(pack.path), 0, 0, message))
    if problems:
        raise ConfigError(problems)
