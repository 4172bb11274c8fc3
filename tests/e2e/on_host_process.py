"""Guest rows of the published packs on storages that this machine's kernel may lack; failing disks.

A process plays the host (`hostprocess.machine`): pvebench and its guests run in it, unchanged. That
each storage is what its name says is asked of dmsetup, mdstat and findmnt, as in the VM that plays
the host.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from e2e.on_host_vm import WORK, inside, made, run_inside, send_pack
from e2e.pieces import Piece, pvebench, run_all, say, value
from e2e.published_rows import must_have_run
from hostprocess.machine import (
    HostProcess,
    HostProcessMissing,
    make_disks,
    need_host_process,
    running_host_process,
)
from hostprocess.quick_faults import DROPS, FAULTS
from pvebench.model.units import GIB
from testing.packs import ROOT
from testing.published import HOST_PROCESS, Row, small, small_rows
from testing.real_outcomes import MEASURED

MEMORY: Final = "10G"
"""The guests of media-sweep-2018 have 8 GiB; what nothing touches takes none."""
FAULTS_PART: Final = "faults"
HDD_PART: Final = "hdd"
HDD_PACK: Final = "tests/e2e/host-process-hdd.yaml"
SEEKS: Final = 125
"""In a second, at any depth."""
SEEKING_DISK: Final = f"""
modprobe dm-delay
dmsetup create seeking --table "0 $(blockdev --getsz /dev/ubda) delay /dev/ubda 0 {1000 // SEEKS}"
cd /sys/fs/cgroup
echo +io >cgroup.subtree_control
mkdir seeking
number=$(dmsetup info --columns --noheadings --separator : --options major,minor seeking)
echo "$number riops={SEEKS} wiops={SEEKS}" >seeking/io.max
echo 1 >seeking/cgroup.procs
echo $$ >seeking/cgroup.procs
"""
"""Makes it of the first disk, for each process that is started later."""
PLAN_FACTOR: Final = 2.0
"""How much longer than planned it may take: the host's CPU is slow."""
FAULT_SECONDS: Final = 30
FAULTS_SECONDS: Final = 1800.0
"""Limit for all faults, long beside other work."""
PROGRAMS: Final = ("lvcreate", "mdadm", "thin_check", "smbd", "mount.cifs")


def on_storage(host: HostProcess, row: Row) -> list[dict[str, Any]]:
    """Return the runs of the row's sample."""
    with made(host, row.storage) as path:
        kind = "dir"
        if path.startswith("/dev/"):
            host.pvebench("storage", "claim", path)
            kind = "block"
        settings = (
            "driver: qemu\naccelerator: tcg\nstorages:\n"
            f"  {row.storage}: {{kind: {kind}, path: {path}}}\n"
        )
        return inside(host, settings, f"scenarios/{row.pack}.yaml", small(row))


def run_row(row: Row, directory: Path) -> None:
    """Run a row on a host of its own. Raises AssertionError or HostProcessError."""
    with running_host_process(directory, make_disks(directory, 4, 3 * GIB), MEMORY) as host:
        must_have_run(row, on_storage(host, row))


def run_faults(directory: Path) -> None:
    """Run beside each fault of a disk for `FAULT_SECONDS`, with pvebench's own limits.

    Raises AssertionError or HostProcessError.
    """
    script = str(ROOT / "tests" / "hostprocess" / "quick_faults.py")
    with running_host_process(directory, make_disks(directory, 1, GIB)) as host:
        words = host.python(script, "/dev/ubda", str(FAULT_SECONDS), *FAULTS, *DROPS)
        said = json.loads(host.run(words, seconds=FAULTS_SECONDS))
    for name, runs in said.items():
        for outcome, reason in runs:
            say(f"{name}: {outcome} {reason}")
    # Writes dropped after the fill show in no figure of a run: `make durability` looks for those.
    failed = {name for name, runs in said.items() if runs[0][0] not in MEASURED}
    assert failed == {"errors", *DROPS}, failed
    assert all(runs[-1][0] in MEASURED for runs in said.values()), said


def run_hdd(directory: Path) -> None:
    """Run on a disk with seek times: pvebench waits as long as it plans, and sees the limit.

    Raises AssertionError or HostProcessError.
    """
    with running_host_process(directory, make_disks(directory, 1, GIB)) as host:
        host.run(SEEKING_DISK)
        host.pvebench("storage", "claim", "/dev/mapper/seeking")
        storages = "storages:\n  hdd: {kind: block, path: /dev/mapper/seeking}\n"
        send_pack(host, f"driver: qemu\naccelerator: tcg\n{storages}", HDD_PACK)
        words = ["plan", "--config", f"{WORK}/pvebench.yaml", "--format=json"]
        (plan,) = json.loads(host.pvebench(*words))
        began = time.monotonic()
        runs = run_inside(host, [])
        seconds = time.monotonic() - began
    say(f"{seconds:.0f} s, planned {plan['seconds']:.0f} s")
    for run in runs:
        outcome, rate = run["outcome"], value(run, "iops")
        say(f"{run['scenario']}/{run['workload']}: {outcome}, {rate:.0f} IOPS {run['reason']}")
        assert outcome in MEASURED, run["reason"]
        assert rate <= SEEKS * 1.05, run
    assert seconds <= PLAN_FACTOR * plan["seconds"], (seconds, plan["seconds"])


def in_a_directory(run: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="pvebench-host-process-") as directory:
        run(Path(directory))


def pieces(parts: Sequence[str]) -> Iterator[Piece]:
    """Yield what is to be run and its name, of these parts or of all."""
    if not parts or FAULTS_PART in parts:
        yield "a disk that fails", partial(in_a_directory, run_faults)
    if not parts or HDD_PART in parts:
        yield "a disk with seek times", partial(in_a_directory, run_hdd)
    for row in small_rows(HOST_PROCESS, parts):
        name = f"{row.pack}: {row.storage}, {row.side}, {len(row.sample())} cases"
        yield name, partial(in_a_directory, partial(run_row, row))


def main(parts: Sequence[str]) -> int:
    try:
        need_host_process(*PROGRAMS)
    except HostProcessMissing as error:
        print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
        return 3
    subprocess.run(pvebench("guest", "build"), check=True)
    return run_all(pieces(parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
