"""Every fault that a running instance has is in `doctor` and in `status`, from the instance."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event

from pvebench.cli.main import run_cli
from pvebench.config import Settings
from pvebench.config.settings import NotifySettings
from pvebench.diagnostics import doctor
from pvebench.drivers.clocks import SimulatedClock
from pvebench.model.status import State
from pvebench.notify.delivery import Sent
from pvebench.notify.sender import NotificationSender
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.service.publisher import page_of
from pvebench.store.outbox import Message
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench_fleet import HubUnreachable
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.push import Reply, Sender, _send_all
from pvebench_lab.cli.demo import SHOWN
from testing.packs import SMALL, write_pack
from testing.simulated_site import app_of, served
from testing.simulations import Simulation, simulate

Captured = pytest.CaptureFixture[str]
NOTE = Message(kind="changed", title="title", body="text", receiver="phone", due=1.0)
TO = [{"name": "phone", "url": "json://phone"}]


@contextmanager
def unwritable(store: Store, how: str) -> Iterator[None]:
    """Let SQLite itself refuse every write: what a full or read-only file system leads to."""

    def restrict(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA busy_timeout = 0")
        if how == "full":
            connection.execute("PRAGMA max_page_count = 1")
        if how == "read-only":
            connection.execute("PRAGMA query_only = 1")

    event.listen(store._engine, "connect", restrict)
    store._engine.dispose()
    with closing(sqlite3.connect(store.path)) as other:
        if how == "locked":
            other.execute("BEGIN IMMEDIATE")
        yield
    event.remove(store._engine, "connect", restrict)
    store._engine.dispose()


def one_step(simulation: Simulation) -> None:
    """Begin cycles until one is refused; the last page of a full database may have some room."""
    while simulation.worker.status.state is not State.ERROR:
        simulation.worker._queue.clear()
        simulation.worker._try_step()


def notify_step(simulation: Simulation, reason: str = "", now: float = 2.0) -> None:
    settings = Settings(notify=NotifySettings.model_validate({"to": TO}))
    clock = SimulatedClock(datetime.fromtimestamp(now, UTC))
    NotificationSender(
        simulation.store, lambda: settings, list, clock, send=lambda *_: Sent(reason=reason)
    )._try_step()


def fleet_step(simulation: Simulation, send: Callable[[str, str, bytes], Reply]) -> None:
    """Let the thread of the fleet make one step."""
    steps = iter([False, True])
    fleet_log = FleetLog(simulation.store.engine)
    sender = Sender(fleet_log, send, "0" * 16, lambda: 1.0)
    stopped = SimpleNamespace(wait=lambda _: next(steps))
    _send_all(sender, fleet_log, simulation.store.faults, stopped)  # type: ignore[arg-type] # an Event


def refused(*_: object) -> Reply:
    raise HubUnreachable("hub https://hub.example.org: Connection refused")


def answer(status: int, **content: object) -> Callable[[str, str, bytes], Reply]:
    return lambda *_: Reply(status, json.dumps(content).encode())


def maintain(simulation: Simulation) -> None:
    settings: Any = SimpleNamespace(keep_backups=0, keep_evidence=1.0, keep_runs=1.0)
    clock = simulation.world.clock
    DatabaseMaintenance(simulation.results, lambda: settings, clock.now).check()


FAULTS: dict[str, tuple[Callable[[Simulation], None], str, str, str]] = {
    "full": (one_step, "full", "worker lab", "disk is full"),
    "read-only": (one_step, "read-only", "worker lab", "readonly database"),
    "locked": (one_step, "locked", "worker lab", "database is locked"),
    "maintenance": (maintain, "read-only", "database maintenance", "readonly database"),
    "notifier": (notify_step, "read-only", "notifications", "readonly database"),
    "receiver": (lambda one: notify_step(one, "status 500"), "", "notify phone", "status 500"),
    "fleet database": (
        lambda one: fleet_step(one, refused),
        "read-only",
        "fleet",
        "readonly database",
    ),
    "hub down": (lambda one: fleet_step(one, refused), "", "fleet", "Connection refused"),
    "hub 401": (lambda one: fleet_step(one, answer(401)), "", "fleet", "hub: "),
    "hub 500": (lambda one: fleet_step(one, answer(500)), "", "fleet", "hub: "),
    "hub nonsense": (lambda one: fleet_step(one, answer(200, acked="x")), "", "fleet", "hub: "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_a_running_instance_is_in_doctor_and_in_status(
    tmp_path: Path, capsys: Captured, name: str
) -> None:
    act, how, about, text = FAULTS[name]
    simulation = simulate(tmp_path, cycles=None, pack=write_pack(tmp_path, SMALL))
    FleetLog(simulation.store.engine).begin()
    simulation.store.outbox.put([NOTE])
    simulation.worker.step()
    with StateDirectory(tmp_path, exclusive=True), unwritable(simulation.store, how):
        act(simulation)
        app = app_of(simulation, page=page_of(simulation.results, lambda: SHOWN))
        with served(app) as address:
            config = tmp_path / "settings.yaml"
            config.write_text(f"driver: simulated\nlisten: {address.removeprefix('http://')}\n")
            options = ["--config", str(config), "--state", str(tmp_path), "--format=json"]
            capsys.readouterr()
            assert run_cli(["doctor", *options]) == 3
            found = json.loads(capsys.readouterr().out)
            assert run_cli(["status", *options]) == 0
            shown = json.loads(capsys.readouterr().out)
    (own,) = [row for row in found if row["about"] == about and text in row["text"]]
    assert own["severity"] == "critical"
    assert f"{about} fails: {own['text']}" in shown["running"]
    assert " in 0 s" not in shown["next"]


def test_what_works_again_is_no_fault(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None, pack=write_pack(tmp_path, SMALL))
    FleetLog(simulation.store.engine).begin()
    simulation.store.outbox.put([NOTE])
    notify_step(simulation, "status 500")
    fleet_step(simulation, refused)
    assert simulation.store.outbox.faults
    notify_step(simulation, now=1000.0)
    assert simulation.store.outbox.faults == {}
    answered = answer(200, turn=1, acked=0, chain="")
    fleet_step(simulation, answered)
    assert simulation.store.faults == {"fleet": ""}


@pytest.mark.parametrize(
    ("flags", "blocks", "text"), [(1, 9000, "is read-only"), (0, 10, "free some space")]
)
def test_a_file_system_without_room_is_critical_without_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, blocks: int, text: str
) -> None:
    system = SimpleNamespace(f_flag=flags, f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(doctor.os, "statvfs", lambda _: system)
    assert text in doctor._unwritable(tmp_path)
