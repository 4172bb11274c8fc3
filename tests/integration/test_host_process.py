"""The host driver on real md, device mapper and NFS, in a host in a process (User-mode Linux)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hostprocess.machine import (
    HostProcess,
    HostProcessError,
    HostProcessMissing,
    alive,
    make_disks,
    need_host_process,
    running_host_process,
    wait_until_gone,
)
from pvebench.model.run import Outcome
from pvebench.model.units import MIB
from testing.packs import ROOT
from testing.real_outcomes import MEASURED

FILES: Final = ROOT / "tests" / "hostprocess"


@pytest.fixture(autouse=True, scope="module")
def _programs() -> None:
    try:
        need_host_process("mdadm", "dmsetup", "ganesha.nfsd", "rpcbind")
    except HostProcessMissing as error:
        pytest.skip(f"no host in a process: {error}")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    directory = tmp_path_factory.mktemp("host")
    with running_host_process(directory, make_disks(directory, 7, 512 * MIB)) as machine:
        machine.run(shlex.quote(f"{FILES}/quick_storages.sh"))
        yield machine


@pytest.fixture(scope="module")
def said(host: HostProcess) -> dict[str, Any]:
    """What quick_runs.py says."""
    found: dict[str, Any] = json.loads(host.run(host.python(f"{FILES}/quick_runs.py"), seconds=600))
    return found


def test_an_array_and_device_mapper_devices_are_claimed_under_the_identity_they_keep(
    host: HostProcess, said: dict[str, Any]
) -> None:
    # The second opinion: mdadm's and dmsetup's own words.
    array = host.run("mdadm --detail /dev/md0 | sed -n 's/ *UUID : //p'").replace(":", "").strip()
    assert said["claims"]["/dev/md0"].replace("-", "").startswith(f"uuid {array}, ")
    for name in ("cached", "thin"):
        uuid = host.run(f"dmsetup info -c --noheadings -o uuid {name}").strip()
        assert said["claims"][f"/dev/mapper/{name}"].startswith(f"uuid {uuid}, ")


@pytest.mark.parametrize(
    ("disk", "use"),
    [
        ("ubda", "holder of type raid1 md0"),
        ("ubdc", "holder of type quick cached"),
        ("ubdd", "holder of type quick cached"),
        ("ubde", "holder of type quick thin"),
        ("ubdf", "mounted at /srv/export"),
    ],
)
def test_a_disk_below_an_array_a_cache_a_pool_or_a_mount_is_not_claimed(
    said: dict[str, Any], disk: str, use: str
) -> None:
    line = said["claims"][f"/dev/{disk}"]
    assert line.startswith(f"cannot open /dev/{disk}: Device or resource busy: ")
    assert use in line


def test_the_serial_number_that_linux_prints_for_a_disk_without_one_is_no_identity(
    host: HostProcess, said: dict[str, Any]
) -> None:
    assert host.run("cat /sys/block/ubda/serial").strip() == "(null)"
    assert said["plain disk"] == f"sectors {512 * MIB // 512}"


@pytest.mark.parametrize("name", ["dm-cache", "nfs"])
def test_a_storage_is_measured_and_the_counters_of_its_device_have_bytes_of_the_tool(
    said: dict[str, Any], name: str
) -> None:
    run = said["runs"][name]
    assert run["outcome"] in MEASURED, run["reason"]
    # Beside other work, the counters' window has any part of the tool's second, but no other bytes.
    assert run["shares"].keys() == {"read", "write"}
    assert all(0 < share < 2 for share in run["shares"].values()), run["shares"]


def test_the_volume_of_a_killed_run_is_removed_from_nfs_by_the_next_start(
    said: dict[str, Any],
) -> None:
    assert said["killed"] == ["pvebench-test-quick-nfs.raw"]
    assert said["undone"] == ["removed test volume /srv/nfs/pvebench/pvebench-test-quick-nfs.raw"]
    assert said["ended"] == []


SILENT: Final = "(lsblk|wipefs) did not end within 10 s for /dev/mapper/failing"
LOST: Final = "/dev/mapper/failing does not return the data that the fill wrote"
# What a run says while the disk fails, and what the next one says.
FAILING: Final = {
    "errors": (
        "fio ended with status 1: fio: io_u error on file /dev/mapper/failing: "
        "Input/output error: .*",
        "I/O error on /dev/mapper/failing: Input/output error",
    ),
    # On a loaded machine, fio may be ended before its first I/O.
    "hang": (
        "the tool moved no data within 5 s of its start",
        rf"fio \(process [0-9]+\) does not end after SIGKILL|{SILENT}",
    ),
    "hang-later": (SILENT, SILENT),
    "fill-dropped": (LOST,),
}


@pytest.fixture(scope="module")
def failing(host: HostProcess) -> dict[str, Any]:
    """What quick_faults.py says: fault -> outcome and reason of each run."""
    words = host.python(f"{FILES}/quick_faults.py", "/dev/ubdg", "0", *FAILING)
    found: dict[str, Any] = json.loads(host.run(words, seconds=600))
    return found


@pytest.mark.parametrize("fault", FAILING)
def test_a_disk_that_fails_is_named_until_it_works_again(
    failing: dict[str, Any], fault: str
) -> None:
    # The disk is device mapper's: with its table of errors, of lost writes, or suspended.
    *during, last = failing[fault]
    for (outcome, reason), words in zip(during, FAILING[fault], strict=True):
        assert outcome == Outcome.FAILED, outcome
        assert re.fullmatch(words, reason), reason
    assert last[0] in MEASURED, last


def test_a_hang_ends_at_its_limit_and_nothing_of_the_host_runs_afterwards(tmp_path: Path) -> None:
    with running_host_process(tmp_path, []) as machine:
        group = machine.process.pid
        assert alive(group)
        with pytest.raises(HostProcessError, match="no answer after 1 s"):
            machine.run("sleep 600", seconds=1)
    assert not alive(group)


def test_nothing_of_the_host_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from hostprocess.machine import running_host_process\n"
        "with running_host_process(Path(sys.argv[1]), []) as machine:\n"
        "    print(machine.process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = {**os.environ, "PYTHONPATH": f"{ROOT}/exporter:{ROOT}/tests"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=path,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert wait_until_gone(int(done.stdout)), done.stderr


def test_the_host_writes_to_no_file_of_this_machine(host: HostProcess) -> None:
    mark = f"/etc/pvebench-{os.getpid()}"
    assert host.run(f"echo there >{mark}; cat {mark} {shlex.quote(sys.executable)} | head -c5") == (
        "there"
    )
    assert not Path(mark).exists()
    assert "rw" not in host.run(
        'awk \'$3 == "hostfs" && $2 != "/run/shared" { print $4 }\' /proc/mounts'
    )
