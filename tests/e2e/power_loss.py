"""A loss of power for real: which of a guest's writes a host finds again after it.

A process plays the host (`hostprocess.machine`). SIGKILL takes its page cache and QEMU away in the
middle of the writes of `pvebench durability`. The files of its disks stay, and it boots
again. What was flushed must be there, except with cache mode `unsafe`, which loses it.

`flush-points` replays what reached the disk up to each flush instead, as dm-log-writes logged it.
Without ext4's barriers, the same stack ignores flushes, and records must be missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from e2e.on_host_vm import PROOF
from e2e.pieces import say
from hostprocess.machine import (
    HostProcessError,
    HostProcessMissing,
    make_disks,
    need_host_process,
    running_host_process,
)
from pvebench.model.disk import Cache
from pvebench.model.durability import Barrier, Survival, Touch
from pvebench.model.units import GIB, MIB
from testing.packs import ROOT

STORAGES: Final = ("lvm", "lvm-thin", "xfs", "btrfs")
"""Names of `storages.sh`: the first two are ext4, on a plain and on a thin volume."""
SCRIPT: Final = str(ROOT / "tests" / "hostprocess" / "power.py")
MEMORY: Final = "2G"
LIMIT_SECONDS: Final = 1800.0
FLUSH_POINTS: Final = "flush-points"
FLUSH_POINTS_BYTES: Final = 256 * MIB


def lose_power(directory: Path, disks: Sequence[Path], name: str) -> None:
    """Write on a storage until the power goes."""
    with running_host_process(directory, disks, MEMORY) as host:
        # The page cache is written back when a program asks for it, not by its age.
        host.run("echo 0 >/proc/sys/vm/dirty_writeback_centisecs")
        path = host.storage("make", name)
        shown = host.storage("show", name)
        assert PROOF[name].replace("/dev/vd", "/dev/ubd") in shown, shown
        host.start("write", host.python(SCRIPT, "write", path))
        errors, written = host.shared / "write.err", host.shared / "written"
        deadline = time.monotonic() + LIMIT_SECONDS
        while not written.exists():
            said = errors.read_text("utf-8", "replace") if errors.exists() else ""
            if said or time.monotonic() > deadline:
                raise HostProcessError(said[-2000:] or f"no end after {LIMIT_SECONDS:.0f} s")
            time.sleep(0.1)


def after(directory: Path, disks: Sequence[Path], name: str) -> list[dict[str, Any]]:
    """Return what is left after the next boot."""
    with running_host_process(directory, disks, MEMORY) as host:
        path = host.storage("again", name)
        found: list[dict[str, Any]] = json.loads(host.run(host.python(SCRIPT, "read", path)))
        return found


def survivals(rows: Sequence[dict[str, Any]]) -> list[Survival]:
    return [
        Survival(
            sync=Barrier(one["sync"]),
            touch=Touch(one["touch"]),
            written=one["written"],
            found=one["found"],
        )
        for row in rows
        for one in row["survived"]
    ]


def table(name: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per configuration."""
    for key in dict.fromkeys(row["key"] for row in rows):
        own = [row for row in rows if row["key"] == key]
        known = survivals(own)
        flushed = [one for one in known if one.sync is not Barrier.NONE]
        first, again = (
            [one for one in known if one.sync is Barrier.NONE and one.touch is touch]
            for touch in Touch
        )
        cells = [name, key, *(_count(one) for one in (flushed, first, again))]
        cells.append(str(sum(row["torn"] for row in own)))
        cells.append(str(sum(row["damaged"] for row in own)))
        yield f"| {' | '.join(cells)} |"


def _count(rows: Sequence[Survival]) -> str:
    return f"{sum(one.found for one in rows)} of {sum(one.written for one in rows)}"


def check(rows: Sequence[dict[str, Any]]) -> None:
    """Fail where a flushed record is missing, or where `unsafe` lost none."""
    for key in {row["key"] for row in rows}:
        own = [row for row in rows if row["key"] == key]
        lost = sum(one.lost for one in survivals(own))
        if key.endswith(f".{Cache.UNSAFE}"):
            assert lost, f"{key} lost nothing"
        else:
            assert not lost, f"{key} lost {lost} flushed records"


def at_each_flush() -> None:
    """Fail where the state at a flush lacks a completed record, or an ignored flush shows nothing.

    Raises AssertionError or HostProcessError.
    """
    for options in ("barrier", "nobarrier"):
        with tempfile.TemporaryDirectory(prefix="pvebench-power-") as folder:
            disks = make_disks(Path(folder), 4, FLUSH_POINTS_BYTES)
            with running_host_process(Path(folder), disks, MEMORY) as host:
                words = [f"/dev/ubd{letter}" for letter in "abcd"]
                script = str(ROOT / "tests" / "hostprocess" / "flush_points.py")
                output = host.run(host.python(script, *words, options), seconds=LIMIT_SECONDS)
        found: dict[str, Any] = json.loads(output)
        say(f"{FLUSH_POINTS}, {options}: {found}")
        lost = {name for name, count in found["lost"].items() if count}
        unsafe = {name for name in found["lost"] if f".{Cache.UNSAFE}." in name}
        assert unsafe, found
        assert unsafe <= lost, lost
        assert (lost == unsafe) is (options == "barrier"), lost


def main(names: Sequence[str]) -> int:
    try:
        need_host_process("lvcreate", "thin_check", "mkfs.xfs", "mkfs.btrfs")
    except HostProcessMissing as error:
        print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
        return 3
    failed: list[str] = []
    names = names or (*STORAGES, FLUSH_POINTS)
    for name in names:
        say(name)
        try:
            if name == FLUSH_POINTS:
                at_each_flush()
                continue
            with tempfile.TemporaryDirectory(prefix="pvebench-power-") as folder:
                disks = make_disks(Path(folder), 4, 3 * GIB)
                lose_power(Path(folder), disks, name)
                rows = after(Path(folder), disks, name)
            print("\n".join(table(name, rows)), flush=True)
            check(rows)
        except (AssertionError, HostProcessError) as error:
            failed.append(f"{name}: {error}")
            print(f"pvebench: FAILED: {failed[-1]}", file=sys.stderr, flush=True)
    say(f"{len(names) - len(failed)} as expected, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
