"""`pvebench durability`: its table of stored results, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.model.durability import Durability
from testing.durabilities import DURABLE
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]
UNSAFE = replace(
    DURABLE,
    configuration="raw.unsafe",
    flushed=0,
    power=tuple(replace(one, found=0) for one in DURABLE.power),
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    store = TemporaryStore(tmp_path / "pvebench.db")
    store.record_durability(replace(DURABLE, qemu="5.1.0"))
    store.record_durability(DURABLE)
    store.record_durability(UNSAFE)
    store.close()
    return tmp_path


def test_the_table_has_the_newest_result_of_each_configuration(
    state: Path, capsys: Captured
) -> None:
    assert run_cli(["durability", "--state", str(state), "--stored"]) == 0
    head, _, first, second = capsys.readouterr().out.splitlines()
    assert "not flushed, first write" in head
    assert first.split(" | ")[:4] == [
        "| qcow2.preallocation-off.none",
        "64 of 64",
        "0 of 16",
        "16 of 16",
    ]
    assert first.endswith("| 32 of 32 | 0 of 16 | 2, 7 | yes |")
    assert second.endswith("| 0 of 32 | 0 of 16 | 2, 0 | **no** |")


def test_a_killed_qemu_alone_says_nothing_about_a_loss_of_power(
    state: Path, capsys: Captured
) -> None:
    store = TemporaryStore(state / "pvebench.db")
    store.record_durability(replace(UNSAFE, power=(), states=0))
    store.close()
    assert run_cli(["durability", "--state", str(state), "--stored", "--only", "raw.*"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.endswith("| not measured | not measured | 2, not measured | if QEMU is killed |"), (
        row
    )


def test_json_has_every_value_of_the_selected_ones(state: Path, capsys: Captured) -> None:
    options = ["--stored", "--format", "json", "--only", "qcow2.*"]
    assert run_cli(["durability", "--state", str(state), *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert Durability.from_json(json.dumps(row)) == DURABLE


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--driver", "simulated"), 2, "simulated cannot kill a VM"),
        (("--storage", "tank"), 6, "use one of: local"),
        ((), 6, "no flush reaches its disk: nobarrier"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: tuple[str, ...],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pvebench_lab.durability.qemu.flushes_ignored", lambda _: "nobarrier")
    assert run_cli(["durability", "--state", str(tmp_path), *options]) == code
    assert message in capsys.readouterr().err


def test_check_reports_a_storage_that_loses_flushed_writes(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "pvebench.drivers.storages.storage_settings.flushes_ignored"
    monkeypatch.setattr(place, lambda _: "mount option nobarrier of /x")
    run_cli(["check", "--state", str(tmp_path)])
    text = "flushes on local: ignored by mount option nobarrier of /x; a power loss loses"
    assert text in capsys.readouterr().out
