"""CPU usage of pvebench during a run, scraped every 15 s, compared with node_exporter.

Prints the CPU usage of the pvebench process (without QEMU) in a measured window and over a whole
run, including parsing, storing and rendering the metrics. Target: below 1% of one core.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from testing import http_client

SCRAPE_SECONDS, SCRAPES = 15, 4
WINDOW_SECONDS = SCRAPE_SECONDS * SCRAPES
PACK = f"""\
pack: quiet
title: Two long runs
every: 1m
axes: {{bus: [virtio], format: [raw], cache: [none]}}
volume: {{size: 256M}}
measure: {{ramp: 2s, runtime: {WINDOW_SECONDS + 10}s}}
workloads:
  - fio: {{rw: randread, bs: 4k, iodepth: 8}}
  - fio: {{rw: randwrite, bs: 4k, iodepth: 8}}
"""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def now_of(address: str) -> dict[str, Any]:
    """Return the status of the only worker."""
    answer: dict[str, Any] = http_client.get(f"http://{address}/api/v1/status").json()
    return dict(answer["workers"][0])


def wait_for_window(address: str, *, not_case: str = "") -> str:
    """Wait for the measured window of a case; return its slug."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            worker = now_of(address)
        except httpx2.TransportError:
            worker = {}
        case = (worker.get("case") or {}).get("case", "")
        if worker.get("phase") == "measure" and case != not_case:
            return str(case)
        time.sleep(0.5)
    sys.exit("no run began to measure within 240 s")


def scraped_window(pids: dict[str, int], addresses: list[str]) -> dict[str, float]:
    """Scrape for a whole window; return the CPU share of one core of each process."""
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    begun = time.monotonic()
    for number in range(SCRAPES):
        for address in addresses:
            http_client.get(f"http://{address}/metrics", headers={"accept-encoding": "gzip"})
        time.sleep(max(0.0, begun + (number + 1) * SCRAPE_SECONDS - time.monotonic()))
    spent = time.monotonic() - begun
    return {name: (cpu_seconds(pid) - before[name]) / spent for name, pid in pids.items()}


def main() -> None:
    """Start both exporters, measure and print."""
    with tempfile.TemporaryDirectory() as name:
        pack = Path(name) / "quiet.yaml"
        pack.write_text(PACK, "utf-8")
        ours, other = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        command = [
            sys.executable,
            "-m",
            "pvebench",
            "serve",
            "--state",
            f"{name}/state",
            "--pack",
            str(pack),
            "--listen",
            ours,
        ]
        node = ["prometheus-node-exporter", f"--web.listen-address={other}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as served, subprocess.Popen(node, **quiet) as peer:
            try:
                case = wait_for_window(ours)
                whole, begun = cpu_seconds(served.pid), time.monotonic()
                pids = {"pvebench": served.pid, "node_exporter": peer.pid}
                shares = scraped_window(pids, [ours, other])
                wait_for_window(ours, not_case=case)
                spent = cpu_seconds(served.pid) - whole
                run = spent / (time.monotonic() - begun)
            finally:
                peer.terminate()
                served.terminate()
    print(f"during measurement: {shares['pvebench']:.2%} of one core (target: below 1%)")
    print(f"node_exporter, same scrape interval: {shares['node_exporter']:.2%}")
    print(f"ratio {shares['pvebench'] / max(shares['node_exporter'], 1e-4):.2f}")
    print(f"whole run, including end and switch: {run:.2%}, {spent:.2f} s of CPU")


if __name__ == "__main__":
    main()
