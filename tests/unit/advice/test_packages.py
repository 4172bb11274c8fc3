"""Versions of packages as options, and as the output of programs that pvebench did not write."""

from __future__ import annotations

import subprocess

import pytest

from pvebench.advice import packages
from pvebench.advice.packages import read_versions
from pvebench.errors import ConfigError

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


def test_options_name_packages() -> None:
    found = read_versions("pve-qemu-kvm=10.1.2-1,kernel=6.17.4-1-pve", option="--to")
    assert found == {"qemu_package": "10.1.2-1", "kernel": "6.17.4-1"}


def test_the_running_kernel_of_pveversion_counts() -> None:
    found = read_versions(PVEVERSION, option="--from")
    assert found == {"kernel": "6.8.12-5", "pve": "8.3.2", "libpve_storage": "8.3.3"}


def test_without_a_running_kernel_the_newest_counts() -> None:
    installed = PVEVERSION.partition("\n")[2]
    assert read_versions(installed, option="--to")["kernel"] == "6.8.12-6"


def test_the_output_of_apt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.FACTS, "dpkg", "dpkg")
    query = ["dpkg-query", "--show", "--showformat=${Version}", "dpkg"]
    version = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    command = ["apt", "list", "--installed", "--all-versions", "dpkg"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "installed" in line]
    assert read_versions("\n".join(lines) + "\n", option="--to") == {"dpkg": version}


@pytest.mark.parametrize(
    "line",
    [
        "dpkg/stable,now 1.22.22 amd64 [installed]",
        "dpkg/oldstable 1.22.22 amd64 [upgradable from: 1.21.22]",
        "dpkg/now 1.22.22 amd64 [installed,upgradable to: 1.23.0]",
    ],
)
def test_the_archives_and_states_of_a_package_may_have_commas(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    # `apt list --installed --all-versions dpkg` of apt 3.0 (Debian 13), then in the form of 2.6.
    monkeypatch.setitem(packages.FACTS, "dpkg", "dpkg")
    assert read_versions(f"{line}\n", option="--to") == {"dpkg": "1.22.22"}


def test_options_may_have_spaces_after_commas() -> None:
    assert read_versions("qemu-server=9.1, ceph=19.2", option="--to") == {
        "qemu_server": "9.1",
        "ceph": "19.2",
    }


def test_the_simulation_of_apt_get_is_read() -> None:
    # Format of `apt-get --simulate` 2.6.1: the installed version, then the new one.
    line = "Inst qemu-server [9.0.3] (9.0.9 Proxmox Virtual Environment:trixie [amd64])"
    assert read_versions(line, option="--to") == {"qemu_server": "9.0.9"}


@pytest.mark.parametrize("text", ["qemu=9.0", "nothing known", "bash: 5.2\nzsh: 5.9\n"])
def test_an_unknown_package_is_an_error_with_the_known_names(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--to: .*pve-qemu-kvm"):
        read_versions(text, option="--to")
