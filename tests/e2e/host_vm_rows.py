"""A Debian host in a VM, measured over ssh: every storage that it can have, and the published rows.

What ssh cannot do, settings of devices and bare ones, is tried by pvebench in the VM itself: the
same Python packages lie on a disk of it. Witnesses there: hdparm, blockdev, /sys, mdadm, dmsetup.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from host_vm.image import VmMissing, need_image
from host_vm.machine import HostVm, running_host
from pvebench.config import load_pack
from support.packs import ROOT
from support.published import HOST_VM, Row, rows

SCALES: Final = {"raid-2017": 0.02, "lvmcache-2019": 0.02, "zfs-mdadm-2016": 0.02}
SCALE: Final = 0.005
_SETUP: Final = Path(__file__).parents[1] / "host_vm" / "storages.sh"
_EVERYWHERE: Final = ROOT / "tests/e2e/host-vm.yaml"


def pvebench(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pvebench", *arguments]


def settings(vm: HostVm, directory: Path, storages: Iterable[str]) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "pvebench.yaml"
    listed = "".join(f"  {name}: {{kind: dir, path: /srv/{name}/bench}}\n" for name in storages)
    path.write_text(
        f"driver: host\nnode: hostvm\nstate: {directory}/state\npacks: [{_EVERYWHERE}]\n"
        f"ssh:\n  host: 127.0.0.1\n  port: {vm.port}\n  user: root\n"
        f"  key_file: {vm.image.key}\n  known_hosts: {vm.known_hosts}\n"
        f"storages:\n{listed}",
        "utf-8",
    )
    return path


def outcomes(state: Path) -> list[dict[str, Any]]:
    listed = pvebench("results", "--state", str(state), "--json", "--limit", "1000")
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(listed, check=True, capture_output=True).stdout
    )
    return found


def must_have_run(runs: Sequence[dict[str, Any]], scenarios: set[str]) -> None:
    """Fail where a run did not come about. A loaded machine may well make numbers suspicious."""
    bad = [
        (one["scenario"], one["workload"], one["outcome"], one["reason"])
        for one in runs
        if one["outcome"] in ("failed", "invalid", "skipped")
    ]
    assert not bad, bad
    assert {one["scenario"] for one in runs} == scenarios, scenarios


def left(vm: HostVm) -> str:
    return vm.sh("find /srv -name 'pvebench-test-*'; ls /tmp/pvebench-test-* 2>/dev/null || true")


def everywhere(vm: HostVm, directory: Path) -> None:
    """One case on each storage; nothing is left on any."""
    names = [str(name) for name in load_pack(_EVERYWHERE).axes["storage"]]
    vm.sh("".join(f"mkdir -p /srv/{name}/bench\n" for name in names))
    config = settings(vm, directory, names)
    subprocess.run(pvebench("check", "--config", str(config)), check=True)
    done = subprocess.run(pvebench("run", "--config", str(config), "--cycles", "1"), check=False)
    assert done.returncode in (0, 9), done.returncode
    must_have_run(outcomes(directory / "state"), {f"{name}.host.raw.none" for name in names})
    assert left(vm) == "", left(vm)


def published(vm: HostVm, row: Row, directory: Path) -> None:
    """Each scenario and each workload of a row."""
    config = settings(vm, directory, [row.storage])
    only = [word for case in row.sample() for word in ("--only", case.slug)]
    pack = ["--pack", str(ROOT / "scenarios" / f"{row.pack}.yaml")]
    scale = ["--scale", str(SCALES.get(row.pack, SCALE))]
    given = ["--config", str(config), "--cycles", "1", *pack, *scale, *only]
    done = subprocess.run(pvebench("run", *given), check=False)
    assert done.returncode in (0, 9), done.returncode
    runs = outcomes(directory / "state")
    must_have_run(runs, {case.scenario.slug for case in row.sample()})
    assert {one["workload"] for one in runs} == {case.workload.slug for case in row.sample()}
    assert left(vm) == "", left(vm)


def main(packs: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="pvebench-host-vm-") as name:
        directory = Path(name)
        try:
            print("== an image, and a host that boots from it", flush=True)
            with running_host(need_image(), directory) as vm:
                print(vm.sh(_SETUP.read_text("utf-8"), seconds=900), flush=True)
                print("== every storage", flush=True)
                everywhere(vm, directory / "everywhere")
                for row in rows():
                    if row.place == HOST_VM and (not packs or row.pack in packs):
                        print(f"== {row.pack}: {row.storage}", flush=True)
                        published(vm, row, directory / f"{row.pack}-{row.storage}")
        except VmMissing as error:
            print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
