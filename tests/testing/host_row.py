"""One row of the host, measured by the settings of a user."""

from __future__ import annotations

from pathlib import Path

from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import DriverContext
from pvebench.model.run import Run
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from testing.packs import Recorder, tool_workload
from testing.storages import host_row
from testing.stores import TemporaryStore

SIZE = 8 * MIB


def measured(
    tmp_path: Path, where: Path, rw: str = "randread", seconds: float = 1.0, **more: object
) -> Run:
    """Return a run of fio, of `seconds`, on a file in `where`."""
    settings = Settings.model_validate(
        {
            "driver": "host",
            "node": "lab",
            "state": tmp_path / "state",
            "storages": {"local": {"path": where}},
            **more,
        }
    )
    settings.state.mkdir()
    row = host_row(SIZE)
    options = {"rw": rw, "bs": "4k"}
    workload = tool_workload("fio", options, ramp_seconds=0.2, runtime_seconds=seconds)
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    clock = SystemClock()
    made = DriverContext(runtime=tmp_path, journal=store.journal, clock=clock, say=lambda _: None)
    (site,) = engine_of("host").sites(settings, made)
    runner = Runner(site, Recorder())
    try:
        return runner.run(Case(scenario=row, workload=workload), cycle="", conduct=Conduct())
    finally:
        runner.close()
        store.close()
