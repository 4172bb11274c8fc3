"""The proof that a built image's programs run, with this machine's programs as the guest's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError
from pvebench.guest.archives import FILE, LINK, Entry, archive
from pvebench.guest.content import LOADER, prove_programs
from pvebench.guest.recipe import PROGRAMS
from pvebench.workloads import TOOLS

LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def entries() -> dict[str, Entry]:
    """An image in which every program is `ls`: it has a library besides that of C."""
    program = shutil.which("ls")
    assert program
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    paths = [Path(found) for found in re.findall(r"=> (/\S+)", text)]
    assert any("libselinux" in path.name for path in paths)
    content = {f"{LIBRARIES}/{path.name}": path.read_bytes() for path in paths}
    content[f"{LIBRARIES}/{Path(LOADER).name}"] = Path("/", LOADER).read_bytes()
    content |= {f"usr/sbin/{name}": Path(program).read_bytes() for name in PROGRAMS}
    return {path: Entry(FILE | 0o755, data) for path, data in content.items()}


def test_programs_that_start_are_accepted(entries: dict[str, Entry], tmp_path: Path) -> None:
    prove_programs(archive(entries), tmp_path / "tree")


def test_what_tools_file_systems_durability_and_the_agent_start_is_tried(tmp_path: Path) -> None:
    with pytest.raises(GuestImageError) as caught:
        prove_programs(archive({"usr": Entry(0o040755)}), tmp_path / "tree")
    needed = {tool.program for tool in TOOLS.values()} | {"mkfs.btrfs", "mkfs.ext4", "mkfs.xfs"}
    for name in (needed | {"dd", "qemu-ga"}) - {""}:
        assert f"the packages do not contain the program {name}" in str(caught.value)


def test_missing_programs_and_broken_links_are_named(
    entries: dict[str, Entry], tmp_path: Path
) -> None:
    """As on Debian 13 with a link to mke2fs, which was in another directory."""
    del entries["usr/sbin/mkfs.xfs"]
    entries["usr/sbin/mkfs.ext4"] = Entry(LINK | 0o777, b"mke2fs")
    with pytest.raises(GuestImageError) as caught:
        prove_programs(archive(entries), tmp_path / "tree")
    for name in ("mkfs.ext4", "mkfs.xfs"):
        assert f"the packages do not contain the program {name}" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"no library", "damaged"])
def test_a_program_that_does_not_start_with_the_libraries_of_the_image_is_named(
    entries: dict[str, Entry], tmp_path: Path, content: bytes | str | None
) -> None:
    (name,) = (name for name in entries if "libselinux" in name)
    if content is None:
        del entries[name]
    elif isinstance(content, bytes):
        entries[name] = Entry(FILE | 0o755, content)
    else:
        # A library of this name that has none of the symbols.
        (other,) = (one for one in entries if one.endswith("libc.so.6"))
        entries[name] = Entry(FILE | 0o755, entries[other].content)
    with pytest.raises(GuestImageError, match=r"fio.*libselinux"):
        prove_programs(archive(entries), tmp_path / "tree")


def test_a_program_that_is_killed_is_named(entries: dict[str, Entry], tmp_path: Path) -> None:
    content = bytearray(entries["usr/sbin/fio"].content)
    entry = int.from_bytes(content[24:32], "little")  # e_entry: PIE, its address in the file
    content[entry : entry + 2] = b"\x0f\x0b"  # ud2
    entries["usr/sbin/fio"] = Entry(FILE | 0o755, bytes(content))
    with pytest.raises(GuestImageError, match="do not start: fio: ended with -4"):
        prove_programs(archive(entries), tmp_path / "tree")
