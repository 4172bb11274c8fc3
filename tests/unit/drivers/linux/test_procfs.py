from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.drivers.linux.node_exporter import fetch, read_counters
from pvebench.drivers.linux.procfs import ProcProbe, host_facts, of_files, qemu_cpu, read_snapshot
from pvebench.errors import MachineError
from pvebench.model.disk import HostCache
from pvebench.model.ports import HostSnapshot
from pvebench.model.run import Unit
from pvebench.model.volume import BlockCounters
from pvebench.model.workload import Case, Direction
from pvebench.runner.window import Mark, condition_samples, window_samples
from testing.changes import CASES

TICKS = os.sysconf("SC_CLK_TCK")


def stat_line(name: str, user: int, system: int) -> str:
    return f"7 ({name}) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 4 0 100 0 0\n"


def process_tree(root: Path) -> Path:
    """A /proc as QEMU's looks: a vcpu thread, an I/O thread, the main loop, a worker."""
    process = root / "proc" / "7"
    threads = {
        "7": ("qemu-system-x86", 50, 50),
        "8": ("CPU 0/TCG", 300, 100),
        "9": ("IO mon_iothread", 20, 30),
        "10": ("worker (a) b", 10, 0),
    }
    for number, (name, user, system) in threads.items():
        task = process / "task" / number
        task.mkdir(parents=True)
        (task / "comm").write_text(f"{name}\n")
        (task / "stat").write_text(stat_line(name, user, system))
    (process / "stat").write_text(stat_line("qemu-system-x86", 400, 200))
    (process / "io").write_text("rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n")
    (root / "proc" / "stat").write_text(
        "cpu  1000 0 500 9000 100 0 50 0 300 0\ncpu0 1 1\ncpu1 1 1\nctxt 777\n"
    )
    return root


def test_qemus_cpu_is_split_by_thread_and_the_rest_is_other(tmp_path: Path) -> None:
    seconds = qemu_cpu(process_tree(tmp_path), 7)
    assert seconds == {
        "qemu": 600 / TICKS,
        "vcpu": 400 / TICKS,
        "iothread": 50 / TICKS,
        "other": 150 / TICKS,
    }


def test_the_hosts_total_leaves_out_idle_iowait_and_guest_time_counted_twice(
    tmp_path: Path,
) -> None:
    snapshot = ProcProbe(lambda: 7, lambda: tmp_path, process_tree(tmp_path)).snapshot()
    assert snapshot.cpu_seconds["total"] == 1550 / TICKS
    assert (snapshot.cpus, snapshot.context_switches) == (2, 777)
    assert snapshot.bytes == {"process_read": 4096, "process_write": 8192}


def test_a_process_that_is_gone_gives_no_figures_rather_than_zeros(tmp_path: Path) -> None:
    snapshot = ProcProbe(lambda: 99, lambda: tmp_path, process_tree(tmp_path)).snapshot()
    assert set(snapshot.cpu_seconds) == {"total"}
    assert snapshot.bytes == {}


def test_this_process_is_seen_to_use_the_cpu_that_it_burns() -> None:
    before = qemu_cpu(Path("/"), os.getpid())["qemu"]
    deadline = time.process_time() + 0.3
    while time.process_time() < deadline:
        pass
    assert 0.25 <= qemu_cpu(Path("/"), os.getpid())["qemu"] - before < 5


def test_facts_name_the_running_kernel() -> None:
    assert host_facts()["kernel"] == os.uname().release


def mark(seconds: float, cpu: dict[str, float], moved: dict[str, int], reads: int) -> Mark:
    host = HostSnapshot(monotonic=seconds, cpu_seconds=cpu, bytes=moved, context_switches=reads)
    block = BlockCounters(
        read_operations=reads, write_operations=0, flush_operations=0, read_bytes=0, write_bytes=0
    )
    return Mark(host, block)


def test_a_window_gives_cores_and_differences() -> None:
    start = mark(10.0, {"total": 5.0, "qemu": 2.0}, {"process_read": 100}, 1000)
    end = mark(18.0, {"total": 13.0, "qemu": 6.0}, {"process_read": 900}, 5000)
    values = {(one.metric, one.part): one.value for one in window_samples(start, end)}
    assert values["host_cpu", "total"] == 1.0
    assert values["host_cpu", "qemu"] == 0.5
    assert values["host_bytes", "process_read"] == 800
    assert values["qemu_operations", "read"] == 4000
    assert values["window", ""] == 8.0


def test_a_counter_that_went_back_or_is_new_gives_no_sample() -> None:
    start = mark(10.0, {"total": 5.0}, {"device_read": 1000}, 1000)
    end = mark(18.0, {"total": 4.0, "qemu": 1.0}, {"device_read": 10, "device_write": 5}, 10)
    names = {(one.metric, one.part) for one in window_samples(start, end)}
    assert ("host_cpu", "total") not in names
    assert ("host_cpu", "qemu") not in names
    assert not {part for metric, part in names if metric == "host_bytes"}
    assert ("qemu_operations", "read") not in names


NVME = {
    "name": "nvme\n",
    "temp1_input": "61850\n",
    "temp1_max": "84850\n",
    "temp2_input": "70850\n",
    "temp2_max": "65261850\n",  # what a sensor without a limit says
}
TREE = {
    "sys/class/hwmon/hwmon0": {"name": "coretemp\n", "temp1_input": "99000\n", "temp1_max": "1\n"},
    "sys/class/hwmon/hwmon1": NVME,
    "sys/class/hwmon/hwmon2": {"name": "drivetemp\n", "temp1_input": "52000\n"},
    "sys/class/hwmon/hwmon3": {
        "name": "drivetemp\n",
        "temp1_input": "57500\n",
        "temp1_max": "60000\n",
    },
    "sys/devices/system/cpu/cpu0": {"online": "1\n"},  # node_exporter 1.9 ends without any
    "proc": {"stat": "cpu  1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0\nctxt 7\n"},
    "proc/spl/kstat/zfs": {
        "arcstats": "6 1 0x01 91 4368 5266997922 97951858082072\n"
        "name                            type data\n"
        "hits                            4    8772612\n"
        "c_max                           4    8390184960\n"
        "size                            4    1603939792\n"
    },
}
IDLE_ARRAY = """\
md127 : active raid1 sdi2[0] sdj2[1]
      312319552 blocks [2/2] [UU]

md10 : active raid0 sda1[0] sdb1[1]
      314159265 blocks 64k chunks

"""
BUSY_ARRAY = """\
md201 : active raid1 sda3[0] sdb3[1]
      1993728 blocks super 1.2 [2/2] [UU]
      [=>...................]  {what} =  5.7% (114176/1993728) finish=0.2min speed=114176K/sec

"""
WAITING_ARRAY = """\
md11 : active (auto-read-only) raid1 sdb2[0] sdc2[1]
      4190208 blocks super 1.2 [2/2] [UU]
      resync=PENDING

"""


def mdstat(*arrays: str) -> str:
    personalities = "Personalities : [raid0] [raid1] [raid6] [raid5] [raid4] [raid10]"
    return f"{personalities}\n{''.join(arrays)}unused devices: <none>\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for folder, files in TREE.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    # hwmon names a chip after its device; these three have one of their own each.
    for number in range(4):
        chip = tmp_path / f"sys/class/hwmon/hwmon{number}"
        device = tmp_path / f"sys/devices/card{number}"
        device.mkdir(parents=True)
        (chip / "device").symlink_to(device)
    return tmp_path


@pytest.fixture
def page(machine: Path) -> Iterator[str]:
    with served(machine) as found:
        yield found


@contextmanager
def served(machine: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    command = [
        "prometheus-node-exporter",
        f"--web.listen-address={address}",
        f"--path.procfs={machine}/proc",
        f"--path.sysfs={machine}/sys",
        "--collector.disable-defaults",
        *(f"--collector.{name}" for name in ("cpu", "hwmon", "zfs", "stat", "mdadm")),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        yield _page(f"http://{address}/metrics")
        server.terminate()


def _page(url: str) -> str:
    for _ in range(100):
        try:
            return fetch(url)
        except MachineError:
            time.sleep(0.1)
    return fetch(url)


def test_the_hottest_drive_and_zfs_cache_are_reported_alike_by_node_exporter_and_the_files(
    machine: Path, page: str
) -> None:
    told = {"disk_margin": 2.5, "zfs_cache": 1603939792.0}
    assert read_counters(page).conditions == told
    assert read_snapshot(machine, pid=None, devices=(), at=0.0).conditions == told


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ([IDLE_ARRAY], {"md_sync": 0.0}),
        ([IDLE_ARRAY, BUSY_ARRAY.format(what="check")], {"md_sync": 1.0}),
        ([BUSY_ARRAY.format(what="resync"), IDLE_ARRAY], {"md_sync": 1.0}),
        ([BUSY_ARRAY.format(what="recovery")], {"md_sync": 1.0}),
        ([WAITING_ARRAY], {"md_sync": 0.0}),  # of an array that nobody writes to: for ever
        ([], {}),
    ],
)
def test_a_raid_that_is_gone_through_is_reported_alike_by_node_exporter_and_the_file(
    machine: Path, arrays: list[str], told: dict[str, float]
) -> None:
    (machine / "proc/mdstat").write_text(mdstat(*arrays))
    with served(machine) as page:
        found = read_counters(page).conditions
    assert {name: value for name, value in found.items() if name == "md_sync"} == told
    found = read_snapshot(machine, pid=None, devices=(), at=0.0).conditions
    assert {name: value for name, value in found.items() if name == "md_sync"} == told


def test_a_machine_without_sensors_and_zfs_reports_neither(tmp_path: Path) -> None:
    assert of_files(tmp_path) == {}
    assert read_counters("node_hwmon_temp_celsius{chip='x'} 1\n".replace("'", '"')).conditions == {}


ALL = {
    "disk_margin": 20.0,
    "disk_wear": 1.0,
    "md_sync": 1.0,
    "storage_used": 0.9,
    "zfs_cache": 5e9,
    "zfs_fragmentation": 0.8,
    "zfs_scan": 1.0,
}
READ, WRITE = Direction.READ, Direction.WRITE


@pytest.mark.parametrize(
    ("treated", "directions", "local", "excluded"),
    [
        (HostCache.WARM, (READ, WRITE), True, set()),
        # Nobody's reads go through it where it is emptied before.
        (HostCache.DROPPED, (WRITE,), True, {"zfs_cache"}),
        (HostCache.WARM, (READ,), True, {"zfs_fragmentation"}),
        (HostCache.WARM, (WRITE,), False, {"md_sync", "disk_wear"}),
        # An idle VM, or one that boots, does no I/O to speak of.
        (HostCache.WARM, (), True, {"md_sync", "disk_wear", "zfs_fragmentation", "zfs_scan"}),
    ],
)
def test_only_what_can_concern_a_case_is_kept_with_its_runs(
    treated: HostCache, directions: tuple[Direction, ...], local: bool, excluded: set[str]
) -> None:
    scenario = replace(CASES[0].scenario, host_cache=treated)
    workload = replace(CASES[0].workload, directions=directions)
    found = condition_samples(Case(scenario=scenario, workload=workload), ALL, local=local)
    assert {one.metric for one in found} == ALL.keys() - excluded
    units = {one.metric: one.unit for one in found}
    assert units["disk_margin"] is Unit.CELSIUS
    assert units.get("zfs_cache", Unit.BYTES) is Unit.BYTES
    assert units["storage_used"] is Unit.RATIO
