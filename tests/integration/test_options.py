"""Real QEMU: every disk option beyond cache and bus, and every kind of storage."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from integration.conftest import MACHINE, Lab, LabBench, scenario
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import MARK
from pvebench.drivers.storages.identity import BLOCK_BYTES, HEAD_BYTES, TAIL_BYTES, claim
from pvebench.drivers.storages.server_link import ServerLink
from pvebench.errors import VolumeError
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Cache, Format, Preallocation, ScsiHw
from pvebench.model.run import Outcome, Run
from pvebench.model.scenario import Filesystem, Layout, Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Direction
from pvebench_lab.storages.loop import detach_loops
from testing.devices import block_device, need_loop_devices
from testing.nfs import nfs_server
from testing.real_outcomes import MEASURED
from testing.storages import storage_context
from testing.stores import TemporaryStore

HOT = [
    scenario(Bus.SCSI, ssd=True, queues=4, iothread=True, iops=1000, mbps=50),
    scenario(Bus.SCSI, kind=Format.VMDK, scsihw=ScsiHw.SHARED),
    scenario(discard=True, detect_zeroes=True, preallocation=Preallocation.FALLOC),
    scenario(
        kind=Format.QCOW2,
        cluster_size=131072,
        extended_l2=True,
        preallocation=Preallocation.FULL,
        discard=True,
    ),
]
COLD = [
    scenario(Bus.SATA, ssd=True, cache=Cache.WRITETHROUGH),
    scenario(Bus.IDE, kind=Format.QCOW2, cache=Cache.WRITEBACK, iops=500),
    scenario(Bus.SCSI, kind=Format.VMDK, scsihw=ScsiHw.LSI),
]
"""Each value of an option once, beside others: a mismatch names the option."""

# A doubt about the numbers of a busy machine is none about what was switched.


class Bench(LabBench):
    """Reads and writes."""

    job: ClassVar = {"rw": "randrw", "bs": "4k", "iodepth": 4}
    seconds = 0.5


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    lab = Lab(tmp_path_factory.mktemp("options"), image)
    made = Bench(lab)
    yield made
    made.close()


@pytest.fixture
def lab(bench: Bench) -> Iterator[Lab]:
    """The lab of all tests without volumes, and without the storages that a test adds."""
    bench.lab.remove_volumes()
    yield bench.lab
    bench.lab.remove_volumes()
    for name in set(bench.lab.qemu._storages) - {"local"}:
        del bench.lab.qemu._storages[name]


def iops(run: Run) -> float:
    return sum(one.value for one in run.samples if one.metric == "iops")


@pytest.mark.parametrize("requested", [*HOT, *COLD], ids=lambda requested: requested.slug)
def test_an_option_is_switched_on_read_back_and_measured(bench: Bench, requested: Scenario) -> None:
    run = bench.run(requested)
    assert run.outcome in MEASURED, run.reason
    assert iops(run) > 10


def test_the_boot_is_measured_and_an_idle_vm_costs_little(bench: Bench) -> None:
    # After a bus without hot-plug, the VM boots again anyway.
    boot = bench.run(scenario(), tool="boot")
    idle = bench.run(scenario(), tool="idle", seconds=2.0)
    (seconds,) = [one.value for one in boot.samples if one.metric == "boot_time"]
    cores = {one.part: one.value for one in idle.samples if one.metric == "host_cpu"}
    assert boot.outcome in MEASURED
    assert idle.outcome in MEASURED
    assert 1 < seconds < 300
    assert cores["qemu"] < 0.5


@pytest.mark.parametrize(
    ("filesystem", "size"), [(Filesystem.EXT4, 16), (Filesystem.XFS, 320), (Filesystem.BTRFS, 128)]
)
def test_a_file_on_a_filesystem_in_the_guest_is_measured(
    bench: Bench, filesystem: Filesystem, size: int
) -> None:
    layout = Layout(filesystem=filesystem, mount_options="noatime", file_bytes=8 * MIB)
    run = bench.run(replace(scenario(size=size * MIB), layout=layout))
    assert run.outcome in MEASURED, run.reason
    assert "filename=/mnt/test/fio.dat" in run.evidence["job.fio"]


def test_a_wrong_mount_option_is_a_failed_run_that_names_it(bench: Bench) -> None:
    layout = Layout(filesystem=Filesystem.EXT4, mount_options="nosuchoption", file_bytes=8 * MIB)
    run = bench.run(replace(scenario(), layout=layout))
    assert run.outcome is Outcome.FAILED
    assert "nosuchoption" in run.reason
    assert bench.run(scenario()).outcome in MEASURED


def test_a_limit_of_operations_is_kept(bench: Bench) -> None:
    limited = bench.run(scenario(Bus.SCSI, iops=100), seconds=3.0, rw="randread")
    free = bench.run(scenario(Bus.SCSI), rw="randread")
    # QEMU lets a tenth of a second's worth through at once, here at both ends of the window.
    assert 10 < iops(limited) < 130
    assert iops(free) > 1.5 * iops(limited)


def test_trim_gives_blocks_back_to_the_host_and_the_next_run_fills_them_again(
    bench: Bench, lab: Lab
) -> None:
    requested = scenario(discard=True)
    assert bench.run(requested).outcome in MEASURED
    (path,) = lab.storage.iterdir()
    full = path.stat().st_size // 512
    assert path.stat().st_blocks >= full
    trimmed = bench.run(requested, rw="trim", bs="1M")
    assert trimmed.outcome in MEASURED
    assert path.stat().st_blocks < full * 0.75
    assert bench.run(requested, rw="randread").outcome in MEASURED
    # The file system's own blocks for it may be more or fewer than the first time.
    assert path.stat().st_blocks >= full


def test_without_discard_a_trim_leaves_the_volume_as_it_is(bench: Bench, lab: Lab) -> None:
    requested = scenario()
    bench.run(requested)
    (path,) = lab.storage.iterdir()
    full = path.stat().st_blocks
    bench.run(requested, rw="trim", bs="1M")
    assert path.stat().st_blocks == full


def test_a_linked_clone_begins_empty_each_time_and_reads_its_base(bench: Bench, lab: Lab) -> None:
    requested = scenario(kind=Format.QCOW2, backing=True)
    first = bench.run(requested, rw="randwrite")
    overlay = next(path for path in lab.storage.iterdir() if path.name.endswith("backing-1"))
    grown = overlay.stat().st_blocks * 512
    assert grown > MIB
    second = bench.run(requested, rw="randread")
    assert first.outcome in MEASURED
    assert second.outcome in MEASURED
    assert overlay.stat().st_blocks * 512 < MIB
    guest = lab.qemu.boot(MACHINE)
    done = guest.run(["/bin/sh", "-c", "head -c 65536 /dev/vda | md5sum"])
    zeros = guest.run(["/bin/sh", "-c", "head -c 65536 /dev/zero | md5sum"])
    assert done.stdout != zeros.stdout


# --- kinds of storage ---


def add(lab: Lab, kind: str, **options: object) -> None:
    if kind == "loop":
        Path(str(options["path"])).mkdir(exist_ok=True)
    made = storage_context(name=kind, kind=kind, owner="test", **options)
    lab.qemu._storages[kind] = KINDS[kind].make(made, lab.store.journal)


def on(storage: str, **options: object) -> Scenario:
    return replace(scenario(**options), storage=storage)  # type: ignore[arg-type] # options by name


@pytest.mark.parametrize("kind", [Format.RAW, Format.QCOW2])
def test_a_loop_device_is_a_storage_and_nothing_is_left_of_it(
    bench: Bench, lab: Lab, kind: Format
) -> None:
    need_loop_devices()
    add(lab, "loop", path=str(lab.directory / "loops"))
    run = bench.run(on("loop", kind=kind, cache=Cache.WRITEBACK))
    assert run.outcome in MEASURED, run.reason
    assert "pvebench-test-" in loops()
    lab.remove_volumes()
    assert str(lab.directory) not in loops()
    assert list((lab.directory / "loops").iterdir()) == []


def loops() -> str:
    return subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True).stdout


def test_a_loop_device_left_by_a_crash_is_taken_away(own_lab: Lab) -> None:
    need_loop_devices()
    add(own_lab, "loop", path=str(own_lab.directory / "loops"))
    own_lab.qemu.volume(on("loop"))
    own_lab.qemu._volumes.clear()  # as if the process had died here
    lines = undo_local(own_lab.store.journal, instance="test", runtime=own_lab.directory)
    assert any(line.startswith("removed loop device") for line in lines)
    assert str(own_lab.directory) not in loops()


def marks(device: Path) -> dict[int, bytes]:
    """Return both ends of a claimed device but its record, which tells how far it is used."""
    content = device.read_bytes()
    return {0: content[BLOCK_BYTES:HEAD_BYTES], 1: content[-TAIL_BYTES:]}


def test_a_device_is_used_only_with_our_mark_which_measuring_never_touches(
    bench: Bench, lab: Lab, tmp_path: Path
) -> None:
    with block_device(tmp_path / "disk") as device:
        add(lab, "block", path=str(device))
        refused = bench.run(on("block"))
        assert refused.outcome is Outcome.FAILED
        assert "not claimed by pvebench" in refused.reason
        claim(device, destroy=False)
        before = marks(device)
        layout = Layout(filesystem=Filesystem.EXT4, file_bytes=8 * MIB)
        for requested in (on("block"), replace(on("block"), layout=layout), on("block")):
            run = bench.run(requested)  # the guest's file system does not make it look foreign
            assert run.outcome in MEASURED, run.reason
        subprocess.run(["sfdisk", "-q", "--force", str(device)], input=b"start=2048", check=True)
        partitioned = device.read_bytes()
        for _ in range(2):  # where it is still plugged in, and to plug it in again
            refused = bench.run(on("block"), rw="randwrite")
            assert refused.outcome is Outcome.FAILED
            assert "dos at byte 510" in refused.reason
        assert device.read_bytes() == partitioned
        lab.remove_volumes()
        assert marks(device) == before


def test_a_device_with_something_on_it_is_claimed_only_when_asked_to_destroy_it(
    tmp_path: Path,
) -> None:
    with block_device(tmp_path / "disk") as device:
        subprocess.run(["mkfs.ext4", "-q", str(device)], check=True)
        with pytest.raises(VolumeError, match="is not empty: ext4 at byte"):
            claim(device, destroy=False)
        claim(device, destroy=True)
        claim(device, destroy=False)  # ours now


@contextlib.contextmanager
def nbd_server(directory: Path, export: str) -> Iterator[Path]:
    disk, socket = directory / "nbd.raw", directory / "nbd.sock"
    with disk.open("wb") as file:
        file.truncate(96 * MIB)
    command = ["qemu-nbd", "--persistent", "-f", "raw", "-x", export, "-k", str(socket), str(disk)]
    with subprocess.Popen(command) as server:
        while not socket.exists():
            assert server.poll() is None
            time.sleep(0.05)
        try:
            yield socket
        finally:
            server.kill()  # a signal to end is lost while qemu-nbd starts


def test_an_nbd_export_with_our_mark_is_a_storage(bench: Bench, lab: Lab, tmp_path: Path) -> None:
    export = f"{MARK}disk"
    with nbd_server(tmp_path, export) as path:
        add(lab, "nbd", socket=str(path), export=export)
        run = bench.run(on("nbd"))
        assert run.outcome in MEASURED, run.reason
        assert run.evidence["host_cached_bytes"] == "unknown"
        lab.remove_volumes()


@contextlib.contextmanager
def nbd_over_tcp(directory: Path, export: str) -> Iterator[int]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
    disk = directory / "nbd.raw"
    with disk.open("wb") as file:
        file.truncate(96 * MIB)
    command = ["qemu-nbd", "--persistent", "--shared", "8", "-f", "raw", "-x", export]
    with subprocess.Popen([*command, "-b", "127.0.0.1", "-p", str(port), str(disk)]) as server:
        while ServerLink(server="127.0.0.1", port=port).round_trip() is None:
            assert server.poll() is None
            time.sleep(0.05)
        try:
            yield port
        finally:
            server.kill()  # a signal to end is lost while qemu-nbd starts


def test_an_export_over_the_network_has_round_trip_and_share_of_the_link(
    lab: Lab, tmp_path: Path
) -> None:
    export = f"{MARK}disk"
    with nbd_over_tcp(tmp_path, export) as port:
        add(lab, "nbd", server="127.0.0.1", port=port, export=export)
        link = ServerLink(server="127.0.0.1", port=port, link_bits_per_second=10**12)
        run = Bench(lab, {"nbd": link}).run(on("nbd"))
        assert run.outcome in MEASURED, run.reason
        found = {(one.metric, one.direction): one.value for one in run.samples}
        assert 0 < found["network_round_trip", None] < 5
        for direction in (Direction.READ, Direction.WRITE):
            speed = found["bandwidth", direction]
            assert found["network_share", direction] == pytest.approx(speed / 125e9)
        lab.remove_volumes()


def test_an_nbd_export_without_our_mark_is_left_alone(own_lab: Lab, tmp_path: Path) -> None:
    with nbd_server(tmp_path, "precious") as path:
        add(own_lab, "nbd", socket=str(path), export="precious")
        with pytest.raises(VolumeError, match="'precious' not changed"):
            own_lab.qemu.volume(on("nbd"))


def test_a_directory_on_an_nfs_server_is_a_storage_and_nothing_is_left_in_it(
    bench: Bench, lab: Lab, tmp_path: Path
) -> None:
    with nfs_server(tmp_path) as export:
        add(lab, "nfs", server="127.0.0.1", export=str(export))
        for kind in (Format.RAW, Format.QCOW2):
            run = bench.run(on("nfs", kind=kind))
            assert run.outcome in MEASURED, run.reason
        assert len(list(export.iterdir())) == 2
        lab.remove_volumes()
        assert list(export.iterdir()) == []


def test_a_file_without_our_mark_is_never_taken_from_its_loop_device(tmp_path: Path) -> None:
    link = tmp_path / f"{MARK}link"
    link.symlink_to(tmp_path / "foreign")
    with block_device(tmp_path / "foreign"):
        detach_loops(tmp_path / "foreign")
        detach_loops(link)
        assert str(tmp_path / "foreign") in loops()


def test_a_loop_device_that_got_another_file_or_a_link_is_not_used(tmp_path: Path) -> None:
    need_loop_devices()
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    (tmp_path / "loops").mkdir()
    options = storage_context(name="loop", kind="loop", owner="test", path=str(tmp_path / "loops"))
    storage = KINDS["loop"].make(options, store.journal)
    volume = storage.create(on("loop"))
    device, foreign = volume.volid, tmp_path / "foreign"
    foreign.write_bytes(bytes(MIB))
    try:
        storage.check(volume)
        (image,) = (tmp_path / "loops").iterdir()
        aside = image.rename(tmp_path / "aside")
        image.symlink_to(aside)
        with pytest.raises(VolumeError, match="is now a symbolic link"):
            storage.check(volume)
        aside.replace(image)
        storage.check(volume)
        subprocess.run(["losetup", "--detach", device], check=True)
        subprocess.run(["losetup", device, str(foreign)], check=True)
        with pytest.raises(VolumeError, match=f"{device} is no longer a loop device of"):
            storage.check(volume)
        storage.remove(volume)
        assert str(foreign) in loops()  # somebody else's now
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
    store.close()
