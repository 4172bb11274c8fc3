"""Kernel, modules, libraries and programs of the guest, out of packages of this machine's files."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError
from pvebench.guest.archives import FILE, LINK, Entry, archive
from pvebench.guest.content import (
    LOADER,
    direct_kernel,
    find_loader,
    find_program,
    library_closure,
    module_files,
    prove_programs,
    unpacked_module,
    unpacked_name,
)
from pvebench.guest.recipe import PROGRAMS
from pvebench.workloads import TOOLS

LIBRARY_PLACE = "usr/lib/x86_64-linux-gnu"
NAME = Path(LOADER).name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Unpacked packages: this machine's dynamic loader and `bash`, but no library."""
    for place in (LIBRARY_PLACE, "usr/bin", "usr/sbin"):
        (tmp_path / place).mkdir(parents=True)
    shutil.copy(Path("/", LOADER), tmp_path / LIBRARY_PLACE / NAME)
    shutil.copy("/bin/bash", tmp_path / "usr/bin/bash")
    return tmp_path


def add_libraries(root: Path) -> set[str]:
    """Put what `bash` needs into the packages, and one more; return the needed names."""
    text = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(\S+) => (/\S+)", text)
    for name, path in found:
        shutil.copy(path, root / LIBRARY_PLACE / name)
    (root / LIBRARY_PLACE / "libunwanted.so.1").write_bytes(b"")
    return {name for name, _ in found}


def test_a_program_takes_the_libraries_it_needs_directly_or_not_and_no_other(root: Path) -> None:
    needed = add_libraries(root)
    assert "libc.so.6" in needed
    found = library_closure(root, [root / "usr/bin/bash"])
    assert {path.name for path in found} == needed | {Path(LOADER).name}
    assert all(path.is_relative_to(root) for path in found)


def test_a_library_that_only_the_host_has_is_not_taken_from_there(root: Path) -> None:
    add_libraries(root)
    (root / LIBRARY_PLACE / "libc.so.6").unlink()
    with pytest.raises(GuestImageError, match=r"bash needs libc\.so\.6, which no package contains"):
        library_closure(root, [root / "usr/bin/bash"])


def test_a_program_is_found_through_its_links_but_not_outside_the_packages(root: Path) -> None:
    (root / "usr/sbin/shell").symlink_to("../bin/bash")
    (root / "usr/sbin/bash").symlink_to("/bin/bash")
    assert find_program(root, "shell") == root / "usr/sbin/shell"
    assert find_program(root, "bash") == root / "usr/bin/bash"
    (root / "usr/bin/bash").unlink()
    for name in ("bash", "shell"):
        with pytest.raises(GuestImageError, match=f"do not contain the program {name}"):
            find_program(root, name)


def test_the_loader_is_that_of_the_packages(root: Path) -> None:
    loader = root / LIBRARY_PLACE / NAME
    assert find_loader(root) == loader
    loader.unlink()
    loader.symlink_to(Path("/", LOADER))
    with pytest.raises(GuestImageError, match="the packages do not contain usr/lib64/ld-linux"):
        find_loader(root)


def test_a_library_that_links_out_of_the_packages_is_not_taken(root: Path) -> None:
    add_libraries(root)
    library = root / LIBRARY_PLACE / "libc.so.6"
    library.unlink()
    library.symlink_to(Path("/", LIBRARY_PLACE, "libc.so.6"))
    with pytest.raises(GuestImageError, match=r"bash needs libc\.so\.6, which no package contains"):
        library_closure(root, [root / "usr/bin/bash"])


PVH_NOTE = struct.pack("<III4sI", 4, 4, 18, b"Xen", 0x1000000)
UNPACKED = b"\x7fELF" + b"code" * 100 + PVH_NOTE


def bzimage(payload: bytes, *, magic: bytes = b"HdrS") -> bytes:
    """A packed kernel: one boot sector, two of setup, the payload 64 bytes into the rest."""
    head = bytearray(3 * 512 + 64)
    head[0x1F1] = 2
    head[0x202:0x206] = magic
    struct.pack_into("<II", head, 0x248, 64, len(payload))
    return bytes(head) + payload + b"what follows the payload"


def packed(kernel: bytes) -> bytes:
    return lzma.compress(kernel) + struct.pack("<I", len(kernel))


def test_a_kernel_packed_with_xz_is_unpacked() -> None:
    assert direct_kernel(bzimage(packed(UNPACKED))) == UNPACKED


def test_a_kernel_packed_with_gzip_is_unpacked() -> None:
    payload = gzip.compress(UNPACKED) + struct.pack("<I", len(UNPACKED))
    assert direct_kernel(bzimage(payload)) == UNPACKED


def test_a_kernel_packed_with_zstd_is_unpacked() -> None:
    """As in Debian 13: a frame without the size of its content (RFC 8878), then that size."""
    header = (len(UNPACKED) << 3 | 1).to_bytes(3, "little")  # the last block, not compressed
    frame = bytes.fromhex("28b52ffd0058") + header + UNPACKED
    assert direct_kernel(bzimage(frame + struct.pack("<I", len(UNPACKED)))) == UNPACKED


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(bzimage(b"\x28\xb5\x2f\xfd packed"), id="damaged zstd"),
        pytest.param(bzimage(b"\x28\xb5\x2f\xfd\xff\xff\xff\xff"), id="zstd, huge"),
        pytest.param(bzimage(packed(UNPACKED.replace(PVH_NOTE, b""))), id="without PVH entry"),
        pytest.param(bzimage(packed(UNPACKED)[:40]), id="cut off"),
        pytest.param(bzimage(b"\xfd7zXZ\0" + b"rubbish" * 9), id="damaged"),
        pytest.param(bzimage(packed(UNPACKED), magic=b"\0\0\0\0"), id="no bzImage"),
        pytest.param(b"tiny", id="too short"),
    ],
)
def test_a_kernel_that_cannot_be_booted_unpacked_stays_as_it_is(image: bytes) -> None:
    assert direct_kernel(image) == image


@pytest.fixture
def entries() -> dict[str, Entry]:
    """An image in which every program is `ls`: it has a library besides that of C."""
    program = shutil.which("ls")
    assert program
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    paths = [Path(found) for found in re.findall(r"=> (/\S+)", text)]
    assert any("libselinux" in path.name for path in paths)
    content = {f"{LIBRARY_PLACE}/{path.name}": path.read_bytes() for path in paths}
    content[f"{LIBRARY_PLACE}/{Path(LOADER).name}"] = Path("/", LOADER).read_bytes()
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


def kernel(directory: Path, modules: dict[str, str]) -> Path:
    base = directory / "usr/lib/modules/6.1"
    base.mkdir(parents=True)
    (base / "modules.builtin").write_text("kernel/fs/vfat.ko\n")
    for name, depends in modules.items():
        (base / f"{name}.ko").write_bytes(
            b"\x7fELF\0license=GPL\0depends=" + depends.encode() + b"\0x"
        )
    return directory


def test_modules_come_after_all_they_depend_on(tmp_path: Path) -> None:
    root = kernel(tmp_path, {"ext4": "jbd2,crc16", "jbd2": "crc16", "crc16": "", "extra": ""})
    names = [path.stem for path in module_files(root, "6.1", ["ext4", "vfat"])]
    assert sorted(names) == ["crc16", "ext4", "jbd2"]
    assert names.index("crc16") < names.index("jbd2") < names.index("ext4")


def test_a_module_that_the_kernel_lacks_is_named_with_who_needs_it(tmp_path: Path) -> None:
    root = kernel(tmp_path, {"ext4": "jbd2"})
    with pytest.raises(GuestImageError, match=r"has no module jbd2 \(needed by ext4\)"):
        module_files(root, "6.1", ["ext4"])


def test_modules_that_a_distribution_packs_are_loaded_unpacked(tmp_path: Path) -> None:
    # Debian 13's linux-image-6.12 has .ko.xz, seen in the package.
    root = kernel(tmp_path, {"ext4": "jbd2", "jbd2": ""})
    base = root / "usr/lib/modules/6.1"
    plain = {path.name: path.read_bytes() for path in base.glob("*.ko")}
    for name, content in plain.items():
        (base / name).unlink()
        (base / f"{name}.xz").write_bytes(lzma.compress(content))
    found = module_files(root, "6.1", ["ext4"])
    assert [unpacked_name(path) for path in found] == ["jbd2.ko", "ext4.ko"]
    assert {unpacked_name(path): unpacked_module(path) for path in found} == plain


def test_a_module_is_loaded_without_its_signature(tmp_path: Path) -> None:
    # Layout by scripts/sign-file.c of Linux: signature, module_signature, marker.
    module = tmp_path / "ext4.ko"
    content = b"\x7fELF code \0depends=jbd2\0"
    info = struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, 5)
    module.write_bytes(content + b"PKCS7" + info + b"~Module signature appended~\n")
    assert unpacked_module(module) == content


def test_a_damaged_module_is_named(tmp_path: Path) -> None:
    module = tmp_path / "ext4.ko.xz"
    module.write_bytes(lzma.compress(b"module")[:8] + b"damage")
    with pytest.raises(GuestImageError, match=r"cannot unpack ext4\.ko\.xz"):
        unpacked_module(module)


def test_modules_packed_as_no_one_here_can_unpack_are_refused_in_words(tmp_path: Path) -> None:
    root = kernel(tmp_path, {"ext4": ""})
    (root / "usr/lib/modules/6.1" / "xfs.ko.zst").write_bytes(b"")
    with pytest.raises(GuestImageError, match="modules have an unsupported compression"):
        module_files(root, "6.1", ["ext4"])
