"""What is known of a node's load, with node_exporter and without."""

from __future__ import annotations

import pytest

from pve.site import MACHINE, Site
from pvebench.drivers.proxmox.node.node_state import NodeProbe, coarse_cpu
from pvebench.model.ports import HostSnapshot
from pvebench.model.volume import BlockCounters
from pvebench.runner.window import Mark, window_samples

NOTHING = BlockCounters(
    read_operations=0, write_operations=0, flush_operations=0, read_bytes=0, write_bytes=0
)


class Exporter:
    """A node_exporter that counts."""

    def __init__(self) -> None:
        self.count = 0.0

    def snapshot(self) -> HostSnapshot:
        self.count += 1
        return HostSnapshot(monotonic=self.count, cpu_seconds={"total": 2 * self.count})


def parts(probe: NodeProbe) -> dict[tuple[str, str], float]:
    start, end = (Mark(probe.snapshot(), NOTHING) for _ in range(2))
    return {
        (one.metric, one.part): one.value
        for one in window_samples(start, end)
        if one.metric in ("host_cpu", "host_pressure")
    }


def test_version_9_reports_the_vms_own_pressure_and_8_does_not(both: Site) -> None:
    both.node.boot(MACHINE)
    found = parts(NodeProbe(both.node.averages, Exporter().snapshot))
    assert found["host_cpu", "total"] == 2.0
    assert found.get(("host_pressure", "vm_io_some")) == (
        0.025 if both.cluster.major == 9 else None
    )


def test_without_node_exporter_the_apis_cpu_is_marked_coarse(site: Site) -> None:
    site.node.boot(MACHINE)
    found = parts(NodeProbe(site.node.averages, None))
    assert found["host_cpu", "total_coarse"] == pytest.approx(0.2)
    assert ("host_cpu", "total") not in found


def test_a_process_of_the_server_that_was_never_asked_before_reports_no_zero() -> None:
    assert coarse_cpu({"cpu": 0, "cpuinfo": {"cpus": 4}}) == {}


def test_an_api_that_does_not_answer_leaves_it_absent(site: Site) -> None:
    site.node.boot(MACHINE)
    site.faults.add("status", "GET", "/status/current", times=9, status=595)
    assert site.node.averages(cpu=True) == {}
