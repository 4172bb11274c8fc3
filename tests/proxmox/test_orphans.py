"""Orphans of any pvebench: `cleanup --orphans` lists them, and removes only what is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pve.site import MACHINE, Site, scenario
from pvebench.cli.main import run_cli
from pvebench.store.state_directory import StateDirectory
from testing.stores import TemporaryStore


def test_sweep_lists_before_it_removes_and_removes_only_what_is_named(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drivers = [site.node, site.driver("pve2")]
    for driver in drivers:
        driver.volume(scenario())
    capsys.readouterr()
    assert run_cli(["cleanup", "--orphans", "--config", str(config), "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["node"], entry["vmid"]) for entry in found] == [("pve1", 9000), ("pve2", 9001)]
    assert all("-pvebench-" in volume for entry in found for volume in entry["volumes"])
    assert set(site.cluster.vms) == {9000, 9001}
    assert run_cli(["cleanup", "--orphans", "--config", str(config), "--remove", "9001"]) == 0
    assert set(site.cluster.vms) == {9000}
    assert site.cluster.volumes_on["pve2"].owned(9001) == []


def test_sweep_leaves_what_is_not_in_its_list(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.node.volume(scenario())
    site.cluster.vms[site.node.vmid].config["description"] = "another's now"
    assert (
        run_cli(["cleanup", "--orphans", "--config", str(config), "--remove", str(site.node.vmid)])
        == 6
    )
    assert "not changed" in capsys.readouterr().err
    assert site.node.vmid in site.cluster.vms


def test_sweep_leaves_a_vm_that_another_instance_of_the_pool_uses(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have the same pool, user and token, so only the claim tells who uses it."""
    site.node.boot(MACHINE)
    command = ["cleanup", "--orphans", "--config", str(config)]
    assert run_cli(command) == 0
    assert "VM 9000 on pve1, running, used by another pvebench until " in capsys.readouterr().out
    assert run_cli([*command, "--remove", "9000"]) == 6
    err = capsys.readouterr().err
    assert "VM 9000 not changed: used by another pvebench until" in err
    assert "next step: stop that instance" in err
    vm = site.cluster.vms[9000]
    assert vm.running
    vm.config["description"] = re.sub("(until: )[0-9]+", r"\g<1>1", vm.config["description"])
    assert run_cli([*command, "--remove", "9000"]) == 0
    assert site.cluster.vms == {}


def test_sweep_shows_what_a_killed_process_left_and_removes_it_when_asked(
    site: Site, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.node.volume(scenario())
    StateDirectory(tmp_path / "state", exclusive=False)
    site.close()
    (tmp_path / "pvebench.db").rename(tmp_path / "state" / "pvebench.db")
    assert run_cli(["cleanup", "--orphans", "--config", str(config)]) == 0
    assert "VM 9000 on pve1, stopped, left by a crash" in capsys.readouterr().out
    assert run_cli(["cleanup", "--orphans", "--config", str(config), "--remove", "9000"]) == 0
    assert site.cluster.vms == {}
    store = TemporaryStore(tmp_path / "state" / "pvebench.db", simulated=False)
    assert store.journal.pending() == []
    store.close()
