"""Wear of drives, from recorded output of smartctl (tests/golden/smartctl/README.md)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pvebench.drivers.linux import drive_wear
from pvebench.drivers.linux.drive_wear import most_worn, parse_wear, wear_below
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import ServerGone
from pvebench.model.guest import Completed
from pvebench.model.storage_use import Wear, WriteCost
from pvebench_lab.host import DRIVER, HostSettings, remote_host
from testing.fixed_ssh_answers import SSH

GOLDEN = Path(__file__).parents[3] / "golden/smartctl"
NVME = Wear(0.16, 113_662_783 * 512_000)
ATA = Wear(0.19, 64_777_770_148 * 512)


def test_nvme_and_ata_drives_report_their_wear_and_the_bytes_written() -> None:
    assert parse_wear((GOLDEN / "nvme.json").read_bytes()) == NVME
    assert parse_wear((GOLDEN / "ata.json").read_bytes()) == ATA
    assert parse_wear((GOLDEN / "virtual.json").read_bytes()) is None
    # Values of a statistic without the flag are not valid.
    invalid = (GOLDEN / "ata.json").read_bytes().replace(b'"valid": true', b'"valid": false')
    assert parse_wear(invalid) is None


_SAS = {
    "scsi_percentage_used_endurance_indicator": 11,
    "scsi_error_counter_log": {"write": {"gigabytes_processed": "48211.123"}},
}


@pytest.mark.parametrize(
    ("content", "messages", "wear"),
    [
        (_SAS, (), Wear(0.11, 48_211_123_000_000)),
        ({"endurance_used": {"current_percent": 3}}, (), Wear(0.03)),
        ({}, ["/dev/sdb: Unknown USB bridge [0x0bda:0x9210]"], "sdb: a USB bridge hides the drive"),
        ({}, ["Device is in STANDBY mode, exit(2)"], "sdb: the drive is in standby"),
        ({}, ["DELL or MegaRaid controller"], "sdb: a RAID controller hides its drives"),
        ({}, ["Read NVMe log failed"], "sdb: Read NVMe log failed"),
        ({}, (), "sdb: the drive does not report it"),
    ],
)
def test_other_drives_report_it_elsewhere_or_the_reason_is_named(
    content: dict[str, Any], messages: Sequence[str], wear: Wear | str
) -> None:
    """Keys of smartctl 7.4 and 7.5 for SAS drives, and its messages, from public reports."""
    tool = {"exit_status": 1, "messages": [{"string": text} for text in messages]}
    report = {"smartctl": tool, "device": {"name": "/dev/sdb"}, **content}
    assert most_worn([json.dumps(report).encode()]) == wear
    both = [(GOLDEN / "nvme.json").read_bytes(), json.dumps(report).encode()]
    assert most_worn(both) == (wear if isinstance(wear, str) else NVME)


@pytest.fixture
def raid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A RAID of a partition of an NVMe drive and of a whole SATA drive; smartctl as recorded."""
    disks = tmp_path / "devices"
    for name in ("md0/slaves", "nvme0n1/nvme0n1p1", "sda"):
        (disks / name).mkdir(parents=True)
    (disks / "nvme0n1/nvme0n1p1/partition").write_text("1")
    (disks / "md0/slaves/a").symlink_to(disks / "nvme0n1/nvme0n1p1")
    (disks / "md0/slaves/b").symlink_to(disks / "sda")
    smartctl = tmp_path / "smartctl"
    smartctl.write_text(
        "#!/bin/sh\n"
        f'for last; do :; done\ncase "$last" in /dev/nvme0n1) cat {GOLDEN}/nvme.json ;;'
        f" /dev/sda) cat {tmp_path}/sda.json ;; esac\nexit 4\n"
    )
    smartctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(drive_wear, "devices_below", lambda _: (2304,))
    monkeypatch.setattr(drive_wear, "sysfs", lambda _: disks / "md0")
    return tmp_path


def test_the_most_worn_drive_counts(raid: Path) -> None:
    (raid / "sda.json").write_bytes((GOLDEN / "ata.json").read_bytes())
    assert wear_below(raid) == ATA


@pytest.mark.parametrize("output", ["", "[]", "{", '{"ata_device_statistics": 3}'])
def test_a_drive_that_does_not_report_makes_the_wear_unknown(raid: Path, output: str) -> None:
    (raid / "sda.json").write_text(output)
    assert wear_below(raid) == "the drives do not report it"


def test_a_user_without_the_right_reads_that_smartctl_needs_root(raid: Path) -> None:
    (raid / "sda.json").write_bytes((GOLDEN / "denied.json").read_bytes())
    assert wear_below(raid) == "smartctl needs root"


def test_a_machine_without_smartctl_names_its_package(raid: Path) -> None:
    (raid / "smartctl").unlink()
    assert wear_below(raid) == "smartctl (package smartmontools) is not installed"


def test_the_cost_names_the_share_per_year_where_the_counters_give_it() -> None:
    def line(wear: Wear | str) -> str:
        cost = WriteCost(node="a", storage="b", cycle_bytes=1, day_bytes=10e9, wear=wear)
        return cost.text.rpartition("; ")[2]

    # 3.65 TB per year; the drive's life is 33.2 TB / 0.19 = 174.6 TB.
    assert line(ATA) == "drive wear 19% of the rated endurance, about 2.1% more per year"
    unknown = "drive wear 4% of the rated endurance, share per year unknown"
    assert line(Wear(0.04, 10**12)) == unknown
    assert line(Wear(0.04)) == unknown
    assert line("") == "drive wear unknown"
    assert line("smartctl needs root") == "drive wear unknown: smartctl needs root"


class Elsewhere(SshConnection):
    """A machine whose shell is this machine's, with the sysfs and the programs of a test.

    Its path is on the device 9:0.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(SSH)
        self._folder = folder

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        if "device" in argv:
            return Completed(0, b"regular file|0|0|2304|4096|\n", b"")
        words = [word.replace("/sys/dev/block", str(self._folder / "devices")) for word in argv]
        environment = {"PATH": f"{self._folder}:/usr/bin:/bin"}
        done = subprocess.run(words, capture_output=True, check=False, env=environment)
        return Completed(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def elsewhere(raid: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (raid / "devices/9:0").symlink_to(raid / "devices/md0")
    monkeypatch.setattr(remote_host, "SshConnection", lambda _: Elsewhere(raid))
    return raid


def over_ssh() -> Wear | str:
    settings = HostSettings.model_validate(
        {
            "node": "far",
            "ssh": SSH.model_dump(exclude_unset=True),
            "storages": {"ssd": {"path": "/srv"}},
        }
    )
    return DRIVER.wear(settings)["far", "ssd"]


def test_over_ssh_the_most_worn_drive_of_the_other_machine_counts(elsewhere: Path) -> None:
    (elsewhere / "sda.json").write_bytes((GOLDEN / "ata.json").read_bytes())
    assert over_ssh() == ATA
    # One drive of the RAID does not report it.
    (elsewhere / "sda.json").write_bytes((GOLDEN / "virtual.json").read_bytes())
    assert over_ssh() == "the drives do not report it on pvebench@pve1"


def test_over_ssh_the_reason_for_unknown_wear_names_the_machine(elsewhere: Path) -> None:
    (elsewhere / "sda.json").write_bytes((GOLDEN / "denied.json").read_bytes())
    assert over_ssh() == "smartctl needs root on pvebench@pve1"
    (elsewhere / "devices/9:0").unlink()  # such as of NFS
    assert over_ssh() == "the drives do not report it on pvebench@pve1"


def test_over_ssh_a_machine_without_smartctl_or_answer_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "smartctl").unlink()
    assert over_ssh() == "smartctl (package smartmontools) is not installed on pvebench@pve1"

    def gone(*_: Any, **__: Any) -> Completed:
        raise ServerGone("ssh to pvebench@pve1 failed: Connection refused")

    monkeypatch.setattr(Elsewhere, "run", gone)
    assert over_ssh() == "ssh to pvebench@pve1 failed: Connection refused"
