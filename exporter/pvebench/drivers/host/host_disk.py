"""The host itself as the place to measure: `model.ports.Hypervisor` without a VM.

The volume is the one that VMs get too: a file of ours in a directory, or the room between our
marks on a device (`pvebench storage claim`). So a host row and a guest row differ in nothing but
the virtualisation. Nothing else on the machine is touched; settings of the device below the
volume (`drivers.host.tuning`) are put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pvebench.drivers.storages.contract import Storage
from pvebench.errors import SwitchFailed
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Guest
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

# --- What the machine of the host's own rows must be able to do: this one, or one reached by ssh.


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFile:
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

    def find(self, path: str) -> VolumeFile:
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


_READ_BACK: Final = ("bus", *DEVICE_OPTIONS)


class HostDisk:
    """Measures on a machine, on `storages` of it. Owned by one worker thread."""

    def __init__(self, *, node: str, storages: Mapping[str, Storage], machine: HostMachine) -> None:
        self._node = node
        self._storages = dict(storages)
        self._machine = machine
        self._volumes: dict[str, Volume] = {}
        self._attached: Volume | None = None
        self._counted: BlockCounters | None = None

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the tools. Raises VolumeError if the volume in use is not what it was."""
        if self._attached is not None:
            self._storages[self._attached.storage].check(self._attached)
        return self._machine.tools

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""
        if self._attached is None:
            return None
        return Path(self._storages[self._attached.storage].opened(self._attached))

    @property
    def boot_seconds(self) -> float:
        return 0.0

    def power_off(self) -> None:
        self._machine.tools.close()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        known = self._volumes.get(scenario.volume)
        if known is not None and known.size_bytes == scenario.volume_bytes:
            return known, False
        storage = self._storages[scenario.storage]
        if known is not None:
            del self._volumes[scenario.volume]
            storage.remove(known)
        self._volumes[scenario.volume] = storage.create(scenario)
        return self._volumes[scenario.volume], True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Open nothing, but look at what is there."""
        if not disk.on_host:
            raise SwitchFailed("the host has no VM to plug a disk into")
        self._storages[volume.storage].check(volume)
        path = self._storages[volume.storage].opened(volume)
        found = self._machine.find(path)
        size = found.size_bytes - volume.offset_bytes
        # A device may be larger than the volume; beyond it nothing is touched.
        size = min(size, volume.size_bytes) if found.is_device else size
        self.detach()
        tuned = self.tune(volume, disk)
        self._attached, self._counted = volume, self._machine.counters(path)
        scratch = "" if found.is_device else self._machine.make_scratch(path)
        return Attachment(
            device=path,
            effective={"size_bytes": str(size), "bus": str(disk.bus), **tuned},
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"{path}: {size} bytes from {volume.offset_bytes}",
            offset_bytes=volume.offset_bytes,
            scratch=scratch,
            work=self._machine.work,
        )

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Give the device below `volume` the settings of `disk`; return them as read back.

        They are put back when the disk is detached. Raises SwitchFailed.
        """
        return self._machine.tune(self._storages[volume.storage].opened(volume), disk)

    def detach(self) -> None:
        self._machine.tools.close()
        self._machine.untune()
        self._attached = None
        self._machine.remove_scratch()

    def drop_caches(self, volume: Volume) -> int | None:
        return self._storages[volume.storage].drop_caches(volume)

    def counters(self) -> BlockCounters | None:
        """Return the counters of the device below the volume, whoever uses it.

        They begin at 0 with each attachment, as QEMU's do: what the device moved before is none
        of this case's business.
        """
        path = self.volume_path
        if path is None:
            raise SwitchFailed("no volume is in use on the host")
        now, before = self._machine.counters(str(path)), self._counted
        if now is None and before is not None:
            raise SwitchFailed(
                f"the block device below {path} is gone",
                cause="it was taken away, or what is mounted there is another file system now",
            )
        return now.since(before) if now is not None and before is not None else None

    def environment(self) -> Environment:
        facts = self._machine.facts() | {"accel": "host"}
        return Environment(node=self._node, facts={k: v for k, v in facts.items() if v})

    def host_environment(self) -> Environment:
        return self.environment()

    def shutdown(self) -> None:
        self.detach()
        for volume in self._volumes.values():
            self._storages[volume.storage].remove(volume)
        self._volumes.clear()
        for storage in self._storages.values():
            storage.close()
        self._machine.close()
