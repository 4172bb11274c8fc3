"""Guest rows of the published packs on storages that this machine's kernel may lack.

A process plays the host (`hostprocess.machine`): pvebench and its guests run in it, unchanged. That
each storage is what its name says is asked of dmsetup, mdstat and findmnt, as in the VM that plays
the host.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from e2e.on_host_vm import inside, made, say
from e2e.published_rows import must_have_run, pvebench, small
from hostprocess.machine import (
    HostProcess,
    HostProcessError,
    HostProcessMissing,
    make_disks,
    need_host_process,
    running_host_process,
)
from pvebench.model.units import GIB
from testing.published import HOST_PROCESS, Row, rows

MEMORY: Final = "4G"
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


def main(parts: Sequence[str]) -> int:
    try:
        need_host_process(*PROGRAMS)
    except HostProcessMissing as error:
        print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
        return 3
    subprocess.run(pvebench("guest", "build"), check=True)
    failed: list[str] = []
    ran = 0
    for row in rows():
        if row.place != HOST_PROCESS or (parts and not {row.pack, row.storage} & {*parts}):
            continue
        name = f"{row.pack}: {row.storage}, {row.side}"
        say(name)
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="pvebench-host-process-") as directory:
                run_row(row, Path(directory))
        except (AssertionError, HostProcessError) as error:
            failed.append(f"{name}: {error}")
            print(f"pvebench: FAILED: {failed[-1]}", file=sys.stderr, flush=True)
        else:
            ran += 1
        say(f"{name}: {time.monotonic() - began:.0f} s for {len(row.sample())} cases")
    say(f"{ran} ran, {len(failed)} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
