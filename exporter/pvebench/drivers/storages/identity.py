"""Which file system or device a storage of this machine is. Nothing is changed by looking.

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
    found_on,
    identity,
    mount_of,
    parts_of,
    sysfs,
    users,
)
from pvebench.errors import VolumeError
from pvebench.model.units import MIB, show_bytes
from pvebench.model.volume import Identity, is_certain

# --- A whole block device that pvebench may destroy: the claim on it, and what it must still be.
#
# `pvebench storage claim` writes a record (which disk this is, a random id) at the disk's beginning
# and marks with that id behind it, at the quarters and at the end. Each use compares all of it, and
# asks util-linux what else is there now: a partition table leaves the record as it is (sfdisk), and
# so does much else. Volumes lie between `HEAD_BYTES` and `TAIL_BYTES` before the end, so that
# nothing
# that a guest writes looks like somebody else's disk: no format is known by what stands there. A
# mark
# that a volume covers is given up, in the record first.

DEVICE_MARK: Final = b"pvebench test device: content may be destroyed at any time\n"
"""How the record and each mark begin. It was all that pvebench 0.1 wrote."""
HEAD_BYTES: Final = MIB
TAIL_BYTES: Final = MIB
"""Kept free of volumes at both ends: there stand the signatures of all that is put on disks."""
BLOCK_BYTES: Final = 4096
"""Of the record and of each mark."""
LEAST_BYTES: Final = 16 * MIB
_ID_BYTES: Final = 16
_REREAD_PARTITIONS: Final = 0x125F  # BLKRRPART of linux/fs.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the claim says.

    Attributes:
        claim: random; all marks have it.
        disk: which one was claimed, as `disk_facts.identity`.
        size_bytes: of the disk.
        covered: volumes reached as far as this byte; the marks before it are given up.
    """

    claim: str
    disk: str
    size_bytes: int
    covered: int = HEAD_BYTES

    def blocks(self) -> dict[int, bytes]:
        """Return byte of the disk -> what must stand there, the record last."""
        size = self.size_bytes // BLOCK_BYTES * BLOCK_BYTES
        quarters = [size * part // 4 // BLOCK_BYTES * BLOCK_BYTES for part in (1, 2, 3)]
        places = [HEAD_BYTES - BLOCK_BYTES, size - TAIL_BYTES, size - BLOCK_BYTES]
        places += [at for at in quarters if at >= self.covered]
        marks = {at: _block(f"claim {self.claim}, byte {at}") for at in sorted(places)}
        return marks | {0: _block(json.dumps(asdict(self)))}

    @staticmethod
    def read(fd: int, device: Path, found: list[str]) -> Record:
        """Return the record. Raises VolumeError if there is none; it says what is `found`."""
        block = os.pread(fd, BLOCK_BYTES, 0)
        if not block.startswith(DEVICE_MARK):
            instead = f" ({'; '.join(found)})" if found else ""
            raise VolumeError(
                f"{device} does not carry pvebench's mark{instead}; it is left alone",
                next_step=f"if its content may be destroyed: pvebench storage claim {device}",
            )
        if not block[len(DEVICE_MARK) :].strip(b"\0"):
            raise VolumeError(
                f"{device} has the mark of pvebench 0.1, which does not tell which disk it is for",
                cause="it was claimed by an older pvebench",
                next_step=f"look that it is the right one, then: pvebench storage claim {device}",
            )
        try:
            return _RECORD.validate_json(block[len(DEVICE_MARK) :].rstrip(b"\0"), strict=True)
        except ValueError as error:
            raise _not_as_claimed(device, [*found, "the claim's record is damaged"]) from error


_RECORD: Final = TypeAdapter(Record)


def _block(text: str) -> bytes:
    return (DEVICE_MARK + text.encode()).ljust(BLOCK_BYTES, b"\0")


def _not_as_claimed(device: Path, found: list[str]) -> VolumeError:
    return VolumeError(
        f"{device} is not as it was claimed: {'; '.join(found)}; it is left alone",
        cause="it was put to another use since, or another disk has its name now",
        next_step="take it out of the settings; or, if its content may be destroyed: "
        f"pvebench storage claim {device} --destroy-data",
    )


def check_claim(fd: int, device: Path) -> Record:
    """Return the record of a disk that is what was claimed, and nobody else's.

    Args:
        fd: the disk, opened.
        device: its path, for util-linux and for people.

    Raises:
        VolumeError: it is not; the message says what was found.
    """
    with _answering(device):
        return _checked(fd, device)


def _checked(fd: int, device: Path) -> Record:
    found = _found_on(fd, device)
    record = Record.read(fd, device, found)
    now, size = identity(os.fstat(fd).st_rdev), disk_bytes(fd)
    if now != record.disk:
        found.append(f"it is the disk [{now}], claimed was [{record.disk}]")
    if size != record.size_bytes:
        found.append(f"it has {size} bytes, claimed were {record.size_bytes}")
    else:
        found += _overwritten(fd, record)
    if found:
        raise _not_as_claimed(device, found)
    return record


def _found_on(fd: int, device: Path) -> list[str]:
    _forget_cached(fd, 0, HEAD_BYTES)
    _forget_cached(fd, max(0, disk_bytes(fd) - TAIL_BYTES), TAIL_BYTES)
    return found_on(device)


def _overwritten(fd: int, record: Record) -> Iterator[str]:
    for at, block in record.blocks().items():
        _forget_cached(fd, at, BLOCK_BYTES)
        if os.pread(fd, BLOCK_BYTES, at) != block:
            yield f"the claim's mark at byte {at} is overwritten"


def _forget_cached(fd: int, at: int, length: int) -> None:
    """Make the next look one at the disk: its partitions and other hosts have caches of their own.

    For places without a volume, so that what a measurement has cached stays.
    """
    os.posix_fadvise(fd, at, length, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _answering(device: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VolumeError(
            f"{device} gave an error and is not used: {error.strerror}",
            cause="the disk fails, or was taken out",
            next_step="look at the kernel's log: dmesg",
        ) from error


def disk_bytes(fd: int) -> int:
    """Return the size of an opened block device."""
    return os.lseek(fd, 0, os.SEEK_END)


class ClaimedDisk:
    """A claimed disk, checked, and held until `close`.

    Meanwhile the kernel lets nobody mount it, make a file system on it, or use it in RAID or LVM.

    Raises:
        VolumeError: it is in use, was not claimed, or is not as it was claimed.
    """

    def __init__(self, device: Path) -> None:
        self._device = device
        self._fd, self.path = _open_alone(device)
        try:
            self._record = check_claim(self._fd, self.path)
        except BaseException:
            self.close()
            raise

    @property
    def room_bytes(self) -> int:
        """How large a volume can be that begins at `HEAD_BYTES`."""
        return self._record.size_bytes // BLOCK_BYTES * BLOCK_BYTES - TAIL_BYTES - HEAD_BYTES

    def check(self) -> None:
        """Look at everything again. Raises VolumeError."""
        try:
            now = self._device.stat().st_rdev
        except OSError as error:
            raise _not_as_claimed(self._device, [f"{error.strerror}"]) from error
        if now != os.fstat(self._fd).st_rdev:
            raise _not_as_claimed(self._device, [f"it no longer leads to {self.path}"])
        self._record = check_claim(self._fd, self.path)

    def cover(self, end: int) -> None:
        """Give up the marks before byte `end`, durably: a volume is going to be there."""
        if end > self._record.covered:
            self._record = replace(self._record, covered=end)
            with _answering(self.path):
                _write(self._fd, {0: self._record.blocks()[0]})

    def close(self) -> None:
        """Let others have it."""
        os.close(self._fd)


def _open_alone(device: Path) -> tuple[int, Path]:
    """Open a device that nobody uses; return it, and its path without links (/dev/disk/by-id)."""
    try:
        path = device.resolve(strict=True)
        # O_EXCL on a block device: refused while it is mounted or part of something.
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise VolumeError(
                f"{device} cannot be used: {error.strerror}",
                cause="it is not there, or not for this user to write",
                next_step=f"look at it: ls -lL {device}",
            ) from error
        found = "; ".join(users(device)) or "another program has it for itself"
        raise VolumeError(
            f"{device} cannot be used: {error.strerror}: {found}",
            cause="it is mounted, swap, part of a RAID, LVM or ZFS, or another pvebench has it",
            next_step="name another disk, or end that use of it if it is not needed",
        ) from error
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        os.close(fd)
        raise VolumeError(
            f"{device} is not a block device",
            next_step="name a whole disk or a partition, by its path in /dev/disk/by-id",
        )
    return fd, path


def claim(device: Path, *, destroy: bool) -> None:
    """Claim a device that nobody uses; one that is claimed, and is as it was, stays as it is.

    Args:
        destroy: do so even if there is something on it.

    Raises:
        VolumeError: it is no block device, is in use, or holds data that must not be destroyed.
    """
    fd, path = _open_alone(device)
    try:
        if (size := disk_bytes(fd)) < LEAST_BYTES:
            raise VolumeError(
                f"{device} is too small: {show_bytes(size)}, {show_bytes(LEAST_BYTES)} are needed",
                next_step="name a larger disk",
            )
        with _answering(path):
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
    """Return whether the device is claimed already. Raises VolumeError if anything is on it."""
    found = _found_on(fd, device)
    begin, end = (os.pread(fd, MIB, at) for at in (0, disk_bytes(fd) - MIB))
    old = begin.startswith(DEVICE_MARK)
    if old and begin[len(DEVICE_MARK) : BLOCK_BYTES].strip(b"\0"):
        check_claim(fd, device)
        return True
    # What has no signature is data as well: a disk encrypted without a header looks like noise.
    if not found and not old and (begin + end).strip(b"\0"):
        found = ["data that libblkid does not know"]
    if found:
        raise VolumeError(
            f"{device} is not empty: {'; '.join(found)}",
            next_step="choose another device, or add --destroy-data if you are sure",
        )
    return False


def _erase(fd: int) -> None:
    """Write zeros where signatures stand, and let the kernel forget partitions."""
    size = disk_bytes(fd)
    _write(fd, {0: bytes(HEAD_BYTES), size - TAIL_BYTES: bytes(TAIL_BYTES)})
    with contextlib.suppress(OSError):  # a device that cannot have partitions
        fcntl.ioctl(fd, _REREAD_PARTITIONS)


def _write(fd: int, blocks: dict[int, bytes]) -> None:
    for at, block in blocks.items():
        os.pwrite(fd, block, at)
    os.fsync(fd)


_LASTING_FSID: Final = frozenset({"ext2", "ext3", "ext4", "btrfs", "zfs"})
"""Types whose number in statvfs(3) is made of a UUID. Others make it of the device's number."""
_OF_SERVER: Final = {"nfs": "nfs", "nfs4": "nfs", "cifs": "cifs", "smb3": "cifs"}
_ASKED: Final = (
    ("lsblk", "--nodeps", "--noheadings", "--output", "UUID"),
    ("blkid", "-p", "-s", "UUID", "-o", "value"),
)
"""The first asks udev, as any user; the second, without udev, reads the device, as root."""
_SECONDS: Final = 60.0


def identity_of_path(path: Path) -> Identity:
    """Return the file system that a path is on. Raises VolumeError: it cannot be looked at."""
    try:
        mount, number = mount_of(path), os.statvfs(path).f_fsid
        below = [one for one in devices_below(path) if os.major(one)]
    except OSError as error:
        raise VolumeError(f"{path} cannot be looked at: {error.strerror}") from error
    if mount is None:
        return {}
    if mount.type in _OF_SERVER:
        return {"type": _OF_SERVER[mount.type], "share": mount.source}
    found = {"type": mount.type}
    if mount.type in _LASTING_FSID and number:
        found["fsid"] = f"{number:x}"
    found |= {"uuid": uuid} if (uuid := _uuid(below)) else {}
    found |= _disks(below)
    if is_certain(found):
        found.pop("file", None)  # a loop device's, whose path depends on who looks
    return found if below else {**found, "source": mount.source}


def identity_of_device(path: Path) -> Identity:
    """Return the disk that a path leads to. Raises VolumeError: there is none."""
    if not path.is_block_device():
        raise VolumeError(
            f"{path} is no block device",
            cause="the disk was taken out, or the path is misspelled",
            next_step="put it back, or correct `path` in the settings",
        )
    found = {"type": "block", **_disks([path.stat().st_rdev])}
    if not is_certain(found):
        with contextlib.suppress(OSError, VolumeError), path.open("rb", buffering=0) as opened:
            found["claim"] = Record.read(opened.fileno(), path, []).claim
    return found


def _disks(devices: Iterable[int]) -> dict[str, str]:
    """Return the facts of devices and of the disks that they are made of."""
    every: dict[str, set[str]] = {}
    for device in devices:
        for one in dict.fromkeys([device, *parts_of(device)]):
            for name, text in facts_of(one).items():
                # That of a logical volume is no file system's.
                every.setdefault("device" if name == "uuid" else name, set()).add(text)
    return {name: " ".join(sorted(texts)) for name, texts in every.items()}


def _uuid(devices: list[int]) -> str:
    """Return the UUID of the file system on devices; empty: not known."""
    for device in devices[:1]:
        name = f"/dev/{sysfs(device).resolve().name.replace('!', '/')}"
        for command in _ASKED:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    [*command, name], capture_output=True, text=True, check=True, timeout=_SECONDS
                )
                if done.stdout.strip():
                    return done.stdout.strip()
    return ""
