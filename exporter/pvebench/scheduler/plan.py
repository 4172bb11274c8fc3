"""Plan of a cycle: cases of a pack, exclusions with reasons, order and cost. Pure."""

from __future__ import annotations

import fnmatch
import itertools
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pvebench.config.pack import KEYS_OF_FACTS, Pack
from pvebench.drivers.vm_lifecycle import GUEST_SYSTEMS
from pvebench.errors import ConfigError, Problem
from pvebench.model.definition import Definition
from pvebench.model.disk import HOST_OPTIONS, Bus, Cache, Disk, Format, HostCache, option_text
from pvebench.model.rules import Rows, StorageKind, why_not, why_not_run
from pvebench.model.scenario import LAYOUT_OPTIONS, Filesystem, Layout, Scenario
from pvebench.model.units import MIB, show_seconds
from pvebench.model.workload import SNAPSHOT_RAM, Case, Conduct
from pvebench.workloads import TOOLS
from pvebench.workloads.fault_dip import QUIET_SHARE
from pvebench.workloads.tool import BOOT_SECONDS

HOST_ROW: Final = {"bus": Bus.HOST, "format": Format.RAW, "cache": Cache.NONE}
"""Options of the host case, which is measured without a VM."""
CONTAINER_ROW: Final = {**HOST_ROW, "bus": Bus.LXC, "filesystem": Filesystem.EXT4}
"""Options of the container case; Proxmox creates ext4 for containers."""


@dataclass(frozen=True, slots=True)
class ExcludedCase:
    """Scenario (or case) that is not run, with the reason."""

    slug: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All cases of a pack, and its excluded combinations."""

    cases: tuple[Case, ...]
    excluded: tuple[ExcludedCase, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Pack with its cases on one node; at least one case."""

    pack: Pack
    matrix: Matrix

    @property
    def node(self) -> str:
        """The node of all cases."""
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

    Where no VM can run, each pack has host cases.

    Args:
        storages: storages of the node.
        elsewhere: configured storages that are not on this node.
        identities: storage -> `Scenario.identity`.

    Raises:
        ConfigError: none of the pack's storages is configured, or every combination is excluded
            although the node has a storage of the pack.
    """
    named = [str(variant["storage"]) for variant in pack.variants if "storage" in variant]
    requested = [*map(str, pack.axes["storage"]), *named]
    missing = [name for name in requested if name not in {*storages, *elsewhere}]
    if len(missing) == len(requested):
        raise _unconfigured(pack, missing, node, storages)
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
    if not cases and any(name in storages for name in requested):
        raise _all_excluded(pack, excluded)
    return Matrix(cases=tuple(cases), excluded=tuple(excluded))


def _unconfigured(
    pack: Pack, missing: Sequence[str], node: str, storages: Collection[str]
) -> ConfigError:
    names = ", ".join(sorted(storages))
    message = f"storage {', '.join(missing)} is not configured on {node}; known: {names}"
    remedy = f"write axes: {{storage: [{min(storages, default='NAME')}]}} in the pack, or name a "
    remedy += f"storage of the settings {missing[0]}"
    problem = Problem(str(pack.path), *pack.places["storage"], message)
    return ConfigError([problem], next_step=remedy)


def _all_excluded(pack: Pack, excluded: Sequence[ExcludedCase]) -> ConfigError:
    reasons = "; ".join(sorted({entry.reason for entry in excluded}))
    message = f"empty matrix: every combination is excluded ({reasons})"
    # A slug with a workload is excluded by it, any other by its disk options.
    options = all("/" not in entry.slug for entry in excluded)
    place = pack.places["axes" if options else "workloads"]
    return ConfigError(
        [Problem(str(pack.path), *place, message)],
        next_step="change what excludes them, or name another storage in the pack",
    )


def _on(scenario: Scenario, storage: StorageKind | None, identity: str) -> Scenario:
    """Return the scenario with the properties of its storage."""
    if storage is None:
        return scenario
    return replace(scenario, host_cache=storage.host_cache, identity=identity)


def _impossible(scenario: Scenario, storages: Mapping[str, StorageKind], rows: Rows) -> str | None:
    if scenario.storage not in storages:
        return f"storage {scenario.storage} is not configured on {scenario.node}"
    if rows is Rows.HOST and scenario.disk.in_vm:
        return "this instance measures without VMs (driver: host)"
    if rows is Rows.VM and scenario.disk.on_host:
        return "host cases need driver qemu or host, and the package pvebench_lab"
    return why_not(scenario, storages[scenario.storage])


def _scenarios(pack: Pack, node: str, *, host: bool) -> Iterable[Scenario]:
    """Yield scenarios without a VM, all combinations of the axes, and variants, once each."""
    names = list(pack.axes)
    combined = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*pack.axes.values())
    ]
    first = {name: values[0] for name, values in pack.axes.items()}
    seen = set()
    variants = [{**first, **variant} for variant in pack.variants]
    # Host and container cases need the storage, device and pool options of the cases that they are
    # compared with; containers also the file system of the guests, if they have one.
    guests, below = [*combined, *variants], ("storage", *HOST_OPTIONS)
    own = [_without_vm(HOST_ROW, options, below) for options in guests] if host else []
    above = [_without_vm(CONTAINER_ROW, options, (*below, *LAYOUT_OPTIONS)) for options in guests]
    for options in [*own, *(above if pack.lxc else ()), *guests]:
        scenario = _scenario(pack, node, options)
        if scenario.slug not in seen:
            seen.add(scenario.slug)
            yield scenario


def _without_vm(
    row: Mapping[str, Any], guest: Mapping[str, Any], kept: Collection[str]
) -> dict[str, Any]:
    """Return the options of a case without a VM, with the kept ones of a guest's options."""
    same = {key: guest[key] for key in kept if key in guest}
    if same.get("filesystem") is Filesystem.NONE:
        del same["filesystem"]
    return {**row, **same}


def _scenario(pack: Pack, node: str, values: Mapping[str, Any]) -> Scenario:
    options = dict(values)
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
    """Return the reason if the pack excludes the scenario."""
    options = {"storage": scenario.storage, **asdict(scenario.disk), **asdict(scenario.layout)}
    for exclude in pack.excludes:
        if all(options[key] == value for key, value in exclude.items()):
            conditions = ", ".join(f"{key}={option_text(value)}" for key, value in exclude.items())
            return f"excluded by the pack ({conditions})"
    return None


def select(matrix: Matrix, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> Matrix:
    """Keep the cases with a slug that matches `only`, if not empty, and not `skip` (globs)."""
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
    """Reject a slug with two definitions among the packs of an instance.

    Raises:
        ConfigError: two packs define one slug differently; their results would share one history.
    """
    first: dict[tuple[str, str], tuple[str, Case, Path]] = {}
    problems: list[Problem] = []
    for pack, matrix in packs:
        for case in matrix.cases:
            for what, part in (("scenario", case.scenario), ("workload", case.workload)):
                own = (part.fingerprint, case, pack.path)
                fingerprint, other, path = first.setdefault((what, part.slug), own)
                if fingerprint != part.fingerprint:
                    message = f"{what} {part.slug} has another definition in {path}: "
                    message += _redefinition(case, other, of_scenario=what == "scenario")
                    problems.append(Problem(str(pack.path), 0, 0, message))
    if problems:
        raise ConfigError([*dict.fromkeys(problems)])


def _redefinition(case: Case, other: Case, *, of_scenario: bool) -> str:
    """Return what differs in a part that two cases share, and what ends it."""
    now, then = Definition.of(case), Definition.of(other)
    keys = [name for name, *_ in now.differences(then) if (name in now.options) is of_scenario]
    step = "use equal values" if of_scenario else "use equal values, raise its version"
    names = ", ".join(KEYS_OF_FACTS.get(key, key) for key in keys)
    return f"different {names}; {step} or run one of the packs"


SWITCH_SECONDS: Final = 1.0
OVERHEAD_SECONDS: Final = 1.5
"""Per run: start of the tool and reading of its output."""
FILL_BYTES_PER_SECOND: Final = 100 * MIB
"""Typical speed of the fill under TCG; used for estimates only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered cases of one cycle.

    Attributes:
        cases: in the order of their runs.
        excluded: cases that will not run, with reasons.
        restarts, switches, fills: number of VM boots, disk switches, volume fills.
        seconds: estimated wall time.
        bytes_written: estimated bytes written to the storages, fills included.
    """

    cases: tuple[Case, ...]
    excluded: tuple[ExcludedCase, ...]
    restarts: int
    switches: int
    fills: int
    seconds: float
    bytes_written: int


def make_plan(
    matrix: Matrix,
    *,
    seed: int | str,
    conduct: Conduct | None = None,
    overdue: Mapping[str, float] | None = None,
) -> Plan:
    """Return the cases in an order with few restarts and fills.

    Cases that need the same VM stay together, within them those on one volume, within them
    those of one scenario. The order of the groups, and of the workloads in a scenario, is
    shuffled by `seed`: a drift of the machine must not look like an effect of an option. With
    `overdue` (case key -> seconds), groups with the most overdue case come first. Repeats of a
    case are a whole pass over its scenario apart.
    """
    conduct = conduct or Conduct()
    rng = random.Random(str(seed))  # noqa: S311 # a shuffle
    cases = _ordered(matrix.cases, rng, overdue or {}, repeats=conduct.repeats)
    fresh = sum(TOOLS[case.workload.tool].fresh_boot for case in cases)
    restarts = _changes(_boot_key(case.scenario) for case in cases) + fresh
    restarts += sum(case.workload.further_vms for case in cases)
    cooled = [case.scenario for case in cases if case.scenario.cooled]
    restarts += sum(scenario.disk.cold for scenario in cooled)
    switches = _changes(case.scenario for case in cases) + 2 * len(cooled)
    filled = _fills(cases)
    fill_bytes = sum(filled)
    estimates = [
        TOOLS[case.workload.tool].estimate(case.workload.as_loaded, case.scenario.volume_bytes)
        for case in cases
    ]
    overhead = (conduct.settle_seconds + OVERHEAD_SECONDS) * len(cases)
    return Plan(
        cases=tuple(cases),
        excluded=matrix.excluded,
        restarts=restarts,
        switches=switches,
        fills=len(filled),
        seconds=restarts * max(map(boot_seconds, cases), default=BOOT_SECONDS)
        + switches * SWITCH_SECONDS
        + fill_bytes / FILL_BYTES_PER_SECOND
        + sum(estimate.seconds for estimate in estimates)
        + overhead,
        bytes_written=fill_bytes
        + sum(estimate.bytes_written for estimate in estimates)
        + sum(case.copied_bytes for case in cases),
    )


def why_canceled(case: Case) -> str:
    """Return why the operation of a case cannot end within the window; empty: it may end."""
    workload, scenario = case.workload, case.scenario
    rate = int(workload.parameters.get("target_rate", 0))
    left = (1 - QUIET_SHARE) * workload.runtime_seconds
    memory = workload.during == SNAPSHOT_RAM
    size = scenario.machine.memory_bytes if memory else scenario.volume_bytes
    if size <= rate * left or not rate:
        return ""
    return (
        f"{workload.during} takes at least {show_seconds(size / rate)}, the window leaves "
        f"{show_seconds(left)}: it will be canceled"
    )


def _changes(items: Iterable[object]) -> int:
    return sum(1 for _ in groupby(items))


def _fills(cases: Iterable[Case]) -> list[int]:
    """Return the bytes of each fill, one whenever a volume needs other content than it has.

    A chain is filled below its snapshots, and above them for all workloads but first touches.
    """
    content: dict[str, str] = {}
    filled = []
    for case in cases:
        scenario, volume = case.scenario, case.scenario.volume
        size = scenario.layout.file_bytes or scenario.volume_bytes
        size *= scenario.layout.fill_passes
        required = scenario.layout.content
        if scenario.cooled is HostCache.REWRITTEN:
            content.pop(volume, None)
        if scenario.disk.chain:
            below = f"{volume} below"
            filled += [size] * (content.get(below) != required)
            content[below] = required
        if case.workload.first_touch:
            content.pop(volume, None)
        elif not scenario.disk.backing and content.get(volume) != required:
            content[volume] = required
            filled.append(size)
        for number in range(2, case.workload.further_vms + 2):  # each further VM has its own volume
            own = f"{volume} vm{number}"
            again = case.workload.first_touch or content.get(own) != required
            filled += [size] * (again + (bool(scenario.disk.chain) and own not in content))
            content[own] = required
        if case.workload.spoils:
            content.pop(volume, None)
    return filled


def _ordered(
    cases: Iterable[Case], rng: random.Random, overdue: Mapping[str, float], *, repeats: int
) -> list[Case]:
    """Sort by boot, volume content and scenario; each level shuffled, overdue groups first."""
    shuffled = sorted(cases, key=lambda case: case.slug)
    passes: list[Case] = []
    for _ in range(repeats):
        rng.shuffle(shuffled)
        # First touches before the others: each of them removes what these must fill.
        passes += sorted(shuffled, key=lambda case: not case.workload.first_touch)
    levels = (_boot_key, _volume_key, lambda scenario: scenario.slug)
    urgency: dict[tuple[str, ...], float] = {}
    rank: dict[tuple[str, ...], int] = {}
    for case in passes:
        late = overdue.get(case.key, 0.0)
        path: tuple[str, ...] = ()
        for level in levels:
            path = (*path, level(case.scenario))
            urgency[path] = max(urgency.get(path, 0.0), late)
            rank.setdefault(path, len(rank))

    def sort_key(case: Case) -> list[tuple[float, int]]:
        path: tuple[str, ...] = ()
        keys = []
        for level in levels:
            path = (*path, level(case.scenario))
            keys.append((-urgency[path], rank[path]))
        # Host cases go first: the others are compared with them. Then containers, so that all
        # cases without a VM are next to each other.
        disk = case.scenario.disk
        return [(0.0, int(not disk.on_host) + int(disk.in_vm)), *keys]

    # The sort is stable: passes over one scenario stay one after the other.
    return sorted(passes, key=sort_key)


def boot_seconds(case: Case) -> float:
    """Return the estimate of one boot; the machine is that of the pack, so of all its cases."""
    system = GUEST_SYSTEMS.get(case.scenario.machine.os)
    return system.boot_seconds if system else BOOT_SECONDS


def _boot_key(scenario: Scenario) -> str:
    """Return a key of the VM that is needed, with the disk if it cannot be hot-plugged."""
    machine = "/".join(map(str, astuple(scenario.machine)))
    own_boot = scenario.disk.cold and scenario.disk.in_vm
    return f"{machine}/{scenario.slug}" if own_boot else machine


def _volume_key(scenario: Scenario) -> str:
    return f"{scenario.volume}/{scenario.layout.content}"
