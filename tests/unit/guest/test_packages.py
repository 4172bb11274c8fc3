"""Unpacking the packages of Debian that the guest is made of; the archives are dpkg-deb's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError
from pvebench.guest.build import Package, unpack


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
