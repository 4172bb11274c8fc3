from __future__ import annotations

import json
from pathlib import Path

import pytest

from pvebench.errors import GuestImageError, NotWritable, ToolsMissing
from pvebench.guest import build
from pvebench.guest.build import build_image
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


@pytest.mark.parametrize(
    ("package", "version"),
    [("1:7.2+dfsg-7+deb12u18", "7.2"), ("3.33-3", "3.33"), ("2.00a+nmu1", "2.00a")],
)
def test_a_package_version_is_reported_as_upstream_does(package: str, version: str) -> None:
    assert upstream(package) == version
