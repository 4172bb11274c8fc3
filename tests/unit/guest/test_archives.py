"""Archives of the guest: cpio reads them back, and the kernel's documentation has their bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pvebench.guest.archives import CHARACTER, DIRECTORY, FILE, LINK, Entry, archive


def test_an_archive_is_read_back_by_cpio_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    entries = {
        "etc/motd": Entry(FILE | 0o644, b"hello\n"),
        "bin": Entry(DIRECTORY | 0o755),
        "bin/sh": Entry(LINK | 0o777, b"busybox"),
    }
    content = archive(entries)
    assert content == archive(dict(reversed(entries.items())))
    done = subprocess.run(["cpio", "-tv"], input=content, capture_output=True, check=True)
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert [line[-1] for line in lines] == ["bin", "busybox", "etc", "etc/motd"]
    assert lines[3][:5] == ["-rw-r--r--", "1", "root", "root", "6"]
    subprocess.run(["cpio", "-id", "--quiet"], input=content, cwd=tmp_path, check=True)
    assert (tmp_path / "etc" / "motd").read_bytes() == b"hello\n"


def documented(fields: str, tail: bytes) -> bytes:
    """A record as the kernel documents it: magic, 13 numbers of eight digits, name, content."""
    return b"070701" + "".join(field.rjust(8, "0") for field in fields.split()).encode() + tail


def test_an_archive_has_the_bytes_that_the_kernel_documents() -> None:
    content = archive({"init": Entry(FILE | 0o755, b"hi"), "null": Entry(CHARACTER, device=(1, 3))})
    # inode, mode, user, group, links, time, size, device 0 0, device 1 3, name's length, checksum
    assert content == (
        documented("1 81ED 0 0 1 0 2 0 0 0 0 5 0", b"init\0\0hi\0\0")
        + documented("2 2000 0 0 1 0 0 0 0 1 3 5 0", b"null\0\0")
        + documented("0 0 0 0 1 0 0 0 0 0 0 B 0", b"TRAILER!!!\0\0\0\0")
    )
