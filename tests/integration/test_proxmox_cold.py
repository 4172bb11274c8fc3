"""That a run in a cached mode begins cold over the API alone: on a real kernel, with a real QEMU.

Witnesses: util-linux's fincore tells what of the volume's file is in this kernel's page cache when
the tool is about to start; /proc/PID/io of QEMU tells what really came from the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pve.cluster import Cluster
from pve.real import RealMachine, direct
from pve.server import running_api
from pve.site import Site as Place
from pve.site import scenario
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.node_exporter import NodeExporterProbe
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Cache, HostCache
from pvebench.model.ports import Site
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.model.volume import Volume
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from testing.packs import Recorder, tool_workload
from testing.real_outcomes import cached_bytes

MACHINE = Machine(memory_bytes=768 * MIB, cpus=1)
SIZE = 64 * MIB
WHOLE = tool_workload("dd", {"rw": "read", "bs": "1M", "direct": True})


@pytest.fixture
def place(tmp_path: Path, image: GuestImage) -> Iterator[Place]:
    with running_api(Cluster(tmp_path / "cluster", major=9, make_machine=direct(image))) as api:
        found = Place(api, tmp_path, 9, image=image, clock=SystemClock())
        found.node = found.driver("pve1", kvm=False, cpu="max")
        yield found
        found.node.shutdown()
        found.close()


def from_device(place: Place) -> int:
    machine = place.cluster.vms[place.node.vmid].machine
    assert isinstance(machine, RealMachine)
    lines = Path(f"/proc/{machine.pid}/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def begin(place: Place, treated: HostCache) -> list[tuple[int, int]]:
    """Read the whole volume twice; return of each run what was cached before, and really read."""
    seen: list[tuple[int, int]] = []
    found = place.node.drop_caches

    def look(volume: Volume) -> int | None:
        seen.append((cached_bytes(place.cluster.volumes.path(volume.volid)), from_device(place)))
        return found(volume)

    place.node.drop_caches = look  # type: ignore[method-assign] # asked when the tool is to start
    plain = scenario(Bus.SCSI, cache=Cache.WRITEBACK, size=SIZE)
    wanted = replace(plain, machine=MACHINE, host_cache=treated)
    site = Site(
        node="pve1", hypervisor=place.node, probe=NodeExporterProbe(""), clock=SystemClock()
    )
    runner = Runner(site, Recorder())
    result = []
    for _ in range(2):
        run = runner.run(Case(scenario=wanted, workload=WHOLE), cycle="c", conduct=Conduct())
        assert run.outcome.good, run.reason
        cached, before = seen[-1]
        result.append((cached, from_device(place) - before))
    return result


def test_each_run_of_a_cached_mode_begins_with_nothing_of_the_volume_in_memory(
    place: Place,
) -> None:
    for cached, read in begin(place, HostCache.REWRITTEN):
        assert cached < SIZE * 0.01
        assert read > SIZE * 0.95


def test_without_it_the_hosts_memory_would_be_measured(place: Place) -> None:
    """What `warm` means: the reason for all this, and that the witnesses see it."""
    for cached, read in begin(place, HostCache.WARM):
        assert cached > SIZE * 0.9
        assert read < SIZE * 0.1
