"""The pack storage-under-fault, small, on storages that have the fault: what the guest feels of it.

The faults are real: an NFS server that is stopped (SIGSTOP) and goes on, one that is stopped most
of the time, an NBD server that is killed and started again, an OSD of a Ceph cluster to which each
of these happens. What is expected of the figures follows from how long each lasts; how fast the
storage is does not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ceph.cluster import POOL, USER, CephCluster, CephMissing, running_ceph
from e2e.pieces import pvebench, results
from pvebench.drivers.storages.contract import MARK
from testing.nfs import nfs_server
from testing.packs import ROOT
from testing.real_outcomes import MEASURED

SECONDS: Final = 5
"""Of each fault."""
SCALE: Final = "0.5"
"""What a loaded machine may make of a run that came about."""
EXPORT: Final = f"{MARK}fault"


def paused(pid: Path) -> str:
    return f"kill -STOP $(cat {pid}); sleep {SECONDS}; kill -CONT $(cat {pid})"


def slowed(pid: Path) -> str:
    """At work for a tenth of the time."""
    once = "kill -STOP $p; sleep 0.9; kill -CONT $p; sleep 0.1"
    return f"p=$(cat {pid}); for i in $(seq {SECONDS}); do {once}; done"


def served(directory: Path) -> list[str]:
    """The command of an NBD server that goes to the background."""
    disk, socket, pid = (directory / f"nbd.{name}" for name in ("raw", "sock", "pid"))
    names = ["-x", EXPORT, "-k", str(socket), f"--pid-file={pid}"]
    return ["qemu-nbd", "--fork", "--persistent", "-f", "raw", *names, str(disk)]


def killed(directory: Path) -> str:
    again = " ".join(served(directory))
    return f"kill -KILL $(cat {directory}/nbd.pid); sleep {SECONDS}; {again}"


@contextmanager
def nbd_server(directory: Path) -> Iterator[None]:
    subprocess.run(["truncate", "--size=256M", directory / "nbd.raw"], check=True)
    subprocess.run(served(directory), check=True)
    try:
        yield
    finally:
        subprocess.run(["/bin/kill", (directory / "nbd.pid").read_text().strip()], check=False)


@contextmanager
def done_here(directory: Path, do: Callable[[], None]) -> Iterator[str]:
    """Yield a command that has something done in this process, and ends when it is done."""
    asked, done = directory / "asked", directory / "done"
    os.mkfifo(asked)
    os.mkfifo(done)

    def serve() -> None:
        while asked.read_text():
            do()
            done.write_text("done")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"echo now > {asked}; cat {done}"
    finally:
        asked.write_text("")
    thread.join()


def run(
    directory: Path,
    name: str,
    storage: dict[str, Any],
    fault: str,
    recovered: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Return the metrics of the runs of the pack's reads and writes on a storage with a fault.

    Args:
        recovered: waits after each until the storage is whole again.
    """
    storage["faults"] = {"outage": ["/bin/sh", "-c", fault]}
    settings = {
        "node": "lab",
        "accelerator": "tcg",
        "state": str(directory / name),
        "packs": [str(ROOT / "scenarios/storage-under-fault.yaml")],
        "storages": {"local": storage},
    }
    config = directory / f"{name}.yaml"
    config.write_text(json.dumps(settings), "utf-8")
    asked = ["--config", str(config), "--cycles", "1", "--scale", SCALE]
    for way in WAYS:
        only = f"--only=local.virtio.raw.none/rand{way}-4k-qd4-fault-outage"
        code = subprocess.run(pvebench("run", *asked, only), check=False).returncode
        assert code in (0, 9), code
        recovered()
    return [told(run) for run in results(directory / name)]


WAYS: Final = ("read", "write")


def told(run: dict[str, Any]) -> dict[str, Any]:
    assert run["outcome"] in MEASURED, (run["outcome"], run["reason"])
    values = {one["metric"]: one["value"] for one in run["samples"]}
    names = ("fault_time", "fault_dip", "fault_dip_time", "fault_recovery", "fault_errors")
    figures = {name: values.get(name) for name in names}
    print("==", run["scenario"], run["workload"], run["outcome"], figures, flush=True)
    return figures


def must_be_felt(
    runs: Sequence[dict[str, Any]], *, depth: float, errors: bool, least: float = SECONDS - 2
) -> None:
    """Fail where the figures do not show the fault.

    Args:
        least: seconds below half of the rate before. An interval of a second on each side may be
            half in the fault.
    """
    assert len(runs) == len(WAYS)
    for one in runs:
        assert one["fault_time"] >= SECONDS
        assert one["fault_dip"] >= depth, one
        assert one["fault_dip_time"] >= least, one
        assert (one["fault_errors"] > 0) is errors, one


def on_nfs(directory: Path, name: str, fault: Callable[[Path], str], depth: float) -> None:
    with nfs_server(directory) as export:
        nfs = {"kind": "nfs", "server": "127.0.0.1", "export": str(export)}
        runs = run(directory, name, nfs, fault(directory / "ganesha.pid"))
        must_be_felt(runs, depth=depth, errors=False)


def on_nbd(directory: Path, name: str) -> None:
    with nbd_server(directory):
        nbd = {"kind": "nbd", "socket": f"{directory}/nbd.sock", "export": EXPORT}
        must_be_felt(run(directory, name, nbd, killed(directory)), depth=1.0, errors=True)


def on_ceph(
    directory: Path, name: str, do: Callable[[CephCluster], None], *, depth: float, least: float
) -> None:
    """A client of a cluster waits, whatever becomes of an OSD: it sees no error."""
    (directory / "c").mkdir()
    with running_ceph(directory / "c") as cluster, done_here(directory, lambda: do(cluster)) as it:
        rbd = {
            "kind": "rbd",
            "pool": POOL,
            "conf": str(cluster.conf),
            "user": USER,
            "server": "127.0.0.1",
            "port": cluster.port,
        }
        runs = run(directory, name, rbd, it, lambda: cluster.wait_until(["active+clean"]))
    must_be_felt(runs, depth=depth, errors=False, least=least)


OSD: Final = 2


def osd_killed(cluster: CephCluster) -> None:
    cluster.stop_osd(OSD)
    time.sleep(SECONDS)
    cluster.start_osd(OSD)


def osd_paused(cluster: CephCluster) -> None:
    with cluster.frozen(OSD):
        time.sleep(SECONDS)


def osd_slowed(cluster: CephCluster) -> None:
    """At work for a tenth of the time."""
    for _ in range(SECONDS):
        with cluster.frozen(OSD):
            time.sleep(0.9)
        time.sleep(0.1)


FAULTS: Final[dict[str, Callable[[Path, str], None]]] = {
    "nfs-pause": lambda directory, name: on_nfs(directory, name, paused, 1.0),
    "nfs-slow": lambda directory, name: on_nfs(directory, name, slowed, 0.5),
    "nbd-dead": on_nbd,
    "osd-pause": lambda directory, name: on_ceph(
        directory, name, osd_paused, depth=1.0, least=SECONDS - 2
    ),
    "osd-slow": lambda directory, name: on_ceph(directory, name, osd_slowed, depth=0.5, least=1),
    "osd-dead": lambda directory, name: on_ceph(directory, name, osd_killed, depth=0.5, least=0),
}


def main(names: Sequence[str]) -> int:
    try:
        for name in names or FAULTS:
            with tempfile.TemporaryDirectory(prefix="pvebench-fault-") as directory:
                FAULTS[name](Path(directory), name)
    except CephMissing as error:
        print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
        return 3
    print("== all faults were felt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
