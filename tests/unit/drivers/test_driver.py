"""The registry of drivers: what is there of each, and what it takes to add one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pvebench
from pvebench.cli.main import run_cli
from pvebench.config import Settings, load_settings
from pvebench.drivers import DRIVERS, driver_of, engine_of
from testing import noop_driver
from testing.packs import QUICK

ROOT = Path(pvebench.__file__).parent


@pytest.mark.parametrize("name", DRIVERS)
def test_each_driver_has_its_keys_in_the_settings_and_an_engine(name: str) -> None:
    driver, engine = driver_of(name), engine_of(name)
    assert issubclass(Settings, driver.settings)
    assert engine.make_clock(endless=False).monotonic() >= 0.0
    assert engine.orphan_finder(Settings()) is None if name != "proxmox" else True


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Settings for a driver that was added just now: its folder, and its line in the registry."""
    monkeypatch.setitem(DRIVERS._objects, "nothing", noop_driver.DRIVER)
    config = tmp_path / "settings.yaml"
    config.write_text(f"driver: nothing\nnode: lab\nstate: state\npacks: [{QUICK}]\n", "utf-8")
    return config


def test_a_driver_is_one_folder_and_one_line(
    nothing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(nothing)]
    assert run_cli(["plan", *config, "--format=json"]) == 0
    assert "local.virtio.raw.none" in capsys.readouterr().out
    assert run_cli(["check", *config, "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["check"] for entry in found] == ["settings", "pack quick", "cost", "state"]
    assert run_cli(["cleanup", *config]) == 0
    assert run_cli(["cleanup", "--orphans", *config]) != 0


def test_a_driver_that_no_one_registered_is_refused_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("driver: nothing\n", "utf-8")
    assert run_cli(["plan", "--config", str(config)]) == 2
    said = capsys.readouterr().err
    known = [repr(name) for name in DRIVERS]
    assert f"'nothing' is not one of {', '.join(known[:-1])} or {known[-1]}" in said


@pytest.mark.lab
def test_a_relative_path_of_any_driver_is_taken_from_the_settings_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(
        "guest_image: image\n"
        "packs: [one.yaml]\n"
        "storages: {disk: {path: folder}, served: {kind: nbd, export: e, socket: s.sock}}\n"
        "proxmox: {host: pve, token_file: token, tls: {ca_file: ca.pem}, "
        "storages: {local: {type: dir}}}\n",
        "utf-8",
    )
    found = load_settings(config)
    assert found.guest_image == tmp_path / "image"
    assert found.packs == (tmp_path / "one.yaml",)
    assert found.storages["disk"].path == tmp_path / "folder"
    assert found.storages["served"].socket == tmp_path / "s.sock"
    assert found.proxmox.token_file == tmp_path / "token"
    assert found.proxmox.tls.ca_file == tmp_path / "ca.pem"
    assert found.state == Settings().state


def test_a_plan_imports_no_drivers_library() -> None:
    code = (
        "import sys\n"
        "from pvebench.cli.main import run_cli\n"
        f"assert run_cli(['plan', '--driver', 'qemu', '--pack', {str(QUICK)!r}]) == 0\n"
        "print('heavy', [name for name in ('proxmoxer', 'requests', 'qemu') "
        "if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy []"


def test_only_the_registry_asks_which_driver_it_is() -> None:
    asking = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if any(f"driver {word} " in line for word in ("==", "!=", "in", "not in"))
        and "if " in line
        and '"""' not in line
    ]
    assert asking == []
