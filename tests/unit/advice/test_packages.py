"""Versions of packages as options, and as the output of programs that pvebench did not write."""

from __future__ import annotations

import json
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
OLD = {"qemu_package": "10.0.2-4", "zfs": "2.3.4-pve1", "kernel": "6.17.2-1"}
NEW = {"qemu_package": "10.1.2-1", "zfs": "2.4.0-pve1", "kernel": "6.17.4-1"}
UPDATES = [
    {"Package": "pve-qemu-kvm", "OldVersion": "10.0.2-4", "Version": "10.1.2-1"},
    {"Package": "zfsutils-linux", "OldVersion": "2.3.4-pve1", "Version": "2.4.0-pve1"},
    {"Package": "proxmox-kernel-6.17", "OldVersion": "6.17.2-1", "Version": "6.17.4-1"},
    {"Package": "pve-xtermjs", "CurrentState": "NotInstalled", "Version": "5.5.0-2"},
]
UPGRADES = {
    "apt list --upgradable": """\
WARNING: apt does not have a stable CLI interface. Use with caution in scripts.

Listing... Done
pve-qemu-kvm/stable 10.1.2-1 amd64 [upgradable from: 10.0.2-4]
zfsutils-linux/stable,stable 2.4.0-pve1 amd64 [upgradable from: 2.3.4-pve1]
proxmox-kernel-6.17/stable,stable 6.17.4-1 all [upgradable from: 6.17.2-1]
""",
    "apt-get --simulate": """\
Inst pve-qemu-kvm [10.0.2-4] (10.1.2-1 Proxmox Virtual Environment:trixie [amd64]) []
Inst zfsutils-linux [2.3.4-pve1] (2.4.0-pve1 Debian:13.1/stable, Proxmox:trixie [amd64])
Inst proxmox-kernel-6.17 [6.17.2-1] (6.17.4-1 Proxmox:trixie [all])
Inst proxmox-kernel-6.17.4-1-pve-signed (6.17.4-1 Proxmox:trixie [amd64])
Conf pve-qemu-kvm (10.1.2-1 Proxmox Virtual Environment:trixie [amd64])
""",
    "apt upgrade -V": """\
Reading package lists... Done
Upgrading:
   pve-qemu-kvm (10.0.2-4 => 10.1.2-1)
   zfsutils-linux (2.3.4-pve1 => 2.4.0-pve1)
   proxmox-kernel-6.17 (6.17.2-1 => 6.17.4-1)
Installing dependencies:
   proxmox-kernel-6.17.4-1-pve-signed (6.17.4-1)
Summary:
  Upgrading: 3, Installing: 1, Removing: 0, Not Upgrading: 0
""",
    "history.log": """\

Start-Date: 2026-03-02  08:11:04
Commandline: apt-get install pve-qemu-kvm=10.1.0-1
Requested-By: kim (1000)
Upgrade: pve-qemu-kvm:amd64 (10.0.2-4, 10.1.0-1), proxmox-kernel-6.17:all (6.17.2-1, 6.17.4-1)
End-Date: 2026-03-02  08:13:55

Start-Date: 2026-03-03  08:11:04
Install: proxmox-kernel-6.17.4-1-pve-signed:amd64 (6.17.4-1, automatic)
Upgrade: pve-qemu-kvm:amd64 (10.1.0-1, 10.1.2-1), zfsutils-linux:amd64 (2.3.4-pve1, 2.4.0-pve1)
Remove: ceph-common:amd64 (19.2.3-pve1)
""",
    "dpkg.log": """\
2026-03-02 08:11:04 startup archives unpack
2026-03-02 08:11:07 upgrade pve-qemu-kvm:amd64 10.0.2-4 10.1.2-1
2026-03-02 08:11:07 status half-installed pve-qemu-kvm:amd64 10.0.2-4
2026-03-02 08:11:08 status installed pve-qemu-kvm:amd64 10.1.2-1
2026-03-02 08:11:08 upgrade zfsutils-linux:amd64 2.3.4-pve1 2.4.0-pve1
2026-03-02 08:11:08 install proxmox-kernel-6.17.4-1-pve-signed:amd64 <none> 6.17.4-1
2026-03-02 08:11:09 upgrade proxmox-kernel-6.17:all 6.17.2-1 6.17.4-1
""",
    "term.log": """\
Unpacking pve-qemu-kvm (10.1.2-1) over (10.0.2-4) ...
Unpacking zfsutils-linux (2.4.0-pve1) over (2.3.4-pve1) ...
Unpacking proxmox-kernel-6.17 (6.17.4-1) over (6.17.2-1) ...
Setting up pve-qemu-kvm (10.1.2-1) ...
""",
    "apt policy": """\
pve-qemu-kvm:
  Installed: 10.0.2-4
  Candidate: 10.1.2-1
  Version table:
     10.1.2-1 500
        500 http://download.proxmox.com/debian/pve trixie/pve-no-subscription amd64 Packages
 *** 10.0.2-4 100
        100 /var/lib/dpkg/status
zfsutils-linux:
  Installed: 2.3.4-pve1
  Candidate: 2.4.0-pve1
proxmox-kernel-6.17:
  Installed: 6.17.2-1
  Candidate: 6.17.4-1
""",
    "columns of a table": "pve-qemu-kvm\t10.0.2-4\t10.1.2-1\tFull virtualization\n"
    "zfsutils-linux\t2.3.4-pve1\t2.4.0-pve1\nproxmox-kernel-6.17\t6.17.2-1\t6.17.4-1\n",
    "API": json.dumps(UPDATES),
    "API, whole response": json.dumps({"data": UPDATES}, indent=1),
}
STATES = {
    "pveversion -v": "pve-manager: 9.1.2 (running version: 9.1.2/aa)\npve-qemu-kvm: 10.1.2-1\n"
    "proxmox-ve: 9.1.0 (running kernel: 6.17.4-1-pve)\n",
    "quoted": "> proxmox-ve: 9.1.0 (running kernel: 6.17.4-1-pve)\r\n> pve-manager: 9.1.2 (running "
    "version: 9.1.2/aa)\r\n>> `pve-qemu-kvm: 10.1.2-1`\r\n",
    "tabs": "pve-manager:\t9.1.2\npve-qemu-kvm\t10.1.2-1\nLinux pve1 6.17.4-1-pve #1 SMP PMX\n",
    "dpkg -l": "||/ Name Version Architecture Description\n+++-====-====-====-====\n"
    "ii  pve-manager         9.1.2     all    Proxmox\nhi  pve-qemu-kvm:amd64  10.1.2-1 amd64 Full"
    "\nrc  ceph-common 18.2.4 amd64 client\nii  proxmox-kernel-6.17.4-1-pve-signed 6.17.4-1 amd64 P"
    "\n",
    "apt list --installed": "pve-manager/stable,now 9.1.2 all [installed]\n"
    "pve-qemu-kvm/now 10.1.2-1 amd64 [installed,local]\n"
    "proxmox-kernel-6.17/stable,now 6.17.4-1 all [installed,automatic]\n",
    "short": "pve-manager/9.1.2/aaaaaaaaaaaaaaaa (running kernel: 6.17.4-1-pve)\npve-qemu-kvm="
    "10.1.2-1\n",
    "API of a node": json.dumps(
        {"pveversion": "pve-manager/9.1.2/aa", "kversion": "Linux 6.17.4-1-pve #1 SMP"}
        | {"packages": [{"Package": "pve-qemu-kvm", "OldVersion": "10.1.2-1"}]}
    ),
}


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


@pytest.mark.parametrize("form", UPGRADES)
def test_lists_of_updates_name_both_versions(form: str) -> None:
    assert read(UPGRADES[form]) == NEW
    assert read(UPGRADES[form], "--from") == OLD


@pytest.mark.parametrize("form", STATES)
def test_lists_of_installed_packages_name_one_version(form: str) -> None:
    for option in ("--to", "--from"):
        expected = {"pve": "9.1.2", "qemu_package": "10.1.2-1", "kernel": "6.17.4-1"}
        assert read(STATES[form], option) == expected


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
