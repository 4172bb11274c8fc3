"""What is on the test disk in the guest: nothing but data, or a filesystem with one file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

from pvebench.model.disk import option_text, traits

_MOUNT_OPTIONS: Final = re.compile(r"[a-z0-9_=,-]+\Z")
DEFAULT_FILE: Final = "fio.dat"


class Filesystem(StrEnum):
    """What the guest makes on the disk; `none`: workloads use the bare device."""

    NONE = "none"
    EXT4 = "ext4"
    XFS = "xfs"
    BTRFS = "btrfs"


def _mount_options(text: str) -> str:
    if text and not _MOUNT_OPTIONS.match(text):
        raise ValueError(f"{text!r}: write mount options as mount -o takes them: noatime,commit=30")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the guest uses the disk. Its options are what packs sweep; the rest is the volume's.

    Attributes:
        mount_options: as `mount -o` takes them; empty: the kernel's defaults.
        file_name: of the test file in the root of the filesystem.
        file_bytes: its size; 0 without a filesystem.
        fill_passes: how often everything is written before it is measured; two bring an SSD to
            the state that it has in use.
        fill_compress: how many per cent of the data that is filled in can be compressed away.
    """

    filesystem: Filesystem = field(default=Filesystem.NONE, metadata=traits())
    mount_options: str = field(default="", metadata=traits(check=_mount_options))
    file_name: str = DEFAULT_FILE
    file_bytes: int = 0
    fill_passes: int = 1
    fill_compress: int = 0

    @property
    def on_filesystem(self) -> bool:
        """Whether workloads use a file rather than the device."""
        return self.filesystem is not Filesystem.NONE

    @property
    def content(self) -> str:
        """Identity of what must be on the volume before a run; equal: no new preparation."""
        filled = self.filled
        if not self.on_filesystem:
            return "/".join(["data", *filled])
        return "/".join([self.filesystem, self.file_name, str(self.file_bytes), *filled])

    @property
    def filled(self) -> list[str]:
        """What is unusual about the data that is filled in; nothing by default."""
        passes = [f"fill-{self.fill_passes}"] if self.fill_passes != 1 else []
        return [*passes, *([f"compress-{self.fill_compress}"] if self.fill_compress else [])]

    def differences(self) -> list[tuple[str, str]]:
        """Return (option, value) for a slug: only what is not at its default."""
        values = [(one, getattr(self, one.name)) for one in fields(self) if one.metadata]
        return [(one.name, option_text(value)) for one, value in values if value != one.default]


LAYOUT_OPTIONS: Final = tuple(one.name for one in fields(Layout) if one.metadata)
"""Those of its fields that packs sweep."""
