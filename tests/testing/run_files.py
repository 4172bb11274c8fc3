"""Files of runs, written and read as the commands do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pvebench.model.run import Run
from pvebench.store.store import Store
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.imported import ImportCount, add_imported
from pvebench_fleet.run_files import Pseudonyms, opened, opened_for_writing, write_runs
from testing.stores import TemporaryStore


def store_at(folder: Path, runs: Iterable[Run] = (), *, pack: str = "quick") -> Store:
    """Return a store of measured runs of cycle `c`."""
    folder.mkdir(parents=True, exist_ok=True)
    store = TemporaryStore(folder / "pvebench.db")
    store.begin_cycle("c", node="lab", pack=pack, tier="wall", planned=1)
    store.add_history(runs)
    return store


def exported(store: Store, path: Path, *, anonymous: bool = False) -> Path:
    names = Pseudonyms(simulated=store.simulated).replaced if anonymous else None
    with opened_for_writing(path) as file:
        write_runs(
            file, FleetLog(store.engine).stored(), simulated=store.simulated, pseudonyms=names
        )
    return path


def imported(path: Path, into: Store, rename: Mapping[str, str] | None = None) -> ImportCount:
    with opened(path, rename or {}) as found:
        return add_imported(into, found.runs(), simulated=found.head.simulated)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
