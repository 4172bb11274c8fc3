"""Built image: files, manifest and verification. `recipe` and `content` say what is in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pvebench.errors import GuestImageError
from pvebench.guest.recipe import FORMAT, PROGRAMS

MANIFEST: Final = "manifest.json"
FILES: Final = ("kernel", "initramfs", "guest.iso")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestImage:
    """Complete, verified image.

    Attributes:
        kernel, initramfs: for direct boot; the kernel is unpacked, see `content.py`.
        iso: the same content, bootable by a BIOS.
        digest: SHA-256 over the three files, hexadecimal.
        manifest: packages with versions, digests of their archives, sizes and digests of the
            files, kernel version.
    """

    directory: Path
    kernel: Path
    initramfs: Path
    iso: Path
    digest: str
    manifest: Mapping[str, Any]

    @property
    def versions(self) -> dict[str, str]:
        """Return name -> version, for `kernel` and every benchmark tool."""
        packages = self.manifest["packages"]
        tools = {name: upstream(packages[package]) for name, package in PROGRAMS.items()}
        return {**tools, "kernel": str(self.manifest["kernel_version"])}

    @property
    def facts(self) -> dict[str, str]:
        """Facts of the environment of a run in it."""
        versions = self.versions
        return {
            "guest_image": self.digest[:12],
            "guest_kernel": versions.get("kernel", ""),
            "fio": versions.get("fio", ""),
        }


def upstream(version: str) -> str:
    """Return a package version without epoch and distribution revision: 1:7.2+dfsg-7 -> 7.2."""
    return version.rpartition(":")[2].partition("-")[0].partition("+")[0]


def default_directory() -> Path:
    """Return `$XDG_CACHE_HOME/pvebench/guest`, or `~/.cache/pvebench/guest`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pvebench" / "guest"


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return name -> size in bytes and SHA-256 of each file of the image."""
    return {
        name: {"size": (directory / name).stat().st_size, "sha256": file_digest(directory / name)}
        for name in FILES
    }


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole_digest(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the image's digest from those of its files."""
    text = "".join(f"{name} {files[name]['sha256']}\n" for name in FILES)
    return hashlib.sha256(text.encode()).hexdigest()


def load_image(directory: Path) -> GuestImage:
    """Return the image in `directory`, with every byte verified.

    Raises:
        GuestImageError: it is missing, incomplete, damaged, or of another layout.
    """
    manifest = _read_manifest(directory)
    if manifest.get("format") != FORMAT:
        raise _broken(directory, f"has layout {manifest.get('format')}, not {FORMAT}")
    try:
        actual = describe_files(directory)
    except OSError as error:
        raise _broken(directory, f"lacks {error.filename}") from error
    for name, described in actual.items():
        expected = manifest["files"].get(name)
        if described != expected:
            raise _broken(directory, f"is damaged: {name} differs from the manifest")
    return GuestImage(
        directory=directory,
        kernel=directory / "kernel",
        initramfs=directory / "initramfs",
        iso=directory / "guest.iso",
        digest=whole_digest(actual),
        manifest=manifest,
    )


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
    except FileNotFoundError as error:
        raise GuestImageError(
            f"no guest image in {directory}", next_step="run `pvebench guest build`"
        ) from error
    except (OSError, ValueError) as error:
        raise _broken(directory, f"has an unreadable manifest: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise _broken(directory, "has an invalid manifest")
    return manifest


def _broken(directory: Path, what: str) -> GuestImageError:
    return GuestImageError(
        f"guest image in {directory} {what}",
        cause="a build was interrupted, or the files were changed afterwards",
        next_step="run `pvebench guest build --force`",
    )
