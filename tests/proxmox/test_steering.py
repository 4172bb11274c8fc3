"""`pvebench pause`, `resume`, `abort` and `sweep`, as an admin uses them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pve.site import MACHINE, POOL, Site, scenario
from pvebench.cli.main import run_cli
from pvebench.store.state_directory import StateDirectory, holder_of, pause_reason_of
from testing.packs import SMALL, write_pack
from testing.prometheus import free_port


def test_pause_and_resume_are_kept_in_the_state_directory(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = StateDirectory(tmp_path / "state", exclusive=False)
    assert run_cli(["pause", "--config", str(config), "--reason", "kernel update"]) == 0
    assert pause_reason_of(state.path) == "kernel update"
    assert run_cli(["resume", "--config", str(config)]) == 0
    assert pause_reason_of(state.path) == ""
    capsys.readouterr()
    run_cli(["resume", "--config", str(config)])
    assert "not paused" in capsys.readouterr().out


def test_abort_ends_an_instance_in_mid_run_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = write_pack(tmp_path, SMALL.replace("runtime: 2s", "runtime: 300s"))
    options = ["--state", str(tmp_path / "state"), "--pack", str(pack), "--driver", "simulated"]
    command = [
        sys.executable,
        "-m",
        "pvebench",
        "serve",
        *options,
        "--listen",
        f"127.0.0.1:{free_port()}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        state = StateDirectory(tmp_path / "state", exclusive=False)
        while holder_of(state.path) != process.pid:
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        time.sleep(2)
        assert run_cli(["abort", *options]) == 0
        assert process.wait(timeout=300) == 130
    assert holder_of(state.path) == 0
    assert "stopping process" in capsys.readouterr().out


def test_abort_after_a_crash_removes_what_was_left(
    site: Site, config: Path, tmp_path: Path
) -> None:
    site.node.volume(scenario())
    site.node.boot(MACHINE)
    StateDirectory(tmp_path / "state", exclusive=False)
    site.close()
    (tmp_path / "pvebench.db").rename(tmp_path / "state" / "pvebench.db")
    assert run_cli(["abort", "--config", str(config)]) == 0
    assert site.cluster.vms == {}
    assert site.cluster.pools[POOL] == set()


def test_abort_names_a_vm_with_a_disk_of_someone_each_time(
    site: Site, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.node.volume(scenario())
    disk = site.cluster.volumes.allocate("local", 9000, "vm-9000-disk-0.raw", 1024, "raw")
    site.cluster.vms[9000].config["scsi5"] = disk
    StateDirectory(tmp_path / "state", exclusive=False)
    site.close()
    (tmp_path / "pvebench.db").rename(tmp_path / "state" / "pvebench.db")
    for command in ("abort", "abort", "cleanup"):
        run_cli([command, "--config", str(config)])
        assert f"its disk {disk} was not created by pvebench" in capsys.readouterr().out
    assert 9000 in site.cluster.vms
