"""From nothing to results on a cluster: init, check, plan, serve, on versions 8 and 9."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from e2e.pieces import must_be_measured, pvebench, results
from pve.cluster import Cluster
from pve.instance import write_settings
from pve.real import real
from pve.server import RunningApi, running_api
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.scheduler.due_cases import ROUNDS
from testing import http_client
from testing.prometheus import free_port

ROOT = Path(__file__).resolve().parents[2]
STORAGES = {"local": "{type: dir}", "share": "{type: nfs}"}
BOTH = ("pve1", "pve2")


@dataclass(frozen=True)
class Part:
    """One start of pvebench: a pack, the nodes, further options."""

    pack: Path
    nodes: tuple[str, ...]
    options: tuple[str, ...]


PARTS = (
    Part(ROOT / "scenarios/quick.yaml", BOTH, ("--scale", "0.25")),
    Part(Path(__file__).with_name("proxmox-cold.yaml"), BOTH, ()),
    Part(
        ROOT / "scenarios/cache-matrix.yaml",
        ("pve1",),
        ("--scale", "0.06", "--only", "*/rand*-4k-qd32"),
    ),
)


@contextmanager
def node_exporter() -> Iterator[str]:
    """Yield the address of a node_exporter of this machine, which the VMs run on."""
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus-node-exporter", f"--web.listen-address={address}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://{address}/metrics"
        finally:
            process.terminate()


def measure(
    part: Part, api: RunningApi, directory: Path, exporter: str, more: Sequence[str]
) -> None:
    """Run one part; fail where a run is not ok, the page is not full, or anything is left."""
    address = f"127.0.0.1:{free_port()}"
    config = write_settings(
        directory,
        api,
        packs=[part.pack],
        nodes=part.nodes,
        storages=STORAGES,
        more=f"listen: {address}",
        node_exporter=exporter,
        kvm="false",
        cpu="max",
    )
    given = ["--config", str(config), *part.options, *more]
    if not (directory / "token").exists():
        password = {**os.environ, PASSWORD_VARIABLE: "rootpw"}
        init = pvebench("proxmox", "init", "--config", str(config), "--apply")
        subprocess.run(init, env=password, check=True)
    subprocess.run(pvebench("check", "--boot", "--config", str(config)), check=True)
    calls = len(api.calls)
    begun, page = time.monotonic(), ""
    with subprocess.Popen(pvebench("serve", *given, "--cycles", "1")) as process:
        while process.poll() is None:
            time.sleep(2)
            try:
                page = http_client.get(f"http://{address}/metrics").text
            except httpx2.HTTPError:
                continue
    assert process.returncode in (0, 9), process.returncode
    must_be_measured(results(directory / "state"))
    assert sum(line.startswith("pvebench_iops{") for line in page.splitlines()) > 0
    assert 'component="total"' in page
    assert api.cluster.vms == {}, "a VM is left"
    left = [
        row["volid"]
        for volumes in api.cluster.volumes_on.values()
        for name in STORAGES
        for row in volumes.listed(name, "", None)
    ]
    assert all(":iso/" in volid for volid in left), left
    print(f"{part.pack.name}: {time.monotonic() - begun:.0f} s, {len(api.calls) - calls} API calls")


UPGRADED = "99.0.0"
CORE_PACK = """\
pack: heart
title: The core tier, short
tier: core
every: 1h
axes: {bus: [scsi], format: [raw], cache: [directsync]}
volume: {size: 32M}
measure: {ramp: 2s, runtime: 8s}
workloads:
  - fio: {rw: randwrite, bs: 4k, iodepth: 8}
"""


def upgrade(api: RunningApi, directory: Path, exporter: str) -> None:
    """Upgrade the node in mid-cycle: pending, then another environment and its burst."""
    address = f"127.0.0.1:{free_port()}"
    core = directory / "core.yaml"
    core.write_text(CORE_PACK, "utf-8")
    config = write_settings(
        directory,
        api,
        packs=[core, PARTS[0].pack],
        storages=STORAGES,
        more=f"listen: {address}",
        node_exporter=exporter,
        kvm="false",
        cpu="max",
    )
    state = directory / "state-upgrade"
    given = ["--config", str(config), "--state", str(state), "--scale", "0.25"]
    with subprocess.Popen(pvebench("serve", *given)) as process, ended_on_error(process):
        wait_for(address, "pvebench_iops{", "randread-4k-qd32")
        api.cluster.all_nodes["pve1"].installed["pve-qemu-kvm"] = f"{UPGRADED}-1"
        print("upgraded", flush=True)
        wait_for(address, "pvebench_environment_pending_info{", f'version="{UPGRADED}-1"')
        print("pending", flush=True)
        wait_for(address, "pvebench_environment_change_info{", f'after="{UPGRADED}"')
        print("another environment", flush=True)
        wait_for(address, "pvebench_runs_total{", 'randwrite-4k-qd8"', at_least=1 + ROUNDS)
        print("its burst", flush=True)
        subprocess.run(pvebench("abort", *given[:4]), check=True)
        process.wait(timeout=120)
    assert api.cluster.vms == {}, "a VM is left"


@contextmanager
def ended_on_error(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the service where what was waited for did not come: by itself it measures for ever."""
    try:
        yield
    except BaseException:
        process.terminate()
        raise


def wait_for(address: str, start: str, part: str, *, at_least: float = 0.0) -> None:
    """Wait until the page has such a line, with a value not below `at_least`."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            page = http_client.get(f"http://{address}/metrics").text
        except httpx2.HTTPError:
            continue
        lines = [line for line in page.splitlines() if line.startswith(start) and part in line]
        if lines and max(float(line.rpartition(" ")[2]) for line in lines) >= at_least:
            return
    raise AssertionError(f"no {start} {part} >= {at_least}")


def main(more: Sequence[str]) -> None:
    with node_exporter() as exporter:
        for major in (9, 8):
            with tempfile.TemporaryDirectory(prefix="pvebench-e2e-") as name:
                directory = Path(name)
                cluster = Cluster(directory / "cluster", major=major, make_machine=real)
                with running_api(cluster) as api:
                    for part in PARTS:
                        print(f"== Proxmox VE {major}: {part.pack.name}", flush=True)
                        measure(part, api, directory, exporter, more)
                    print(f"== Proxmox VE {major}: an upgrade in mid-cycle", flush=True)
                    upgrade(api, directory, exporter)


if __name__ == "__main__":
    main(sys.argv[1:])
