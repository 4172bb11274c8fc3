"""Workloads and settings of a disk in the words that people use beside the slugs. Pure."""

from __future__ import annotations

from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.units import format_size

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
