"""Identity of a storage's file system or device, and claims on whole devices.

Device numbers and names like /dev/sdb change from boot to boot. Only identifiers that are stored in
the file system and in the disks below it count.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from pvebench.drivers.linux.block_devices import (
    devices_below,
    facts_of,
    hardware_of,
    identity,
    mount_of,
    parts_of,
    signatures,
    sysfs,
    users,
)
from pvebench.drivers.linux.host_tools import run_program
from pvebench.errors import VolumeError
from pvebench.model.units import MIB, show_bytes
from pvebench.model.volume import Identity, is_certain

# --- claim on a whole block device, whose content pvebench may destroy
#
# `pvebench storage claim` writes a record (the disk's identity, a random id) at the disk's begin
# and marks with that id behind it, at the quarters and at the end. Each use compares all of them,
# and checks with util-linux for other content: for example, sfdisk writes a partition table without
# changing the record. Volumes are between `HEAD_BYTES` and `TAIL_BYTES` before the end, so that no
# data of a guest is recognized as a disk format: no format has its signature there. A mark that a
# volume overwrites is first removed from the record.

DEVICE_MARK: Final = b"pvebench test device: content may be destroyed at any time\n"
"""Begin of the record and of each mark."""
HEAD_BYTES: Final = MIB
TAIL_BYTES: Final = MIB
"""Areas without volumes at both ends, where all disk formats have their signatures."""
BLOCK_BYTES: Final = 4096
"""Size of the record and of each mark."""
MIN_BYTES: Final = 16 * MIB
_ID_BYTES: Final = 16
_REREAD_PARTITIONS: Final = 0x125F  # BLKRRPART of linux/fs.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record of a claim.

    Attributes:
        claim: random id, which all marks contain.
        disk: identity of the claimed disk, as `block_devices.identity`.
        size_bytes: of the disk.
        covered: maximum end of volumes so far, in bytes; marks before it do not count.
    """

    claim: str
    disk: str
    size_bytes: int
    covered: int = HEAD_BYTES

    def blocks(self) -> dict[int, bytes]:
        """Return byte of the disk -> its required content, the record last."""
        size = self.size_bytes // BLOCK_BYTES * BLOCK_BYTES
        quarters = [size * part // 4 // BLOCK_BYTES * BLOCK_BYTES for part in (1, 2, 3)]
        places = [HEAD_BYTES - BLOCK_BYTES, size - TAIL_BYTES, size - BLOCK_BYTES]
        places += [at for at in quarters if at >= self.covered]
        marks = {at: _block(f"claim {self.claim}, byte {at}") for at in sorted(places)}
        return marks | {0: _block(json.dumps(asdict(self)))}

    @staticmethod
    def read(fd: int, device: Path, content: list[str]) -> Record:
        """Return the record. Raises VolumeError, with the disk's `content`, if there is none."""
        block = os.pread(fd, BLOCK_BYTES, 0)
        if not block.startswith(DEVICE_MARK):
            other = f" ({'; '.join(content)})" if content else ""
            raise VolumeError(
                f"{device} not changed: not claimed by pvebench{other}",
                next_step=f"if its content may be destroyed, run `pvebench storage claim {device}`",
            )
        try:
            return _RECORD.validate_json(block[len(DEVICE_MARK) :].rstrip(b"\0"), strict=True)
        except ValueError as error:
            raise _not_as_claimed(device, [*content, "the claim's record is damaged"]) from error


_RECORD: Final = TypeAdapter(Record)


def _block(text: str) -> bytes:
    return (DEVICE_MARK + text.encode()).ljust(BLOCK_BYTES, b"\0")


def _not_as_claimed(device: Path, differences: list[str]) -> VolumeError:
    return VolumeError(
        f"{device} does not match its claim: {'; '.join(differences)}; not changed",
        cause="it was used for something else, or another disk has its name now",
        next_step="remove it from the settings; or, if its content may be destroyed, run "
        f"`pvebench storage claim {device} --destroy-data`",
    )


def check_claim(fd: int, device: Path) -> Record:
    """Return the record of a disk that matches its claim and has no other use.

    Args:
        fd: the opened disk.
        device: its path, for util-linux and for messages.

    Raises VolumeError: it does not match; the message lists the differences.
    """
    with _io_errors(device):
        return _checked(fd, device)


def _checked(fd: int, device: Path) -> Record:
    differences = _content(fd, device)
    record = Record.read(fd, device, differences)
    now, size = identity(os.fstat(fd).st_rdev), disk_bytes(fd)
    if now != record.disk:
        differences.append(f"it is disk [{now}], claimed was [{record.disk}]")
    if size != record.size_bytes:
        differences.append(f"it has {size} bytes, claimed were {record.size_bytes}")
    else:
        differences += _overwritten(fd, record)
    if differences:
        raise _not_as_claimed(device, differences)
    return record


def _content(fd: int, device: Path) -> list[str]:
    _forget_cached(fd, 0, HEAD_BYTES)
    _forget_cached(fd, max(0, disk_bytes(fd) - TAIL_BYTES), TAIL_BYTES)
    return [*users(device), *signatures(device)]


def _overwritten(fd: int, record: Record) -> Iterator[str]:
    for at, block in record.blocks().items():
        _forget_cached(fd, at, BLOCK_BYTES)
        if os.pread(fd, BLOCK_BYTES, at) != block:
            yield f"the claim's mark at byte {at} is overwritten"


def _forget_cached(fd: int, at: int, length: int) -> None:
    """Drop cached data, so that the next read is from the disk, past its partitions' caches.

    Only for areas without a volume, so that data cached by a run stays.
    """
    os.posix_fadvise(fd, at, length, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _io_errors(device: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VolumeError(
            f"I/O error on {device}: {error.strerror}",
            cause="the disk is failing or was removed",
            next_step="check the kernel log with `dmesg`",
        ) from error


def disk_bytes(fd: int) -> int:
    """Return the size of an opened block device."""
    return os.lseek(fd, 0, os.SEEK_END)


class ClaimedDisk:
    """Claimed disk, held exclusively until `close`; call `check` before any use.

    Until then the kernel prevents mounting it, creating a file system on it, and its use in RAID
    or LVM.

    Raises VolumeError: it is in use or missing.
    """

    _record: Record

    def __init__(self, device: Path) -> None:
        self._device = device
        self._fd, self.path = _open_alone(device)

    @property
    def capacity_bytes(self) -> int:
        """Maximum size of a volume, which begins at `HEAD_BYTES`."""
        return self._record.size_bytes // BLOCK_BYTES * BLOCK_BYTES - TAIL_BYTES - HEAD_BYTES

    def check(self) -> None:
        """Verify the claim.

        Raises:
            VolumeError: it was not claimed, or does not match its claim.
            StorageHangs: it does not respond; do not close it now.
        """
        try:
            now = self._device.stat().st_rdev
        except OSError as error:
            raise _not_as_claimed(self._device, [f"{error.strerror}"]) from error
        if now != os.fstat(self._fd).st_rdev:
            raise _not_as_claimed(self._device, [f"the path no longer leads to {self.path}"])
        self._record = check_claim(self._fd, self.path)

    def cover(self, end: int) -> None:
        """Remove the marks before byte `end` from the record, durably, before a volume is there."""
        if end > self._record.covered:
            self._record = replace(self._record, covered=end)
            with _io_errors(self.path):
                _write(self._fd, {0: self._record.blocks()[0]})

    def close(self) -> None:
        """Release the disk."""
        os.close(self._fd)


def _open_alone(device: Path) -> tuple[int, Path]:
    """Open an unused device; return it, and its path without links (/dev/disk/by-id)."""
    try:
        path = device.resolve(strict=True)
        # O_EXCL on a block device fails while it is mounted or part of something.
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise VolumeError(
                f"cannot open {device}: {error.strerror}",
                cause="it is missing, or this user cannot write to it",
                next_step=f"check it with `ls -lL {device}`",
            ) from error
        use = "; ".join(users(device)) or "another program has exclusive access"
        raise VolumeError(
            f"cannot open {device}: {error.strerror}: {use}",
            cause="it is mounted, swap, part of a RAID, LVM or ZFS, or in use by another pvebench",
            next_step="use another disk, or end that use if it is not needed",
        ) from error
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        os.close(fd)
        raise VolumeError(
            f"{device} is not a block device",
            next_step="use a whole disk or a partition, by its path in /dev/disk/by-id",
        )
    return fd, path


def claim(device: Path, *, destroy: bool) -> None:
    """Claim an unused device; do nothing if it matches an earlier claim.

    Args:
        destroy: whether to claim it even if it has content.

    Raises VolumeError: it is not a block device, is in use, or has content.
    """
    fd, path = _open_alone(device)
    try:
        if (size := disk_bytes(fd)) < MIN_BYTES:
            raise VolumeError(
                f"{device} is too small: {show_bytes(MIN_BYTES)} needed, has {show_bytes(size)}",
                next_step="use a larger disk",
            )
        with _io_errors(path):
            if destroy or not _is_claimed(fd, path):
                _erase(fd)
                _mark(fd)
                check_claim(fd, path)
    finally:
        os.close(fd)


def _mark(fd: int) -> None:
    record = Record(
        claim=secrets.token_hex(_ID_BYTES),
        disk=identity(os.fstat(fd).st_rdev),
        size_bytes=disk_bytes(fd),
    )
    _write(fd, record.blocks())


def _is_claimed(fd: int, device: Path) -> bool:
    """Return whether the device is claimed already. Raises VolumeError if it has content."""
    content = _content(fd, device)
    begin, end = (os.pread(fd, MIB, at) for at in (0, disk_bytes(fd) - MIB))
    if begin.startswith(DEVICE_MARK):
        check_claim(fd, device)
        return True
    # Data without a signature counts too: a disk encrypted without a header looks like noise.
    if not content and (begin + end).strip(b"\0"):
        content = ["data that libblkid does not know"]
    if content:
        raise VolumeError(
            f"{device} is not empty: {'; '.join(content)}",
            next_step="use another device, or add --destroy-data if its content is not needed",
        )
    return False


def _erase(fd: int) -> None:
    """Write zeros over all signatures, and let the kernel drop the partitions."""
    size = disk_bytes(fd)
    _write(fd, {0: bytes(HEAD_BYTES), size - TAIL_BYTES: bytes(TAIL_BYTES)})
    with contextlib.suppress(OSError):  # some devices cannot have partitions
        fcntl.ioctl(fd, _REREAD_PARTITIONS)


def _write(fd: int, blocks: dict[int, bytes]) -> None:
    for at, block in blocks.items():
        os.pwrite(fd, block, at)
    os.fsync(fd)


_LASTING_FSID: Final = frozenset({"ext2", "ext3", "ext4", "btrfs", "zfs"})
"""Types whose fsid in statvfs(3) is derived from a UUID, not from the device's number."""
_OF_SERVER: Final = {"nfs": "nfs", "nfs4": "nfs", "cifs": "cifs", "smb3": "cifs"}
_ASKED: Final = (
    ("lsblk", "--nodeps", "--noheadings", "--output", "UUID"),
    ("blkid", "-p", "-s", "UUID", "-o", "value"),
)
"""The first asks udev, as any user; the second reads the device as root, without udev."""
_SECONDS: Final = 60.0


def identity_of_path(path: Path) -> Identity:
    """Return the identity of a path's file system. Raises VolumeError: not accessible."""
    try:
        mount, number = mount_of(path), os.statvfs(path).f_fsid
        below = [device for device in devices_below(path) if os.major(device)]
    except OSError as error:
        raise VolumeError(f"cannot access {path}: {error.strerror}") from error
    if mount is None:
        return {}
    if mount.type in _OF_SERVER:
        return {"type": _OF_SERVER[mount.type], "share": mount.source}
    facts = {"type": mount.type}
    if mount.type in _LASTING_FSID and number:
        facts["fsid"] = f"{number:x}"
    facts |= {"uuid": uuid} if (uuid := _uuid(below)) else {}
    facts |= _disks(below)
    if is_certain(facts):
        facts.pop("file", None)  # a loop device's, whose path depends on the mount namespace
    return facts if below else {**facts, "source": mount.source}


def identity_of_device(path: Path) -> Identity:
    """Return the identity of the disk at a path. Raises VolumeError: there is none."""
    if not path.is_block_device():
        raise VolumeError(
            f"{path} is not a block device",
            cause="the disk was removed, or the path is misspelled",
            next_step="insert the disk, or correct `path` in the settings",
        )
    facts = {"type": "block", **_disks([path.stat().st_rdev])}
    if not is_certain(facts):
        with contextlib.suppress(OSError, VolumeError), path.open("rb", buffering=0) as opened:
            facts["claim"] = Record.read(opened.fileno(), path, []).claim
    return facts


def _disks(devices: Iterable[int]) -> dict[str, str]:
    """Return the facts of devices and of the disks below them."""
    every: dict[str, set[str]] = {}
    for device in devices:
        for part in dict.fromkeys([device, *parts_of(device)]):
            for name, text in (facts_of(part) | hardware_of(part)).items():
                # The UUID of a logical volume is not that of a file system.
                every.setdefault("device" if name == "uuid" else name, set()).add(text)
    return {name: " ".join(sorted(texts)) for name, texts in every.items()}


def _uuid(devices: list[int]) -> str:
    """Return the UUID of the file system on devices; empty: not known."""
    for device in devices[:1]:
        name = f"/dev/{sysfs(device).resolve().name.replace('!', '/')}"
        for command in _ASKED:
            with contextlib.suppress(OSError, subprocess.SubprocessError, VolumeError):
                done = run_program([*command, name], seconds=_SECONDS)
                if done.returncode == 0 and done.stdout.strip():
                    return done.stdout.strip()
    return ""
