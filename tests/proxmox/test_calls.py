"""What a case costs of a node's API: a switch of the disk while the VM runs, and a run.

`idle` stands for the tool, for nothing here makes I/O: a tool that does costs the question after
its first I/O besides, two calls or more. bench/proxmox.py counts with real VMs and fio.
"""

from __future__ import annotations

import pytest

from pve.site import Site, scenario
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard
from pvebench.drivers.proxmox.node.node_state import NodeProbe
from pvebench.model.disk import Bus, Cache
from pvebench.model.ports import Site as Place
from pvebench.model.ports import Traffic
from pvebench.model.run import Outcome
from pvebench.model.scenario import Scenario
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from testing.packs import tool_workload

MAX_CALLS = 21
"""Version 9 makes one less, without the monitor. Waiting for the first I/O costs two or more."""
IDLE = tool_workload("idle", {}, ramp_seconds=1, runtime_seconds=1)


class Bench:
    """A node with its guard and a runner, as a worker has them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        claims = Claims(site.connect(), "pve1", lambda: site.node.vm, site.clock)
        self.guard = NodeGuard(
            site.connect(),
            "pve1",
            storages=site.node._storages,
            claims=claims,
            now=site.clock.monotonic,
        )
        place = Place(
            node="pve1",
            hypervisor=site.node,
            probe=NodeProbe(site.node.averages, None),
            clock=site.clock,
            poll_seconds=0.3,
            traffic=Traffic(),  # it has an API, as cluster.py says of a node
        )
        self.runner = Runner(place, lambda *_: None)

    def calls(self, wanted: Scenario) -> list[str]:
        """Run a case of `wanted`, whose volume is filled; return what was asked for it."""
        before = len(self.site.api.calls)
        case = Case(scenario=wanted, workload=IDLE)
        assert self.guard.enter(case) is None
        self.site.node.upkeep()
        run = self.runner.run(case, cycle="c", conduct=Conduct())
        assert run.outcome is Outcome.OK, run.evidence
        assert self.guard.leave(case) == ""
        return self.site.api.calls[before:]


@pytest.fixture
def bench(both: Site) -> Bench:
    both.clock = SystemClock()  # the tool sleeps in this machine's seconds
    both.node = both.driver("pve1")
    made = Bench(both)
    wanted = scenario()
    volume, _ = both.node.volume(wanted)
    made.runner._setup.contents.wrote(volume, wanted.layout)
    made.calls(wanted)
    return made


def test_a_live_switch_and_a_run_cost_few_calls(bench: Bench) -> None:
    found = bench.calls(scenario(Bus.VIRTIO, cache=Cache.DIRECTSYNC))
    assert len(found) <= MAX_CALLS, "\n".join(found)


def test_a_run_on_a_disk_that_is_there_costs_fewer(bench: Bench) -> None:
    found = bench.calls(scenario())
    assert len(found) <= MAX_CALLS - 7, "\n".join(found)
