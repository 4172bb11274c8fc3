"""Test environment with real VMs for the benchmarks: a temporary state directory and pack."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.qemu import machine
from pvebench.model.ports import Site
from pvebench.scheduler.plan import Assignment
from pvebench.service.startup import assignments, locked_store, make_sites
from pvebench.store.store import Store


@dataclass(frozen=True, slots=True)
class BenchLab:
    """A site with real VMs, its store, and the cases of the pack."""

    site: Site
    store: Store
    assignment: Assignment


@contextmanager
def lab(pack: str) -> Iterator[BenchLab]:
    """Yield a lab that measures `pack` (YAML text), and remove it afterwards."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "bench.yaml"
        path.write_text(pack, "utf-8")
        settings = Settings(node="lab", state=Path(name) / "state", packs=(path,))
        with locked_store(settings) as (state, store):
            clock = engine_of(settings.driver).make_clock(endless=True)
            site = make_sites(settings, state, store.journal, clock, print)[0]
            try:
                yield BenchLab(site, store, assignments(settings)[0])
            finally:
                site.hypervisor.shutdown()


ICOUNT = "shift=6,sleep=on"
"""64 ns per instruction: slower than any host, so that a tool ends before pvebench expects it."""


@contextmanager
def counted_instructions() -> Iterator[None]:
    """Start VMs with a clock that counts their instructions.

    Their IOPS are those of a slow CPU, whatever else this machine does.
    """
    plain = machine.arguments

    def arguments(*given: Any) -> list[str]:
        return [*plain(*given), "-icount", ICOUNT]

    with mock.patch.object(machine, "arguments", arguments):
        yield
