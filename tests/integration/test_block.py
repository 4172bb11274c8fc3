"""A claimed disk that somebody put to another use is refused, and not one byte of it is changed.

The disks are loop devices over files; whoever uses them is real: sfdisk, mke2fs, mkswap, LVM,
cryptsetup, the kernel. What stands on a disk afterwards is their doing, so they are the witnesses.
md is not among them: mdadm asks the running kernel, and not every kernel that runs these tests has
it; to pvebench its signature is one more line of wipefs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.drivers.storages.block import DeviceStorage
from pvebench.drivers.storages.identity import (
    BLOCK_BYTES,
    DEVICE_MARK,
    HEAD_BYTES,
    TAIL_BYTES,
    claim,
)
from pvebench.errors import SwitchFailed, VolumeError
from pvebench.model.units import MIB
from pvebench_lab.host.device_tuning import check_own
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine
from testing.devices import block_device, need_loop_devices
from testing.storages import host_row, storage_context
from testing.stores import TemporaryStore

SIZE = 40 * MIB
ROOM = SIZE - HEAD_BYTES - TAIL_BYTES
ROW = host_row(8 * MIB, storage="disk")
FOREIGN = {
    "dos": "echo 'start=2048, type=83' | sfdisk --quiet --label dos $0",
    "gpt": "echo 'start=2048' | sfdisk --quiet --label gpt $0",
    "ext4": "mkfs.ext4 -q -F $0",
    "swap": "mkswap --quiet $0",
    "LVM2_member": "pvcreate --quiet --force --force --yes $0",
    "crypto_LUKS": "echo key | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2"
    " --pbkdf-force-iterations 1000 $0",
}
"""What wipefs calls it -> what makes it on the device $0."""
ADD, DELETE = 1, 2
"""BLKPG_ADD_PARTITION and BLKPG_DEL_PARTITION."""


def sh(script: str, *arguments: object) -> None:
    command = ["/bin/sh", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def partition(device: Path, operation: int) -> None:
    """Add or delete partition 1 in the kernel alone, without a table: BLKPG of linux/blkpg.h."""
    sectors = struct.pack("qqi128x", 4096 * 512, 8192 * 512, 1)
    content = ctypes.create_string_buffer(sectors, len(sectors))
    argument = struct.pack("iiiP", operation, 0, len(sectors), ctypes.addressof(content))
    with device.open("rb") as disk:
        fcntl.ioctl(disk, 0x1269, argument)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with block_device(tmp_path / "disk.img", SIZE) as device:
        yield device


@pytest.fixture
def claimed(disk: Path) -> Path:
    claim(disk, destroy=False)
    return disk


@contextlib.contextmanager
def storage(device: Path, folder: Path) -> Iterator[DeviceStorage]:
    store = TemporaryStore(folder / "pvebench.db", simulated=False)
    options = storage_context(name="disk", kind="block", owner="test", path=str(device))
    made = DeviceStorage(options, store.journal)
    try:
        yield made
    finally:
        made.close()
        store.close()


def refusal(device: Path, folder: Path) -> str:
    """Use the disk, which must be refused and left as it is; return what is said."""
    before = device.read_bytes()
    with storage(device, folder) as used, pytest.raises(VolumeError) as caught:
        used.create(ROW)
    assert device.read_bytes() == before
    assert caught.value.cause or caught.value.next_step
    return str(caught.value)


def works(device: Path, folder: Path, size: int = ROW.volume_bytes) -> None:
    with storage(device, folder) as used:
        used.check(used.create(replace(ROW, volume_bytes=size)))


def discard_content(device: Path, at: int) -> None:
    """Turn one byte round, as a disk that belongs to somebody else would have it."""
    with device.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_made_on_a_claimed_disk_is_found_named_and_left(
    claimed: Path, tmp_path: Path, kind: str
) -> None:
    sh(FOREIGN[kind], claimed)
    assert f"{kind} at byte" in refusal(claimed, tmp_path)


def test_a_partition_table_leaves_the_old_mark_which_is_why_the_mark_alone_is_not_believed(
    disk: Path, tmp_path: Path
) -> None:
    with disk.open("r+b") as opened:
        opened.write(DEVICE_MARK)
    sh(FOREIGN["dos"], disk)
    assert disk.read_bytes().startswith(DEVICE_MARK)
    assert "dos at byte 510" in refusal(disk, tmp_path)
    assert run_cli(["storage", "claim", str(disk)]) == 6


@pytest.mark.parametrize(
    "at",
    [
        DEVICE_MARK.index(b":"),
        BLOCK_BYTES - 1,
        HEAD_BYTES - 1,
        SIZE // 4,
        SIZE // 2,
        SIZE // 4 * 3,
        SIZE - TAIL_BYTES,
        SIZE - 1,
    ],
)
def test_each_mark_counts(claimed: Path, tmp_path: Path, at: int) -> None:
    discard_content(claimed, at)
    block = at // BLOCK_BYTES * BLOCK_BYTES
    begin = "not claimed by pvebench" if at < len(DEVICE_MARK) else "the claim's"
    word = {0: begin}.get(block, f"the claim's mark at byte {block} is overwritten")
    assert word in refusal(claimed, tmp_path)


def test_marks_are_another_claims_after_another_claim(claimed: Path, tmp_path: Path) -> None:
    first = claimed.read_bytes()[SIZE - TAIL_BYTES :]
    claim(claimed, destroy=True)
    with claimed.open("r+b") as opened:
        opened.seek(SIZE - TAIL_BYTES)
        opened.write(first)
    assert f"mark at byte {SIZE - TAIL_BYTES} is overwritten" in refusal(claimed, tmp_path)


def test_a_copy_of_a_claimed_disk_is_another_disk(claimed: Path, tmp_path: Path) -> None:
    with block_device(tmp_path / "copy.img", SIZE) as copy:
        copy.write_bytes(claimed.read_bytes())
        said = refusal(copy, tmp_path)
    assert f"it is disk [file {tmp_path}/copy.img" in said
    assert f"claimed was [file {tmp_path}/disk.img" in said


def test_a_disk_that_grew_is_not_the_one_that_was_claimed(claimed: Path, tmp_path: Path) -> None:
    with (tmp_path / "disk.img").open("r+b") as file:
        file.truncate(SIZE + MIB)
    sh("losetup --set-capacity $0", claimed)
    said = refusal(claimed, tmp_path)
    assert f"it has {SIZE + MIB} bytes, claimed were {SIZE}" in said


def test_a_record_of_nonsense_is_damaged(claimed: Path, tmp_path: Path) -> None:
    for record in (
        b"",
        b"[" * 2000,
        b'{"claim": 1}',
        b"\xff",
        b'{"claim":"","disk":"","size_bytes":"9"}',
    ):
        with claimed.open("r+b") as opened:
            opened.write((DEVICE_MARK + record).ljust(BLOCK_BYTES, b"\0"))
        assert "the claim's record is damaged" in refusal(claimed, tmp_path)


def test_a_mounted_disk_is_reported_with_its_mount(disk: Path, tmp_path: Path) -> None:
    sh(FOREIGN["ext4"], disk)
    mount = tmp_path / "mnt"
    mount.mkdir()
    # Not to be written to: ext4 does so by itself too, up to seconds after a mount.
    sh("mount -o ro $0 $1", disk, mount)
    try:
        assert f"{disk.name} is mounted at {mount}" in refusal(disk, tmp_path)
        assert run_cli(["storage", "claim", str(disk), "--destroy-data"]) == 6
    finally:
        sh("umount $0", mount)


def test_swap_is_reported(disk: Path, tmp_path: Path) -> None:
    sh(FOREIGN["swap"], disk)
    sh("swapon $0", disk)
    try:
        assert f"{disk.name} is swap" in refusal(disk, tmp_path)
    finally:
        sh("swapoff $0", disk)


def test_a_disk_that_another_program_has_for_itself_is_not_used(
    claimed: Path, tmp_path: Path
) -> None:
    # As ZFS, btrfs and a second pvebench have theirs, of which lsblk shows nothing.
    fd = os.open(claimed, os.O_RDONLY | os.O_EXCL)
    try:
        said = refusal(claimed, tmp_path)
        assert "Device or resource busy: another program has exclusive access" in said
        assert run_cli(["storage", "claim", str(claimed)]) == 6
    finally:
        os.close(fd)
    works(claimed, tmp_path)


def test_partitions_that_the_kernel_knows_are_reported_when_their_table_is_gone(
    claimed: Path, tmp_path: Path
) -> None:
    partition(claimed, ADD)
    try:
        assert f"partition {claimed.name}p1" in refusal(claimed, tmp_path)
    finally:
        partition(claimed, DELETE)
    works(claimed, tmp_path)


def test_while_it_is_used_no_other_instance_gets_it(claimed: Path, tmp_path: Path) -> None:
    with storage(claimed, tmp_path) as used:
        used.create(ROW)
        for kind in ("ext4", "swap", "LVM2_member"):
            with pytest.raises(AssertionError):
                sh(FOREIGN[kind].replace(" -F", ""), claimed)
        used.check(used.create(ROW))
    sh(FOREIGN["swap"], claimed)  # let go


GUESTS = {**FOREIGN, "random data": "shred --iterations=1 $0"}


@pytest.mark.parametrize("kind", GUESTS)
def test_a_guest_may_write_what_it_likes_from_end_to_end_of_its_volume(
    claimed: Path, tmp_path: Path, kind: str
) -> None:
    with storage(claimed, tmp_path) as used:
        volume = used.create(replace(ROW, volume_bytes=ROOM))
        command = ["losetup", "--find", "--show", "--offset", str(volume.offset_bytes)]
        command += ["--sizelimit", str(ROOM), str(claimed)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        inside = Path(done.stdout.strip())
        try:
            sh(GUESTS[kind], inside)
            used.check(volume)
        finally:
            sh("losetup --detach $0", inside)
    works(claimed, tmp_path)
    claim(claimed, destroy=False)  # ours, as it is


def test_a_volume_gives_up_the_marks_that_it_covers_and_no_others(
    claimed: Path, tmp_path: Path
) -> None:
    works(claimed, tmp_path, size=SIZE // 2)
    works(claimed, tmp_path, size=4 * MIB)  # it stays given up: the larger one wrote there
    discard_content(claimed, SIZE // 4)
    discard_content(claimed, SIZE // 2)
    works(claimed, tmp_path)
    discard_content(claimed, SIZE // 4 * 3)
    assert f"mark at byte {SIZE // 4 * 3} is overwritten" in refusal(claimed, tmp_path)


def test_a_volume_leaves_both_ends_of_the_disk(claimed: Path, tmp_path: Path) -> None:
    with storage(claimed, tmp_path) as used:
        with pytest.raises(VolumeError, match=r"needed, 38\.0 MiB usable"):
            used.create(replace(ROW, volume_bytes=ROOM + 1))
        volume = used.create(replace(ROW, volume_bytes=ROOM))
    assert (volume.offset_bytes, volume.size_bytes) == (HEAD_BYTES, SIZE - 2 * MIB)


def test_what_happens_to_the_disk_while_it_is_held_is_found_at_the_next_use(
    claimed: Path, tmp_path: Path
) -> None:
    with storage(claimed, tmp_path) as used:
        volume = used.create(ROW)
        discard_content(claimed, SIZE - 1)
        with pytest.raises(VolumeError, match=f"mark at byte {SIZE - BLOCK_BYTES} is overwritten"):
            used.check(volume)


def test_what_another_host_writes_to_a_shared_disk_is_seen_past_our_cache(
    claimed: Path, tmp_path: Path
) -> None:
    with storage(claimed, tmp_path) as used:
        volume = used.create(ROW)
        used.check(volume)
        for at in (SIZE // 4 * 3, SIZE - 1, HEAD_BYTES - 1):
            discard_content(
                tmp_path / "disk.img", at
            )  # below the device, past this kernel's cache of it
            with pytest.raises(VolumeError, match="is overwritten"):
                used.check(volume)
            discard_content(tmp_path / "disk.img", at)
            used.check(volume)


@pytest.mark.parametrize(
    ("header", "table"),
    [(512, slice(512, 34 * 512)), (SIZE - 512, slice(SIZE - 33 * 512, SIZE))],
    ids=["begin", "end"],
)
def test_what_another_host_makes_on_a_shared_disk_is_named(
    claimed: Path, tmp_path: Path, header: int, table: slice
) -> None:
    theirs = tmp_path / "theirs.img"
    theirs.write_bytes(bytes(SIZE))
    sh(FOREIGN["gpt"], theirs)
    with storage(claimed, tmp_path) as used:
        volume = used.create(ROW)
        used.check(volume)
        with (tmp_path / "disk.img").open("r+b") as image:
            image.seek(table.start)
            image.write(theirs.read_bytes()[table])
        with pytest.raises(VolumeError, match=f"gpt at byte {header}"):
            used.check(volume)


def test_the_host_looks_again_before_each_run_on_a_disk_that_it_has(
    claimed: Path, tmp_path: Path
) -> None:
    with storage(claimed, tmp_path) as used:
        store = TemporaryStore(tmp_path / "host.db", simulated=False)
        host = HostDisk(
            node="lab",
            storages={"disk": used},
            machine=ThisMachine(tmp_path / "run", store.journal),
        )
        volume, _ = host.volume(ROW)
        host.attach(volume, ROW.disk)
        discard_content(claimed, SIZE - 1)
        for again in (lambda: host.boot(ROW.machine), lambda: host.attach(volume, ROW.disk)):
            with pytest.raises(VolumeError, match="is overwritten"):
                again()
        store.close()


def test_settings_of_a_disk_that_is_not_as_claimed_are_left_alone(claimed: Path) -> None:
    check_own(claimed)
    sh(FOREIGN["dos"], claimed)
    with pytest.raises(SwitchFailed, match=r"device settings: .*dos at byte 510.*not changed"):
        check_own(claimed)


def test_a_name_below_dev_disk_leads_to_the_disk_until_it_leads_elsewhere(
    claimed: Path, tmp_path: Path
) -> None:
    name = tmp_path / "by-id"
    name.symlink_to(claimed)
    with block_device(tmp_path / "other.img", SIZE) as other, storage(name, tmp_path) as used:
        claim(other, destroy=False)
        volume = used.create(ROW)
        assert volume.volid == str(claimed)
        name.unlink()
        name.symlink_to(other)
        with pytest.raises(VolumeError, match=f"the path no longer leads to {claimed}"):
            used.check(volume)
        with pytest.raises(VolumeError, match=f"is now {other}, was {claimed}"):
            used.check(volume)


def test_data_without_a_signature_is_data(disk: Path, tmp_path: Path) -> None:
    for at in (HEAD_BYTES - 1, SIZE - 1):
        discard_content(disk, at)
        with pytest.raises(VolumeError, match="is not empty: data that libblkid does not know"):
            claim(disk, destroy=False)
        discard_content(disk, at)
    claim(disk, destroy=False)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_claim_takes_what_is_there_only_when_asked_to_and_then_wholly(
    disk: Path, tmp_path: Path, kind: str
) -> None:
    sh(FOREIGN[kind], disk)
    before = disk.read_bytes()
    with pytest.raises(VolumeError, match=f"is not empty: .*{kind} at byte"):
        claim(disk, destroy=False)
    assert disk.read_bytes() == before
    claim(disk, destroy=True)
    works(disk, tmp_path)


def test_a_claim_leaves_nothing_at_either_end_but_its_marks(disk: Path) -> None:
    disk.write_bytes(b"\xff" * SIZE)
    claim(disk, destroy=True)
    content = disk.read_bytes()
    for end in (content[:HEAD_BYTES], content[-TAIL_BYTES:]):
        blocks = [end[at : at + BLOCK_BYTES] for at in range(0, MIB, BLOCK_BYTES)]
        marks = [block for block in blocks if block.startswith(DEVICE_MARK)]
        assert len(marks) == 2
        assert {block for block in blocks if block not in marks} == {bytes(BLOCK_BYTES)}


def test_a_disk_that_fails_is_reported_and_not_used(
    claimed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, length: int, at: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    assert f"I/O error on {claimed}: Input/output" in refusal(claimed, tmp_path)
    assert run_cli(["storage", "claim", str(claimed)]) == 6


def test_a_claim_makes_the_kernel_forget_the_partitions_that_were_there(tmp_path: Path) -> None:
    need_loop_devices()
    image = tmp_path / "parts.img"
    with image.open("wb") as file:
        file.truncate(SIZE)
    command = ["losetup", "--find", "--show", "--partscan", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    device = Path(done.stdout.strip())
    try:
        partition(device, ADD)
        with pytest.raises(VolumeError, match=f"is not empty: partition {device.name}p1"):
            claim(device, destroy=False)
        claim(device, destroy=True)
        works(device, tmp_path)
    finally:
        sh("losetup --detach $0", device)


def test_a_claimed_disk_that_is_used_otherwise_is_claimed_again_only_when_asked_to(
    claimed: Path, tmp_path: Path
) -> None:
    discard_content(claimed, SIZE // 2)
    with pytest.raises(VolumeError, match="does not match its claim") as caught:
        claim(claimed, destroy=False)
    assert f"pvebench storage claim {claimed} --destroy-data" in caught.value.next_step
    claim(claimed, destroy=True)
    works(claimed, tmp_path)


def test_a_disk_of_a_few_megabytes_is_not_claimed(tmp_path: Path) -> None:
    with (
        block_device(tmp_path / "small.img", 8 * MIB) as small,
        pytest.raises(VolumeError, match=r"is too small: 16\.0 MiB needed, has 8\.0 MiB"),
    ):
        claim(small, destroy=True)


def test_only_a_block_device_is_claimed_and_used(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(SIZE))
    for path, why in ((image, "is not a block device"), (tmp_path, "Is a directory")):
        with pytest.raises(VolumeError, match=why):
            claim(path, destroy=True)
    assert image.read_bytes() == bytes(SIZE)
    assert "is not a block device" in refusal(image, tmp_path)


def test_what_util_linux_inconclusive_is_not_used(
    claimed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "lsblk failed for" in refusal(claimed, tmp_path)
    (tmp_path / "lsblk").symlink_to("/usr/bin/lsblk")
    assert "wipefs failed for" in refusal(claimed, tmp_path)
    wipefs = tmp_path / "wipefs"
    wipefs.write_text("#!/bin/sh\necho '{\"signatures\": []}'\nexit 1\n")
    wipefs.chmod(0o755)
    assert "wipefs failed for" in refusal(claimed, tmp_path)  # what it says then is no answer
