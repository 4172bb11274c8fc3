"""The host itself as the place to measure: `model.ports.Hypervisor` without a VM.

The volume is the one that VMs get too: a file of ours in a directory, or the room behind our
mark on a device (`pvebench storage claim`). So a host row and a guest row differ in nothing but
the virtualisation. Nothing else on the machine is touched; settings of the device below the
volume (`drivers.host.tuning`) are put back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.host.facts import host_facts
from pvebench.drivers.host.procfs import device_counters
from pvebench.drivers.host.tools import HostTools
from pvebench.drivers.host.tuning import Tuner
from pvebench.drivers.qemu.storages import MARK, Storage
from pvebench.errors import SwitchFailed
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.environment import Environment, Upkeep
from pvebench.model.ports import Guest, Journal
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

KIND: Final = "scratch"
"""Kind of the journal entries made here: a directory for tools' own files."""
_READ_BACK: Final = ("bus", *DEVICE_OPTIONS)


class HostDisk:
    """Measures on this machine. Owned by one worker thread.

    Args:
        runtime: directory for jobs and their output.
    """

    def __init__(
        self, *, node: str, storages: Mapping[str, Storage], runtime: Path, journal: Journal
    ) -> None:
        self._node = node
        self._storages = dict(storages)
        self._work = runtime / "host-work"
        self._journal = journal
        self._tools = HostTools()
        self._tuner = Tuner(journal)
        self._volumes: dict[str, Volume] = {}
        self._attached: Volume | None = None
        self._counted = BlockCounters(
            read_operations=0, write_operations=0, flush_operations=0, read_bytes=0, write_bytes=0
        )
        self._scratch: tuple[Path, int] | None = None

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return this machine. See the port."""
        return self._tools

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""
        if self._attached is None:
            return None
        return Path(self._storages[self._attached.storage].opened(self._attached))

    @property
    def boot_seconds(self) -> float:
        """Nothing is booted. See the port."""
        return 0.0

    def power_off(self) -> None:
        """End the tools that still run. See the port."""
        self._tools.close()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the scenario's volume and whether it is new. See the port."""
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
        """Open nothing, but look at what is there. See the port."""
        if not disk.on_host:
            raise SwitchFailed("the host has no VM to plug a disk into")
        path = Path(self._storages[volume.storage].opened(volume))
        with path.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END) - volume.offset_bytes
        # A device may be larger than the volume; beyond it nothing is touched.
        size = min(size, volume.size_bytes) if path.is_block_device() else size
        self.detach()
        tuned = self.tune(volume, disk)
        self._attached, self._counted = volume, device_counters(path)
        scratch = self._make_scratch(path) if path.is_file() else ""
        return Attachment(
            device=str(path), effective={"size_bytes": str(size), "bus": str(disk.bus), **tuned},
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"{path}: {size} bytes from {volume.offset_bytes}",
            offset_bytes=volume.offset_bytes, scratch=scratch, work=str(self._work),
        )  # fmt: skip

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Give the device below `volume` the settings of `disk`; return them as read back.

        They are put back when the disk is detached. Raises SwitchFailed.
        """
        return self._tuner.apply(Path(self._storages[volume.storage].opened(volume)), disk)

    def _make_scratch(self, volume: Path) -> str:
        path = volume.with_name(f"{volume.name}-scratch")
        remove_scratch(path)  # ours by its mark, left by a crash
        self._scratch = (path, self._journal.open(KIND, {"path": str(path)}))
        path.mkdir(parents=True)
        return str(path)

    def detach(self) -> None:
        """Remove the tools' own files, put the device's settings back. See the port."""
        self._tools.close()
        self._tuner.undo()
        self._attached = None
        if self._scratch is not None:
            path, entry = self._scratch
            remove_scratch(path)
            self._journal.close(entry)
            self._scratch = None

    def drop_caches(self, volume: Volume) -> int | None:
        """Write back and drop the page cache of `volume`. See the port."""
        return self._storages[volume.storage].drop_caches(volume)

    def counters(self) -> BlockCounters:
        """Return the counters of the device below the volume, whoever uses it. See the port.

        They begin at 0 with each attachment, as QEMU's do: what the device moved before is none
        of this case's business.
        """
        path = self.volume_path
        if path is None:
            raise SwitchFailed("no volume is in use on the host")
        return device_counters(path).since(self._counted)

    def environment(self) -> Environment:
        """Return what this machine is. See the port."""
        facts = host_facts() | {"accel": "host", "fio": tool_version("fio")}
        return Environment(node=self._node, facts={k: v for k, v in facts.items() if v})

    def host_environment(self) -> Environment:
        """The same. See the port."""
        return self.environment()

    def upkeep(self) -> Upkeep:
        """Return nothing: what runs here is what is installed. See the port."""
        return Upkeep()

    def shutdown(self) -> None:
        """Leave nothing. See the port."""
        self.detach()
        shutil.rmtree(self._work, ignore_errors=True)
        for volume in self._volumes.values():
            self._storages[volume.storage].remove(volume)
        self._volumes.clear()
        for storage in self._storages.values():
            storage.close()


def remove_scratch(path: Path) -> None:
    """Remove a directory of tools' files, but only if its name carries our mark."""
    if path.name.startswith(MARK):
        shutil.rmtree(path, ignore_errors=True)


def undo_scratch(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND."""
    remove_scratch(Path(details["path"]))
    return f"removed the tools' files in {details['path']}"


def tool_version(program: str) -> str:
    """Return a program's version as it says it, without its name; empty if it is not there."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().removeprefix(f"{program}-").removeprefix(f"{program} ")
