"""`pvebench doctor` beside a state directory: what it sees and cannot, and that it only looks."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import Settings
from pvebench.diagnostics import pipeline
from pvebench.diagnostics.doctor import Servers, diagnose
from pvebench.diagnostics.outgoing import Severity
from pvebench.drivers.driver import Engine
from pvebench.errors import PipelineError
from pvebench.store import state_directory
from pvebench.store.outbox import Message
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench_fleet.fleet_log import IDLE_SECONDS, FleetLog
from pvebench_lab.simulated import simulated_hypervisor
from testing.packs import write_pack
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]
NOBODY = Servers(exporter_login={}, grafana_login={})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pvebench.yaml"
    pack = write_pack(tmp_path)
    path.write_text(f"driver: simulated\nnode: lab\nstate: state\npacks: [{pack.name}]\n")
    return path


@pytest.fixture
def store(config: Path) -> Iterator[Store]:
    with StateDirectory(config.parent / "state", exclusive=True) as state:
        opened = TemporaryStore(state.database, simulated=True)
        yield opened
        opened.close()


def seen(
    config: Path, capsys: Captured, *options: str, code: int = 0
) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert run_cli(["doctor", "--config", str(config), "--format=json", *options]) == code
    rows = json.loads(capsys.readouterr().out)
    # Of two rows about one thing the more urgent one, which comes first.
    return {row["about"]: (row["severity"], row["text"]) for row in reversed(rows)}


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file; but not the shared memory in which SQLite's readers leave their marks."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if not path.name.endswith("-shm")}


def test_what_cannot_be_looked_at_is_said_and_is_no_fault(config: Path, capsys: Captured) -> None:
    found = seen(config, capsys)
    assert found["Prometheus"] == (
        "unknown",
        "not checked; pass its address: --prometheus http://127.0.0.1:9690",
    )
    assert {found[name][0] for name in ("clock", "alerts", "Grafana")} == {"unknown"}
    assert found["service"][0] == "warning"
    assert not (config.parent / "state").exists()


def test_looking_changes_nothing(config: Path, store: Store, capsys: Captured) -> None:
    store.journal.open("simulated-vm", {"name": "lab"})
    before = contents(config.parent)
    while_used = seen(config, capsys, "--exporter", "http://127.0.0.1:1", code=3)
    assert "in use by process" in while_used["leftovers"][1]
    assert contents(config.parent) == before
    store.close()


def test_what_a_killed_process_left_comes_first_with_its_command(
    config: Path, capsys: Captured
) -> None:
    with StateDirectory(config.parent / "state", exclusive=True) as state:
        store = TemporaryStore(state.database, simulated=True)
        store.journal.open("simulated-vm", {"name": "lab"})
        store.close()
    before = contents(config.parent)
    assert run_cli(["doctor", "--config", str(config)]) == 3
    said = capsys.readouterr()
    assert said.out.startswith("critical     leftovers: 1 leftover of a killed process")
    assert "pvebench cleanup" in said.out
    assert "leftovers" in said.err
    assert contents(config.parent) == before


@pytest.mark.parametrize("damage", [b"no database at all", b""])
def test_a_damaged_database_is_reported_before_all_else(
    config: Path, capsys: Captured, damage: bytes
) -> None:
    (config.parent / "state").mkdir()
    (config.parent / "state" / "pvebench.db").write_bytes(damage)
    assert run_cli(["doctor", "--config", str(config)]) == 3
    first = capsys.readouterr().out.partition("\n\n")[0]
    assert first.startswith("critical     database: ")
    assert "pvebench restore" in first


def test_a_page_in_the_middle_that_is_gone_is_seen(config: Path, capsys: Captured) -> None:
    path = config.parent / "state" / "pvebench.db"
    StateDirectory(path.parent, exclusive=False)
    TemporaryStore(path, simulated=True).close()
    content = bytearray(path.read_bytes())
    # Not the first pages, without which SQLite could not even begin.
    content[len(content) // 2 : len(content) // 2 + 8192] = b"\xff" * 8192
    path.write_bytes(content)
    assert seen(config, capsys, code=3)["database"][0] == "critical"


def test_a_bad_pack_keeps_nothing_else_from_being_looked_at(config: Path, capsys: Captured) -> None:
    (config.parent / "pack.yaml").write_text("pack: [")
    found = seen(config, capsys, code=3)
    assert found["configuration"][0] == "critical"
    assert "pack.yaml:1" in found["configuration"][1]
    assert found["leftovers"][0] == "ok"


@pytest.mark.parametrize(
    ("ahead", "severity"), [(25, Severity.OK), (35, Severity.CRITICAL), (-45, Severity.CRITICAL)]
)
def test_a_clock_that_differs_is_reported(
    config: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, severity: Severity
) -> None:
    def clocks(*_: object) -> Iterator[tuple[str, float]]:
        yield "pve1", time.time() + ahead

    monkeypatch.setattr(type(simulated_hypervisor.ENGINE), "clocks", clocks, raising=False)
    settings = Settings(driver="simulated", node="lab", state=config.parent / "state")
    (clock,) = [one for one in diagnose(settings, NOBODY, seconds=60) if one.about == "clock"]
    assert clock.severity is severity


def test_what_does_not_answer_in_time_is_said(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    def hang(*_: object) -> Iterator[tuple[str, float | None]]:
        never.wait(30)
        yield from ()

    monkeypatch.setattr(type(simulated_hypervisor.ENGINE), "clocks", hang)
    settings = Settings(driver="simulated", node="lab", state=config.parent / "state")
    found = diagnose(settings, NOBODY, seconds=3)
    never.set()
    assert [one.text for one in found if one.about == "clock"] == [
        "no answer within 3 s; wait longer with --timeout"
    ]
    assert {one.severity for one in found if one.about == "leftovers"} == {Severity.OK}


def test_an_engine_without_clocks_has_none() -> None:
    assert list(Engine.clocks(simulated_hypervisor.ENGINE, None)) == []


def test_a_part_that_has_a_fault_itself_is_no_silence(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(simulated_hypervisor.ENGINE), "clocks", lambda *_: [1])
    settings = Settings(driver="simulated", node="lab", state=config.parent / "state")
    (clock,) = [one for one in diagnose(settings, NOBODY, seconds=60) if one.about == "clock"]
    assert (clock.severity, "TypeError" in clock.text) == (Severity.UNKNOWN, True)


# --- whether anybody is told ---


@pytest.fixture
def told(config: Path) -> Path:
    """Settings that name a target, whose address nobody else can read; returns its file."""
    address = config.parent / "phone"
    address.write_text("json://127.0.0.1:1/")
    address.chmod(0o600)
    with config.open("a") as file:
        file.write("notify:\n  to: [{name: phone, url_file: phone}]\n")
    return address


def test_without_notify_no_receiver_is_shown(config: Path, capsys: Captured) -> None:
    severity, text = seen(config, capsys)["notifications"]
    assert severity == "unknown"
    assert "notify is not set" in text


@pytest.mark.usefixtures("told")
def test_a_target_that_nothing_was_sent_to_is_to_be_tried(config: Path, capsys: Captured) -> None:
    assert seen(config, capsys)["notify phone"] == (
        "ok",
        "no notification yet; test it with `pvebench notify --test`",
    )


def test_an_address_that_others_can_read_is_reported(
    config: Path, told: Path, capsys: Captured
) -> None:
    told.chmod(0o644)
    severity, text = seen(config, capsys, code=3)["notify phone"]
    assert severity == "critical"
    assert f"chmod 600 {told}" in text


def test_an_address_of_someone_else_that_everybody_can_read_is_reported(
    config: Path, told: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.chmod(0o644)
    monkeypatch.setattr("os.geteuid", lambda: told.stat().st_uid + 1)
    severity, text = seen(config, capsys, code=3)["notify phone"]
    assert severity == "critical"
    assert f"chmod o= {told}" in text


def test_an_address_that_is_not_there_is_reported(
    config: Path, told: Path, capsys: Captured
) -> None:
    told.unlink()
    severity, text = seen(config, capsys, code=3)["notify phone"]
    assert (severity, text) == ("critical", f"{told} cannot be read: No such file or directory")


def test_an_address_that_nothing_can_be_sent_to_is_reported_without_itself(
    config: Path, told: Path, capsys: Captured
) -> None:
    told.write_text("jsno://user:secret-word@127.0.0.1/")
    assert seen(config, capsys, code=3)["notify phone"] == ("critical", "unknown apprise address")


def test_the_environment_of_the_service_is_not_this_one(
    config: Path, told: Path, capsys: Captured
) -> None:
    config.write_text(config.read_text().replace("url_file: phone", "url_env: PVEBENCH_PHONE"))
    severity, text = seen(config, capsys)["notify phone"]
    assert severity == "unknown"
    assert "PVEBENCH_PHONE is not set" in text


NOON = 1795348800.0
"""2026-11-22 12:00 UTC."""
NOTE = Message(kind="changed", title="title", body="text", receiver="phone", made=NOON)


@pytest.mark.usefixtures("told")
def test_what_cannot_be_delivered_is_reported_with_reason_and_since_when(
    config: Path, store: Store, capsys: Captured
) -> None:
    store.outbox.put([NOTE])
    untried = seen(config, capsys, "--exporter", "http://127.0.0.1:1", code=3)["notify phone"]
    assert untried == (
        "warning",
        "1 notification queued, oldest 2026-11-22 12:00 UTC, not tried yet; "
        "a running `pvebench serve` sends them",
    )
    (queued,) = store.outbox.queued()
    store.outbox.save(replace(queued, attempts=1, reason="the server answered 500"))
    store.close()
    before = contents(config.parent)
    assert seen(config, capsys, "--exporter", "http://127.0.0.1:1", code=3)["notify phone"] == (
        "critical",
        "1 notification queued, oldest 2026-11-22 12:00 UTC, after 1 attempt: "
        "the server answered 500; test it with `pvebench notify --test`",
    )
    assert contents(config.parent) == before


@pytest.mark.usefixtures("told")
def test_a_message_that_was_given_up_is_reported_until_another_arrives(
    config: Path, store: Store, capsys: Captured
) -> None:
    store.outbox.put([NOTE])
    (queued,) = store.outbox.queued()
    store.outbox.save(replace(queued, state="dropped", done=NOON))
    look = ("--exporter", "http://127.0.0.1:1")
    severity, text = seen(config, capsys, *look, code=3)["notify phone"]
    assert (severity, "dropped, 2026-11-22 12:00 UTC" in text) == ("critical", True)
    store.outbox.put([NOTE])
    (queued,) = store.outbox.queued()
    store.outbox.save(replace(queued, state="sent", done=NOON + 60))
    found = seen(config, capsys, *look, code=3)["notify phone"]
    assert found == ("ok", "1 sent, last 2026-11-22 12:01 UTC")


@pytest.mark.usefixtures("told")
def test_what_waits_in_a_database_of_an_older_layout_is_not_read(
    config: Path, store: Store, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.path
    store.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE messages")
    monkeypatch.setattr(state_directory, "SCHEMA", 2)
    found = seen(config, capsys, "--exporter", "http://127.0.0.1:1", code=3)
    assert found["notifications"][0] == "unknown"


# --- the connection to a hub


@pytest.fixture
def member(config: Path) -> Path:
    """Settings of a site of a fleet; returns its database."""
    with config.open("a") as file:
        file.write("site: vienna\nfleet: {url: https://hub.example.org, token_file: token}\n")
    return config.parent / "state" / "pvebench.db"


def test_without_a_fleet_doctor_has_no_word_of_it(config: Path, capsys: Captured) -> None:
    assert "fleet" not in seen(config, capsys)


@pytest.mark.usefixtures("member")
def test_a_site_that_never_started_its_connection_is_reported(
    config: Path, capsys: Captured
) -> None:
    assert seen(config, capsys)["fleet"] == (
        "warning",
        "not connected to the hub yet; `pvebench serve` connects",
    )


@pytest.mark.parametrize(
    ("state", "ago", "severity"),
    [
        ("connected", 60.0, "ok"),
        ("connected", 2 * IDLE_SECONDS + 1, "warning"),
        ("connected", None, "warning"),
        ("not connected", None, "warning"),
        ("held", 60.0, "critical"),
        ("the hub returned 403", 60.0, "critical"),
        ("forgotten by the hub", 60.0, "critical"),
        ("hub https://hub.example.org: Connection refused", 7200.0, "critical"),
    ],
)
def test_doctor_and_fleet_status_say_the_same_state_of_the_connection(
    config: Path, member: Path, capsys: Captured, state: str, ago: float | None, severity: str
) -> None:
    member.parent.mkdir()
    store = TemporaryStore(member, simulated=True)
    FleetLog(store.engine).begin()
    contact = None if ago is None else time.time() - ago
    FleetLog(store.engine).note(state=state, process="0" * 16, contact=contact)
    store.close()
    found = seen(config, capsys, code=3 if severity == "critical" else 0)["fleet"]
    assert found[0] == severity
    code = 3 if severity == "critical" else 0
    assert run_cli(["fleet", "status", "--config", str(config), "--format=json"]) == code
    lines = json.loads(capsys.readouterr().out)
    stated = f"{lines['state']}, last contact {lines['contact']}"
    # The commands run one after the other, so seconds may differ.
    assert _without_seconds(stated) in _without_seconds(found[1])


def _without_seconds(text: str) -> str:
    return re.sub(r" \d+ s\b", "", text)


@pytest.mark.parametrize("number", ["1.2.3", "1e", "1e5e5", "1..", "1+1"])
def test_a_page_of_another_program_with_a_broken_number_is_no_exporter(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"{pipeline.TIMESTAMP} {number}\n"
    monkeypatch.setattr(pipeline, "fetch", lambda *_, **__: page)
    with pytest.raises(PipelineError, match="is not a pvebench exporter"):
        pipeline.read_exposition("http://h:1", {})
