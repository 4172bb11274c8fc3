"""Changed settings and packs while running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import load_settings
from pvebench.metrics.exposition import Families
from pvebench.service.housekeeping import Configuration, Reloader
from pvebench.service.publisher import collect_config
from pvebench.service.startup import assignments
from testing import http_client
from testing.families import families_of
from testing.packs import SMALL, write_pack
from testing.prometheus import free_port, prometheus
from testing.simulations import simulate


class Instance:
    """A configuration on disk, and what was put into force."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "pvebench.yaml"
        self.pack = write_pack(directory)
        self.config.write_text("packs: [pack.yaml]\nnode: lab\n")
        self.applied: list[Configuration] = []
        self.reloader = Reloader(self.config, self.load(), load=self.load)

    def load(self) -> Configuration:
        settings = load_settings(self.config)
        return Configuration(settings, assignments(settings))

    def check(self) -> None:
        found = self.reloader.check()
        self.applied += [found] if found else []

    def metrics(self) -> dict[str, float]:
        families = Families()
        collect_config(self.reloader.state, families)
        return {family.name: family.samples[0].value for family in families_of(families)}


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def test_nothing_is_reloaded_while_nothing_changes(instance: Instance) -> None:
    instance.check()
    assert instance.applied == []


def test_a_changed_pack_is_taken_over(instance: Instance) -> None:
    before = instance.reloader.state.digest
    instance.pack.write_text(SMALL.replace("[virtio, scsi]", "[virtio]"))
    instance.check()
    (found,) = instance.applied
    assert {case.scenario.disk.bus for case in found.assignments[0].matrix.cases} == {"virtio"}
    assert instance.reloader.state.digest != before
    assert instance.metrics()["pvebench_config_last_reload_successful"] == 1


def test_a_bad_pack_leaves_the_old_one_in_effect_and_is_reported(instance: Instance) -> None:
    before = instance.reloader.state
    instance.pack.write_text(SMALL.replace("cache:", "cahce:"))
    instance.check()
    assert instance.applied == []
    assert instance.reloader.state.digest == before.digest
    assert instance.metrics()["pvebench_config_last_reload_successful"] == 0
    instance.pack.write_text(SMALL)
    instance.check()
    assert len(instance.applied) == 1
    assert instance.metrics()["pvebench_config_last_reload_successful"] == 1


def test_a_vanished_pack_leaves_the_old_one_in_effect(instance: Instance) -> None:
    instance.pack.unlink()
    instance.check()
    assert (instance.applied, instance.reloader.state.successful) == ([], False)


def test_a_setting_that_needs_a_restart_changes_nothing_at_all(instance: Instance) -> None:
    instance.config.write_text("packs: [pack.yaml]\nnode: other\nmax_age: 1h\n")
    instance.check()
    assert (instance.applied, instance.reloader.state.successful) == ([], False)


def test_a_request_reloads_even_what_looks_unchanged(instance: Instance) -> None:
    instance.reloader.ask()
    instance.check()
    assert len(instance.applied) == 1


def test_a_worker_drops_what_the_new_packs_do_not_want_and_goes_on(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None, pack=write_pack(tmp_path))
    simulation.worker.step()
    other = simulate(
        tmp_path, pack=write_pack(tmp_path, SMALL.replace("[virtio, scsi]", "[virtio]"))
    )
    simulation.worker.assign(other.worker.assignments)
    for _ in range(6):
        simulation.world.clock.sleep(simulation.worker.step())
    buses = {run.case.scenario.disk.bus for run in simulation.recorder.runs}
    assert buses == {"virtio"}
    assert simulation.worker.status.cycle is not None
    assert simulation.worker.status.cycle.planned == 1


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    address = f"127.0.0.1:{free_port()}"
    pack = write_pack(tmp_path)
    config = tmp_path / "pvebench.yaml"
    config.write_text(f"driver: simulated\nstate: s\npacks: [pack.yaml]\nlisten: {address}\n")
    command = [sys.executable, "-m", "pvebench", "serve", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        yield process, address, pack
        process.terminate()
        process.communicate(timeout=120)


def test_a_running_service_reloads_on_sighup_and_survives_a_bad_file(
    tmp_path: Path, serving: tuple[subprocess.Popen[str], str, Path]
) -> None:
    process, address, pack = serving
    with prometheus(tmp_path / "p", address) as server:
        server.wait_for("pvebench_config_last_reload_successful == 1", seconds=300)
        pack.write_text("nonsense: [")
        os.kill(process.pid, signal.SIGHUP)
        server.wait_for("pvebench_config_last_reload_successful == 0", seconds=300)
        pack.write_text(SMALL.replace("pack: small", "pack: renamed"))
        server.wait_for('pvebench_config_info{packs="renamed"}', seconds=300)
    assert process.poll() is None


def test_the_socket_of_systemd_and_the_reload_of_prometheus_work(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor, port = listener.fileno(), listener.getsockname()[1]
        systemd = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{descriptor}'
        instance = ["--driver", "simulated", "--pack", str(write_pack(tmp_path)), "--state", "s"]
        serve = [sys.executable, "-m", "pvebench", "serve", *instance, "--web.systemd-socket"]
        command = ["bash", "-c", systemd, "bash", *serve]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, pass_fds=[descriptor], cwd=tmp_path
        ) as process:
            assert process.stdout is not None
            where = f"http://127.0.0.1:{port}"
            while f"metrics on {where}/metrics" not in process.stdout.readline():
                assert process.poll() is None
            assert "pvebench_build_info" in http_client.get(f"{where}/metrics").text
            answers = [
                http_client.request(method, f"{where}/-/reload").status_code
                for method in ("GET", "POST")
            ]
            assert answers == [405, 200]
            process.terminate()
            process.communicate(timeout=120)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--web.systemd-socket"], "systemd passes no TCP socket"),
        (["--web.listen-address", "unix:/x"], "write it as 127.0.0.1:10620"),
    ],
)
def test_wrong_options_of_exporters_name_the_option(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["serve", "--state", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_new_pack_that_is_repaired_is_taken_over_by_itself(instance: Instance) -> None:
    other = instance.config.parent / "other.yaml"
    good = instance.pack.read_text().replace("pack: small", "pack: other")
    other.write_text(good.replace("axes:", "axis:"))
    instance.config.write_text("packs: [pack.yaml, other.yaml]\nnode: lab\n")
    instance.check()
    assert instance.metrics()["pvebench_config_last_reload_successful"] == 0
    other.write_text(good)
    instance.check()
    assert instance.metrics()["pvebench_config_last_reload_successful"] == 1
    assert len(instance.applied) == 1
