"""Plug-ins: the example, built and measured with; broken ones; and pvebench without any."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from testing.packs import ROOT, SMALL, write_pack
from testing.real_outcomes import MEASURED

PACK = """\
pack: plugged
title: The storage kind and the tool of a plug-in
every: 1h
axes: {storage: [fast], bus: [virtio], format: [raw], cache: [none]}
volume: {size: 64M}
measure: {ramp: 1s, runtime: 2s}
workloads:
  - scan: {bs: 4M}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built plug-in, unpacked as pip does."""
    directory = tmp_path_factory.mktemp("plugin")
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory))
    subprocess.run(build, cwd=ROOT / "docs/examples/plugin", check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(directory / "site")
    return directory / "site"


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pvebench", *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def options(directory: Path, mount: Path) -> list[str]:
    (directory / "disk").mkdir(exist_ok=True)
    (directory / "plugged.yaml").write_text(PACK, "utf-8")
    settings = directory / "pvebench.yaml"
    storage = {"kind": "mounted", "path": str(directory / "disk"), "mount": str(mount)}
    settings.write_text(
        f"state: state\npacks: [plugged]\nstorages: {{fast: {json.dumps(storage)}}}\n", "utf-8"
    )
    return ["--config", str(settings)]


def mount_of(path: Path) -> Path:
    return next(above for above in (path, *path.parents) if above.is_mount())


@pytest.mark.usefixtures("image")
def test_a_storage_kind_and_a_tool_of_another_package_are_measured(
    site: Path, tmp_path: Path
) -> None:
    given = options(tmp_path, mount_of(tmp_path))
    done = run(site, "run", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(f"fast.virtio.raw.none/scan-4096k  {one}" in done.stdout for one in MEASURED)
    rows = json.loads(run(site, "results", *given, "--format=json").stdout)
    (row,) = rows if isinstance(rows, list) else rows["rows"]
    assert row["workload"] == "scan-4096k"
    assert any(one["metric"] == "bandwidth" and one["value"] > 0 for one in row["samples"])


@pytest.mark.parametrize("command", ["plan", "check"])
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"mount"', '"mnt"', "unknown key 'mnt'; did you mean 'mount'?"),
        ('"mount": "', '"mount": 5, "x": "', "storages.fast.mount: invalid path 5"),
    ],
)
def test_a_wrong_key_of_a_plug_in_is_refused_with_its_position(
    site: Path, tmp_path: Path, command: str, old: str, new: str, expected: str
) -> None:
    given = options(tmp_path, mount_of(tmp_path))
    text = (tmp_path / "pvebench.yaml").read_text("utf-8").replace(old, new)
    (tmp_path / "pvebench.yaml").write_text(text, "utf-8")
    done = run(site, command, *given)
    assert done.returncode == 2
    assert re.search(rf"pvebench\.yaml:3:\d+: {re.escape(expected)}", done.stderr)


BROKEN = """\
[pvebench.storages]
absent = nowhere_at_all:KIND
wrong = json:dumps
dir = json:dumps
[pvebench.tools]
raising = raising_plugin:Tool
leaving = leaving_plugin:Tool
Bad_Name = json:dumps
[pvebench.commands]
absent = nowhere_at_all:command
plain = json:dumps
[pvebench.storage]
typo = json:dumps
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """An installed package of which every plug-in is broken in a way of its own."""
    site = tmp_path / "broken"
    information = site / "broken_plugin-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n", "utf-8"
    )
    (information / "entry_points.txt").write_text(BROKEN, "utf-8")
    (site / "raising_plugin.py").write_text("raise OSError('no\\x1b[2J disk')\n", "utf-8")
    (site / "leaving_plugin.py").write_text("raise SystemExit(7)\n", "utf-8")
    return site


def test_broken_plug_ins_are_named_and_skipped(broken: Path, tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "state"), "--node", "lab"]
    planned = run(broken, "plan", *state)
    assert planned.returncode == 0, planned.stderr
    checked = run(broken, "check", *state)
    said = checked.stdout + checked.stderr
    assert "Traceback" not in planned.stderr + said
    for name in ("absent", "dir", "raising", "leaving", "Bad_Name", "typo"):
        assert f"plug-in {name}" in said
    assert "of package broken-plugin skipped: OSError: no [2J disk" in said
    assert "another one has its name" in said
    assert "unknown group" in said


@pytest.mark.parametrize("name", ["absent", "plain"])
def test_a_broken_command_is_an_error_that_names_its_package(broken: Path, name: str) -> None:
    done = run(broken, name)
    assert done.returncode == 1
    assert f"command {name} of package broken-plugin cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(broken, "--help").returncode == 0


ALONE = (
    "import sys; from testing import core_only; core_only.hide(); "
    "from pvebench.cli.main import run_cli; sys.exit(run_cli(sys.argv[1:]))"
)


def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `pvebench` without `pvebench_lab` and `pvebench_fleet`."""
    return subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.usefixtures("image")
def test_the_core_measures_a_vm_without_the_other_packages(tmp_path: Path) -> None:
    given = ["--state", str(tmp_path / "state"), "--pack", str(write_pack(tmp_path)), "--node", "n"]
    done = alone("run", *given, "--only", "*scsi*")
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(f"local.scsi.raw.none/randread-4k-qd8  {one}" in done.stdout for one in MEASURED)
    assert alone("results", *given).returncode == 0
    shown = alone("--help").stdout
    assert "Set up:" in shown
    assert "Demo:" not in shown
    assert "[proxmox|qemu]\n" in alone("setup", "--help").stdout
    refused = alone("run", *given, "--driver", "simulated")
    assert refused.returncode == 2
    assert "'simulated' is not one of" in refused.stderr


def test_a_host_case_is_excluded_without_the_package_that_measures_it(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, SMALL.replace("volume:", "host: true\nvolume:"))
    given = ["--state", str(tmp_path / "state"), "--pack", str(pack), "--node", "n"]
    planned = alone("plan", *given, "--format=json")
    assert planned.returncode == 0, planned.stderr
    (plan,) = json.loads(planned.stdout)
    assert len(plan["cases"]) == 2
    assert [one["slug"] for one in plan["excluded"]] == ["local.host.raw.none"]


def test_a_pack_with_containers_names_the_package_that_measures_them(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, SMALL.replace("volume:", "lxc: true\nvolume:"))
    refused = alone("plan", "--state", str(tmp_path / "state"), "--pack", str(pack))
    assert refused.returncode == 2
    line = pack.read_text("utf-8").splitlines().index("lxc: true") + 1
    assert f"{pack}:{line}:6: lxc: containers need a plug-in" in refused.stderr
    assert "pvebench_lab" in refused.stderr
