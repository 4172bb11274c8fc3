"""Containers without LXC: their place in plans, their configuration, their groups, their undo.

What LXC itself makes of it is in tests/integration/test_container_disk.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import load_pack
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.procfs import ProcProbe, cpu_seconds
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.proxmox.proxmox_settings import ClusterSettings, cluster_storages
from pvebench.drivers.storages import KINDS
from pvebench.errors import SwitchFailed
from pvebench.files import mounts
from pvebench.guest.archives import DIRECTORY, FILE, LINK, Entry, archive, unpack_archive
from pvebench.model.definition import Definition, configuration_text
from pvebench.model.rules import Rows, StorageKind
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.scheduler.plan import expand, make_plan
from pvebench_lab.host import DRIVER as HOST_DRIVER
from pvebench_lab.host import HostSettings
from pvebench_lab.lxc import container, container_disk
from pvebench_lab.lxc.container import (
    Container,
    config,
    container_support,
    cpu_list,
    memory_limit,
    undo_root,
)
from pvebench_lab.lxc.container_disk import ContainerDisk
from testing.packs import SMALL, write_pack
from testing.simulations import simulate
from testing.stores import TemporaryStore

WITH_BOTH = SMALL.replace("axes:", "host: true\nlxc: true\naxes:")
MACHINE = Machine(memory_bytes=256 * MIB, cpus=1)
OTHERS = "fedcba9876543210"
OWN = "0123456789abcdef"


def test_a_pack_with_lxc_has_that_row_behind_the_hosts(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, WITH_BOTH))
    for seed in range(8):
        plan = make_plan(
            expand(pack, node="lab", storages={"local": KINDS["dir"].holds}), seed=seed
        )
        first = [case.scenario.slug for case in plan.cases[:2]]
        assert first == ["local.host.raw.none", "local.lxc.raw.none.filesystem-ext4"]
        assert plan.restarts == 1, "the VM is not started anew for them"


def test_a_container_has_the_guests_file_system_and_the_settings_below(tmp_path: Path) -> None:
    text = WITH_BOTH.replace("axes:", "axes:\n  filesystem: [xfs]\n  read_ahead: [1M]")
    pack = load_pack(write_pack(tmp_path, text.replace("size: 64M", "size: 1G")))
    matrix = expand(pack, node="lab", storages={"local": KINDS["loop"].holds})
    slugs = {one.scenario.slug for one in matrix.cases if one.scenario.disk.in_container}
    assert slugs == {"local.lxc.raw.none.read_ahead-1M.filesystem-xfs"}


def test_without_a_vm_containers_are_left_and_by_ssh_they_are_not_offered(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, WITH_BOTH))
    matrix = expand(pack, node="lab", storages={"local": KINDS["dir"].holds}, rows=Rows.HOST)
    assert [case.scenario.disk.bus for case in matrix.cases] == ["host", "lxc"]
    key = tmp_path / "key"
    settings = HostSettings.model_validate(
        {
            "node": "nas",
            "ssh": {"host": "nas", "key_file": str(key)},
            "storages": {"local": {"kind": "dir", "path": "/srv"}},
        }
    )
    kinds = {name: one.holds for name, one in HOST_DRIVER.storages(settings, "nas").items()}
    matrix = expand(pack, node="nas", storages=kinds, rows=Rows.HOST)
    assert [case.scenario.disk.bus for case in matrix.cases] == ["host"]
    reasons = {left.reason for left in matrix.excluded if ".lxc." in left.slug}
    assert reasons == {"containers on a machine reached by ssh are not supported"}


def proxmox_kinds(**changes: object) -> dict[str, StorageKind]:
    given = {"host": "pve1", "storages": {"local": {"type": "lvmthin"}}} | changes
    settings = ClusterSettings.model_validate({"node": "pve1", "proxmox": given})
    return {name: one.holds for name, one in cluster_storages(settings, "pve1").items()}


SSH = {"ssh": {"host": "pve1", "key_file": "key"}}


def test_on_a_node_containers_are_made_by_ssh_where_proxmox_gives_them_a_device_with_ext4(
    tmp_path: Path,
) -> None:
    pack = load_pack(write_pack(tmp_path, WITH_BOTH))
    matrix = expand(pack, node="pve1", storages=proxmox_kinds(**SSH), rows=Rows.VM)
    slugs = [one.scenario.slug for one in matrix.cases if one.scenario.disk.in_container]
    assert set(slugs) == {"local.lxc.raw.none.filesystem-ext4"}
    for changes, reason in (
        ({}, "containers on a node require SSH; set proxmox.ssh in the settings"),
        (
            {**SSH, "storages": {"local": {"type": "dir"}}},
            "a loop device with the node's page cache",
        ),
        ({**SSH, "storages": {"local": {"type": "zfspool"}}}, "uses a ZFS dataset"),
        ({**SSH, "storages": {"local": {"type": "zfs"}}}, "does not support containers"),
    ):
        matrix = expand(pack, node="pve1", storages=proxmox_kinds(**changes), rows=Rows.VM)
        (left,) = {one.reason for one in matrix.excluded if ".lxc." in one.slug}
        assert reason in left


@pytest.mark.parametrize(
    "axis", ["filesystem: [xfs]", "filesystem: [ext4]\n  mount_options: [noatime]"]
)
def test_what_pct_does_not_make_on_a_mount_point_is_left_out(tmp_path: Path, axis: str) -> None:
    text = WITH_BOTH.replace("axes:", f"axes:\n  {axis}")
    pack = load_pack(write_pack(tmp_path, text.replace("size: 64M", "size: 1G")))
    matrix = expand(pack, node="pve1", storages=proxmox_kinds(**SSH), rows=Rows.VM)
    reasons = {one.reason for one in matrix.excluded if ".lxc." in one.slug}
    assert reasons == {
        "Proxmox creates and mounts a container's file system: ext4, without options"
    }


def test_a_container_is_compared_with_the_host_and_never_called_the_fastest_disk(
    tmp_path: Path,
) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, WITH_BOTH))
    simulation.worker.run()
    (run,) = [one for one in simulation.recorder.runs if one.case.scenario.disk.in_container]
    (ratio,) = [s.value for s in run.samples if s.metric == "guest_to_host"]
    assert 0.5 < ratio < 1.1
    assert not any(sample.metric.startswith("qemu_") for sample in run.samples)
    definition = Definition.of(run.case)
    assert configuration_text(definition) == "container, filesystem ext4"


def test_the_configuration_is_in_the_words_of_lxc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is one of lxc.container.conf(5); limits go to the version that has them."""
    monkeypatch.setattr(container, "version_of", lambda name: 1 if name == "memory" else 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    text = config(Path("/var/lib/x"), MACHINE, "/dev/loop7", root_id=100_000)
    lines = text.splitlines()
    assert "lxc.idmap = u 0 100000 65536" in lines
    assert "lxc.cgroup.memory.limit_in_bytes = 268435456" in lines
    assert "lxc.cgroup2.cpuset.cpus = 0" in lines
    assert "lxc.mount.entry = /dev/loop7 dev/pvebench-test none bind,create=file 0 0" in lines
    assert "idmap" not in config(Path("/var/lib/x"), MACHINE, "/dev/loop7", root_id=0)


def test_cpus_are_those_that_we_may_use_written_as_the_kernel_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 2, 3, 5, 6})
    told = [cpu_list(Machine(memory_bytes=MIB, cpus=count)) for count in (1, 2, 4, 64)]
    assert told == ["1", "1-2", "1-3,5", "1-3,5-6"]


def test_memory_is_limited_in_whole_pages_as_the_kernel_counts_it() -> None:
    """Linux rounds a limit down to pages (`page_counter_memparse` in mm/page_counter.c)."""
    assert memory_limit(Machine(memory_bytes=256 * MIB, cpus=1)) == 256 * MIB
    assert memory_limit(Machine(memory_bytes=256 * MIB + 1024, cpus=1)) == 256 * MIB


def test_more_cpus_than_the_machine_has_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    made = Container(OWN, journal=store.journal, clock=SystemClock(), place=tmp_path)
    wide = Machine(memory_bytes=256 * MIB, cpus=4096)
    with pytest.raises(SwitchFailed, match="fewer CPUs than the container's 4096"):
        made.start(None, wide, "/dev/null", "/dev/null")  # type: ignore[arg-type] # never looked at
    assert store.journal.pending() == []
    assert not made.directory.exists()
    store.close()


def a_group(root: Path, *, hybrid: bool, group: str = "/lxc.payload.x") -> None:
    """What the kernel shows of a process in a group: cgroups(7), "/proc/[pid]/cgroup"."""
    for number in ("self", "7"):
        (root / "proc" / number).mkdir(parents=True)
        lines = f"4:memory:{group}\n3:cpuset:{group}\n" if hybrid else ""
        (root / "proc" / number / "cgroup").write_text(f"{lines}0::{group}\n")
    base = root / "sys/fs/cgroup" / ("unified" if hybrid else "")
    (base / group.lstrip("/")).mkdir(parents=True)
    stat = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"
    (base / group.lstrip("/") / "cpu.stat").write_text(stat)


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_containers_cpu_is_that_of_its_group_in_either_arrangement(
    tmp_path: Path, hybrid: bool
) -> None:
    a_group(tmp_path, hybrid=hybrid)
    assert cpu_seconds(tmp_path, 7) == 2.5
    assert container.version_of("memory", tmp_path) == (1 if hybrid else 2)
    (tmp_path / "proc/stat").write_text("cpu  1000 0 500 9000 100 0 50 0 300 0\ncpu0 1 1\n")
    probe = ProcProbe(lambda: None, lambda: None, tmp_path, container=lambda: 7)
    assert probe.snapshot().cpu_seconds["container"] == 2.5


def test_cpu_that_cannot_be_read_is_absent_and_not_zero(tmp_path: Path) -> None:
    assert cpu_seconds(tmp_path, 7) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  1000 0 500 9000 100 0 50 0 300 0\ncpu0 1 1\n")
    probe = ProcProbe(lambda: None, lambda: None, tmp_path, container=lambda: 7)
    assert "container" not in probe.snapshot().cpu_seconds


def test_only_the_groups_of_this_very_container_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "GROUPS", tmp_path)
    for name in ("lxc.payload.mine/.lxc", "lxc.monitor.mine", "lxc.payload.mine-too", "mine"):
        (tmp_path / "memory" / name).mkdir(parents=True)
    assert container.end_groups("mine") == 0
    left = sorted(path.name for path in (tmp_path / "memory").iterdir())
    assert left == ["lxc.payload.mine-too", "mine"]


def test_the_volumes_mount_is_known_by_device_place_and_kind() -> None:
    """A line of proc_pid_mountinfo(5)'s own example, and one of a container here."""
    text = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
        "47 72 7:0 / /mnt/test rw,relatime shared:17 - ext4 /dev/pvebench-test rw\n"
    )
    found = [(mount.device, mount.point, mount.type) for mount in mounts(text)]
    assert found == [("98:0", "/mnt2", "ext3"), ("7:0", "/mnt/test", "ext4")]


def test_the_guests_archive_unpacks_to_what_it_holds_without_devices_and_modules(
    tmp_path: Path,
) -> None:
    entries = {
        "bin/tool": Entry(FILE | 0o755, b"#!/bin/sh\n"),
        "bin/other": Entry(LINK | 0o777, b"tool"),
        "lib/modules/a.ko": Entry(FILE | 0o644, b"x"),
        "dev/null": Entry(0o020000 | 0o666, device=(1, 3)),
        "tmp": Entry(DIRECTORY | 0o755),
    }
    unpack_archive(archive(entries), tmp_path, but="lib/modules/")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["bin", "bin/other", "bin/tool", "dev", "lib", "lib/modules", "tmp"]
    assert (tmp_path / "bin/other").readlink() == Path("tool")
    assert (tmp_path / "bin/tool").stat().st_mode & 0o7777 == 0o755


def test_the_undo_touches_only_what_carries_our_mark_and_our_id(tmp_path: Path) -> None:
    ours, others = (tmp_path / f"pvebench-test-{one}-container" for one in (OWN, OTHERS))
    plain = tmp_path / "somebodys"
    for path in (ours, others, plain):
        path.mkdir()
    undo_root({"path": str(plain)})
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    for path in (ours, others):
        store.journal.open(container.ROOT_KIND, {"path": str(path)})
        store.journal.open(container.KIND, {"name": path.name, "volume": str(tmp_path / "none")})
    undo = {container.KIND: container.undo_container, container.ROOT_KIND: undo_root}
    lines = undo_local(store.journal, undo, instance=OWN, runtime=tmp_path)
    assert (ours.exists(), others.exists(), plain.exists()) == (False, True, True)
    assert sum("another instance created it" in line for line in lines) == 2
    assert store.journal.pending() == []
    store.close()


def test_a_container_is_started_with_its_volume_and_counts_nothing_without(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    made = Container(OWN, journal=store.journal, clock=SystemClock(), place=tmp_path)
    disk = ContainerDisk(made, storages={}, image=None, clock=SystemClock())  # type: ignore[arg-type] # never asked
    with pytest.raises(SwitchFailed, match="needs its volume at its start"):
        disk.boot(MACHINE)
    with pytest.raises(SwitchFailed, match="no volume is in use"):
        disk.counters()
    disk.shutdown()
    assert disk.volume_path is None
    store.close()


def test_a_device_without_counters_is_none_to_measure_in_a_container() -> None:
    with pytest.raises(SwitchFailed, match="/dev/shm has no counters"):
        container_disk._counters(Path("/dev/shm"))


def test_check_says_what_containers_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = write_pack(tmp_path, WITH_BOTH)
    arguments = ["check", "--state", str(tmp_path / "state"), "--pack", str(pack), "--format=json"]
    monkeypatch.setattr(shutil, "which", lambda name, **_: "/bin/fio" if name == "fio" else None)
    assert run_cli([*arguments, "--driver", "host"]) == 3
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert not found["lxc"]["ok"]
    assert "apt-get install lxc" in found["lxc"]["found"]
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    run_cli([*arguments, "--driver", "host"])
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert "containers need root" in found["lxc"]["found"]


@pytest.mark.parametrize(
    ("content", "able"),
    [
        ("", False),
        ("debian:100000:65536\n", False),
        ("root:100000:1000\n", False),
        ("root:200000:65536\nroot:x\n", False),
        ("root:100000:65536\n", True),
        ("debian:1:5\n0:1:1000000\n", True),
    ],
)
def test_containers_need_ids_that_newuidmap_gives_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, able: bool
) -> None:
    # LXC 5.0.2 with uidmap 4.13 and an empty /etc/subuid: "newuidmap: uid range … not allowed".
    path = tmp_path / "subuid"
    path.write_text(content, "ascii")
    monkeypatch.setattr(container, "ID_RANGES", (path,))
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    found, why = container_support()
    assert found is able
    assert able or "add the line root:100000:65536" in why
