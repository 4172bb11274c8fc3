"""`pvebench durability`: which writes survive a killed QEMU and a loss of power."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any, Final, Protocol

import click

from pvebench.cli.options import format_option, read_settings, settings_options, show
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.driver import DriverContext
from pvebench.errors import ConfigError
from pvebench.model.durability import Barrier, Durability, Touch
from pvebench.plugins import load
from pvebench.service.startup import locked_store
from pvebench.service.workers import handle_signals

_PROBES: Final = {
    "qemu": "pvebench_lab.durability.qemu:probe",
    "proxmox": "pvebench_lab.durability.proxmox:probe",
}
"""Driver that can kill a VM and read its disks back -> function that returns the probe of a
storage; an empty name: of the first possible one. It raises VolumeError: not possible on it."""
_HEAD: Final = (
    "configuration",
    "flushed or FUA",
    "not flushed, first write",
    "not flushed, rewrite",
    "torn, damaged",
    "power: flushed",
    "power: not flushed",
    "flushes: guest, volume",
    "durable",
)


class DurabilityProbe(Protocol):
    """Measures which writes of a guest survive, on disks of its own."""

    @property
    def configurations(self) -> Sequence[str]:
        """All that it can measure, as keys of `model.durability`."""

    def measure(self, configurations: Sequence[str]) -> Iterator[Durability]:
        """Yield the durability of each. Raises DriverError, Interrupted."""


@click.command()
@settings_options
@click.option("--storage", default="", help="Storage; default: the first possible one.")
@click.option("--only", multiple=True, metavar="GLOB", help="Measure only these configurations.")
@click.option("--stored", is_flag=True, help="Show stored results; measure nothing.")
@format_option()
def durability(
    storage: str, only: tuple[str, ...], stored: bool, form: str, **options: Any
) -> None:
    """Measure which writes survive a killed QEMU and a loss of power.

    It writes numbered records to disks of its own VMs, kills QEMU with SIGKILL, and reads the
    volumes back. A log below the image format shows what a loss of power leaves (driver qemu).
    """
    settings = read_settings(**options)
    if stored:
        with results_of(settings) as store:
            durabilities = [
                one for one in store.durability().values() if _chosen(one.configuration, only)
            ]
    else:
        durabilities = list(_measure(settings, storage, only))
    show(
        form,
        lambda: [json.loads(result.to_json()) for result in durabilities],
        lambda: table(durabilities),
    )


def _chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatch(name, pattern) for pattern in only)


def _measure(settings: Settings, storage: str, only: Sequence[str]) -> Iterator[Durability]:
    """Measure, store and yield each configuration."""
    engine = engine_of(settings.driver)
    clock = engine.make_clock(endless=False)
    stop = dict.fromkeys((signal.SIGINT, signal.SIGTERM), clock.stop)
    with handle_signals(stop), locked_store(settings) as (state, store):
        engine.undo(settings, store.journal)
        place = DriverContext(
            runtime=state.runtime, journal=store.journal, clock=clock, say=_progress
        )
        if settings.driver not in _PROBES:
            raise ConfigError.of_options(
                f"--driver: {settings.driver} cannot kill a VM and read its disks back"
            )
        make: Callable[..., DurabilityProbe] = load(_PROBES[settings.driver])
        probe = make(settings, place, storage)
        names = [name for name in probe.configurations if _chosen(name, only)]
        if not names:
            known = ", ".join(probe.configurations)
            raise ConfigError.of_options(f"--only: matches no configuration; known: {known}")
        for one in probe.measure(names):
            store.record_durability(one)
            _progress(f"{one.configuration}: durable: {_answer(one) if one.durable else 'no'}")
            yield one


def _progress(line: str) -> None:
    click.echo(line, err=True)


def table(found: Sequence[Durability]) -> Iterator[str]:
    """Yield the results as a Markdown table: records found of those that were completed."""
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for one in found:
        cells = [
            one.configuration,
            _count(one, killed=True, sync=(Barrier.FLUSH, Barrier.FUA)),
            _count(one, killed=True, touch=(Touch.FIRST,)),
            _count(one, killed=True, touch=(Touch.REWRITE,)),
            f"{one.torn}, {one.damaged}",
            *_power_cells(one),
            _answer(one) if one.durable else "**no**",
        ]
        yield f"| {' | '.join(cells)} |"


def _power_cells(one: Durability) -> tuple[str, str, str]:
    if not one.power:
        return "not measured", "not measured", f"{one.requested}, not measured"
    flushed = _count(one, killed=False, sync=(Barrier.FLUSH,))
    return flushed, _count(one, killed=False), f"{one.requested}, {one.flushed}"


def _answer(one: Durability) -> str:
    """Return for what a configuration without losses is durable."""
    return "yes" if one.power else "if QEMU is killed"


def _count(
    one: Durability,
    *,
    killed: bool,
    sync: Sequence[Barrier] = (Barrier.NONE,),
    touch: Sequence[Touch] = tuple(Touch),
) -> str:
    rows = one.killed if killed else one.power
    survivals = [row for row in rows if row.sync in sync and row.touch in touch]
    return f"{sum(row.found for row in survivals)} of {sum(row.written for row in survivals)}"
