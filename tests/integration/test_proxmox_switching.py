"""The driver, over HTTPS, with real QEMU and the real guest underneath."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pve.cluster import Cluster
from pve.real import direct
from pve.server import running_api
from pve.site import Site, scenario
from pvebench.drivers.clocks import SystemClock
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Aio, Bus, Cache, Format
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, Plug
from pvebench.runner.measure import mismatch

MACHINE = Machine(memory_bytes=768 * MIB, cpus=1)


@pytest.fixture(scope="module")
def site(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("pve")
    with running_api(Cluster(directory / "cluster", major=9, make_machine=direct(image))) as api:
        found = Site(api, directory, 9, image=image, clock=SystemClock())
        yield found
        found.node.shutdown()
        found.close()


def attach(site: Site, wanted: Scenario) -> Attachment:
    node = site.node
    node.detach()
    volume, _ = node.volume(wanted)
    node.boot(MACHINE, Plug(volume, wanted.disk) if wanted.disk.cold else None)
    return node.attach(volume, wanted.disk)


@pytest.mark.parametrize(
    "wanted",
    [
        scenario(Bus.SATA, Format.VMDK, Cache.WRITETHROUGH),
        scenario(),
        scenario(Bus.VIRTIO, cache=Cache.WRITEBACK, iothread=True),
        scenario(cache=Cache.DIRECTSYNC, aio=Aio.NATIVE, iothread=True, discard=True, ssd=True),
        scenario(kind=Format.QCOW2, iops=500, queues=2),
    ],
    ids=lambda wanted: wanted.slug,
)
def test_the_guest_has_the_disk_that_was_asked_for(site: Site, wanted: Scenario) -> None:
    attached = attach(site, wanted)
    assert mismatch(wanted, attached) == ""
    seen = json.loads(attached.raw)["guest"]
    assert seen["rotational"] == str(int(not wanted.disk.ssd))


def test_what_the_guest_writes_is_counted_at_qemu(site: Site) -> None:
    attached = attach(site, scenario())
    before = site.node.counters()
    command = f"dd if=/dev/urandom of={attached.device} bs=1M count=8 oflag=direct"
    assert site.node.boot(MACHINE).run(["/bin/sh", "-c", command]).exit_code == 0
    assert site.node.counters().write_bytes - before.write_bytes == 8 * MIB


def test_the_agent_carries_bytes_and_finds_missing_programs(site: Site) -> None:
    guest = site.node.boot(MACHINE)
    content = bytes(range(256)) * 2000
    guest.write_file("/run/pvebench/bytes", content)
    assert guest.read_file("/run/pvebench/bytes") == content


def test_a_package_upgrade_waits_for_the_restart(site: Site) -> None:
    running = site.node.environment().facts["qemu"]
    site.cluster.all_nodes["pve1"].installed["pve-qemu-kvm"] = "99.0.0-1"
    assert site.node.upkeep().pending == {"qemu_package": "99.0.0-1"}
    waiting = site.node.environment()
    assert waiting.facts["qemu"] == running
    assert "qemu_package" not in waiting.facts
    site.node.power_off()
    site.node.boot(MACHINE)
    assert site.node.environment().facts["qemu"] == "99.0.0"
