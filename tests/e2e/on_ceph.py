"""rbd as a storage of the lab, on a real cluster: every cache mode, a published pack, a kill.

Witnesses: Ceph's own `rbd` and `ceph` as the administrator, and the admin socket of the librados
inside QEMU, which tells the options that are in force there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ceph.cluster import POOL, USER, CephCluster, CephMissing, running_ceph
from e2e.pieces import must_be_measured, pvebench, results, say
from testing.packs import ROOT

CACHED = {
    "none": "false",
    "directsync": "false",
    "writethrough": "true",
    "writeback": "true",
    "unsafe": "true",
}
"""Cache mode -> rbd_cache, as qemu_rbd_connect in QEMU's block/rbd.c sets it."""


def write_settings(cluster: CephCluster, directory: Path) -> Path:
    path = directory / "pvebench.yaml"
    (directory / "volumes").mkdir(exist_ok=True)
    path.write_text(
        f"""\
driver: qemu
accelerator: tcg
node: lab
state: {directory}/state
packs: [{ROOT}/tests/e2e/rbd.yaml]
storages:
  local: {{kind: dir, path: {directory}/volumes}}
  ceph-ssd:
    kind: rbd
    pool: {POOL}
    conf: {cluster.conf}
    user: {USER}
    server: 127.0.0.1
    port: {cluster.port}
""",
        "utf-8",
    )
    return path


def images(cluster: CephCluster) -> list[str]:
    found: list[str] = json.loads(cluster.rbd("list", "--format", "json", POOL))
    return found


class Watch(threading.Thread):
    """Asks the librados inside QEMU for its options, all the while."""

    def __init__(self, cluster: CephCluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._over = threading.Event()
        self.seen: set[str] = set()
        """Values of rbd_cache, which neither QEMU's command line nor its graph tells."""

    def run(self) -> None:
        while not self._over.wait(1.0):
            for socket in self._cluster.directory.glob(f"client.{USER}.*.asok"):
                self._ask(socket)

    def _ask(self, socket: Path) -> None:
        pid = socket.name.split(".")[2]
        if "qemu-system" not in Path(f"/proc/{pid}/cmdline").read_text("utf-8", errors="replace"):
            return
        command = ["ceph", "--admin-daemon", str(socket), "config", "show"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode == 0:
            self.seen.add(json.loads(done.stdout)["rbd_cache"])

    def end(self) -> set[str]:
        self._over.set()
        self.join()
        return self.seen


def every_cache_mode(cluster: CephCluster, directory: Path, more: Sequence[str]) -> None:
    """One cycle in all modes; librbd's cache is on and off as each of them says."""
    config = str(write_settings(cluster, directory))
    subprocess.run(pvebench("guest", "build"), check=True)
    subprocess.run(pvebench("check", "--config", config), check=True)
    for cache, expected in CACHED.items():
        say(f"cache {cache}")
        watch = Watch(cluster)
        watch.start()
        only = ["--only", f"ceph-ssd.scsi.raw.{cache}/*"]
        done = subprocess.run(
            pvebench("run", "--config", config, "--cycles", "1", *only, *more), check=False
        )
        assert done.returncode in (0, 9), done.returncode
        # Before a mode with a cache is measured, a plain disk fills the volume past it.
        seen = watch.end()
        assert {expected} <= seen <= {expected, "false"}, seen
        assert images(cluster) == [], images(cluster)
    subprocess.run(pvebench("run", "--config", config, "--cycles", "1", *more), check=False)
    must_be_measured(results(directory / "state"))


def killed_while_it_measures(cluster: CephCluster, directory: Path) -> None:
    """pvebench is killed, QEMU lives on: undo ends it, and waits until the image has no user."""
    config = str(directory / "pvebench.yaml")
    with subprocess.Popen(pvebench("run", "--config", config, "--cycles", "1")) as process:
        while not any(watchers(cluster, image) for image in images(cluster)):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.5)
        process.kill()
    assert len(images(cluster)) == 1
    subprocess.run(pvebench("cleanup", "--config", config), check=True)
    assert images(cluster) == [], images(cluster)


def watchers(cluster: CephCluster, image: str) -> list[Any]:
    found: list[Any] = json.loads(cluster.rbd("status", "--format", "json", f"{POOL}/{image}"))[
        "watchers"
    ]
    return found


def an_image_that_somebody_else_marked_stays(cluster: CephCluster, directory: Path) -> None:
    owner = (directory / "state/instance").read_text("ascii").strip()
    image = f"{POOL}/pvebench-test-{owner}-ceph-ssd.raw"
    cluster.rbd("create", "--size", "8M", image)
    cluster.rbd("image-meta", "set", image, "pvebench.instance", "fedcba9876543210")
    run = one_run(directory)
    assert run["outcome"] == "failed", run
    assert "not changed: another instance owns it" in run["reason"], run["reason"]
    assert len(images(cluster)) == 1
    cluster.rbd("remove", "--no-progress", image)


def nothing_is_measured_while_copies_are_missing(cluster: CephCluster, directory: Path) -> None:
    cluster.stop_osd(2)
    while not cluster.ceph("status")["health"]["checks"].get("OSD_DOWN"):
        time.sleep(0.5)
    run = one_run(directory)
    assert run["outcome"] == "skipped", run
    assert "Ceph is degraded" in run["reason"], run["reason"]
    cluster.start_osd(2)
    cluster.wait_until(["active+clean"])


def one_run(directory: Path) -> dict[str, Any]:
    """Return the run of one case."""
    only = ["--only", "ceph-ssd.scsi.raw.none/*"]
    config = str(directory / "pvebench.yaml")
    subprocess.run(pvebench("run", "--config", config, "--cycles", "1", *only), check=False)
    return results(directory / "state")[0]


def published_rows(cluster: CephCluster, directory: Path, more: Sequence[str]) -> None:
    """The rows of shared-storage-2021 on Ceph, at a hundredth of their size."""
    config = str(write_settings(cluster, directory))
    state = directory / "state-published"
    pack = ["--pack", str(ROOT / "scenarios/shared-storage-2021.yaml"), "--scale", "0.01"]
    only = ["--only", "ceph-ssd.scsi.*", "--state", str(state)]
    command = pvebench("run", "--config", config, "--cycles", "1", *pack, *only, *more)
    assert subprocess.run(command, check=False).returncode in (0, 9)
    runs = results(state)
    must_be_measured(runs)
    assert len(runs) == 10, len(runs)
    beside = pvebench("results", "--state", str(state), *pack[:2], "--reference", "published")
    subprocess.run(beside, check=True)


def main(more: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="pvebench-ceph-") as name:
        directory = Path(name)
        (directory / "ceph").mkdir()
        say("a cluster")
        try:
            with running_ceph(directory / "ceph") as cluster:
                every_cache_mode(cluster, directory, more)
                say("killed while it measures")
                killed_while_it_measures(cluster, directory)
                say("an image of somebody else's")
                an_image_that_somebody_else_marked_stays(cluster, directory)
                say("copies are missing")
                nothing_is_measured_while_copies_are_missing(cluster, directory)
                say("the published rows")
                published_rows(cluster, directory, more)
        except CephMissing as error:
            print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
