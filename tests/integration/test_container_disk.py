"""A real container of LXC beside a VM: what it measures, how it is limited, what it leaves.

Witnesses: `lxc-info`, `losetup --list`, /proc/PID/mountinfo and the kernel's own files of cgroups.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvebench.drivers.backend_router import local_router
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.storages.contract import Storage
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.errors import HypervisorGone
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import FILESYSTEM_TOOL
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.scenario import Filesystem, Layout, Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Plug
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine
from pvebench_lab.lxc import container_disk
from pvebench_lab.lxc.container import Container, container_support
from pvebench_lab.lxc.container_disk import ContainerDisk, ContainerTools
from pvebench_lab.storages.loop import LoopStorage
from testing.containers import left_of, losetup, processes, text
from testing.packs import Recorder, tool_workload
from testing.real_outcomes import MEASURED, until, value
from testing.storages import storage_context
from testing.stores import TemporaryStore

OWNER = "0123456789abcdef"
NAME = f"pvebench-test-{OWNER}-container"
MACHINE = Machine(memory_bytes=256 * MIB, cpus=1)
CONTAINER = Scenario(
    node="lab",
    storage="local",
    disk=Disk(bus=Bus.LXC, format=Format.RAW, cache=Cache.NONE),
    machine=MACHINE,
    volume_bytes=48 * MIB,
    layout=Layout(filesystem=Filesystem.EXT4, file_bytes=16 * MIB),
)
HOST = replace(CONTAINER, disk=replace(CONTAINER.disk, bus=Bus.HOST), layout=Layout())


class Bench:
    """The host and a container on one storage, as the driver `host` puts them together."""

    def __init__(
        self, directory: Path, image: GuestImage, kind: type[Storage], owner: str = OWNER
    ) -> None:
        self._owner = owner
        able, why = container_support()
        assert able, f"containers cannot be tried on this machine: {why}"
        self.store = TemporaryStore(directory / "pvebench.db", simulated=False)
        (directory / "volumes").mkdir(exist_ok=True)
        options = storage_context(
            name="local", kind="dir", owner=owner, path=str(directory / "volumes")
        )
        storages = {"local": kind(options, self.store.journal)}  # type: ignore[call-arg] # as all kinds
        machine = ThisMachine(directory / "run", self.store.journal)
        self.host = HostDisk(node="lab", storages=storages, machine=machine)
        clock = SystemClock()
        made = Container(owner, journal=self.store.journal, clock=clock)
        self.container = ContainerDisk(made, storages=storages, image=lambda: image, clock=clock)
        self.both = local_router(self.host, {Bus.HOST: self.host, Bus.LXC: self.container}, [])
        probe = ProcProbe(
            lambda: None,
            lambda: (self.both.replacement or self.host).volume_path,
            container=lambda: self.container.pid,
        )
        site = Site(node="lab", hypervisor=self.both, probe=probe, clock=clock)
        self.runner = Runner(site, Recorder())

    def run(self, requested: Scenario, tool: str, **options: Any) -> Run:
        workload = tool_workload(tool, options, ramp_seconds=0.3, runtime_seconds=1.5)
        case = Case(scenario=requested, workload=workload)
        return self.runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))

    def close(self) -> None:
        self.runner.close()
        assert self.store.journal.pending() == []
        self.store.close()
        assert left_of(self._owner) == []


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("containers"), image, DirectoryStorage)
    yield made
    made.close()


def test_fio_measures_in_a_container_and_its_cpu_is_counted(bench: Bench) -> None:
    run = bench.run(CONTAINER, "fio", rw="randread", bs="4k", iodepth=8)
    assert run.outcome in MEASURED, (run.reason, run.evidence)
    assert run.case.scenario.slug == "local.lxc.raw.none.filesystem-ext4"
    assert 0 < value(run, "host_cpu", "container") <= MACHINE.cpus * 1.1
    # Past the page cache of the loop device's file too: it came from the disk below.
    assert 0.5 < value(run, "device_share") < 3
    assert not [sample for sample in run.samples if sample.metric.startswith("qemu_")]
    assert json.loads(run.evidence["effective"])["cache"] == "none"


def test_it_runs_with_the_guests_own_tools_and_as_nobody_of_the_host(
    bench: Bench, image: GuestImage
) -> None:
    bench.run(CONTAINER, "fio", rw="randread", bs="4k", iodepth=1)
    volume, _ = bench.both.volume(CONTAINER)
    guest = bench.both.boot(MACHINE, Plug(volume, CONTAINER.disk))
    told = guest.run(["fio", "--version"]).stdout.decode().strip()
    assert told == f"fio-{image.versions['fio']}"
    init = bench.container.pid
    status = Path(f"/proc/{init}/status").read_text("ascii")
    assert "Uid:\t100000\t100000" in status
    # `lxc-info` and the kernel say which container it is, and what holds it.
    info = subprocess.run(
        ["lxc-info", "-P", "/var/lib", "-n", NAME, "-p", "-H"], capture_output=True, check=True
    )
    assert int(info.stdout) == init
    assert guest.run(["nproc"]).stdout.strip() == b"1"
    where = guest.run(["cat", "/proc/mounts"]).stdout.decode()
    assert " /mnt/test ext4 rw" in where
    assert "/mnt/test" not in Path("/proc/mounts").read_text("utf-8")
    # Root in there may not touch the device itself.
    assert guest.run(["dd", "if=/dev/pvebench-test", "of=/dev/null", "count=1"]).exit_code


def test_what_takes_more_memory_than_the_machine_has_is_ended(bench: Bench) -> None:
    volume, _ = bench.both.volume(CONTAINER)
    guest = bench.both.boot(MACHINE, Plug(volume, CONTAINER.disk))
    assert guest.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=1G", "count=1"]).exit_code
    assert guest.run(["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"]).exit_code == 0


def test_every_tool_that_needs_no_vm_runs_in_it(bench: Bench) -> None:
    for tool, options in (
        ("ioping", {"count": 10, "interval": 0}),
        ("dd", {"rw": "write", "bs": "64k", "flush": "fdatasync"}),
        ("sysbench", {"mode": "rndrw", "size": "16M"}),
        ("bonnie++", {"size": "16M"}),
    ):
        run = bench.run(CONTAINER, tool, **options)
        assert run.outcome in MEASURED, (tool, run.reason, run.evidence.get("error"))


def test_host_and_container_take_turns_on_one_volume(bench: Bench) -> None:
    outcomes = [
        bench.run(requested, "fio", rw="randwrite", bs="4k", iodepth=1, fsync=1).outcome
        for requested in (HOST, CONTAINER)
    ]
    assert set(outcomes) <= MEASURED


def test_a_container_writes_to_the_file_that_a_vm_has_filled(bench: Bench) -> None:
    """What a VM writes belongs to its root, user 0, who is nobody in the container."""
    assert bench.run(CONTAINER, "fio", rw="randread", bs="4k", iodepth=1).outcome in MEASURED
    volume, _ = bench.both.volume(CONTAINER)
    guest = bench.both.boot(MACHINE, Plug(volume, CONTAINER.disk))
    as_a_vm = ["nsenter", f"--mount=/proc/{bench.container.pid}/ns/mnt", "--", "/bin/chown"]
    subprocess.run([*as_a_vm, "-R", "0:0", "/mnt/test"], check=True)
    assert guest.run(["/bin/sh", "-c", "echo >>/mnt/test/fio.dat"]).exit_code
    bench.runner.renew()
    run = bench.run(CONTAINER, "fio", rw="randwrite", bs="4k", iodepth=4)
    assert run.outcome in MEASURED, (run.reason, run.evidence)


HOSTILE = """\
set -e
cp /bin/busybox /tmp/busybox
: >/run/ran
mount -t tmpfs tmpfs /bin
cat >/tmp/hostile <<'END'
#!/tmp/busybox sh
/tmp/busybox readlink /proc/self/ns/user >>/run/ran || echo outside >>/run/ran
[ "${0##*/}" = busybox ] || set -- "${0##*/}" "$@"
exec /tmp/busybox "$@"
END
/tmp/busybox chmod 755 /tmp/hostile
for name in busybox sh cat mount umount chown; do /tmp/busybox cp /tmp/hostile /bin/$name; done
"""


@pytest.fixture
def hostile(image: GuestImage, tmp_path: Path) -> Iterator[ContainerTools]:
    """A container whose root has put programs of its own over the guest's."""
    made = Bench(tmp_path, image, DirectoryStorage, owner="00112233445566aa")
    volume, _ = made.both.volume(CONTAINER)
    guest = made.both.boot(MACHINE, Plug(volume, CONTAINER.disk))
    assert guest.run(["/bin/sh", "-c", HOSTILE]).exit_code == 0
    assert isinstance(guest, ContainerTools)
    yield guest
    made.close()


def test_no_program_of_the_containers_root_runs_as_root_of_the_host(
    hostile: ContainerTools,
) -> None:
    for words in (["make", "ext4"], ["mount", "ext4"], ["unmount"], ["mount", "ext4", "noatime"]):
        place = [] if words == ["unmount"] else ["/dev/pvebench-test"]
        done = hostile.run([FILESYSTEM_TOOL, words[0], *place, *words[1:]])
        assert done.exit_code == 0, (words, done)
    hostile.write_file("/mnt/test/file", b"as the container")
    init = Path(f"/proc/{hostile._container.pid}")
    ran = (init / "root/run/ran").read_text("ascii").split()
    assert set(ran) == {str((init / "ns/user").readlink())}


def test_caches_are_dropped_without_following_a_link_of_the_container(
    hostile: ContainerTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").write_bytes(b"x")
    dropped: list[os.stat_result] = []

    def drop(path: Path) -> int:
        dropped.append(path.stat())
        return 0

    monkeypatch.setattr(container_disk, "drop_page_cache", drop)
    script = f"""
        cd /mnt/test || exit 1; echo >own; mkdir deep; echo >deep/own; /tmp/busybox mkfifo pipe
        ln -s {tmp_path}/outside link; ln -s {tmp_path} links"""
    for words in (["make", "/dev/pvebench-test", "ext4"], ["mount", "/dev/pvebench-test", "ext4"]):
        assert hostile.run([FILESYSTEM_TOOL, *words]).exit_code == 0
    assert hostile.run(["/bin/sh", "-c", script]).exit_code == 0
    hostile.drop_caches()
    assert [one.st_uid for one in dropped] == [100_000] * 2
    over = f"/tmp/busybox mount -t tmpfs tmpfs /mnt; /tmp/busybox ln -s {tmp_path} /mnt/test"
    assert hostile.run(["/bin/sh", "-c", over]).exit_code == 0
    hostile.drop_caches()
    assert len(dropped) == 2


def test_a_container_that_is_killed_is_said_and_the_next_run_is_good(bench: Bench) -> None:
    volume, _ = bench.both.volume(CONTAINER)
    guest = bench.both.boot(MACHINE, Plug(volume, CONTAINER.disk))
    os.kill(bench.container.pid or 0, signal.SIGKILL)
    until(lambda: bench.container.pid is None)
    with pytest.raises(HypervisorGone, match="the container has ended"):
        guest.run(["true"])
    run = bench.run(CONTAINER, "fio", rw="randread", bs="4k", iodepth=8)
    assert run.outcome in MEASURED, (run.reason, run.evidence)


def test_a_device_of_the_storage_is_mounted_without_a_second_loop_over_it(
    image: GuestImage, tmp_path: Path
) -> None:
    made = Bench(tmp_path, image, LoopStorage, owner="fedcba9876543210")
    run = made.run(CONTAINER, "fio", rw="randread", bs="4k", iodepth=8)
    assert run.outcome in MEASURED, (run.reason, run.evidence)
    loops = subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True)
    assert sum(str(tmp_path) in line for line in loops.stdout.splitlines()) == 1
    made.close()


PACK = """\
pack: killed
title: A container that is killed with pvebench
every: 1h
axes: {bus: [virtio], format: [raw], cache: [none]}
lxc: true
volume: {size: 32M}
measure: {ramp: 500ms, runtime: 60s, settle: 0s}
workloads:
  - fio: {rw: randwrite, bs: 4k, iodepth: 4}
"""


def test_after_kill_9_all_but_files_and_groups_goes_by_itself_and_undo_takes_those(
    image: GuestImage, tmp_path: Path
) -> None:
    del image  # is there then
    (tmp_path / "pack.yaml").write_text(PACK, "utf-8")
    config = tmp_path / "pvebench.yaml"
    config.write_text(f"driver: host\nstate: {tmp_path}/state\npacks: [pack.yaml]\n", "utf-8")
    command = [sys.executable, "-m", "pvebench"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, "run", "--config", str(config), "--cycles", "1", "--only", "*.lxc.*/*"],
            stdout=said,
            stderr=said,
        )
    try:
        instance = tmp_path / "state" / "instance"
        until(instance.exists)
        until(lambda: instance.read_text("ascii").strip())
        owner = instance.read_text("ascii").split()[0]
        name = f"pvebench-test-{owner}-container"
        until(lambda: any("fio" in one and name in one for one in processes()))
        mounted = [
            path for path in Path("/proc").glob("[0-9]*/mounts") if "/mnt/test" in text(path)
        ]
        assert mounted
        assert owner in losetup()
    finally:
        process.kill()
        process.wait()
    # lxc-start dies with pvebench, the container with lxc-start, mount and loop with that.
    until(lambda: not any(name in one for one in processes()), seconds=20.0)
    until(lambda: owner not in losetup(), seconds=20.0)
    assert left_of(owner), "groups and files are for the journal"
    undo = [*command, "cleanup", "--config", str(config)]
    done = subprocess.run(undo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ended container {name}" in done.stdout
    assert left_of(owner) == []
