"""Workloads and settings of a disk in the words that people use beside the slugs. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Self

from pvebench.model.disk import HostCache
from pvebench.model.units import format_size
from pvebench.model.workload import Case, Direction, SteadyRule

# --- Definition: what a case means in full. Another fingerprint is another history.

Parameter = int | float | str | bool
WARM: Final = "reads what is left in the host's cache"
LABELS: Final = ("node", "storage", "bus", "cache", "format", "scenario")
"""Labels of a scenario; those of a result are these and `workload`."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Everything that a result needs to be understood without its pack.

    Attributes:
        scenario, workload: slugs.
        options: every option of the scenario, the volume's size and the VM around it, as text.
        tool, title, directions, caveats: of the workload.
        ramp_seconds, runtime_seconds: of each run.
        parameters: the tool's own.
        steady: what was waited for before the ramp; empty: nothing, or stored before it was kept.
        scale: what `--scale` multiplied sizes and times by; 1: nothing.
        fingerprint: digest of all that makes numbers comparable (titles do not), as in the key.
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
        """Return what a case means."""
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
            steady=_steady(workload.steady),
            scale=case.scale,
            fingerprint=case.fingerprint,
        )

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The labels that every result of the case carries."""
        return {**{name: getattr(self, name) for name in LABELS}, "workload": self.workload}

    @property
    def beside(self) -> tuple[str, ...]:
        """What its numbers say beside the disk's speed, in words that follow `it`."""
        return (*self.caveats, *(WARM,) * self.is_warm)

    @property
    def is_warm(self) -> bool:
        """Whether reads may come from what earlier runs left in the host's page cache."""
        return self.options.get("host_cache") == HostCache.WARM

    @property
    def place(self) -> tuple[str, str, str]:
        """Node and slugs: what definitions over time share."""
        return self.node, self.scenario, self.workload

    @property
    def name(self) -> str:
        """`scenario/workload`, as selectors and progress lines spell it."""
        return f"{self.scenario}/{self.workload}"

    @cached_property
    def conditions(self) -> str:
        """Digest of all but the disk's options: results of equal conditions can be divided."""
        machine = [self.options.get(name, "") for name in ("memory_bytes", "cpus", "volume_bytes")]
        load = [self.tool, dict(self.parameters), self.ramp_seconds, self.runtime_seconds]
        text = json.dumps([machine, load, dict(self.steady), self.scale], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def device_conditions(self) -> str:
        """The conditions and which device it was: what the host reached on another is no limit."""
        return self.conditions + self.options.get("storage_identity", "")

    def differences(self, before: Definition) -> list[tuple[str, str, str]]:
        """Return (what, before, now) of everything that moves numbers and is another one now."""
        old, new = before.facts(), self.facts()
        return [
            (name, old.get(name, ""), new.get(name, ""))
            for name in dict.fromkeys((*old, *new))
            if old.get(name, "") != new.get(name, "")
        ]

    def facts(self) -> dict[str, str]:
        """Return everything that moves numbers as text: options, times, parameters."""
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
    def from_data(cls, data: Mapping[str, Any], *, key: str = "") -> Self:
        """Return what `as_data` gave; also of a pvebench that kept neither scale nor fingerprint.

        Args:
            key: of the case, which ends in the fingerprint.
        """
        workload, labels = data["workload"], data["labels"]
        return cls(
            **{name: labels[name] for name in LABELS},
            workload=workload["slug"],
            options=data["scenario"],
            tool=workload["tool"],
            title=workload["title"],
            directions=tuple(Direction(one) for one in workload["directions"]),
            ramp_seconds=workload["ramp_seconds"],
            runtime_seconds=workload["runtime_seconds"],
            parameters=workload["parameters"],
            caveats=tuple(workload.get("caveats", ())),
            steady=workload.get("steady", {}),
            scale=data.get("scale", 1.0),
            fingerprint=data.get("fingerprint") or key.rpartition("/")[2],
        )


def _steady(rule: SteadyRule | None) -> dict[str, float]:
    return {} if rule is None else asdict(rule)


LOADS: Final = {
    "randread": "random read",
    "randwrite": "random write",
    "read": "sequential read",
    "write": "sequential write",
    "randrw": "mixed random",
    "rw": "mixed sequential",
    "trim": "trim",
    "randtrim": "random trim",
}
"""fio's `rw` in words."""
_SYNCS: Final = {"fsync": "fsync", "fdatasync": "fdatasync"}


def workload_words(definition: Definition) -> str:
    """Return what is run, as people say it: `4k random read, depth 32, 16 jobs`.

    A title that somebody gave stands before it; a tool that is not fio has its title only.
    """
    own = definition.title if definition.title != _spaced(definition.workload) else ""
    load = LOADS.get(str(definition.parameters.get("rw", "")))
    if definition.tool != "fio" or load is None:
        return definition.title or definition.workload
    words = ", ".join([f"{_block(definition)} {load}", *_further_load(definition)])
    return f"{own}: {words}" if own else words


def _spaced(slug: str) -> str:
    return slug.replace("-", " ")


def _block(definition: Definition) -> str:
    size = definition.parameters.get("bs")
    return format_size(size) if isinstance(size, int) else str(size or "")


def _further_load(definition: Definition) -> list[str]:
    """Return what tells workloads of one pattern and block size apart."""
    known = definition.parameters
    found = [f"depth {known['iodepth']}"] if "iodepth" in known else []
    if known.get("numjobs", 1) != 1:
        found.append(f"{known['numjobs']} jobs")
    if "rwmixread" in known:
        found.append(f"{known['rwmixread']} % reads")
    for name, word in _SYNCS.items():
        every = known.get(name, 0)
        if every:
            found.append(f"{word} after {'each' if every == 1 else f'every {every}th'} write")
    if known.get("sync"):
        found.append("each write synced")
    if known.get("rate_iops"):
        found.append(f"held to {known['rate_iops']} IOPS")
    if known.get("random_distribution", "random") != "random":
        found.append(f"blocks chosen by {known['random_distribution']}")
    return found


def further_options(definition: Definition) -> tuple[str, ...]:
    """Return what a scenario's slug says after its first four parts, such as `aio-native`.

    Read from the slug, so that an option needs to be known only where slugs are made.
    """
    names = (definition.storage, definition.bus, definition.format, definition.cache)
    tail = definition.scenario.removeprefix(".".join(names))
    return tuple(part for part in tail.split(".") if part)


def option_words(part: str) -> str:
    """Return a part of a slug as an option and its value: `iothread-1` is `iothread 1`."""
    return part.replace("-", " ", 1)


def setting_words(definition: Definition) -> str:
    """Return a disk's setting without its storage: `scsi, raw, cache none, iothread 1`."""
    if definition.bus == "host":
        return "the host itself, without a VM"
    plain = (definition.bus, definition.format, f"cache {definition.cache}")
    head = ("a container",) if definition.bus == "lxc" else plain
    return ", ".join([*head, *map(option_words, further_options(definition))])
