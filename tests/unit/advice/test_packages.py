"""Versions of packages as options, and as the output of programs that pvebench did not write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pvebench.advice import packages
from pvebench.advice.packages import read_versions
from pvebench.errors import ConfigError
from testing.packs import ROOT

# Output of `pveversion -v` that a user of Proxmox VE 8.3 published (shortened): issue 28 of
# github.com/zhaodice/proxmox-ve-anti-detection. The kernel runs an older version than installed.
PVEVERSION = """\
proxmox-ve: 8.3.0 (running kernel: 6.8.12-5-pve)
pve-manager: 8.3.2 (running version: 8.3.2/3e76eec21c4a14a7)
proxmox-kernel-helper: 8.1.0
proxmox-kernel-6.8: 6.8.12-6
proxmox-kernel-6.8.12-6-pve-signed: 6.8.12-6
proxmox-kernel-6.8.4-2-pve-signed: 6.8.4-2
libpve-storage-perl: 8.3.3
"""
OLD = {"qemu_package": "10.0.2-4", "zfs": "2.3.4-pve1", "kernel": "6.17.2-1"}
NEW = {"qemu_package": "10.1.2-1", "zfs": "2.4.0-pve1", "kernel": "6.17.4-1"}
LISTS = ROOT / "tests/golden/packages"


def read(text: str, option: str = "--to") -> dict[str, str]:
    versions, unread = read_versions(text, option=option)
    assert unread == ()
    return versions


def test_options_name_packages_or_facts() -> None:
    assert read("pve-qemu-kvm=10.1.2-1,kernel=6.17.4-1-pve, ceph=19.2, virtio_win=0.1.285") == {
        "qemu_package": "10.1.2-1",
        "kernel": "6.17.4-1",
        "ceph": "19.2",
        "virtio_win": "0.1.285",
    }
    given = "drbd-dkms=9.2.15-1,proxmox-backup-server=4.1,windows=26100.8457,storage-server=24.10"
    assert read(given).keys() == {"drbd", "pbs", "windows_build", "storage_server"}


def form(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


@pytest.mark.parametrize("path", sorted(LISTS.glob("updates/*")), ids=lambda path: path.name)
def test_lists_of_updates_name_both_versions(path: Path) -> None:
    assert read(form(path)) == NEW
    assert read(form(path), "--from") == OLD


@pytest.mark.parametrize("path", sorted(LISTS.glob("installed/*")), ids=lambda path: path.name)
def test_lists_of_installed_packages_name_one_version(path: Path) -> None:
    for option in ("--to", "--from"):
        expected = {"pve": "9.1.2", "qemu_package": "10.1.2-1", "kernel": "6.17.4-1"}
        assert read(form(path), option) == expected


def test_the_running_kernel_counts_else_the_newest_one() -> None:
    found = read(PVEVERSION, "--from")
    assert found == {"kernel": "6.8.12-5", "pve": "8.3.2", "libpve_storage": "8.3.3"}
    assert read(PVEVERSION.partition("\n")[2])["kernel"] == "6.8.12-6"
    # Up to Proxmox VE 8.0, the package of a series had a version of its own.
    assert "kernel" not in read("pve-kernel-6.2: 8.0.5\npve-manager: 8.0.4\n")


def test_lines_in_no_known_form_are_returned() -> None:
    text = "pve-manager: 9.1.2\npve-qemu-kvm: not correctly installed\n│ zfsutils-linux │ 2.4 │\n"
    text += "Upgrade: qemu-server:amd64 (9.0.18, 9.0.30), libc6:amd64 broken\n"
    assert read_versions(text, option="--to") == (
        {"pve": "9.1.2", "qemu_server": "9.0.30"},
        (*text.splitlines()[1:3], "libc6:amd64 broken"),
    )


def test_the_output_of_apt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.FACTS, "dpkg", "dpkg")
    query = ["dpkg-query", "--show", "--showformat=${Version}", "dpkg"]
    version = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    for command in (
        ["apt", "list", "--installed", "--all-versions", "dpkg"],
        ["apt-cache", "policy", "dpkg"],
        ["dpkg", "--list", "dpkg"],
        ["dpkg-query", "--show", "dpkg"],
    ):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert read_versions(done.stdout, option="--from")[0] == {"dpkg": version}


def test_an_installed_package_may_have_an_update_in_its_line() -> None:
    line = "qemu-server/now 9.0.3 all [installed,upgradable to: 9.0.9]\n"
    assert read(line, "--from") == {"qemu_server": "9.0.3"}
    assert read(line) == {"qemu_server": "9.0.9"}


@pytest.mark.parametrize("text", ["qemu=9.0", "nothing known", "bash: 5.2\nzsh: 5.9\n", "[1, {}]"])
def test_an_unknown_package_is_an_error_with_the_known_names(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--to: .*pve-qemu-kvm"):
        read_versions(text, option="--to")
