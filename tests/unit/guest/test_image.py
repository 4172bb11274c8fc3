from __future__ import annotations

import json
import lzma
import struct
import subprocess
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError, NotWritable, ToolsMissing
from pvebench.guest import build
from pvebench.guest.archives import CHARACTER, DIRECTORY, FILE, LINK, Entry, archive
from pvebench.guest.build import build_image
from pvebench.guest.content import module_files, unpacked_module, unpacked_name
from pvebench.guest.image import FILES, MANIFEST, describe_files, load_image, upstream
from pvebench.guest.recipe import FORMAT, recipe_digest


def whole_image(directory: Path) -> Path:
    for name in FILES:
        (directory / name).write_bytes(f"content of {name}".encode())
    manifest = {
        "format": FORMAT,
        "recipe": recipe_digest(),
        "kernel_version": "6.1",
        "packages": {},
        "files": describe_files(directory),
    }
    (directory / MANIFEST).write_text(json.dumps(manifest))
    return directory


def test_a_whole_image_is_loaded_with_a_digest_of_its_content(tmp_path: Path) -> None:
    image = load_image(whole_image(tmp_path))
    assert len(image.digest) == 64
    assert load_image(tmp_path).digest == image.digest
    assert image.kernel.read_bytes() == b"content of kernel"


def damage_nothing_there(directory: Path) -> None:
    (directory / MANIFEST).unlink()


def damage_truncated(directory: Path) -> None:
    (directory / "initramfs").write_bytes(b"content of init")


def damage_one_bit(directory: Path) -> None:
    content = bytearray((directory / "guest.iso").read_bytes())
    content[3] ^= 1
    (directory / "guest.iso").write_bytes(content)


def damage_missing_file(directory: Path) -> None:
    (directory / "kernel").unlink()


def damage_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_text('{"format"')


def damage_layout(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps({**manifest, "format": 99}))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (damage_nothing_there, "no guest image in"),
        (damage_truncated, "is damaged: initramfs differs from the manifest"),
        (damage_one_bit, "is damaged: guest.iso differs from the manifest"),
        (damage_missing_file, "lacks"),
        (damage_manifest, "has an unreadable manifest"),
        (damage_layout, f"has layout 99, not {FORMAT}"),
    ],
)
def test_a_broken_image_is_reported_and_never_loaded(
    tmp_path: Path, damage: object, expected: str
) -> None:
    whole_image(tmp_path)
    damage(tmp_path)  # type: ignore[operator] # a function
    with pytest.raises(GuestImageError, match=expected) as caught:
        load_image(tmp_path)
    assert "pvebench guest build" in str(caught.value)


def test_an_image_that_is_whole_and_current_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no tool could be run
    assert build_image(whole_image(tmp_path)).directory == tmp_path


def test_missing_tools_are_all_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolsMissing, match="needed to build the guest image: apt, dpkg, xorriso"):
        build_image(tmp_path)


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="is not writable"):
        build_image(tmp_path / "file" / "guest")


def test_a_build_that_fails_leaves_no_image_that_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise GuestImageError("cut off")

    whole_image(tmp_path)
    (tmp_path / "initramfs").write_bytes(b"old and damaged")
    monkeypatch.setattr(build, "resolve", fail)
    with pytest.raises(GuestImageError, match="cut off"):
        build_image(tmp_path)
    with pytest.raises(GuestImageError, match="is damaged"):
        load_image(tmp_path)
    assert not list(tmp_path.glob("build-*"))


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


@pytest.mark.parametrize(
    ("package", "version"),
    [("1:7.2+dfsg-7+deb12u18", "7.2"), ("3.33-3", "3.33"), ("2.00a+nmu1", "2.00a")],
)
def test_a_package_version_is_reported_as_upstream_does(package: str, version: str) -> None:
    assert upstream(package) == version
