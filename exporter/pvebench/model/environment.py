"""Environment of a run, versions of its software, and known issues of these."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import total_ordering
from types import MappingProxyType
from typing import Final, Literal

# --- environment: everything except the scenario that can affect results

MAX_FACT: Final = 300
"""Maximum characters of a fact: it comes from nodes and guests, and becomes a label."""
FACT_NAMES: Final[Mapping[str, str]] = {
    "governor": "CPU governor",
    "qemu_package": "pve-qemu-kvm",
    "qemu": "QEMU",
    "kernel": "kernel",
    "zfs": "ZFS",
    "ceph": "Ceph",
    "qemu_server": "qemu-server",
    "machine": "machine type",
    "microcode": "microcode",
    "fio": "fio",
    "guest_kernel": "guest kernel",
    "guest_image": "guest image",
    "cpu_type": "CPU type",
    "pve": "pve-manager",
    "host_os": "host system",
    "accel": "accelerator",
    "cpu_model": "CPU",
    "cpus": "number of CPUs",
    "fio_sha256": "file of fio",
    "host_fio": "fio of the host",
    "lxc": "LXC",
    "vioscsi": "vioscsi",
    "viostor": "viostor",
    "virtio_win": "virtio-win",
    "windows_build": "Windows",
}
"""Fact -> its name in sentences: all but those of storages. Anonymous files have only these.

Those that change storage performance come first, likeliest first: pve-manager hardly ever did so.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Running versions and settings of one node.

    Attributes:
        node: its name.
        facts: name -> text, such as `kernel`, `qemu`, `accel`, `machine`, `guest_image`,
            `fio`, `cpu_model`, `microcode`, `governor`; truncated to MAX_FACT characters.
            Unknown facts are absent.
        simulated: whether there is no real hardware.
        digest: of node and facts: equal ones are the same environment.
    """

    node: str
    facts: Mapping[str, str]
    simulated: bool = False
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cut = {name: text[:MAX_FACT] for name, text in self.facts.items()}
        object.__setattr__(self, "facts", MappingProxyType(cut))
        text = json.dumps([self.node, cut, self.simulated], sort_keys=True)
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def slug(self) -> str:
        """Name for labels: `[pve/]kernel/qQEMU/accel`, then the digest, so that no other has it."""
        facts = self.facts
        parts = [facts[key] for key in ("pve", "kernel") if key in facts]
        if "qemu" in facts:
            parts.append(f"q{facts['qemu']}")
        if "accel" in facts:
            parts.append(facts["accel"])
        return "/".join(parts) + f"#{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpdates:
    """Software installed on a node since the VM was started.

    Attributes:
        pending: fact -> version that is installed, but does not run yet.
        restart: software that needs a cold start of the VM; empty: none.
    """

    pending: Mapping[str, str] = field(default_factory=dict)
    restart: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPeriod:
    """Period in one environment on one node; a return to an earlier environment is a new period.

    Attributes:
        environment: its digest; `slug` and `facts` are the environment's.
        started: of its first successful run; `finished`: end of its last.
    """

    node: str
    environment: str
    slug: str
    facts: Mapping[str, str]
    started: datetime
    finished: datetime


# --- order of Debian versions, which also applies to all packages of Proxmox VE
#
# The rules are those of deb-version(7): parts without digits compare letter by letter, with `~`
# before everything, also before the end; parts of digits compare as numbers.

_PARTS = re.compile("([^0-9]*)([0-9]*)")
_DIGITS = re.compile("[0-9]+")


@total_ordering
class Version:
    """Version as `[epoch:]upstream[-revision]`."""

    __slots__ = ("_key", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        epoch, colon, rest = text.partition(":")
        if not colon:
            epoch, rest = "0", text
        upstream, dash, revision = rest.rpartition("-")
        if not dash:
            upstream, revision = rest, "0"
        number = _number(epoch if _DIGITS.fullmatch(epoch) else "")
        self._key = (number, _split(upstream), _split(revision))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


Number = tuple[int, str]
Parts = tuple[tuple[tuple[int, ...], Number], ...]


def _number(digits: str) -> Number:
    """Return a number as its length and digits: `int` has a limit, versions of others have none."""
    plain = digits.lstrip("0")
    return len(plain), plain


_END: Final = ((0,), _number(""))
"""End of a version. A part that begins with a `~` is before it, any other not."""


def _split(text: str) -> Parts:
    """Return the parts and two ends: the first part can be equal to one, without letters."""
    parts = [
        ((*map(_weight, letters), 0), _number(digits))
        for letters, digits in _PARTS.findall(text)
        if letters or digits
    ]
    return (*(parts if parts != [_END] else ()), _END, _END)


def _weight(letter: str) -> int:
    """Return the rank of a letter: `~`, (the end is 0), letters, everything else."""
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256


def storage_fact(storage: str, option: str) -> str:
    """Return the name of the fact about an option of a storage."""
    return f"storage {storage} {option}"


NO_BARRIER: Final = re.compile(
    r"(?:^|,)(nobarrier|barrier=(?:0|none)|fsync_mode=nobarrier|(?:fsync=)?volatile)\b"
)
"""Mount options of ext4, btrfs, f2fs, reiserfs and overlay that ignore flushes."""


def unflushed_in(periods: Iterable[EnvironmentPeriod]) -> frozenset[tuple[str, str]]:
    """Return (node, storage) whose options ignore flushes in the newest period of the node."""
    newest = {period.node: period.facts for period in periods}
    return frozenset(
        (node, fact.split(" ")[1])
        for node, facts in newest.items()
        for fact, text in facts.items()
        if fact.startswith("storage ") and _ignores_flushes(fact, text)
    )


def _ignores_flushes(fact: str, text: str) -> bool:
    if fact.endswith(" sync"):
        return text == "disabled"
    return fact.endswith(" flushes") or bool(NO_BARRIER.search(text))


def concerns(fact: str, storages: Collection[str]) -> bool:
    """Return whether a fact can affect results on these storages."""
    kind, _, rest = fact.partition(" ")
    return kind != "storage" or rest.partition(" ")[0] in storages


_INSTEAD = {"qemu_package": "qemu"}
"""Fact -> nearly equivalent fact for environments without it."""


def version_in(facts: Mapping[str, str], fact: str) -> str:
    """Return the version of a component in an environment; empty: unknown."""
    text = facts.get(fact) or facts.get(_INSTEAD.get(fact, ""), "")
    return text.removesuffix("-pve")


IssueKind = Literal[
    "slower",
    "implausible",
    "stall",
    "cost",
    "operation",
    "accounting",
    "failure",
    "data_loss",
    "memory",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """Range of versions of one component.

    Attributes:
        fact: name of the component as in `Environment.facts` (`kernel`, `qemu_package`, `zfs` …).
        since: first version with the issue.
        before: first later version without it; empty: none known.
        fixed_in: display name of that version; empty: `before` itself.
        also: ranges of other components that must hold, too.
    """

    fact: str
    since: str
    before: str = ""
    fixed_in: str = ""
    also: tuple[Affected, ...] = ()

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of all components."""
        return (self.fact, *(name for condition in self.also for name in condition.facts))

    @property
    def fix(self) -> Affected:
        """The range whose end is the fix: its own, else that of the first other one with an end."""
        ends = (self, *self.also)
        return next((span for span in ends if span.before or span.fixed_in), self)

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Return whether an environment is in all ranges; without one of the facts it is not."""
        text = version_in(facts, self.fact)
        if not text:
            return False
        version = Version(text)
        return (
            Version(self.since) <= version
            and (not self.before or version < Version(self.before))
            and all(condition.holds(facts) for condition in self.also)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """Known issue of a software version that affects results.

    Attributes:
        id: short, such as `R2`.
        title: its effect in one line.
        kind: class of the change.
        affected: version ranges; one of them suffices.
        moves: metrics that it changes, by their names in the analysis; without any, it
            explains no change.
        options: option -> required values: `bus: (virtio, scsi)`; empty: all.
        ratio: factor of throughput (or cost, time) according to the source; None: not stated.
        workaround, source: for the user.
    """

    id: str
    title: str
    kind: IssueKind
    affected: tuple[Affected, ...]
    moves: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    ratio: float | None = None
    workaround: str = ""
    source: str = ""

    def holds(self, facts: Mapping[str, str]) -> Affected | None:
        """Return the range that an environment is in, or None."""
        return next((versions for versions in self.affected if versions.holds(facts)), None)
