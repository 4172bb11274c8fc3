"""Real QEMU: every option is switched on a running guest and read back."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import signal
from pathlib import Path
from typing import cast

import pytest

from integration.conftest import MACHINE, Lab, LabBench, scenario
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.qemu import machine
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.machine import QemuMachine, processes_with
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.drivers.storages.own_files import cached_bytes
from pvebench.errors import (
    GuestTimeout,
    HypervisorGone,
    NoSpace,
    OutputUnreadable,
    SwitchFailed,
    ToolFailed,
    ToolStuck,
)
from pvebench.model.disk import Aio, Bus, Cache, Format
from pvebench.model.ports import HostProbe, Site
from pvebench.model.run import Outcome
from pvebench.model.units import MIB, TIB
from pvebench.runner.measure import mismatch, wait_for_end

HOT = (Bus.VIRTIO, Bus.SCSI)
FORMATS = itertools.cycle((Format.RAW, Format.QCOW2, Format.QCOW2, Format.RAW))
PAIRS = [(bus, next(FORMATS), cache) for cache in Cache for bus in HOT]
"""Each bus with each cache mode and each of both with each format."""


def test_each_pair_of_options_is_attached_and_read_back_as_asked(shared_lab: Lab) -> None:
    shared_lab.qemu.boot(MACHINE)
    for bus, kind, cache in PAIRS:
        requested = scenario(bus, kind, cache)
        volume, _ = shared_lab.qemu.volume(requested)
        attachment = shared_lab.qemu.attach(volume, requested.disk)
        assert mismatch(requested, attachment) == "", requested.slug


@pytest.mark.parametrize("aio", list(Aio))
def test_every_aio_mode_works_with_and_without_an_iothread(shared_lab: Lab, aio: Aio) -> None:
    for bus, iothread in zip(HOT, (aio is Aio.THREADS, aio is not Aio.THREADS), strict=True):
        requested = scenario(bus, aio=aio, iothread=iothread)
        _, attachment = shared_lab.plug(requested)
        assert mismatch(requested, attachment) == ""
        assert attachment.unverified == ("discard", "preallocation")


def test_a_disk_that_drops_all_writes_is_named_and_measured_by_no_run(
    shared_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU's null-co: a write succeeds and changes nothing, a read returns zeros."""
    shared_lab.remove_volumes()
    lab, size = LabBench(shared_lab), scenario().volume_bytes
    null = {"driver": "null-co", "size": size, "read-zeroes": True}
    with monkeypatch.context() as dropping:
        dropping.setattr(DirectoryStorage, "node", lambda *_: null)
        run = lab.run(scenario(aio=Aio.THREADS), seconds=1.0)  # null-co has no other
    assert run.outcome is Outcome.FAILED
    assert run.reason.endswith("does not return the data that the fill wrote")
    assert "bad pattern block offset 0" in run.evidence["error"]
    shared_lab.remove_volumes()


def test_a_setting_behind_our_back_is_seen_as_a_mismatch(shared_lab: Lab) -> None:
    shared_lab.qemu.boot(MACHINE)
    requested, other = scenario(cache=Cache.NONE), scenario(cache=Cache.UNSAFE)
    volume, _ = shared_lab.qemu.volume(requested)
    attachment = shared_lab.qemu.attach(volume, other.disk)
    assert mismatch(requested, attachment) == "cache: requested none, found unsafe"


def test_the_page_cache_of_the_volume_is_empty_after_it_is_dropped(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    requested = scenario(cache=Cache.WRITEBACK)
    volume, _ = shared_lab.qemu.volume(requested)
    device = shared_lab.qemu.attach(volume, requested.disk).device
    write = f"dd if=/dev/urandom of={device} bs=1M count=16 2>/dev/null && sync"
    cached = 0
    for _ in range(3):  # the kernel evicts clean pages at any time, and did so once under load
        assert guest.run(["/bin/sh", "-c", write]).exit_code == 0
        cached = max(cached, cached_bytes(Path(volume.volid)))
    assert cached >= 8 * MIB
    assert shared_lab.qemu.drop_caches(volume) < MIB


def test_qemus_counters_grow_with_the_guests_io(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    requested = scenario()
    volume, _ = shared_lab.qemu.volume(requested)
    device = shared_lab.qemu.attach(volume, requested.disk).device
    before = shared_lab.qemu.counters()
    write = f"dd if=/dev/zero of={device} bs=1M count=4 conv=fsync 2>/dev/null"
    guest.run(["/bin/sh", "-c", write])
    after = shared_lab.qemu.counters()
    assert after.write_bytes - before.write_bytes >= 4 * MIB
    assert after.flush_operations > before.flush_operations


def test_qemu_opens_the_volume_past_the_page_cache_for_none_and_directsync_only(
    shared_lab: Lab,
) -> None:
    """The kernel is the witness: how the file is open, not what QEMU says of itself."""
    shared_lab.qemu.boot(MACHINE)
    process = Path(f"/proc/{shared_lab.qemu.pid}")
    direct: dict[Cache, set[bool]] = {}
    for cache in Cache:
        requested = scenario(Bus.VIRTIO, Format.RAW, cache)
        volume, _ = shared_lab.qemu.volume(requested)
        shared_lab.qemu.attach(volume, requested.disk)
        opened = [one for one in (process / "fd").iterdir() if one.samefile(volume.volid)]
        states = [(process / "fdinfo" / one.name).read_text("ascii") for one in opened]
        flags = [int(re.findall(r"flags:\s+(\d+)", state)[0], 8) for state in states]
        direct[cache] = {bool(flag & os.O_DIRECT) for flag in flags if flag & os.O_RDWR}
    assert direct == {cache: {cache in (Cache.NONE, Cache.DIRECTSYNC)} for cache in Cache}


def test_qemu_killed_in_the_middle_is_said_and_the_next_boot_works(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    assert shared_lab.qemu.pid is not None
    os.kill(shared_lab.qemu.pid, signal.SIGKILL)
    with pytest.raises(HypervisorGone):
        guest.run(["/bin/true"])
    fresh = shared_lab.qemu.boot(MACHINE)
    assert fresh.run(["/bin/true"]).exit_code == 0


def test_a_hung_guest_is_said_and_replaced(
    shared_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What hangs does so for three seconds as for thirty.
    monkeypatch.setattr("pvebench.drivers.qemu.machine.QUIT_SECONDS", 3.0)
    guest = shared_lab.qemu.boot(MACHINE)
    assert shared_lab.qemu.pid is not None
    os.kill(shared_lab.qemu.pid, signal.SIGSTOP)
    with pytest.raises(
        GuestTimeout, match="no response of the guest agent to guest-ping within 3 s"
    ):
        guest.ping(timeout=3.0)
    fresh = shared_lab.qemu.boot(MACHINE)
    assert fresh is not guest
    assert fresh.run(["/bin/true"]).exit_code == 0


def test_a_tool_that_does_not_end_leaves_what_guest_and_qemu_say_of_it(shared_lab: Lab) -> None:
    guest, attachment = shared_lab.plug(scenario())
    name = attachment.device.rpartition("/")[2]
    pid = guest.start(["/bin/sh", "-c", "sleep 600 & wait"])
    probe = cast("HostProbe", None)  # nobody asks it
    site = Site(node="lab", hypervisor=shared_lab.qemu, probe=probe, clock=shared_lab.clock)
    with pytest.raises(ToolStuck, match="did not end") as caught:
        wait_for_end(site, guest, pid, deadline=0.0)
    said = caught.value.evidence
    assert f"/sys/block/{name}/inflight:" in said
    assert "sleep " in said.partition("started\n")[2].partition("==")[0]
    assert "sigsuspend" in said
    assert "nanosleep" in said
    assert "virtio" in said.partition("== interrupts\n")[2]
    assert f"[{name}]" in said.partition("kernel log\n")[2]
    assert '"wr_operations"' in said
    guest.run(["/bin/sh", "-c", f"kill {pid}; pkill sleep"])


def test_the_second_start_of_a_program_has_hardly_to_be_translated(shared_lab: Lab) -> None:
    """`info jit` is the witness: what QEMU says of the blocks that it has translated."""
    guest = shared_lab.qemu.boot(MACHINE)

    def translated() -> int:
        said = shared_lab.qemu._qemu.qmp.execute(
            "human-monitor-command", {"command-line": "info jit"}
        )
        return int(re.findall(r"TB count +(\d+)", said)[0])

    starts = [translated()]
    for _ in range(2):
        guest.run(["/usr/bin/fio", "--version"])
        starts.append(translated())
    assert starts[2] - starts[1] < (starts[1] - starts[0]) / 4


def test_a_program_that_the_guest_lacks_is_named(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    with pytest.raises(ToolFailed, match="cannot start /usr/bin/nosuchtool in the guest"):
        guest.run(["/usr/bin/nosuchtool"])


def test_a_file_that_the_guest_lacks_is_named(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    with pytest.raises(OutputUnreadable, match="cannot read /run/none in the guest"):
        guest.read_file("/run/none")


def test_a_large_file_comes_back_whole(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    content = os.urandom(3 * MIB)
    guest.write_file("/run/large", content)
    assert guest.read_file("/run/large") == content


def test_an_option_that_qemu_refuses_fails_the_switch_and_the_vm_recovers(shared_lab: Lab) -> None:
    shared_lab.qemu.boot(MACHINE)
    requested = scenario(cache=Cache.WRITEBACK, aio=Aio.NATIVE)
    volume, _ = shared_lab.qemu.volume(requested)
    with pytest.raises(SwitchFailed, match="aio=native"):
        shared_lab.qemu.attach(volume, requested.disk)
    shared_lab.qemu.boot(MACHINE)
    good = scenario()
    assert mismatch(good, shared_lab.qemu.attach(volume, good.disk)) == ""


def test_the_guest_finds_the_same_bytes_on_every_bus(shared_lab: Lab) -> None:
    """The last test of the shared VM, which has to boot again after a bus without hot-plug."""
    sums = set()
    for bus in (*HOT, Bus.SATA, Bus.IDE):
        guest, attachment = shared_lab.plug(scenario(bus))
        device = attachment.device
        if not sums:
            guest.run(["/bin/sh", "-c", f"head -c 65536 /dev/urandom > {device}; sync"])
        done = guest.run(["/bin/sh", "-c", f"head -c 65536 {device} | md5sum"])
        sums.add(done.stdout)
    assert len(sums) == 1


def test_a_volume_that_does_not_fit_is_refused_before_it_is_made(own_lab: Lab) -> None:
    with pytest.raises(NoSpace, match=r"500\.0 TiB needed, .* free in"):
        own_lab.qemu.volume(scenario(size=500 * TIB))
    assert not list(own_lab.storage.glob("*"))


def test_what_a_crash_leaves_is_undone_from_the_journal_and_nothing_else(own_lab: Lab) -> None:
    own_lab.qemu.boot(MACHINE)
    volume, _ = own_lab.qemu.volume(scenario())
    stranger = own_lab.storage / "vm-100-disk-0.raw"
    stranger.write_bytes(b"not ours")
    uuid = own_lab.store.journal.pending()[-1][2]["uuid"]
    assert processes_with(uuid)
    # As the next start does after kill -9.
    lines = undo_local(own_lab.store.journal, instance="test", runtime=own_lab.directory / "run")
    assert len(lines) == 2
    assert not processes_with(uuid)
    assert not Path(volume.volid).exists()
    assert stranger.read_bytes() == b"not ours"
    assert own_lab.store.journal.pending() == []


def test_a_guest_that_never_answers_is_reported_and_leaves_nothing(own_lab: Lab) -> None:
    vm = QemuMachine(own_lab.directory / "run", journal=own_lab.store.journal, clock=own_lab.clock)
    image = own_lab.qemu._image
    # A kernel without its initramfs panics: the agent never comes.
    mute = dataclasses.replace(image, initramfs=own_lab.directory / "pvebench.db")
    with pytest.raises((GuestTimeout, HypervisorGone)) as caught:
        vm.start(mute, MACHINE, Accelerator.TCG, timeout=8.0)
    assert caught.value.cause
    assert not list((own_lab.directory / "run").iterdir())
    assert own_lab.store.journal.pending() == []


def test_a_stop_while_qemu_is_slow_to_end_leaves_nothing(
    own_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "QUIT_SECONDS", 3.0)
    own_lab.qemu.boot(MACHINE)
    own_lab.qemu.volume(scenario())
    pid = own_lab.qemu.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it will not answer `quit`
    own_lab.clock.stop()
    own_lab.qemu.shutdown()
    assert not Path(f"/proc/{pid}").exists()
    assert not list(own_lab.storage.iterdir())
    assert own_lab.store.journal.pending() == []
