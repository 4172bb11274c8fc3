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
    """

    filesystem: Filesystem = Filesystem.NONE
    mount_options: str = ""
    file_name: str = DEFAULT_FILE
    file_bytes: int = 0

    @property
    def on_filesystem(self) -> bool:
        """Whether workloads use a file rather than the device."""
        return self.filesystem is not Filesystem.NONE

    @property
    def content(self) -> str:
        """Identity of what must be on the volume before a run; equal: no new preparation."""
        if not self.on_filesystem:
            return "data"
        return f"{self.filesystem}/{self.file_name}/{self.file_bytes}"

    def differences(self) -> list[tuple[str, str]]:
        """Return (option, value) for a slug: only what is not at its default."""
        pairs = [("filesystem", str(self.filesystem)), ("mount_options", self.mount_options)]
        return [pair for pair in pairs if pair[1] not in ("none", "")]
