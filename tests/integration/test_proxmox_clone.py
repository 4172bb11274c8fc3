"""A run in a clone of a user's VM, on a real QEMU: the guest image poses as the user's system.

Its own disk, which pvebench never plugs in or out, is beside the test disk through all of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pve.cluster import Cluster
from pve.real import direct
from pve.server import running_api
from pve.site import Site as Place
from pve.site import scenario
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.node_exporter import NodeExporterProbe
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus
from pvebench.model.ports import Site
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from testing.packs import Recorder, tool_workload

TEMPLATE = 700
MACHINE = Machine(memory_bytes=768 * MIB, cpus=1, template=TEMPLATE)
WHOLE = tool_workload("dd", {"rw": "read", "bs": "1M", "direct": True})


@pytest.fixture
def place(tmp_path: Path, image: GuestImage) -> Iterator[Place]:
    with running_api(Cluster(tmp_path / "cluster", major=9, make_machine=direct(image))) as api:
        site = Place(api, tmp_path, 9, image=image, clock=SystemClock())
        site.node = site.driver("pve1", kvm=False, cpu="max")
        yield site
        site.close()


def test_a_case_is_measured_in_a_clone_that_ends_and_the_original_stays(place: Place) -> None:
    cluster = place.cluster
    iso = cluster.volumes.upload("local", "system.iso", place.image.iso.read_bytes())
    vm = cluster.make_template(
        TEMPLATE, sata0="local:8", ide2=f"{iso},media=cdrom", agent="1", boot="order=ide2;sata0"
    )
    cluster.access.roles["StorageBenchTemplate"] = {"VM.Audit", "VM.Clone"}
    for subject in ("pvebench@pve", "pvebench@pve!bench"):
        cluster.access.acl.append((f"/vms/{TEMPLATE}", subject, "StorageBenchTemplate"))
    before = copy.deepcopy(vm.config)
    site = Site(
        node="pve1", hypervisor=place.node, probe=NodeExporterProbe(""), clock=SystemClock()
    )
    wanted = replace(scenario(Bus.SCSI, size=64 * MIB), machine=MACHINE)
    run = Runner(site, Recorder()).run(
        Case(scenario=wanted, workload=WHOLE), cycle="c", conduct=Conduct()
    )
    assert run.outcome.good, run.reason
    guest = place.node.boot(MACHINE)
    disks = guest.run(["/bin/sh", "-c", "ls /sys/block"]).stdout.decode().split()
    assert {"sda", "sdb"} <= set(disks)
    place.node.shutdown()
    assert cluster.vms.keys() == {TEMPLATE}
    assert vm.config == before
    assert cluster.volumes.owned(9000) == []
