"""Disks in and out of a VM, over HTTPS."""

from __future__ import annotations

import pytest

from pve.site import MACHINE, Site, scenario
from pvebench.errors import DriverError, NoSpace, SwitchFailed
from pvebench.model.disk import Aio, Bus, Cache, Format, ScsiHw
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import GIB, MIB
from pvebench.model.volume import Attachment, Plug
from pvebench.runner.measure import mismatch


def attach(site: Site, wanted: Scenario) -> Attachment:
    """Do as the runner does: take out, find the volume, boot, plug."""
    node = site.node
    node.detach()
    volume, _ = node.volume(wanted)
    node.boot(wanted.machine, Plug(volume, wanted.disk) if wanted.disk.cold else None)
    return node.attach(volume, wanted.disk)


@pytest.mark.parametrize(
    "wanted",
    [
        scenario(),
        scenario(Bus.VIRTIO, cache=Cache.WRITEBACK, aio=Aio.THREADS, iothread=True),
        scenario(cache=Cache.DIRECTSYNC, aio=Aio.NATIVE, iothread=True, discard=True, ssd=True),
        scenario(queues=2, iops=500, mbps=10, detect_zeroes=True),
        scenario(kind=Format.QCOW2, cache=Cache.UNSAFE),
        scenario(scsihw=ScsiHw.SHARED),
        scenario(scsihw=ScsiHw.LSI),
        scenario(Bus.SATA, cache=Cache.WRITETHROUGH, ssd=True),
        scenario(Bus.IDE, Format.VMDK),
        scenario(storage="thin"),
    ],
    ids=lambda wanted: wanted.slug,
)
def test_a_disk_has_every_option_that_was_asked_for(both: Site, wanted: Scenario) -> None:
    assert mismatch(wanted, attach(both, wanted)) == ""


def test_one_volume_moves_between_buses_and_caches(site: Site) -> None:
    attach(site, scenario(Bus.SCSI))
    first = set(site.cluster.volumes.owned(site.node.vmid))
    for wanted in (scenario(Bus.VIRTIO), scenario(Bus.SATA), scenario(cache=Cache.WRITEBACK)):
        assert mismatch(wanted, attach(site, wanted)) == ""
    assert set(site.cluster.volumes.owned(site.node.vmid)) == first


def test_a_live_switch_needs_no_restart(site: Site) -> None:
    attach(site, scenario(Bus.SCSI))
    guest = site.node.boot(MACHINE)
    attach(site, scenario(Bus.VIRTIO, cache=Cache.WRITEBACK))
    assert site.node.boot(MACHINE) is guest
    starts = [call for call in site.api.calls if call.endswith("/status/start")]
    assert len(starts) == 1


def test_no_call_ever_takes_a_disk_out_and_puts_it_in(site: Site) -> None:
    seen = []
    original = site.cluster.put_nodes_qemu_config

    def watch(who: str, **params: str) -> None:
        seen.append(params)
        original(who, **params)

    site.cluster.put_nodes_qemu_config = watch  # type: ignore[method-assign] # listens in
    for wanted in (scenario(Bus.SCSI), scenario(Bus.VIRTIO), scenario(Bus.IDE)):
        attach(site, wanted)
    plugs = [p for p in seen if any(key.startswith(("scsi1", "virtio", "ide0")) for key in p)]
    assert len(plugs) == 3
    assert not [p for p in plugs if "delete" in p]


def test_detaching_leaves_the_volume_unused_and_nothing_pending(site: Site) -> None:
    attach(site, scenario())
    site.node.detach()
    vm = site.cluster.vms[site.node.vmid]
    assert not vm.pending
    assert not vm.dropped
    assert [key for key in vm.config if key.startswith("unused")] == ["unused0"]
    assert not [slot for slot in site.machine.slots if slot != "ide2"]


def test_another_machine_means_a_restart(site: Site) -> None:
    guest = site.node.boot(MACHINE)
    bigger = Machine(memory_bytes=1024 * MIB, cpus=2)
    assert site.node.boot(bigger) is not guest
    config = site.cluster.vms[site.node.vmid].config
    assert (str(config["memory"]), str(config["cores"])) == ("1024", "2")


@pytest.mark.parametrize(("cpus", "room"), [(1, 2), (2, 2), (4, 4)])
def test_without_kvm_a_vm_has_room_for_two_cpus_but_those_that_were_asked_for(
    both: Site, cpus: int, room: int
) -> None:
    """`config_to_command` in src/PVE/QemuServer.pm (qemu-server 8.3 to 9.2) makes of it `-smp
    VCPUS,sockets=1,cores=CORES,maxcpus=CORES`; the API takes `vcpus` without `hotplug: cpu`."""
    both.node = both.driver("pve1", kvm=False, cpu="max")
    both.node.boot(Machine(memory_bytes=768 * MIB, cpus=cpus))
    config = both.cluster.vms[both.node.vmid].config
    assert (str(config["cores"]), str(config["vcpus"])) == (str(room), str(cpus))


def test_with_kvm_nothing_is_said_of_vcpus(both: Site) -> None:
    both.node.boot(MACHINE)
    config = both.cluster.vms[both.node.vmid].config
    assert str(config["cores"]) == "1"
    assert "vcpus" not in config


def test_a_volume_of_another_size_replaces_the_old_one(site: Site) -> None:
    attach(site, scenario(size=64 * MIB))
    attached = attach(site, scenario(size=128 * MIB))
    assert attached.effective["size_bytes"] == str(128 * MIB)
    assert len(site.cluster.volumes.owned(site.node.vmid)) == 1


def test_a_full_storage_is_reported_before_anything_is_made(site: Site) -> None:
    site.node.boot(MACHINE)
    with pytest.raises(
        NoSpace, match=r"200\.0 GiB needed, .* free on pve1 \(256\.0 MiB must stay free\)"
    ):
        site.node.volume(scenario(size=200 * GIB))
    assert not site.cluster.volumes.owned(site.node.vmid)


def test_options_that_qemu_refuses_leave_nothing_pending(both: Site) -> None:
    wanted = scenario(cache=Cache.WRITEBACK, aio=Aio.NATIVE)
    with pytest.raises(SwitchFailed, match=r"requires cache\.direct=on"):
        attach(both, wanted)
    vm = both.cluster.vms[both.node.vmid]
    assert not vm.pending
    assert mismatch(scenario(), attach(both, scenario())) == ""


def test_a_cold_disk_that_qemu_refuses_is_reported_with_its_words(site: Site) -> None:
    wanted = scenario(Bus.SATA, cache=Cache.WRITEBACK, aio=Aio.NATIVE)
    with pytest.raises(SwitchFailed, match=r"requires cache\.direct=on"):
        attach(site, wanted)
    assert mismatch(scenario(), attach(site, scenario())) == ""


def test_after_a_hung_unplug_the_vm_is_restarted_and_another_slot_used(both: Site) -> None:
    attach(both, scenario())
    both.machine.hung = True
    with pytest.raises(
        SwitchFailed, match="could not detach scsi1: VM 9000: unplugging scsi1 failed"
    ) as failed:
        both.node.detach()
    inner = failed.value.__cause__
    assert isinstance(inner, DriverError)
    # The inner error's cause is this error's; both parts are there once.
    assert str(failed.value).startswith(f"could not detach scsi1: {inner}")
    assert str(failed.value).count("likely cause: ") == str(failed.value).count("next step: ") == 1
    assert mismatch(scenario(), attach(both, scenario())) == ""
    vm = both.cluster.vms[both.node.vmid]
    assert [key for key in vm.config if key.startswith("scsi") and key != "scsihw"] == ["scsi2"]
    assert not vm.pending
    assert not vm.dropped


def test_what_is_only_pending_is_never_taken_for_done(site: Site) -> None:
    site.node.boot(MACHINE)
    site.cluster.vms[site.node.vmid].config["hotplug"] = "0"
    with pytest.raises(SwitchFailed, match="only pending"):
        attach(site, scenario())


def test_counters_are_those_of_the_slot(site: Site) -> None:
    attach(site, scenario())
    assert site.node.counters().operations == 0
    site.node.detach()
    with pytest.raises(SwitchFailed, match="no test disk"):
        site.node.counters()


def test_shutdown_leaves_nothing_but_the_image(both: Site) -> None:
    attach(both, scenario())
    attach(both, scenario(Bus.SATA, Format.QCOW2))
    both.node.shutdown()
    assert not both.cluster.vms
    assert not both.cluster.pools["bench"]
    assert not both.store.journal.pending()
    assert [row["content"] for row in both.cluster.volumes.listed("local", "", None)] == ["iso"]
