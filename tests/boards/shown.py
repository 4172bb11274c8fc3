"""A test instance of Grafana with the committed dashboards, on a store of the first day."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pvebench.log import log
from testing.first_day import young
from testing.packs import ROOT
from testing.prometheus import free_port, wait_until_ready

sys.path += [str(ROOT / "scripts" / "stack"), str(ROOT / "grafana")]
from services import Layout, grafana  # as `make demo` starts it

from builder.promql import RECENT

DOWN = "exporter-down"
"""Store of the first day, whose exporter has stopped."""
STEP_SECONDS = 600
"""Two steps of a day in a wide panel, in one of which the scheduler's timeline has a bar."""


@contextmanager
def on_a_young_store(name: str) -> Iterator[str]:
    """Yield the address of a Grafana that shows the store of that name."""
    # Omit the log of the simulated runs.
    log.configure(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        stopped = {"before_stop": lambda _: time.sleep(STEP_SECONDS)} if name == DOWN else {}
        of = "first-day" if name == DOWN else name
        with (
            young(state, of, past=True, **stopped) as server,
            running(state, server.address) as address,
        ):
            if name == DOWN:
                # Before that, the dashboards take the failed scrapes for a short interruption.
                server.wait_for(f"absent({RECENT})")
            yield address


@contextmanager
def running(state: Path, prometheus: str) -> Iterator[str]:
    """Run Grafana with a Prometheus; yield its address."""
    options = argparse.Namespace(
        prometheus_port=int(prometheus.rpartition(":")[2]), grafana_port=free_port()
    )
    service = grafana(options, Layout(state))
    if service is None:
        sys.exit("NOTHING WAS CHECKED: Grafana not found in PATH")
    address = f"http://127.0.0.1:{service.port}"
    with (state / "grafana.log").open("w") as log:
        process = subprocess.Popen(
            service.command, env=os.environ | service.environment, stdout=log, stderr=log
        )
    try:
        wait_until_ready(f"{address}/api/health")
        yield address
    finally:
        process.terminate()
        process.wait()
