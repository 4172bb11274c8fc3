"""Building, with the packages left out: locks, left-overs, full and read-only disks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pvebench.drivers.driver import image_summary
from pvebench.drivers.qemu import QemuSettings
from pvebench.errors import GuestImageError, NoSpace, NotWritable, ToolsMissing
from pvebench.guest import build
from pvebench.guest.build import Package, build_image, unpack
from pvebench.guest.image import FILES, MANIFEST, load_image


class Builder:
    """Stands in for the work of a build; says whether two ever ran at once."""

    def __init__(self) -> None:
        self.builds = 0
        self.overlapped = False
        self._busy = threading.Lock()

    def __call__(self, directory: Path, work: Path, say: Callable[[str], None]) -> None:
        if not self._busy.acquire(blocking=False):
            self.overlapped = True
            return
        self.builds += 1
        made = work / "made"
        made.mkdir()
        for name in FILES:
            (made / name).write_text(f"{name} of build {self.builds}")
        time.sleep(0.1)
        build._write_manifest(made, [], directory, "6.1")
        build._install(made, directory)
        self._busy.release()


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    stand_in = Builder()
    monkeypatch.setattr(build, "_build", stand_in)
    monkeypatch.setattr(build, "REQUIRED_TOOLS", {})
    return stand_in


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "some file")

    return fail


def test_two_builds_at_once_make_one_image(tmp_path: Path, builder: Builder) -> None:
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(build_image, [tmp_path] * 4))
    assert not builder.overlapped
    assert builder.builds == 1
    assert {image.digest for image in images} == {load_image(tmp_path).digest}


def test_two_forced_builds_follow_each_other(tmp_path: Path, builder: Builder) -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(build_image, tmp_path, force=True) for _ in range(2)]:
            future.result()
    assert not builder.overlapped
    assert builder.builds == 2
    assert load_image(tmp_path).kernel.read_text() == "kernel of build 2"


def test_a_build_waits_while_another_process_holds_the_directory(
    tmp_path: Path, builder: Builder
) -> None:
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(build_image, tmp_path)
        time.sleep(0.2)
        assert not future.done()
        assert builder.builds == 0
        os.close(fd)
        assert future.result(timeout=10).directory == tmp_path


def test_what_a_killed_build_left_behind_is_removed(tmp_path: Path, builder: Builder) -> None:
    left = tmp_path / "build-killed" / "root"
    left.mkdir(parents=True)
    (left / "file").write_text("half")
    build_image(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*FILES, "manifest.json", "lock"]
    )


def test_too_little_space_is_reported_before_anything_is_fetched(
    tmp_path: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1024))  # type: ignore[attr-defined] # no public name
    with pytest.raises(NoSpace, match=r"1\.5 GiB needed .* 1\.0 KiB free in"):
        build_image(tmp_path)
    assert builder.builds == 0


@pytest.mark.parametrize(
    ("number", "kind", "expected"),
    [
        (errno.ENOSPC, NoSpace, "full during the build of the guest image"),
        (errno.EROFS, NotWritable, "is not writable: .*Read-only file system"),
        (errno.ENOENT, GuestImageError, "cannot build the guest image: .*some file"),
    ],
)
def test_a_build_that_the_file_system_stops_says_why(
    tmp_path: Path,
    builder: Builder,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
    expected: str,
) -> None:
    monkeypatch.setattr(build, "_build", failing(number))
    with pytest.raises(kind, match=expected):
        build_image(tmp_path)
    assert not list(tmp_path.glob("build-*"))


def test_a_move_that_is_cut_off_leaves_no_image_that_verifies(
    tmp_path: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_image(tmp_path)
    really = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if self.name == "initramfs":
            raise OSError(errno.EIO, "cut off")
        return really(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(GuestImageError, match="cut off"):
        build_image(tmp_path, force=True)
    with pytest.raises(GuestImageError, match="no guest image in"):
        load_image(tmp_path)


def test_an_image_that_was_brought_from_elsewhere_needs_no_tools(
    tmp_path: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build_image(tmp_path / "built")
    shutil.copytree(tmp_path / "built", tmp_path / "brought")
    monkeypatch.setattr(build, "REQUIRED_TOOLS", {"no-such-program": "nothing"})
    assert build_image(tmp_path / "brought").digest == made.digest
    assert builder.builds == 1


def test_an_image_that_is_not_built_yet_is_no_fault_where_the_first_run_can_build_it(
    tmp_path: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = QemuSettings(guest_image=tmp_path)
    assert image_summary(settings) == f"the first run builds it in {tmp_path}"
    made = build_image(tmp_path)
    assert image_summary(settings) == f"{made.digest[:12]} in {tmp_path}"
    (tmp_path / "initramfs").write_bytes(b"cut off")
    with pytest.raises(GuestImageError, match="guest build --force"):
        image_summary(settings)
    (tmp_path / MANIFEST).unlink()
    monkeypatch.setattr(build, "REQUIRED_TOOLS", {"no-such-program": "nothing"})
    with pytest.raises(ToolsMissing, match="needed to build the guest image: nothing"):
        image_summary(settings)


def make_package(place: Path) -> Package:
    """Make an archive with a program, and a directory, that give their owner's rights."""
    tree = place / "tree"
    (tree / "DEBIAN").mkdir(parents=True, mode=0o755)
    fields = ("Package: one", "Version: 1", "Architecture: all", "Maintainer: nobody")
    (tree / "DEBIAN/control").write_text("\n".join([*fields, "Description: one"]) + "\n", "utf-8")
    (tree / "sbin").mkdir()
    (tree / "sbin/checks").write_text("a program\n", "utf-8")
    (tree / "sbin/link").symlink_to("/sbin/checks")
    (tree / "sbin/checks").chmod(0o6755)
    (tree / "sbin").chmod(0o2755)
    command = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(place / "one.deb")]
    subprocess.run(command, check=True, capture_output=True)
    return Package("one", "1", "one.deb", (place / "one.deb").stat().st_size)


def test_what_a_package_holds_is_unpacked_without_the_rights_of_its_owners(tmp_path: Path) -> None:
    # A service under RestrictSUIDSGID= is refused chmod with such a bit: its image was not built.
    unpack([make_package(tmp_path)], tmp_path, tmp_path / "root")
    found = tmp_path / "root/sbin"
    assert (found / "checks").read_text("utf-8") == "a program\n"
    assert (found / "link").readlink() == Path("/sbin/checks")
    assert [path.stat().st_mode & 0o7100 for path in (found, found / "checks")] == [0o100, 0o100]


@pytest.mark.parametrize("kept", [100, -20])
def test_a_damaged_package_is_refused_and_named(tmp_path: Path, kept: int) -> None:
    package = make_package(tmp_path)
    archive = tmp_path / package.file
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(GuestImageError, match=r"cannot unpack one\.deb: \S"):
        unpack([package], tmp_path, tmp_path / "root")
