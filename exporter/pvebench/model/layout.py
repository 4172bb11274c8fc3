"""What is on the test disk in the guest: nothing but data, or a filesystem with one file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DEFAULT_FILE: Final = "fio.dat"


class Filesystem(StrEnum):
    """What the guest makes on the disk; `none`: workloads use the bare device."""

    NONE = "none"
    EXT4 = "ext4"
    XFS = "xfs"
    BTRFS = "btrfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the guest uses the disk.

    Attributes:
        mount_options: as `mount -o` takes them; empty: the kernel's defaults.
        file_name: of the test file in the root of the filesystem.
        file_bytes: its size; 0 without a filesystem.
        fill_passes: how often everything is written before it is measured; two bring an SSD to
            the state that it has in use.
        fill_compress: how many per cent of the data that is filled in can be compressed away.
    """

    filesystem: Filesystem = Filesystem.NONE
    mount_options: str = ""
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
        pairs = [("filesystem", str(self.filesystem)), ("mount_options", self.mount_options)]
        return [pair for pair in pairs if pair[1] not in ("none", "")]
