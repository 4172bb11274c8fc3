"""Backend of host cases: `model.ports.Hypervisor` without a VM.

The volume is the same as for VMs: a file in a directory, or the area between the marks on a device
(`pvebench storage claim`). So host and guest cases differ only by the virtualization. Nothing else
on the machine is changed; settings of the device below the volume (`device_tuning`) are restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from pvebench.drivers.backend_router import LocalBackend
from pvebench.drivers.linux.block_devices import VolumeFile
from pvebench.drivers.storages.contract import Storage, pool_options, release
from pvebench.errors import SwitchFailed
from pvebench.model.disk import HOST_OPTIONS, Disk
from pvebench.model.environment import Environment
from pvebench.model.guest import Guest
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

# --- interface of the machine, this one or one reached by ssh


class Tools(Guest, Protocol):
    """`Guest` whose programs can all be ended."""

    def close(self) -> None:
        """End all running programs and their children."""


class HostMachine(Protocol):
    """Machine without a VM. Paths are those of the machine. Owned by one worker thread."""

    @property
    def tools(self) -> Tools:
        """Runs programs."""

    @property
    def work(self) -> str:
        """Directory for jobs and their output."""

    def find(self, path: str) -> VolumeFile:
        """Return the file at a path. Raises VolumeError, OSError."""

    def counters(self, path: str) -> BlockCounters | None:
        """Return the counters of the block device that `path` is, or is on. Raises OSError.

        For btrfs they are the sum of all its devices: data that it stores twice counts twice. For
        NFS and CIFS they count the traffic to the server. They include all users since the
        machine's boot or the mount. None: no counters, as for an overlay or a ZFS dataset.
        """

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        """Apply the device options of `disk`; return the read-back. Raises SwitchFailed."""

    def untune(self) -> None:
        """Restore what `tune` changed."""

    def make_scratch(self, volume: str) -> str:
        """Create a directory next to a volume, for tools that create files."""

    def remove_scratch(self) -> None:
        """Remove that directory, if it exists."""

    def facts(self) -> dict[str, str]:
        """Return the facts of the running machine, as in `Environment`."""

    def close(self) -> None:
        """End all programs and remove all files."""


_READ_BACK: Final = ("bus", *HOST_OPTIONS)


class HostDisk(LocalBackend):
    """Backend on a machine and its `storages`. Owned by one worker thread."""

    def __init__(self, *, node: str, storages: Mapping[str, Storage], machine: HostMachine) -> None:
        self._node = node
        self._storages = dict(storages)
        self._machine = machine
        self._volumes: dict[str, Volume] = {}
        self._attached: Volume | None = None
        self._counted: BlockCounters | None = None

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the tools. Raises VolumeError if the volume in use was replaced."""
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
        volume = self._volumes.get(scenario.volume)
        if volume is not None and volume.size_bytes == scenario.volume_bytes:
            return volume, False
        storage = self._storages[scenario.storage]
        if volume is not None:
            del self._volumes[scenario.volume]
            storage.remove(volume)
        self._volumes[scenario.volume] = storage.create(scenario)
        return self._volumes[scenario.volume], True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Verify the volume without opening it."""
        if not disk.on_host:
            raise SwitchFailed("driver host has no VMs")
        self._storages[volume.storage].check(volume)
        path = self._storages[volume.storage].opened(volume)
        file = self._machine.find(path)
        size = file.size_bytes - volume.offset_bytes
        # A device may be larger than the volume; the rest of it is not used.
        size = min(size, volume.size_bytes) if file.is_device else size
        self.detach()
        tuned = self.tune(volume, disk)
        own = pool_options(self._storages[volume.storage], volume)
        self._attached, self._counted = volume, self._machine.counters(path)
        scratch = "" if file.is_device else self._machine.make_scratch(path)
        return Attachment(
            device=path,
            effective={"size_bytes": str(size), "bus": str(disk.bus), **tuned, **own},
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"{path}: {size} bytes from {volume.offset_bytes}",
            offset_bytes=volume.offset_bytes,
            scratch=scratch,
            work=self._machine.work,
        )

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Apply the device options of `disk` below `volume`; return the read-back.

        The old settings are restored when the disk is detached. Raises SwitchFailed.
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
        """Return the counters of the device below the volume, which include all users.

        They begin at 0 with each attachment, as QEMU's do: earlier I/O does not belong to this
        case.
        """
        path = self.volume_path
        if path is None:
            raise SwitchFailed("no volume is in use on the host")
        now, before = self._machine.counters(str(path)), self._counted
        if now is None and before is not None:
            raise SwitchFailed(
                f"block device below {path} disappeared",
                cause="it was removed, or another file system is mounted there now",
            )
        return now.since(before) if now is not None and before is not None else None

    def statistics(self) -> str:
        return ""

    def environment(self) -> Environment:
        facts = self._machine.facts() | {"accel": "host"}
        return Environment(node=self._node, facts={k: v for k, v in facts.items() if v})

    def host_environment(self) -> Environment:
        return self.environment()

    def shutdown(self) -> None:
        self.detach()
        release(self._storages, self._volumes.values())
        self._volumes.clear()
        self._machine.close()
