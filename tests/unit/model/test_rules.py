"""Which options go together."""

from __future__ import annotations

import dataclasses

import pytest

from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, storage_kind
from pvebench.drivers.storages import KINDS
from pvebench.model.disk import Aio, Bus, Cache, Disk, Format, Preallocation, ScsiHw
from pvebench.model.rules import why_not, why_not_run
from pvebench.model.scenario import Filesystem, Layout, Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Direction, Workload
from testing.packs import tool_workload

pytestmark = pytest.mark.lab  # the rules of its tools and storages

PLAIN = Scenario(
    node="lab",
    storage="local",
    disk=Disk(bus=Bus.SCSI, format=Format.QCOW2, cache=Cache.NONE),
    machine=Machine(memory_bytes=768 * MIB, cpus=1),
    volume_bytes=512 * MIB,
)


def with_disk(**options: object) -> Scenario:
    return dataclasses.replace(PLAIN, disk=dataclasses.replace(PLAIN.disk, **options))  # type: ignore[arg-type] # options by name


def with_layout(**options: object) -> Scenario:
    return dataclasses.replace(PLAIN, layout=Layout(**options))  # type: ignore[arg-type] # options by name


@pytest.mark.parametrize(
    ("scenario", "kind", "reason"),
    [
        (with_disk(aio=Aio.NATIVE, cache=Cache.WRITEBACK), "dir", "needs O_DIRECT"),
        (with_disk(bus=Bus.VIRTIO, scsihw=ScsiHw.LSI), "dir", "scsihw applies to bus scsi"),
        (with_disk(iothread=True, scsihw=ScsiHw.SHARED), "dir", "I/O thread works only"),
        (with_disk(iothread=True, bus=Bus.SATA), "dir", "I/O thread works only"),
        (with_disk(queues=4, bus=Bus.VIRTIO), "dir", "queues work only"),
        (with_disk(ssd=True, bus=Bus.VIRTIO), "dir", "no ssd flag"),
        (with_disk(format=Format.VMDK), "loop", "cannot hold this format"),
        (with_disk(format=Format.RAW, backing=True), "dir", "options of qcow2"),
        (with_disk(extended_l2=True, cluster_size=8192), "dir", "16k or more"),
        (with_disk(format=Format.VMDK, discard=True), "dir", "vmdk cannot discard"),
        (with_disk(format=Format.RAW, preallocation=Preallocation.OFF), "dir", "no metadata"),
        (
            with_disk(preallocation=Preallocation.FULL),
            "loop",
            "volumes on this storage are not files",
        ),
        (with_disk(backing=True, preallocation=Preallocation.FULL), "dir", "never preallocated"),
        (with_disk(aio=Aio.THREADS), "nfs", "QEMU accesses this storage over the network"),
        (with_disk(read_ahead=0), "dir", "need a device that only pvebench uses"),
        (with_disk(format=Format.RAW, scheduler="none"), "nbd", "only pvebench uses"),
        (with_disk(drive_cache=False), "loop", "has no drive with a cache"),
        (with_layout(mount_options="noatime"), "dir", "need a filesystem"),
        (with_layout(filesystem=Filesystem.EXT4, file_bytes=385 * MIB), "dir", "three quarters"),
        (
            dataclasses.replace(
                with_layout(filesystem=Filesystem.XFS, file_bytes=MIB), volume_bytes=128 * MIB
            ),
            "dir",
            "needs a volume of 320M",
        ),
    ],
)
def test_a_combination_that_cannot_be_is_left_out_with_its_reason(
    scenario: Scenario, kind: str, reason: str
) -> None:
    assert reason in (why_not(scenario, KINDS[kind].holds) or "nothing")


@pytest.mark.parametrize(
    "scenario",
    [
        PLAIN,
        with_disk(bus=Bus.SATA, ssd=True),
        with_disk(scsihw=ScsiHw.LSI),
        with_disk(queues=4, iothread=True),
        with_disk(cluster_size=16384, extended_l2=True, discard=True),
        with_disk(backing=True),
        with_layout(filesystem=Filesystem.XFS, mount_options="noatime", file_bytes=384 * MIB),
    ],
)
def test_a_combination_that_can_be_is_not_left_out(scenario: Scenario) -> None:
    assert why_not(scenario, KINDS["dir"].holds) is None


def test_trim_needs_discard_and_the_bare_device() -> None:
    trim = Workload(
        slug="trim-4k",
        tool="fio",
        title="",
        parameters={},
        directions=(Direction.TRIM,),
        ramp_seconds=0,
        runtime_seconds=1,
    )
    assert why_not_run(PLAIN, trim, KINDS["dir"].holds) == "trim needs discard on"
    assert why_not_run(with_disk(discard=True), trim, KINDS["dir"].holds) is None
    filed = dataclasses.replace(
        with_disk(discard=True), layout=Layout(filesystem=Filesystem.EXT4, file_bytes=MIB)
    )
    assert (
        why_not_run(filed, trim, KINDS["dir"].holds) == "trim needs a device without a filesystem"
    )


def tool(name: str, **options: object) -> Workload:
    return tool_workload(name, options, ramp_seconds=0, runtime_seconds=4)


def in_container(disk: Disk, **options: object) -> Disk:
    return dataclasses.replace(disk, bus=Bus.LXC, **options)  # type: ignore[arg-type] # by name


HOST = with_disk(bus=Bus.HOST, format=Format.RAW)
ON_EXT4 = with_layout(filesystem=Filesystem.EXT4, file_bytes=256 * MIB)
CONTAINER = dataclasses.replace(HOST, layout=ON_EXT4.layout, disk=in_container(HOST.disk))


@pytest.mark.parametrize(
    ("scenario", "workload", "kind", "reason"),
    [
        (PLAIN, tool("bonnie++", size="64M"), "dir", "needs a filesystem"),
        (ON_EXT4, tool("hdparm"), "dir", "hdparm needs a device without a filesystem"),
        (ON_EXT4, tool("bonnie++", size="129M"), "dir", "three quarters"),
        (HOST, tool("hdparm"), "dir", "volumes on this storage are files"),
        (HOST, tool("bonnie++", size="64M"), "loop", "this storage has none"),
        (HOST, tool("boot"), "dir", "boot needs a VM"),
        (HOST, tool("fio", rw="trim", bs="4k"), "dir", "a host case cannot trim"),
        (CONTAINER, tool("boot"), "dir", "boot needs a VM"),
        (CONTAINER, tool("idle"), "dir", "idle needs a VM"),
        (CONTAINER, tool("hdparm"), "loop", "hdparm needs a device without a filesystem"),
        (CONTAINER, tool("fio", rw="trim", bs="4k"), "dir", "a container case cannot trim"),
        (CONTAINER, tool("bonnie++", size="129M"), "dir", "three quarters"),
    ],
)
def test_a_workload_that_cannot_run_there_is_left_out_with_its_reason(
    scenario: Scenario, workload: Workload, kind: str, reason: str
) -> None:
    assert reason in (why_not_run(scenario, workload, KINDS[kind].holds) or "nothing")


def test_tools_run_where_they_find_what_they_need() -> None:
    folder = KINDS["dir"].holds
    assert why_not_run(PLAIN, tool("hdparm"), folder) is None
    assert why_not_run(ON_EXT4, tool("bonnie++", size="128M"), folder) is None
    assert why_not_run(HOST, tool("bonnie++", size="64M"), folder) is None
    assert why_not_run(HOST, tool("hdparm"), KINDS["block"].holds) is None


def test_the_hosts_row_takes_no_disk_options() -> None:
    assert why_not(HOST, KINDS["dir"].holds) is None
    iothread = dataclasses.replace(HOST.disk, iothread=True)
    with_option = dataclasses.replace(HOST, disk=iothread)
    assert "no disk options" in (why_not(with_option, KINDS["dir"].holds) or "")
    assert "QEMU accesses this storage over the network" in (
        why_not(HOST, KINDS["nfs"].holds) or ""
    )


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({}, "dir", "nothing"),
        ({"read_ahead": MIB}, "loop", "nothing"),
        ({"iothread": True}, "dir", "no disk options"),
        ({"format": Format.QCOW2}, "dir", "no disk options"),
        ({"cache": Cache.WRITEBACK}, "dir", "no disk options"),
        ({"discard": True}, "dir", "no disk options"),
        ({}, "nfs", "a container cannot mount it"),
        ({}, "rbd", "a container cannot mount it"),
        ({}, "block", "claimed block devices are not supported"),
    ],
)
def test_a_containers_row_takes_no_disk_options_and_what_can_be_mounted(
    options: dict[str, object], kind: str, reason: str
) -> None:
    requested = dataclasses.replace(CONTAINER, disk=in_container(CONTAINER.disk, **options))
    assert reason in (why_not(requested, KINDS[kind].holds) or "nothing")


def test_a_container_has_a_file_system_and_on_a_node_a_device_below_it() -> None:
    bare = dataclasses.replace(CONTAINER, layout=Layout())
    assert "a container case needs a filesystem" in (why_not(bare, KINDS["dir"].holds) or "")
    for name in STORAGE_TYPES:
        can = name in ("lvm", "lvmthin", "rbd")
        assert (why_not(CONTAINER, storage_kind(name)) is None) == can


def test_a_disk_is_a_vms_the_hosts_or_a_containers() -> None:
    for bus in Bus:
        disk = dataclasses.replace(PLAIN.disk, bus=bus)
        assert [disk.in_vm, disk.on_host, disk.in_container].count(True) == 1


def test_only_the_buses_without_hot_plug_and_what_is_no_vm_are_cold() -> None:
    cold = {
        (bus, hw)
        for bus in Bus
        for hw in ScsiHw
        if dataclasses.replace(PLAIN.disk, bus=bus, scsihw=hw).cold
    }
    assert cold == {
        *((bus, hw) for bus in (Bus.SATA, Bus.IDE, Bus.HOST, Bus.LXC) for hw in ScsiHw),
        (Bus.SCSI, ScsiHw.LSI),
    }


def test_a_slug_names_what_differs_and_a_volume_only_what_is_its_own() -> None:
    scenario = dataclasses.replace(
        with_disk(discard=True, cluster_size=131072),
        layout=Layout(filesystem=Filesystem.EXT4, mount_options="noatime"),
    )
    assert scenario.slug == (
        "local.scsi.qcow2.none.discard-1.cluster_size-128k.filesystem-ext4.mount_options-noatime"
    )
    assert scenario.volume == "local.qcow2.cluster_size-128k"


def test_the_fingerprint_does_not_change_with_options_that_are_at_their_default() -> None:
    """Written down on purpose: if this fails, everybody's histories end."""
    assert PLAIN.fingerprint == "e7f189e1c4a028b5"
    assert with_disk(discard=True).fingerprint != PLAIN.fingerprint
    named = with_layout(file_name="other")
    assert named.fingerprint == PLAIN.fingerprint


def test_settings_of_the_device_below_go_with_the_hosts_row_and_with_guests() -> None:
    disk = Disk(
        bus=Bus.HOST,
        format=Format.RAW,
        cache=Cache.NONE,
        drive_cache=False,
        read_ahead=MIB,
        scheduler="none",
    )
    host = dataclasses.replace(PLAIN, storage="disk", disk=disk)
    guest = dataclasses.replace(host, disk=dataclasses.replace(disk, bus=Bus.SCSI))
    for scenario in (host, guest):
        assert why_not(scenario, KINDS["block"].holds) is None
    assert host.slug == "disk.host.raw.none.drive_cache-0.read_ahead-1M.scheduler-none"
    assert guest.host_slug == host.slug
    assert guest.meaning()["read_ahead"] == str(MIB)
    assert PLAIN.meaning()["read_ahead"] == ""
