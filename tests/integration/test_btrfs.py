"""What lies below a file on btrfs: a real one, and btrfs-progs as the second opinion on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.drivers.linux.block_devices import devices_below, parse_device
from pvebench.model.run import Run
from pvebench.model.units import MIB, SECTOR
from pvebench_lab.remote_tools import REMOTE_COMMANDS
from testing.btrfs import Btrfs, btrfs, run
from testing.host_row import SIZE, measured
from testing.real_outcomes import MEASURED
from testing.sshd import ssh_server


@pytest.fixture(params=["single", "raid1"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Btrfs]:
    with btrfs(tmp_path, request.param) as made:
        yield made


def as_proxmox_has_it(there: Btrfs) -> Path:
    """Return a volume as a storage of type btrfs makes it: a file alone in a subvolume.

    Read in `alloc_image` and `filesystem_path` of PVE/Storage/BTRFSPlugin.pm (pve-storage).
    """
    return there.subvolume("images/9500/vm-9500-pvebench-0123456789ab-raw-0") / "disk.raw"


def by_shell(path: Path, *shell: str) -> tuple[int, ...]:
    command = [*shell, "-c", REMOTE_COMMANDS, "pvebench", "device", str(path)]
    said = subprocess.run(command, check=True, capture_output=True).stdout
    return parse_device(said, str(path))[1]


def written(loops: list[Path]) -> int:
    """Return the bytes that the kernel wrote to devices, as it tells of each by its name."""
    stats = [Path(f"/sys/block/{loop.name}/stat").read_text("ascii").split() for loop in loops]
    return sum(int(fields[6]) for fields in stats) * SECTOR


def test_they_are_all_that_btrfs_progs_lists_wherever_the_file_is(
    there: Btrfs, tmp_path: Path
) -> None:
    volume = as_proxmox_has_it(there)
    volume.write_bytes(b"x")
    nested = there.subvolume("images/9500/vm-9500-pvebench-0123456789ab-raw-0/within")
    places = {"subvolume alone": ["-o", "subvol=images"], "bound": ["--bind"]}
    sources = {"subvolume alone": there.loops[-1], "bound": volume.parent}
    there.subvolume("images2")
    places["subvolume alone"] = ["-o", "subvol=images2"]
    members = there.members()
    assert len(members) == len(there.loops)
    try:
        for name, options in places.items():
            (tmp_path / name).mkdir()
            run("mount", *options, sources[name], tmp_path / name)
        for path in (there.where, volume, nested, *(tmp_path / name for name in places)):
            for found in (
                devices_below(path),
                *(by_shell(path, *sh) for sh in (["dash"], ["bash"])),
            ):
                assert {*found} == members, path
                assert len(found) == len(members)
    finally:
        for name in places:
            run("umount", tmp_path / name, check=False)


def test_a_link_is_followed_and_what_lies_over_it_is_another(there: Btrfs, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(there.where)
    assert {*devices_below(link)} == {*by_shell(link, "dash")} == there.members()
    over = there.where / "over"
    over.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", over)
    try:
        assert devices_below(over) == by_shell(over, "dash") == (over.stat().st_dev,)
        assert os.major(over.stat().st_dev) == 0
    finally:
        run("umount", over)


def test_a_device_that_is_added_counts_from_then_on(there: Btrfs, tmp_path: Path) -> None:
    before = {*devices_below(there.where)}
    spare = tmp_path / "spare"
    spare.write_bytes(b"")
    os.truncate(spare, 256 * MIB)
    loop = run("losetup", "--find", "--show", spare).strip()
    try:
        run("btrfs", "-q", "device", "add", "-f", loop, there.where)
        added = Path(loop).stat().st_rdev
        assert {*devices_below(there.where)} == {*by_shell(there.where, "dash")} == before | {added}
        run("btrfs", "-q", "device", "remove", loop, there.where)
        assert {*devices_below(there.where)} == before
    finally:
        run("losetup", "--detach", loop)


def must_be_counted(run_of: Run, there: Btrfs, moved: int) -> None:
    assert run_of.outcome in MEASURED, run_of.reason
    found = {(one.metric, str(one.direction), one.part): one.value for one in run_of.samples}
    share = found["device_share", "write", ""]
    copies = len(there.loops)
    # A write of 4 KiB is written once to each copy, with the tables that say where it is. Counters
    # read by ssh miss some tenths of a second at the ends, on a busy machine more than one.
    assert copies * 0.7 < share < copies * 6, share
    assert found["host_bytes", "None", "device_write"] > 0
    # The fill, and what fio wrote: no more than the kernel counted from the outside.
    assert SIZE * copies < run_of.written_bytes <= moved + MIB


@pytest.mark.parametrize("far", [False, True], ids=["here", "by ssh"])
def test_a_row_is_counted_on_all_devices(there: Btrfs, tmp_path: Path, *, far: bool) -> None:
    where = there.subvolume("of a user")
    before = written(there.loops)
    if far:
        with ssh_server(tmp_path / "sshd") as server:
            ssh = server.settings().model_dump(exclude_unset=True)
            done = measured(tmp_path, where, "randwrite", seconds=10.0, ssh=ssh)
    else:
        done = measured(tmp_path, where, "randwrite", seconds=5.0)
    must_be_counted(done, there, written(there.loops) - before)
    assert list(where.iterdir()) == []
