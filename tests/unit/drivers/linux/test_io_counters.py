"""Counters of a mounted NFS and CIFS, by recordings of a real kernel: tests/golden/shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.drivers.linux.io_counters import SHARE_FILES, counters_of, files_of, share_counters
from pvebench.drivers.linux.procfs import Fetched, read_snapshot
from pvebench.model.volume import BlockCounters

GOLDEN = Path(__file__).parents[3] / "golden" / "shares"
DEVICES = {"cifs": 41, "nfs": 44}
FIO = BlockCounters(
    read_operations=100,
    write_operations=50,
    flush_operations=0,
    read_bytes=409_600,
    write_bytes=204_800,
)
"""What fio said it did between the two recordings."""


def counted(name: str, *changes: tuple[str, str], device: int = 0) -> BlockCounters | None:
    """Return the counters of a recording, with some text of it changed."""
    files = {}
    for path in SHARE_FILES:
        if (GOLDEN / name / path[1:]).exists():
            text = (GOLDEN / name / path[1:]).read_text("utf-8")
            for old, new in changes:
                text = text.replace(old, new)
            files[path] = text.encode()
    return share_counters(Fetched(files), device or DEVICES[name.partition("-")[0]])


@pytest.mark.parametrize("kind", DEVICES)
def test_what_went_to_the_server_is_what_fio_says_it_read_and_wrote(kind: str) -> None:
    before, after = counted(f"{kind}-before"), counted(f"{kind}-after")
    assert before is not None
    assert after is not None
    assert after.since(before) == FIO


@pytest.mark.parametrize("kind", DEVICES)
def test_it_is_what_the_device_of_the_volume_moved(kind: str) -> None:
    def moved(when: str, pid: int | None) -> dict[str, int]:
        files = {path: (GOLDEN / f"{kind}-{when}" / path[1:]) for path in SHARE_FILES}
        said = {path: file.read_bytes() for path, file in files.items() if file.exists()}
        said["/proc/stat"] = b"cpu 1 0 1 1 0 0 0 0 0 0\n"
        # The kernel counts what QEMU reads there for nobody, or for a thread of its own.
        said["/proc/7/io"] = b"read_bytes: 0\nwrite_bytes: 4096\n"
        found = read_snapshot(Fetched(said), pid=pid, devices=(DEVICES[kind],), at=0.0)
        return dict(found.bytes)

    for pid in (None, 7):
        before, after = moved("before", pid), moved("after", pid)
        grown = {name: after[name] - before[name] for name in after}
        assert grown == {"device_read": 409_600, "device_write": 204_800}


def test_what_the_page_cache_answered_is_not_taken_for_the_servers() -> None:
    plain = "bytes:\t0 0 409600 16982016 409600 16982016 0 0"
    cached = "bytes:\t8192 0 409600 16982016 409600 16982016 2 0"
    assert counted("nfs-after", (plain, cached)) == counted("nfs-after") is not None


def test_of_two_mounts_at_one_place_the_one_on_top_counts() -> None:
    """proc_pid_mountinfo(5) and mountstats list mounts in the order in which they were made."""
    stats = (GOLDEN / "nfs-after/proc/self/mountstats").read_text("utf-8")
    below = stats.replace("409600 16982016", "1 1").replace("/srv/share", "/srv/other")
    assert counted("nfs-after", (stats, below + stats)) == counted("nfs-after") is not None


def test_all_connections_to_a_share_count_and_no_other_share() -> None:
    stats = (GOLDEN / "cifs-after/proc/fs/cifs/Stats").read_text("utf-8")
    share = stats[stats.index("1) ") :]
    one = counted("cifs-after")
    assert one is not None
    other = share.replace("1) ", "2) ").replace("bench", "bench2")
    assert counted("cifs-after", (share, f"{share}\n{other}")) == one
    again = share.replace("1) ", "3) ").replace("bench", "BENCH\tDISCONNECTED ")
    both = counted("cifs-after", (share, f"{share}\n{other}\n{again}"))
    assert both is not None
    assert both.since(one) == one


def test_a_mount_with_any_name_does_not_hide_a_share() -> None:
    other = "99 1 0:9 / /mnt/a\x85b\x0cc rw - ext4 /dev/sda1 rw\n"
    text = (GOLDEN / "nfs-after/proc/self/mountinfo").read_text("utf-8")
    assert counted("nfs-after", (text, text + other)) == counted("nfs-after") is not None


def test_a_directory_of_a_share_and_a_name_with_spaces_are_found() -> None:
    source = "- cifs //127.0.0.1/bench "
    assert counted("cifs-after", (source, "- cifs //127.0.0.1/bench/a/b ")) is not None
    spaced = (
        (source, r"- cifs //127.0.0.1/my\040bench "),
        (r"\127.0.0.1\bench", r"\127.0.0.1\my bench"),
    )
    assert counted("cifs-after", *spaced) == counted("cifs-after") is not None


@pytest.mark.parametrize(
    ("name", "changes", "device"),
    [
        ("cifs-after", (), 99),  # no such mount
        ("cifs-after", ((r"\127.0.0.1\bench", r"\127.0.0.1\other"),), 0),
        ("cifs-after", (("Writes:", "Wrote:"),), 0),
        ("nfs-after", (("mounted on /srv/bench", "mounted on /srv/other"),), 0),
        ("nfs-after", (("bytes:", "octets:"),), 0),
        ("nfs-after", (("READ:", "RED:"),), 0),
        ("nfs-after", ((" COMMIT:", " COMIT:"),), 0),  # as of version 2, which has none
        (
            "nfs-after",
            (("bytes:\t0 0 409600 16982016 409600 16982016 0 0", "bytes:\t12345678"),),
            0,
        ),
        ("nfs-after", (("0:44 / /srv/bench rw,relatime shared:120 -", "0:44 -"),), 0),
        ("nfs-after", (("- nfs4", "- fuse.nfs"),), 0),
    ],
)
def test_what_the_kernel_does_not_tell_is_not_counted(
    name: str, changes: tuple[tuple[str, str], ...], device: int
) -> None:
    assert counted(name, *changes, device=device) is None


def test_nothing_counts_what_is_kept_in_memory() -> None:
    """Of this machine's own kernel: /dev/shm is a tmpfs."""
    device = Path("/dev/shm").stat().st_dev
    assert counters_of(Path("/"), (device,)) is None
    assert files_of((device,)) == SHARE_FILES
