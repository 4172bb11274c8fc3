"""What the machine of the host's own rows must be able to do: this one, or one reached by ssh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pvebench.model.disk import Disk
from pvebench.model.ports import Guest
from pvebench.model.volume import BlockCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is there under a volume's path."""

    size_bytes: int
    is_device: bool


class Tools(Guest, Protocol):
    """A `Guest` whose programs can all be ended."""

    def close(self) -> None:
        """End whatever still runs, with all that it started."""


class HostMachine(Protocol):
    """A machine without a VM. Paths are its own. Owned by one worker thread."""

    @property
    def tools(self) -> Tools:
        """Where programs are run."""

    @property
    def work(self) -> str:
        """Directory for jobs and their output."""

    def find(self, path: str) -> Found:
        """Return what is there. Raises VolumeError, OSError."""

    def counters(self, path: str) -> BlockCounters | None:
        """Return the counters of the block device that `path` is, or lies on. Raises OSError.

        Of a btrfs those of all its devices together: what it keeps twice counts twice. Of NFS and
        CIFS those of what went to the server. They are whoever's, since the machine was started or
        the file system mounted. None: nothing is counted, as of an overlay or a dataset of ZFS.
        """

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        """Give the device the settings of `disk`; return them as read back. Raises SwitchFailed."""

    def untune(self) -> None:
        """Put back what `tune` has changed."""

    def make_scratch(self, volume: str) -> str:
        """Make a directory beside a volume, for tools that make files of their own."""

    def remove_scratch(self) -> None:
        """Remove it; nothing happens if there is none."""

    def facts(self) -> dict[str, str]:
        """Return what is known of the running machine, in the words of `Environment`."""

    def close(self) -> None:
        """End what runs, and leave nothing."""
