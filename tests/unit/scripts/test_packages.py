"""scripts/packages on a machine of stubs: dpkg, apt, sudo and id are what the test says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    [column.strip() for column in line.split("|")]
    for line in (ROOT / "scripts" / "packages.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
RUN_SET = [name for name, _, sets, _ in ROWS if "run" in sets.split()]


APT_2 = """\
Need to get 100 MB of archives.
After this operation, 1,606 MB of additional disk space will be used."""
APT_2_PARTLY_HERE = """\
Need to get 0 B/100 MB of archives.
After this operation, 900 kB of additional disk space will be used."""
APT_3 = """\
Summary:
  Upgrading: 0, Installing: 3, Removing: 0, Not Upgrading: 0
  Download size: 99.3 MB
  Space needed: 412 MB / 45.0 GB available"""


@dataclass
class Machine:
    """A PATH with stubs; `calls` is what they were asked to do."""

    path: Path
    installed: list[str] = field(default_factory=list)

    def stub(self, name: str, script: str) -> None:
        program = self.path / name
        log = self.path / "calls"
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n{script}\n', "utf-8")
        program.chmod(0o755)

    def packages(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        listed = "".join(f"installed {name}\\n" for name in self.installed)
        # As dpkg-query: asked for names, it answers about those it knows and ends with 1.
        self.stub("dpkg-query", f"printf '{listed}'; test $# = 3")
        return subprocess.run(
            [self.tree / "scripts" / "packages", *arguments],
            env={"PATH": str(self.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    @property
    def tree(self) -> Path:
        """A copy of scripts/: the log of a step is beside it."""
        tree = self.path.parent / "tree"
        if not tree.exists():
            shutil.copytree(ROOT / "scripts", tree / "scripts")
        return tree

    def called(self, *names: str) -> list[str]:
        calls = (self.path / "calls").read_text("utf-8").splitlines()
        return [call for call in calls if call.partition(" ")[0] in names]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A user without any right to install."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in (
        *("awk", "bash", "cat", "comm", "cut", "dirname", "env", "find", "grep"),
        *("mkdir", "sed", "sh", "sort", "tail"),
    ):
        (programs / tool).symlink_to(os.path.realpath(f"/usr/bin/{tool}"))
    made = Machine(programs)
    made.stub("id", "echo 1000")
    made.stub("sudo", "exit 1")
    made.stub("apt-get", "exit 0")
    return made


def test_nothing_missing_is_silent_and_installs_nothing(machine: Machine) -> None:
    machine.installed = RUN_SET
    done = machine.packages("run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not machine.called("apt-get", "sudo")


def test_without_any_right_one_message_names_everything(machine: Machine) -> None:
    machine.installed = ["python3-venv", "make"]
    done = machine.packages("run")
    missing = [name for name in RUN_SET if name != "python3-venv"]
    assert done.returncode == 3
    command = "sudo apt-get install --no-remove --no-install-recommends"
    assert f"{command} {' '.join(missing)}\n" in done.stderr
    for name, _, sets, reason in ROWS:
        assert (reason in done.stderr) == ("run" in sets.split() and name in missing)
    assert machine.called("apt-get", "sudo") == ["sudo -n true"]


def test_nothing_is_installed_on_a_proxmox_node(machine: Machine) -> None:
    """Debian's QEMU conflicts with pve-qemu-kvm (debian/control of pve-qemu)."""
    machine.installed = ["python3-venv", "pve-qemu-kvm"]
    machine.stub("sudo", "exit 0")
    done = machine.packages("run")
    assert done.returncode == 3
    assert "this is a Proxmox VE node" in done.stderr
    assert "nothing was installed" in done.stderr
    assert not machine.called("apt-get", "sudo")


def test_a_set_that_needs_no_prometheus_says_nothing_of_services(machine: Machine) -> None:
    assert "systemctl" in machine.packages("run").stderr
    assert "systemctl" not in machine.packages("guest").stderr


def test_a_machine_without_apt_gets_the_list_of_programs(machine: Machine) -> None:
    (machine.path / "apt-get").unlink()
    done = machine.packages("guest")
    assert done.returncode == 3
    assert "no apt-get" in done.stderr
    assert re.search(r"^  xorriso +puts the guest image together$", done.stderr, re.MULTILINE)
    assert re.search(r"^  python3 ", done.stderr, re.MULTILINE)


def test_a_machine_without_apt_that_has_the_programs_is_fine(machine: Machine) -> None:
    (machine.path / "apt-get").unlink()
    machine.stub("xorriso", "")
    machine.stub("python3", "")
    assert machine.packages("guest").returncode == 0


def test_a_package_that_is_only_a_snap_is_said_so_before_anything_is_installed(
    machine: Machine,
) -> None:
    machine.stub("sudo", "")
    machine.stub(
        "apt-cache",
        "case $2 in chromium) echo '  Candidate: (none)';; *) echo '  Candidate: 1';; esac",
    )
    done = machine.packages("test")
    assert done.returncode == 3
    assert "no package 'chromium' (on Ubuntu it is a snap)" in done.stderr
    assert not [call for call in machine.called("sudo") if " install " in call]


@pytest.mark.parametrize("apt_status", [0, 100])
def test_installing_forbids_service_starts_while_apt_works(
    machine: Machine, apt_status: int
) -> None:
    machine.stub("apt-cache", "echo '  Candidate: 1'")
    # Notes what would be done as root, and does none of it.
    machine.stub(
        "sudo",
        f"case $* in *' install -y '*) exit {apt_status};; *' install -m '*) cat >/dev/null;; esac",
    )
    machine.installed = ["python3-venv"]
    assert machine.packages("guest").returncode == apt_status
    policy = Path("/usr/sbin/policy-rc.d")
    apt = "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300"
    forbid, allow = [f"sudo -n install -m 755 /dev/stdin {policy}"], [f"sudo -n rm -f {policy}"]
    if policy.exists():  # the administrator's (every Debian container image has one): left alone
        forbid, allow = [], []
    assert machine.called("sudo") == [
        "sudo -n true",
        f"{apt} update",
        *forbid,
        f"{apt} install -y --no-remove --no-install-recommends xorriso",
        *allow,
    ]


@pytest.mark.parametrize(
    ("apt", "cost"),
    [
        (APT_2, ": 100 MB to download, 1606 MB on disk, about 5 minutes … "),
        (APT_2_PARTLY_HERE, ": 0 B to download, 900 kB on disk, about 1 minute … "),
        (APT_3, ": 99.3 MB to download, 412 MB on disk, about 2 minutes … "),
        ("another apt", " … "),
    ],
)
def test_one_sentence_before_apt_gives_what_how_much_and_how_long(
    machine: Machine, apt: str, cost: str
) -> None:
    machine.stub("apt-cache", "echo '  Candidate: 1'")
    machine.stub("apt-get", f"cat <<'END'\n{apt}\nEND\nexit 1")
    machine.stub(
        "sudo", "case $* in *apt-get*) for i in 1 2 3 4 5 6 7; do echo Unpacking; done; esac"
    )
    machine.installed = ["python3-venv"]
    done = machine.packages("guest")
    assert done.returncode == 0
    update, install = done.stdout.splitlines()
    assert re.fullmatch(r"pvebench: updating the package lists … \d+ s", update)
    assert install.startswith(f"pvebench: installing xorriso and what they need{cost}")
    assert re.search(r" … \d+ s$", install)
    assert done.stderr == ""
    # The estimate asks, as the user, and installs nothing.
    (asked,) = machine.called("apt-get")
    assert "--assume-no" in asked.split()
    log = machine.tree / "build" / "log" / "apt-install.log"
    assert log.read_text("utf-8") == "Unpacking\n" * 7


def test_the_output_of_apt_appears_when_it_fails_with_the_path_of_its_log(machine: Machine) -> None:
    machine.stub("apt-cache", "echo '  Candidate: 1'")
    machine.stub("sudo", "case $* in *' install -y '*) echo E: no room; exit 100;; esac")
    machine.installed = ["python3-venv"]
    done = machine.packages("guest")
    assert done.returncode == 100
    assert re.search(r"installing xorriso .* … failed after \d+ s$", done.stdout)
    log = machine.tree / "build" / "log" / "apt-install.log"
    assert done.stderr.splitlines()[0] == "E: no room"
    assert str(log) in done.stderr


def test_unknown_use_is_refused(machine: Machine) -> None:
    assert machine.packages().returncode == 2
    assert machine.packages("--what", "run").returncode == 2


def test_every_row_of_the_list_is_whole() -> None:
    assert all(len(row) == 4 and all(row) for row in ROWS)
    assert len({row[0] for row in ROWS}) == len(ROWS)
