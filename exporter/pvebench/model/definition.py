"""Definition of a case, and descriptions of workloads and configurations. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Self

from pvebench.model.disk import Cache, HostCache, Sync
from pvebench.model.figure import SCENARIO
from pvebench.model.units import format_size
from pvebench.model.workload import NEIGHBOR, Case, Direction, operation_words

# --- definition of a case; another fingerprint is another history

Parameter = int | float | str | bool
WARM: Final = "may read from host memory"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Definition of a case that explains its results without its pack.

    Attributes:
        scenario, workload: slugs.
        options: every option of the scenario, the volume's size and the VM, as text.
        tool, title, directions, caveats: of the workload.
        ramp_seconds, runtime_seconds: of each run.
        parameters: the tool's own.
        steady: rule to be met before the ramp; empty: none.
        scale: factor of `--scale` for sizes and times; 1: not scaled.
        fingerprint: digest of everything that results must have in common to be comparable (titles
            are not included), as in the key.
    """

    node: str
    storage: str
    bus: str
    cache: str
    format: str
    scenario: str
    workload: str
    options: Mapping[str, str]
    tool: str
    title: str
    directions: tuple[Direction, ...]
    ramp_seconds: float
    runtime_seconds: float
    parameters: Mapping[str, Parameter]
    caveats: tuple[str, ...] = ()
    steady: Mapping[str, float] = field(default_factory=dict)
    scale: float = 1.0
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in ("options", "parameters", "steady"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @classmethod
    def of(cls, case: Case) -> Self:
        """Return the definition of a case."""
        workload = case.workload
        return cls(
            **case.scenario.labels(),
            workload=workload.slug,
            options=case.scenario.meaning(),
            tool=workload.tool,
            title=workload.title,
            directions=workload.directions,
            ramp_seconds=workload.ramp_seconds,
            runtime_seconds=workload.runtime_seconds,
            parameters=workload.parameters,
            caveats=tuple(map(str, workload.caveats)),
            steady={} if workload.steady is None else asdict(workload.steady),
            scale=case.scale,
            fingerprint=case.fingerprint,
        )

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The labels of every result of the case."""
        return {**{name: getattr(self, name) for name in SCENARIO}, "workload": self.workload}

    @property
    def all_caveats(self) -> tuple[str, ...]:
        """Influences on its numbers other than the disk's speed, as phrases that follow `it`."""
        return (*self.caveats, *(WARM,) * self.is_warm)

    @property
    def is_warm(self) -> bool:
        """Whether reads may hit data of earlier runs in the host's memory."""
        cache = HostCache(self.options.get("host_cache", HostCache.DROPPED))
        return cache.warm and Direction.READ in self.directions

    @property
    def undisturbed(self) -> bool:
        """Whether it measures a configuration to choose: alone, without operation or fault.

        A number of snapshots is a state of a volume, not an option.
        """
        known = self.parameters
        disturbed = known.get("during") or known.get("fault") or known.get("vms", 1) != 1
        return not disturbed and self.options.get("chain", "0") == "0"

    @property
    def ignores_flushes(self) -> bool:
        """Whether QEMU or ZFS ignores the guest's flushes, so that a host crash loses data."""
        return self.cache == Cache.UNSAFE or self.options.get("sync") == Sync.DISABLED

    @property
    def place(self) -> tuple[str, str, str]:
        """Node and slugs, which the definitions of a case over time have in common."""
        return self.node, self.scenario, self.workload

    @property
    def name(self) -> str:
        """`scenario/workload`, as in selectors and progress lines."""
        return f"{self.scenario}/{self.workload}"

    @cached_property
    def conditions(self) -> str:
        """Digest of all but the disk's options: results of equal conditions are comparable."""
        machine = [self.options.get(name, "") for name in ("memory_bytes", "cpus", "volume_bytes")]
        load = [self.tool, dict(self.parameters), self.ramp_seconds, self.runtime_seconds]
        text = json.dumps([machine, load, dict(self.steady), self.scale], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def device_conditions(self) -> str:
        """The conditions and the storage's identity: a host case limits only its own device."""
        return self.conditions + self.options.get("storage_identity", "")

    def differences(self, before: Definition) -> list[tuple[str, str, str]]:
        """Return (name, before, now) of every changed fact that can affect results."""
        old, new = before.facts(), self.facts()
        return [
            (name, old.get(name, ""), new.get(name, ""))
            for name in dict.fromkeys((*old, *new))
            if old.get(name, "") != new.get(name, "")
        ]

    def facts(self) -> dict[str, str]:
        """Return everything that can affect results as text: options, times, parameters."""
        tool = {"tool": self.tool}
        times = {"ramp_seconds": self.ramp_seconds, "runtime_seconds": self.runtime_seconds}
        steady = {f"steady_{name}": value for name, value in self.steady.items()}
        values = {**tool, **times, **self.parameters, **steady, "scale": self.scale}
        return {**self.options, **{name: str(value) for name, value in values.items()}}

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, for the API and the database."""
        return {
            "labels": dict(self.labels),
            "scenario": dict(self.options),
            "workload": {
                "slug": self.workload,
                "tool": self.tool,
                "title": self.title,
                "directions": [str(direction) for direction in self.directions],
                "ramp_seconds": self.ramp_seconds,
                "runtime_seconds": self.runtime_seconds,
                "parameters": dict(self.parameters),
                "caveats": list(self.caveats),
                **({"steady": dict(self.steady)} if self.steady else {}),
            },
            "scale": self.scale,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the definition that `as_data` was called on."""
        workload, labels = data["workload"], data["labels"]
        return cls(
            **{name: labels[name] for name in SCENARIO},
            workload=workload["slug"],
            options=data["scenario"],
            tool=workload["tool"],
            title=workload["title"],
            directions=tuple(map(Direction, workload["directions"])),
            ramp_seconds=workload["ramp_seconds"],
            runtime_seconds=workload["runtime_seconds"],
            parameters=workload["parameters"],
            caveats=tuple(workload["caveats"]),
            steady=workload.get("steady", {}),
            scale=data["scale"],
            fingerprint=data["fingerprint"],
        )


_READ, _WRITE, _TRIM = (Direction.READ,), (Direction.WRITE,), (Direction.TRIM,)
_RW: Final[Mapping[str, tuple[str, tuple[Direction, ...]]]] = {
    "read": ("sequential read", _READ),
    "write": ("sequential write", _WRITE),
    "randread": ("random read", _READ),
    "randwrite": ("random write", _WRITE),
    "rw": ("mixed sequential", _READ + _WRITE),
    "randrw": ("mixed random", _READ + _WRITE),
    "trim": ("trim", _TRIM),
    "randtrim": ("random trim", _TRIM),
}
LOADS: Final = {rw: text for rw, (text, _) in _RW.items()}
"""fio's `rw` -> description."""
DIRECTIONS: Final = {rw: directions for rw, (_, directions) in _RW.items()}
"""fio's `rw` -> directions of its I/O."""
_SYNCS: Final = {"fsync": "fsync", "fdatasync": "fdatasync"}


def workload_text(definition: Definition) -> str:
    """Return the description of a workload: `4k random read, depth 32, 16 jobs`.

    A title of the pack precedes it; a workload of another tool than fio has only its title.
    """
    own = definition.title if definition.title != definition.workload.replace("-", " ") else ""
    load = LOADS.get(str(definition.parameters.get("rw", "")))
    if definition.tool != "fio" or load is None:
        return definition.title or definition.workload
    size = definition.parameters.get("bs")
    block = format_size(size) if isinstance(size, int) else str(size or "")
    parts = ", ".join([f"{block} {load}", *_further_load(definition)])
    return f"{own}: {parts}" if own else parts


def _further_load(definition: Definition) -> list[str]:
    """Return the parameters that distinguish workloads of one pattern and block size."""
    known = definition.parameters
    parts = [f"depth {known['iodepth']}"] if "iodepth" in known else []
    if known.get("numjobs", 1) != 1:
        parts.append(f"{known['numjobs']} jobs")
    if "rwmixread" in known:
        parts.append(f"{known['rwmixread']}% reads")
    for name, word in _SYNCS.items():
        every = known.get(name, 0)
        if every:
            parts.append(f"{word} after {'each' if every == 1 else f'every {every}th'} write")
    if known.get("sync"):
        parts.append("each write synced")
    if known.get("rate_iops"):
        parts.append(f"limited to {known['rate_iops']} IOPS")
    if known.get("random_distribution", "random") != "random":
        parts.append(f"block distribution {known['random_distribution']}")
    return [*parts, *_circumstances(known)]


def _circumstances(known: Mapping[str, Parameter]) -> Iterator[str]:
    """Yield what else happens to the disk or its VM in the run."""
    if known.get("touch") == "first":
        yield "touch first"
    if known.get("vms", 1) != 1:
        yield f"in {known['vms']} VMs at once"
    if name := str(known.get("during", "")):
        yield _operation(name, known.get("neighbor_iops", 0))
    rate = known.get("target_rate")
    if isinstance(rate, int) and rate:
        yield f"target limited to {format_size(rate)}/s"


def _operation(name: str, neighbor_iops: object) -> str:
    word = operation_words(name)
    if name != NEIGHBOR:
        return f"during {word}"
    return f"beside {word} at {neighbor_iops} IOPS" if neighbor_iops else f"beside {word}"


def further_options(definition: Definition) -> tuple[str, ...]:
    """Return the parts of a scenario's slug after the first four, such as `aio-native`.

    They come from the slug, so that only the code that makes slugs needs to know the options.
    """
    names = (definition.storage, definition.bus, definition.format, definition.cache)
    tail = definition.scenario.removeprefix(".".join(names))
    return tuple(part for part in tail.split(".") if part)


def option_description(part: str) -> str:
    """Return a slug part as option and value: `iothread-1` becomes `iothread 1`."""
    return part.replace("-", " ", 1)


def configuration_text(definition: Definition) -> str:
    """Return a configuration without its storage: `scsi, raw, cache none, iothread 1`."""
    if definition.bus == "host":
        return "host, without a VM"
    plain = (definition.bus, definition.format, f"cache {definition.cache}")
    head = ("container",) if definition.bus == "lxc" else plain
    return ", ".join([*head, *map(option_description, further_options(definition))])
