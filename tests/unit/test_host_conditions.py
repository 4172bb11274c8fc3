"""Heat of the drives and ZFS' cache: what node_exporter tells of a machine is what we read there.

The witness is Debian's prometheus-node-exporter: it is shown the same files as we are, a tree of
/proc and /sys as Linux documents them (Documentation/hwmon/sysfs-interface.rst, nvme's and
drivetemp's drivers; OpenZFS' arcstats), since few machines that run these tests have either.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.drivers.host.conditions import of_files
from pvebench.drivers.host.exporter import fetch, read_counters
from pvebench.drivers.host.procfs import read_snapshot
from pvebench.errors import MachineError
from pvebench.model.disk import Bus, Cache, Disk, Format, HostCache
from pvebench.model.host import HostSnapshot
from pvebench.model.run import Sample, Unit
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.runner.window import condition_samples

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
    "proc": {"stat": "cpu  1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0\nctxt 7\n"},
    "proc/spl/kstat/zfs": {
        "arcstats": "6 1 0x01 91 4368 5266997922 97951858082072\n"
        "name                            type data\n"
        "hits                            4    8772612\n"
        "c_max                           4    8390184960\n"
        "size                            4    1603939792\n"
    },
}


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
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    command = [
        "prometheus-node-exporter",
        f"--web.listen-address={address}",
        f"--path.procfs={machine}/proc",
        f"--path.sysfs={machine}/sys",
        "--collector.disable-defaults",
        *(f"--collector.{name}" for name in ("cpu", "hwmon", "zfs", "stat")),
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


def test_the_hottest_drive_and_zfs_cache_are_told_alike_by_node_exporter_and_the_files(
    machine: Path, page: str
) -> None:
    told = {"disk_margin": 2.5, "zfs_cache": 1603939792.0}
    assert read_counters(page).conditions == told
    assert read_snapshot(machine, pid=None, device=None, at=0.0).conditions == told


def test_a_machine_without_sensors_and_zfs_tells_neither(tmp_path: Path) -> None:
    assert of_files(tmp_path) == {}
    assert read_counters("node_hwmon_temp_celsius{chip='x'} 1\n".replace("'", '"')).conditions == {}


@pytest.mark.parametrize(
    ("treated", "told"),
    [(HostCache.DROPPED, []), (HostCache.WARM, [Sample("zfs_cache", None, 5e9, Unit.BYTES)])],
)
def test_zfs_cache_is_kept_only_with_runs_that_are_read_through_what_nobody_empties(
    treated: HostCache, told: list[Sample]
) -> None:
    scenario = Scenario(
        node="lab",
        storage="tank",
        machine=Machine(memory_bytes=MIB, cpus=1),
        volume_bytes=MIB,
        disk=Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE),
        host_cache=treated,
    )
    host = HostSnapshot(
        monotonic=0.0, cpu_seconds={}, conditions={"disk_margin": 20.0, "zfs_cache": 5e9}
    )
    margin = Sample("disk_margin", None, 20.0, Unit.CELSIUS)
    assert condition_samples(scenario, host) == [margin, *told]
