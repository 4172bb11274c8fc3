"""Unmeasured configurations that could still be the fastest, and the pack that measures them."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from pvebench.advice.recommendation import Choice, Recommendation
from pvebench.config.pack import flow_text
from pvebench.model.definition import Definition
from pvebench.model.disk import DISK_OPTIONS, Cache, Disk
from pvebench.model.units import format_size
from pvebench.verdicts.ranking import Rank, writes_unflushed

ALTERNATIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "bus": ("scsi", "virtio"),
    "iothread": ("1", "0"),
    "aio": ("io_uring", "native", "threads"),
    "cache": ("none", "writeback", "directsync", "writethrough"),
}
"""Options that a user can change on an existing disk -> values worth a measurement."""
_MARGIN: Final = 0.05
"""Least uncertainty of a prediction, as a logarithm: neighbors rarely add up exactly."""
_UNKNOWN: Final = 0.2
"""Assumed largest effect of an option that no measured pair differs in, as a logarithm."""
MOST: Final = 8
"""Maximum configurations in a proposal."""

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration that may be the fastest.

    Attributes:
        options: every option of the disk, as text.
        base: measured configuration that it differs from in `option`.
        upper: upper limit of its value relative to the fastest, as a logarithm.
        known: whether a measured pair differs in the option.
    """

    options: Options
    base: str
    option: str
    value: str
    upper: float
    known: bool


def proposals(
    advice: Iterable[Recommendation], without_aio: Collection[tuple[str, str]] = ()
) -> tuple[Proposal, ...]:
    """Return what to measure next on a storage, the most promising first.

    Args:
        without_aio: (node, storage) that QEMU itself accesses over the network.
    """
    best: dict[Options, Proposal] = {}
    for advised in advice:
        fixed = {"aio"} if (advised.node, advised.storage) in without_aio else set()
        for proposal in _for_purpose(advised, fixed):
            known = best.get(proposal.options)
            if known is None or known.upper < proposal.upper:
                best[proposal.options] = proposal
    return tuple(sorted(best.values(), key=lambda one: -one.upper)[:MOST])


def _for_purpose(advised: Recommendation, fixed: Collection[str]) -> Iterator[Proposal]:
    scores = {options_of(choice.definition): choice.score for choice in advised.choices}
    measured = scores.keys() | {
        options_of(place.definition) for ranking in advised.rankings for place in ranking.excluded
    }
    top = advised.choices[0].score
    for choice in advised.ranked(Rank.FASTEST, Rank.EQUAL, Rank.UNKNOWN):
        for option, values in ALTERNATIVES.items():
            for value in values:
                options = _with(choice, option, value)
                if option in fixed or options in measured or not _possible(choice, dict(options)):
                    continue
                upper, known = _upper(choice, option, value, scores)
                if upper - top >= 0:
                    yield Proposal(
                        options=options,
                        base=choice.scenario,
                        option=option,
                        value=value,
                        upper=upper - top,
                        known=known,
                    )


def options_of(definition: Definition) -> Options:
    """Return every option of the disk."""
    return tuple((name, definition.options.get(name, "")) for name in DISK_OPTIONS)


def _with(choice: Choice, option: str, value: str) -> Options:
    return tuple(
        (name, value if name == option else old) for name, old in options_of(choice.definition)
    )


def _possible(choice: Choice, options: Mapping[str, str]) -> bool:
    """Return whether QEMU and Proxmox accept the combination, and it can be ranked."""
    changed = (replace(place.definition, cache=options["cache"]) for place in choice.places)
    if any(map(writes_unflushed, changed)):
        return False
    direct = Cache(options["cache"]).direct
    if options["aio"] == "native" and not direct:
        return False
    single = options["bus"] != "scsi" or options["scsihw"] == "virtio-scsi-single"
    return single or options["iothread"] == "0"


def _upper(
    choice: Choice, option: str, value: str, scores: Mapping[Options, float]
) -> tuple[float, bool]:
    """Return the upper limit of a neighbor's score, and whether its option is measured."""
    before = choice.definition.options.get(option, "")
    effects = list(_effects(option, before, value, scores))
    if not effects:
        return choice.score + _UNKNOWN, False
    spread = statistics.stdev(effects) if len(effects) > 1 else 0.0
    return choice.score + statistics.mean(effects) + 2 * max(_MARGIN, spread), True


def _effects(
    option: str, before: str, after: str, scores: Mapping[Options, float]
) -> Iterator[float]:
    """Yield the differences of measured pairs that differ in the option only."""
    for options, score in scores.items():
        known = dict(options)
        if known[option] == before:
            other = tuple((name, after if name == option else old) for name, old in options)
            if other in scores:
                yield scores[other] - score


def proposal_text(proposal: Proposal) -> str:
    """Return a proposal with its reason, as a phrase."""
    reason = (
        f"could be up to {proposal.upper:.0%} faster than the fastest, by measured neighbors"
        if proposal.known
        else "no measured pair shows the effect of this option"
    )
    return f"{proposal.base} with {proposal.option} {proposal.value}: {reason}"


# --- The pack.

_FLAGS: Final = frozenset(
    field.name for field in fields(Disk) if str(field.type).startswith("bool")
)
_AXES: Final = ("bus", "format", "cache")


def pack_text(
    name: str, advice: Sequence[Recommendation], chosen: Sequence[Proposal], *, every: str
) -> str:
    """Return a pack with the default, the fastest and the proposals, in YAML.

    The workloads, times and sizes are those of the results, so that the values compare.
    """
    anchor = advice[0].default or advice[0].choices[0]
    base = dict(options_of(anchor.definition))
    variants = _variants(base, advice, chosen)
    fixed = _flow({key: base[key] for key in _explicit(base) if key not in _AXES})
    first = anchor.definition
    places = [place for advised in advice for place in advised.chosen.places]
    loads = dict.fromkeys(_load(place.definition) for place in places)
    return "\n".join(
        [
            f"pack: {name}",
            f"title: Configurations that could be the fastest on {advice[0].storage}",
            f"every: {every}",
            "axes:",
            f"  storage: [{advice[0].storage}]",
            *(f"  {axis}: [{base[axis]}]" for axis in _AXES),
            *([f"fixed: {fixed}"] if fixed != "{}" else []),
            "variants:",
            *(f"  - {variant}" for variant in variants),
            f"volume: {{size: {format_size(int(first.options['volume_bytes']))}}}",
            f"guest: {{memory: {format_size(int(first.options['memory_bytes']))}, "
            f"cpus: {first.options['cpus']}}}",
            f"measure: {{ramp: {first.ramp_seconds:g}s, runtime: {first.runtime_seconds:g}s}}",
            "workloads:",
            *(f"  - fio: {load}" for load in loads),
            "",
        ]
    )


def _variants(
    base: Mapping[str, str], advice: Sequence[Recommendation], chosen: Sequence[Proposal]
) -> list[str]:
    fastest = (dict(options_of(advised.choices[0].definition)) for advised in advice)
    more = [*fastest, *(dict(proposal.options) for proposal in chosen)]
    variants = dict.fromkeys(_flow(_changes(base, options)) for options in more)
    return [variant for variant in variants if variant != "{}"]


def _explicit(options: Mapping[str, str]) -> list[str]:
    return [name for name in ("aio", "iothread", "scsihw", "discard", "ssd") if options[name]]


def _changes(base: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value and value != base[name]}


def _flow(options: Mapping[str, str]) -> str:
    return flow_text(
        {name: text == "1" if name in _FLAGS else text for name, text in options.items()}
    )


def _load(definition: Definition) -> str:
    """Return the options of a workload that are not at fio's defaults."""
    return flow_text(
        {
            name: format_size(int(value)) if name in ("bs", "size") else value
            for name, value in definition.parameters.items()
            if value not in (0, False, "", "random") and name != "version"
            if (name, value) != ("numjobs", 1)
        }
    )
