"""Everything that can go wrong, at random moments: nothing is left, nobody else's VM is touched."""

from __future__ import annotations

import copy
import random

import pytest

from pve.machines import CheapMachine
from pve.site import MACHINE, Site, scenario
from pve.vms import Vm
from pvebench.errors import PvebenchError
from pvebench.model.disk import Bus, Cache, Format
from pvebench.model.scenario import Scenario
from pvebench.model.volume import Plug

STEPS = 12
SCENARIOS = (
    scenario(),
    scenario(Bus.VIRTIO, cache=Cache.WRITEBACK, iothread=True),
    scenario(kind=Format.QCOW2),
    scenario(Bus.SATA, Format.VMDK),
    scenario(storage="share"),
)
TASKS = ("qmconfig", "qmstart", "qmstop", "qmcreate", "qmdestroy", "imgcopy")


def disturb(site: Site, rng: random.Random) -> None:
    """Switch one fault on, or off again."""
    method = rng.choice(("GET", "GET", "POST", "POST", "PUT", "DELETE"))
    kind = rng.choice(
        (
            "drop_before",
            "drop_after",
            "status",
            "truncate",
            "task",
            "hung",
            "node",
            "agent",
            "stopped",
            "lock",
        )
    )
    vm = site.cluster.vms.get(site.node.vmid)
    machine = vm.machine if vm else None
    match kind:
        case "task":
            site.cluster.tasks.doomed[rng.choice(TASKS)] = "no luck today"
        case "node":
            node = site.cluster.all_nodes["pve1"]
            node.online = not node.online
        case "hung" if isinstance(machine, CheapMachine):
            machine.hung = True
        case "agent" if isinstance(machine, CheapMachine):
            machine.agent_dead = True
        case "stopped" if machine is not None:
            machine.stop()
        case "lock" if vm is not None:
            vm.config["lock"] = "backup"
        case "drop_before" | "drop_after" | "truncate":
            site.faults.add(kind, method, ".*", times=rng.randint(1, 3))
        case _:
            status = rng.choice((500, 502, 595, 596, 599))
            site.faults.add("status", method, ".*", times=rng.randint(1, 5), status=status)


def calm(site: Site) -> None:
    """End every fault, as an admin would by and by."""
    site.faults.active.clear()
    site.cluster.tasks.doomed.clear()
    site.cluster.all_nodes["pve1"].online = True
    site.cluster.idle()
    for vm in site.cluster.vms.values():
        if vm.vmid == site.node.vmid:
            vm.config.pop("lock", None)


def switch(site: Site, wanted: Scenario) -> None:
    """What the runner does for one case."""
    node = site.node
    node.detach()
    volume, _ = node.volume(wanted)
    node.boot(MACHINE, Plug(volume, wanted.disk) if wanted.disk.cold else None)
    node.attach(volume, wanted.disk)
    node.counters()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_nothing_is_left_and_nothing_foreign_is_touched(
    site: Site, seed: int
) -> None:
    rng = random.Random(seed)
    cluster = site.cluster
    machine = CheapMachine(cluster.directory / "theirs", cluster.volumes, qemu=lambda: "9.0.0")
    theirs = Vm(9001, "pve1", machine, cluster.volumes, config={"name": "pvebench-pve1"})
    cluster.vms[9001] = theirs
    cluster.pools["bench"].add(9001)
    before = copy.deepcopy(theirs.config)
    failed = worked = 0
    for _ in range(STEPS):
        if rng.random() < 0.6:
            disturb(site, rng)
        try:
            switch(site, rng.choice(SCENARIOS))
            worked += 1
        except PvebenchError:
            failed += 1
            if rng.random() < 0.7:
                calm(site)
    calm(site)
    switch(site, SCENARIOS[0])  # and then all is well again
    try:
        site.node.shutdown()
    finally:
        lines = site.undo()
    assert set(cluster.vms) == {9001}, lines
    assert theirs.config == before
    assert site.store.journal.pending() == []
    for volumes in cluster.volumes_on.values():
        assert [v for vmid in range(9000, 9010) for v in volumes.owned(vmid)] == []
    print(f"seed {seed}: {worked} worked, {failed} failed, {len(site.faults.hits)} faults hit")
