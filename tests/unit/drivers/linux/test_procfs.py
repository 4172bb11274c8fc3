from __future__ import annotations

import os
import time
from pathlib import Path

from pvebench.drivers.linux.procfs import ProcProbe, host_facts, qemu_cpu
from pvebench.model.ports import HostSnapshot
from pvebench.model.volume import BlockCounters
from pvebench.runner.window import Mark, window_samples

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
