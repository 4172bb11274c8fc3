"""The command a user starts: a real VM, a real Prometheus, the whole way of a result."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from testing import http_client
from testing.packs import SMALL, write_pack
from testing.prometheus import free_port, prometheus
from testing.real_outcomes import MEASURED

TINY = SMALL.replace("runtime: 2s", "runtime: 3s").replace("size: 64M", "size: 16M")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pvebench", *arguments]


def processes_of(directory: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            here = str((entry / "cwd").readlink())
        except OSError:
            continue
        if "qemu-system" in line and here.startswith(str(directory)):
            found.append(line)
    return found


@pytest.mark.usefixtures("image")
def test_one_cycle_is_measured_stored_served_and_scraped(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, TINY)
    address, state = f"127.0.0.1:{free_port()}", tmp_path / "state"
    arguments = ["serve", "--state", str(state), "--pack", str(pack), "--listen", address]
    with (
        prometheus(tmp_path / "prometheus", address) as server,
        subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True) as exporter,
    ):
        try:
            server.wait_for("count(pvebench_iops) == 2", seconds=600)
            ready = http_client.get(f"http://{address}/-/ready")
            # Asked while the exporter answers: a scrape that fails ends every series of it.
            buses = server.query("count by (bus, cache, format) (pvebench_iops > 1)")
            cores = server.query('pvebench_host_cpu_usage_cores{component="vcpu"} > 0.01')
            environments = server.query("pvebench_environment_info")
            storages = server.query('pvebench_storage_info{storage="local", type="dir"}')
            moved = server.query('pvebench_moved_bytes_total{direction="read"} > 1e4')
        finally:
            exporter.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            out, _ = exporter.communicate(timeout=60)
        assert time.monotonic() - begun < 60
        assert ready.status_code == 200
        assert {entry["metric"]["bus"] for entry in buses} == {"virtio", "scsi"}
        assert len(cores) == 2
        accel = environments[0]["metric"]["accel"]
        assert accel in ("tcg", "kvm")
        assert moved
        assert len(storages) == 1
    assert exporter.returncode == 130
    assert any(f"local.virtio.raw.none/randread-4k-qd8  {one}" in out for one in MEASURED)
    assert processes_of(tmp_path) == []
    assert list((state / "storage").iterdir()) == []
    assert list((state / "run").iterdir()) == []


@pytest.mark.usefixtures("image")
def test_kill_9_in_the_middle_loses_no_finished_run_and_the_next_start_ends_with_0_and_cleans_up(
    tmp_path: Path,
) -> None:
    pack, state = write_pack(tmp_path, TINY), tmp_path / "state"
    arguments = command("run", "--state", str(state), "--pack", str(pack))
    with subprocess.Popen([*arguments, "--cycles", "5"], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        while b"[1/2]" not in first.stdout.readline():
            assert first.poll() is None
        time.sleep(1.5)
        first.kill()
    assert processes_of(tmp_path)  # QEMU outlives a killed parent
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " of 2 cases ok" in done.stdout  # or noisy, beside other work
    assert "cleanup after a crash: ended VM" in done.stdout
    assert "cleanup after a crash: removed test volume" in done.stdout

    def results(*options: str) -> Any:
        shown = [*command("results", "--state", str(state)), *options]
        return json.loads(subprocess.run(shown, capture_output=True, check=True).stdout)

    evidence = results("--run", "3")["evidence"]
    assert "rw=randread" in evidence["job.fio"]
    assert json.loads(evidence["output"])["jobs"][0]["error"] == 0
    assert json.loads(evidence["effective"])["cache"] == "none"
    assert evidence["fio_iops.log"]
    runs = results("--format=json")
    assert len(runs) == 3
    assert {run["outcome"] for run in runs} <= MEASURED
    assert len({run["uid"] for run in runs}) == 3
    assert processes_of(tmp_path) == []
    assert list((state / "storage").iterdir()) == []
