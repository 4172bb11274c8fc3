"""A container on a node: a real sshd, `node.sh`, a stand-in of `pct`, LXC's own programs.

What the stand-in does, and from which file of pve-container, is in `testing/standin_pct.py`. No
node of Proxmox is here. The container, its file system and control group, fio and counters of the
device are real. The VM beside it is one of the tests' API, which costs nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pve.cluster import Cluster
from pve.server import running_api
from pve.site import MACHINE as VM
from pve.site import POOL
from pve.site import Site as Api
from pvebench.drivers.backend_router import BackendRouter
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import DriverContext
from pvebench.drivers.proxmox.cluster import ENGINE
from pvebench.drivers.proxmox.proxmox_settings import ClusterSettings
from pvebench.errors import HypervisorGone, OutcomeUnknown, SwitchFailed, VolumeError
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import FILESYSTEM_TOOL
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.guest import Guest
from pvebench.model.run import Run
from pvebench.model.scenario import Filesystem, Layout, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Plug, Volume
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench_lab.lxc.proxmox_backend import NodeContainers
from pvebench_lab.lxc.proxmox_container import KIND
from testing.container_node import GROUPS, ContainerNode, container_node
from testing.containers import processes
from testing.packs import Recorder, tool_workload
from testing.real_outcomes import MEASURED, value

CONTAINER = Scenario(
    node="pve1",
    storage="local",
    disk=Disk(bus=Bus.LXC, format=Format.RAW, cache=Cache.NONE),
    machine=VM,
    volume_bytes=64 * MIB,
    layout=Layout(filesystem=Filesystem.EXT4, file_bytes=16 * MIB),
)

NUMBERS = range(9500, 9510)


class Bench:
    """A VM of the tests' API, and containers on a machine that looks like its node.

    The driver puts them together, from settings.
    """

    def __init__(self, api: Api, node: ContainerNode) -> None:
        self.api = api
        self.node = node
        given = {
            "host": "127.0.0.1",
            "port": api.server.port,
            "tls": {"fingerprint": api.server.fingerprint},
            "token_file": node.folder / "token",
            "pool": POOL,
            "vmids": [NUMBERS[0], NUMBERS[-1]],
            "storages": {"local": {"type": "lvmthin", "id": "thin"}},
            "ssh": node.server.settings(),
        }
        api.keep_token(node.folder)
        settings = ClusterSettings.model_validate({"node": "pve1", "proxmox": given})
        place = DriverContext(
            runtime=node.folder, journal=api.store.journal, clock=SystemClock(), say=print
        )
        (self.site,) = ENGINE.sites(settings, place)
        assert isinstance(self.site.hypervisor, BackendRouter)
        self.both = self.site.hypervisor
        self.containers: NodeContainers = self.both._backends[Bus.LXC]
        self.probe = self.site.probe
        self.runner = Runner(self.site, Recorder())

    def run(self, requested: Scenario, tool: str, **options: Any) -> Run:
        workload = tool_workload(tool, options, ramp_seconds=0.3, runtime_seconds=1.5)
        case = Case(scenario=requested, workload=workload)
        return self.runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))

    def guest(self) -> Guest:
        volume, _ = self.both.volume(CONTAINER)
        return self.both.boot(CONTAINER.machine, Plug(volume, CONTAINER.disk))

    def close(self) -> None:
        self.runner.close()
        assert self.api.store.journal.pending() == []
        assert not list(self.node.folder.glob("conf/*"))
        assert not list(self.node.folder.glob("volumes/*"))
        assert not list(Path("/var/lib/lxc").glob("950?"))


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    del image  # is there then
    folder = tmp_path_factory.mktemp("node")
    with (
        container_node(folder, vmids=NUMBERS) as node,
        running_api(Cluster(folder / "cluster", major=9)) as server,
    ):
        api = Api(server, folder, 9)
        made = Bench(api, node)
        yield made
        made.close()
        api.close()


def state(vmid: int) -> str:
    done = subprocess.run(
        ["lxc-info", "-n", str(vmid), "-s", "-H"], capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def filled(bench: Bench) -> Volume:
    """Return the volume of a container that runs, with a file."""
    assert bench.guest().run(["sh", "-c", "echo x >/mnt/test/x"]).exit_code == 0
    return bench.both.volume(CONTAINER)[0]


def test_fio_measures_in_a_container_of_the_node_and_its_cpu_and_device_are_counted(
    bench: Bench, image: GuestImage
) -> None:
    run = bench.run(CONTAINER, "fio", rw="randread", bs="4k", iodepth=8)
    assert run.outcome in MEASURED, (run.reason, run.evidence)
    assert run.case.scenario.slug == "local.lxc.raw.none.filesystem-ext4"
    assert value(run, "host_cpu", "container") >= 0  # how much: see the counters below
    assert value(run, "device_share") >= 0
    assert not [sample for sample in run.samples if sample.metric.startswith("qemu_")]
    effective = json.loads(run.evidence["effective"])
    assert effective == {
        "bus": "lxc",
        "cache": "none",
        "format": "raw",
        "size_bytes": str(64 * MIB),
    }
    assert run.evidence["host_cached_bytes"] == "0"
    assert "mount: " in run.evidence["hypervisor"]
    guest = bench.guest()
    assert guest.run(["fio", "--version"]).stdout.decode().strip() == f"fio-{image.versions['fio']}"


def test_it_is_the_node_that_says_who_runs_it_and_what_is_mounted(bench: Bench) -> None:
    """Witnesses: lxc-info, /proc, dumpe2fs."""
    guest = bench.guest()
    command = ["lxc-info", "-n", str(bench.containers.vmid), "-p", "-H"]
    pid = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert "Uid:\t100000\t100000" in Path(f"/proc/{pid}/status").read_text("ascii")
    mounts = guest.run(["cat", "/proc/mounts"]).stdout.decode()
    assert " /mnt/test ext4 rw" in mounts
    assert " /run tmpfs rw" in mounts  # jobs write nothing to a storage
    (device,) = bench.containers.devices
    path = f"/dev/loop{os.minor(device)}"
    told = subprocess.run(["dumpe2fs", "-h", path], capture_output=True, text=True, check=True)
    assert " mmp" in told.stdout  # as Proxmox makes it; the guest's own script does not


def test_counters_are_those_of_the_volumes_own_device(bench: Bench) -> None:
    """Witness: the kernel's own files of that device, and of the control group."""
    guest = bench.guest()
    before, shot = bench.both.counters(), bench.probe.snapshot()
    write = ["dd", "if=/dev/zero", "of=/mnt/test/x", "bs=1M", "count=8", "oflag=direct"]
    assert guest.run(write).exit_code == 0
    moved = bench.both.counters().since(before)
    assert 8 * MIB <= moved.write_bytes < 10 * MIB
    (device,) = bench.containers.devices
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    assert int(stat[6]) * 512 >= moved.write_bytes
    later = bench.probe.snapshot()
    assert later.bytes["device_write"] - shot.bytes["device_write"] >= 8 * MIB
    used = Path(f"{GROUPS}/lxc/{bench.containers.vmid}/cpu.stat").read_text().split()[1]
    assert 0 < shot.cpu_seconds["container"] < later.cpu_seconds["container"]
    assert later.cpu_seconds["container"] <= int(used) / 1e6
    assert guest.run(["cat", "/mnt/test/x"]).exit_code == 0  # now it is in the page cache
    volume, _ = bench.both.volume(CONTAINER)
    assert bench.both.drop_caches(volume) == 0
    pid = subprocess.run(
        ["lxc-info", "-n", str(bench.containers.vmid), "-p", "-H"], capture_output=True, check=True
    ).stdout.decode()
    path = f"/proc/{pid.strip()}/root/mnt/test/x"
    told = subprocess.run(["fincore", "-bno", "RES", path], capture_output=True, check=True)
    assert int(told.stdout) == 0


def test_nothing_runs_in_the_container_while_root_of_the_node_looks_at_its_files(
    bench: Bench,
) -> None:
    """Else a file that was found could be a link to a device of the node when it is opened."""
    guest, volume = bench.guest(), filled(bench)
    vmid, seen = bench.containers.vmid, bench.node.folder / "seen"
    with bench.node.program("fincore", f'lxc-info -n {vmid} -s -H >{seen}; /usr/bin/fincore "$@"'):
        assert bench.both.drop_caches(volume) == 0
    assert seen.read_text() == "FROZEN\n"
    with (
        bench.node.program("fincore", "exit 1"),
        pytest.raises(VolumeError, match="counting the cached bytes"),
    ):
        bench.both.drop_caches(volume)
    assert guest.run(["true"]).exit_code == 0


@pytest.mark.parametrize("then", ["run", "remove"])
def test_one_that_stays_frozen_where_the_program_of_the_node_is_killed_is_thawed(
    bench: Bench, then: str
) -> None:
    """Witness: lxc-info. In a frozen one nothing ends, not even what was told to."""
    guest, volume = bench.guest(), filled(bench)
    container = next(iter(bench.containers._held.values())).container
    with (
        bench.node.killed("fincore", when="after"),
        pytest.raises(OutcomeUnknown, match="signal 9 ended pvebench-node"),
    ):
        bench.both.drop_caches(volume)
    assert state(container.vmid) == "FROZEN"
    match then:
        case "run":
            assert guest.run(["true"]).exit_code == 0
            assert state(container.vmid) == "RUNNING"
        case "remove":
            container.remove()
            assert list(bench.node.left(NUMBERS)) == []
    assert not list(bench.node.folder.glob("turns/*.frozen"))


def test_who_waited_for_one_that_was_killed_thaws_what_it_left(bench: Bench) -> None:
    """Witness: lxc-info. What is run in a frozen one never ends."""
    volume = filled(bench)
    container = next(iter(bench.containers._held.values())).container
    turn = bench.node.folder / "turns" / container.mark
    with turn.open("ab") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = pool.submit(bench.both.drop_caches, volume)
        command = ["pgrep", "-xf", "flock -w 300 9"]
        while subprocess.run(command, check=False).returncode and not waiting.done():
            time.sleep(0.1)
        subprocess.run(["lxc-freeze", "-n", str(container.vmid)], check=True)
        turn.with_suffix(".frozen").touch()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert waiting.result(60) == 0
    assert state(container.vmid) == "RUNNING"
    assert not list(bench.node.folder.glob("turns/*.frozen"))


def test_the_program_of_the_node_thaws_when_it_is_asked_to_end(bench: Bench) -> None:
    """Witness: lxc-info. dash(1) runs nothing at its end when a signal ends it."""
    volume = filled(bench)
    tell = 'kill -TERM "$(ps -o sid= -p $$ | tr -d " ")"; /usr/bin/fincore "$@"'
    with (
        bench.node.program("fincore", tell),
        pytest.raises(OutcomeUnknown, match="signal 15 ended"),
    ):
        bench.both.drop_caches(volume)
    assert state(bench.containers.vmid) == "RUNNING"


def test_no_one_thaws_a_container_whose_files_someone_looks_at_still(bench: Bench) -> None:
    """A connection is lost, and the next question comes before the program there has ended."""
    guest, volume = bench.guest(), filled(bench)
    seen, go = bench.node.folder / "looks", bench.node.folder / "go"
    vmid = bench.containers.vmid
    looks = (
        f"touch {seen}; while [ ! -e {go} ]; do sleep 0.05; done; "
        f'lxc-info -n {vmid} -s -H >>{seen}; /usr/bin/fincore "$@"'
    )

    def cut() -> None:
        while not seen.exists():
            time.sleep(0.02)
        bench.node.server.cut()
        time.sleep(3)
        go.touch()

    with bench.node.program("fincore", looks):
        beside = threading.Thread(target=cut)
        beside.start()
        assert bench.both.drop_caches(volume) == 0  # asked again, as it was lost
        beside.join()
    assert seen.read_text() == "FROZEN\nFROZEN\n"
    assert guest.run(["true"]).exit_code == 0


def test_a_start_and_a_stop_go_on_where_the_program_of_the_node_is_killed_in_them(
    bench: Bench,
) -> None:
    """Witness: lxc-info."""
    bench.both.detach()
    with bench.node.killed("pct", "start", when="after"):
        guest = bench.guest()
    vmid = bench.containers.vmid
    assert guest.run(["true"]).exit_code == 0
    with bench.node.killed("pct", "stop", when="after"):
        bench.both.detach()
    assert state(vmid) == "STOPPED"


def test_a_link_in_the_container_leads_root_to_no_file_of_the_node(
    bench: Bench, tmp_path: Path
) -> None:
    guest = bench.guest()
    volume, _ = bench.both.volume(CONTAINER)
    (tmp_path / "test").mkdir()
    (tmp_path / "test/x").write_bytes(os.urandom(MIB))  # is in the page cache
    there = f"mv /mnt /aside; ln -s {tmp_path} /mnt; mkdir -p {tmp_path}/test"
    assert guest.run(["sh", "-c", there]).exit_code == 0
    try:
        with pytest.raises(VolumeError, match="is a link"):
            bench.both.drop_caches(volume)
    finally:
        guest.run(["sh", "-c", "rm /mnt; mv /aside /mnt"])


def test_a_name_in_the_container_is_no_line_of_what_the_node_reports(bench: Bench) -> None:
    """Witness: proc_pid_mountinfo(5), which writes the newline of a name as \\012."""
    bench.guest()
    container = next(iter(bench.containers._held.values())).container
    before = container.tell()
    # As root of the container, who may mount what lies in it.
    there = "/mnt/test/named\nmp0: other:vm-1-disk-0\nlimit: 1"
    script = 'mkdir -p "$1" && mount --bind "$1" /mnt/test'
    command = ["lxc-attach", "-n", str(container.vmid), "--clear-env", "--", "/bin/busybox", "sh"]
    subprocess.run([*command, "-c", script, "sh", there], check=True)
    try:
        told = container.tell()
        assert r"named\012mp0:\040other" in told["mount"]
        assert (told["mp0"], told["limit"]) == (before["mp0"], before["limit"])
    finally:
        subprocess.run([*command, "-c", "umount /mnt/test && rmdir /mnt/test/named*"], check=True)


def test_what_proxmox_made_is_not_called_what_a_pack_asks_for(bench: Bench) -> None:
    guest = bench.guest()
    for asked in (["mount", "x", "xfs"], ["mount", "x", "ext4", "noatime"]):
        with pytest.raises(SwitchFailed, match=r"file system mismatch: requested .*, found ext4"):
            guest.run([FILESYSTEM_TOOL, *asked])
    assert guest.run([FILESYSTEM_TOOL, "mount", "x", "ext4", ""]).exit_code == 0


def test_a_tool_outlasts_a_lost_connection(bench: Bench) -> None:
    guest = bench.guest()
    pid = guest.start(["sh", "-c", "sleep 2; echo done"])
    bench.node.server.cut()
    while (ended := guest.poll(pid)) is None:
        SystemClock().sleep(0.2)
    assert (ended.exit_code, ended.stdout) == (0, b"done\n")


def test_a_container_that_someone_stops_is_said_and_started_again(bench: Bench) -> None:
    guest = bench.guest()
    command = ["lxc-stop", "-n", str(bench.containers.vmid), "--kill"]
    subprocess.run(command, check=True)
    with pytest.raises(HypervisorGone, match=r"container \d+ of .* stopped"):
        guest.run(["true"])
    again = bench.guest()
    assert again is not guest
    assert again.run(["true"]).exit_code == 0


def test_one_whose_limits_someone_changed_does_not_measure(bench: Bench) -> None:
    bench.guest()
    path = bench.node.configuration(bench.containers.vmid)
    text = path.read_text()
    assert "memory: 512\n" in text
    bench.both.detach()
    path.write_text(text.replace("memory: 512\n", "memory: 256\n"))
    with pytest.raises(SwitchFailed, match=r"container mismatch: .*, found 256 MiB"):
        bench.guest()
    assert bench.containers.vmid == 0
    command = ["lxc-info", "-n", path.stem, "-s", "-H"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"STOPPED\n"
    path.write_text(text)
    bench.guest()
    path.write_text(text.replace("memory: 512\n", "memory: 1024\n"))  # pct does so while it runs
    volume, _ = bench.both.volume(CONTAINER)
    with pytest.raises(SwitchFailed, match=r"container mismatch: .*, found 1024 MiB"):
        bench.both.attach(volume, CONTAINER.disk)
    path.write_text(text)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is all that is here")
def test_one_that_may_run_on_other_cpus_than_its_configuration_says_does_not_measure(
    bench: Bench,
) -> None:
    """Witnesses: nproc in it, by the kernel; `cpulimit` is of the recorded schema."""
    guest = bench.guest()
    assert guest.run(["nproc"]).stdout.decode().strip() == str(VM.cpus)
    path = bench.node.configuration(bench.containers.vmid)
    text = path.read_text()
    assert "cores: 1\n" in text
    bench.both.detach()
    path.write_text(text.replace("cores: 1\n", "cores: 2\n"))
    next(iter(bench.containers._held.values())).container.start()
    path.write_text(text)
    with pytest.raises(SwitchFailed, match=r"requested 1 CPUs, may use CPUs \d+[-,]\d+\n"):
        bench.guest()
    path.write_text(f"{text}cpulimit: 0.5\n")
    with pytest.raises(
        SwitchFailed, match=r"requested 1 CPUs, may use CPUs .* for 0\.5 of their time"
    ):
        bench.guest()
    path.write_text(text)
    assert bench.guest().run(["true"]).exit_code == 0


def test_what_is_mounted_over_the_volume_is_not_measured_in_its_place(bench: Bench) -> None:
    """As it looks from the node: the volume is one device, what is mounted is another."""
    bench.guest()
    (used,) = bench.containers.devices
    other = next(one for one in Path("/dev").glob("loop[0-9]*") if one.stat().st_rdev != used)
    bench.both.detach()
    with (
        bench.node.program("pvesm", f"echo {other}"),
        pytest.raises(SwitchFailed, match=r"disk mismatch: requested .*, mounted"),
    ):
        bench.guest()
    bench.guest()


def test_another_size_is_another_container_and_the_old_one_goes(bench: Bench) -> None:
    bench.guest()
    volume, new = bench.both.volume(replace(CONTAINER, volume_bytes=32 * MIB))
    assert new
    assert volume.size_bytes == 32 * MIB
    assert [call.partition(" ")[0] for call in bench.node.calls()[-2:]] == ["destroy", "create"]


def test_a_program_that_ignores_the_signal_to_end_ends_all_the_same(bench: Bench) -> None:
    """Witness: /proc, of what is left of it on the node."""
    bench.guest()
    container = next(iter(bench.containers._held.values())).container
    begun = time.monotonic()
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done; : stubborn"]
    with pytest.raises(OutcomeUnknown, match="did not end within 1 s"):
        container.run(stubborn, timeout=1.0)
    assert time.monotonic() - begun < 12
    while left := [one for one in processes() if "stubborn" in one]:
        assert time.monotonic() - begun < 12, left
        time.sleep(0.1)
    begun = time.monotonic()
    for _ in range(5):
        assert container.run(["true"], timeout=60.0).exit_code == 0
    assert time.monotonic() - begun < 4  # what watches over it is not waited for


def test_what_pct_had_mounted_when_it_was_killed_goes_with_its_container(bench: Bench) -> None:
    """Else its volume is in use: `mount_all` in PVE/LXC.pm; the mark is written while it is."""
    dies, seen = bench.node.folder / "dies", bench.node.folder / "mountinfo"
    dies.write_text("written")
    does = (bench.node.folder / "bin/pct").read_text().partition("\n")[2]
    watched = f"({does}); code=$?; [ $1 != create ] || cp /proc/self/mountinfo {seen}; exit $code"
    with bench.node.program("pct", watched), pytest.raises(VolumeError, match="pct create"):
        bench.both.volume(replace(CONTAINER, volume_bytes=80 * MIB))  # the other one goes
    dies.unlink()
    mounted = [line.split()[4] for line in seen.read_text().splitlines()]
    assert any(re.fullmatch("/var/lib/lxc/950./rootfs/mnt/test", place) for place in mounted)
    assert list(bench.node.left(NUMBERS)) == []
    assert KIND not in {kind for _, kind, _ in bench.api.store.journal.pending()}
