"""The lab: `model.ports.Hypervisor` on this machine's QEMU."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.host import host_facts
from pvebench.drivers.qemu.accel import Accelerator
from pvebench.drivers.qemu.agent import AgentGuest
from pvebench.drivers.qemu.blocks import (
    Names,
    block_counters,
    block_nodes,
    devices,
    read_back,
)
from pvebench.drivers.qemu.machine import QemuMachine
from pvebench.drivers.qemu.volumes import DirectoryVolumes, drop_page_cache
from pvebench.errors import DriverError, GuestSilent, SwitchFailed
from pvebench.guest import GuestImage
from pvebench.model.disk import Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Attachment, BlockCounters, Clock, Guest, Journal, Volume
from pvebench.model.scenario import Machine, Scenario

BOOT_SECONDS: Final = 60.0
"""Deadline from power-on to the agent's first answer; TCG on a busy host needs some room."""
SWITCH_SECONDS: Final = 15.0
"""Deadline of each step of a hot-plug or unplug."""


class QemuLab:
    """One benchmark VM under local QEMU, and its volumes. Owned by one worker thread."""

    def __init__(
        self, *, node: str, storages: Mapping[str, Path], image: GuestImage,
        accelerator: Accelerator, runtime: Path, journal: Journal, clock: Clock,
    ) -> None:  # fmt: skip
        self._node = node
        self._image = image
        self._accelerator = accelerator
        self._runtime = runtime
        self._journal = journal
        self._clock = clock
        # Two instances may share a directory; their volumes must not share a name.
        owner = hashlib.sha256(str(runtime).encode()).hexdigest()[:8]
        self._storages = {
            name: DirectoryVolumes(name, path, journal, owner=owner)
            for name, path in storages.items()
        }
        self._volumes: dict[str, Volume] = {}
        self._vm: QemuMachine | None = None
        self._guest: AgentGuest | None = None
        self._machine: Machine | None = None
        self._attached: tuple[Names, Disk] | None = None
        self._count = 0
        self._broken = False

    @property
    def pid(self) -> int | None:
        """QEMU's process number while the VM runs."""
        return self._vm.pid if self._vm else None

    def boot(self, machine: Machine) -> Guest:
        """Return the running guest, booting or restarting it where needed. See the port."""
        if self._guest is not None and not self._must_restart(machine):
            return self._guest
        self._end_vm()
        vm = QemuMachine(self._runtime, journal=self._journal, clock=self._clock)
        self._guest = vm.start(self._image, machine, self._accelerator, timeout=BOOT_SECONDS)
        self._vm, self._machine, self._broken = vm, machine, False
        return self._guest

    def _must_restart(self, machine: Machine) -> bool:
        if self._broken or self.pid is None or machine != self._machine or self._guest is None:
            return True
        try:
            self._guest.ping(timeout=10.0)
        except DriverError:
            return True
        return False

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the scenario's volume and whether it is new. See the port."""
        known = self._volumes.get(scenario.volume)
        if known is not None and known.size_bytes == scenario.volume_bytes:
            return known, False
        storage = self._storages[scenario.storage]
        if known is not None:
            self.detach()
            del self._volumes[scenario.volume]
            storage.remove(known)
        volume = storage.create(scenario.disk.format, scenario.volume_bytes)
        self._volumes[scenario.volume] = volume
        return volume, True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Plug `volume` with the options of `disk` and read back what came of it. See the port."""
        self.detach()
        drop_page_cache(Path(volume.volid))
        self._count += 1
        names = Names(self._count)
        self._attached = (names, disk)
        try:
            self._plug(names, disk, volume.volid)
            seen = self._find_in_guest(names)
            return self._read_back(names, disk, volume, seen)
        except (DriverError, KeyError, StopIteration) as error:
            self._broken = True
            raise SwitchFailed(
                f"could not attach {volume.volid} as {disk.bus}, cache={disk.cache}, "
                f"aio={disk.aio}: {error}",
                next_step="the VM is restarted for the next run",
            ) from error

    def _plug(self, names: Names, disk: Disk, path: str) -> None:
        qmp = self._qemu.qmp
        for node in block_nodes(names, disk, path):
            qmp.execute("blockdev-add", node)
        if disk.iothread:
            qmp.execute("object-add", {"qom-type": "iothread", "id": names.iothread})
        for device in devices(names, disk):
            qmp.execute("device_add", device)

    def _find_in_guest(self, names: Names) -> dict[str, str]:
        """Wait until the guest has the disk; return what it says of it (`device=…` words)."""
        guest = self._running_guest
        deadline = self._clock.monotonic() + SWITCH_SECONDS
        while True:
            done = guest.run(["/usr/bin/pvebench-disk", names.serial], timeout=SWITCH_SECONDS)
            if done.exit_code == 0:
                words = done.stdout.decode("utf-8", "replace").split()
                return dict(word.split("=", 1) for word in words)
            if self._clock.monotonic() > deadline:
                raise GuestSilent(f"the guest does not see the disk within {SWITCH_SECONDS:.0f} s")
            self._clock.sleep(0.1)

    def _read_back(
        self, names: Names, disk: Disk, volume: Volume, seen: Mapping[str, str]
    ) -> Attachment:
        qmp = self._qemu.qmp
        nodes = qmp.execute("query-named-block-nodes", {"flat": True})
        blocks = qmp.execute("query-block")
        holder = names.device if len(devices(names, disk)) == 1 else names.controller
        effective = read_back(
            names, nodes=nodes, blocks=blocks,
            device_type=self._property(names.device, "type"),
            iothread=self._property(holder, "iothread"),
            opened_direct=opened_direct(self._qemu.pid, Path(volume.volid)),
            guest_write_cache=seen.get("write_cache", ""),
        )  # fmt: skip
        effective["size_bytes"] = seen.get("size_bytes", "")
        raw = {"nodes": nodes, "blocks": blocks, "guest": dict(seen)}
        return Attachment(
            device=seen["device"],
            effective=effective,
            # QEMU tells its aio mode nowhere; it refuses those that it cannot do.
            unverified=("aio",),
            raw=json.dumps(raw, indent=1),
        )

    def _property(self, device: str, name: str) -> str:
        path = f"/machine/peripheral/{device}"
        return str(self._qemu.qmp.execute("qom-get", {"path": path, "property": name}))

    def detach(self) -> None:
        """Unplug the test disk and take its nodes away. See the port."""
        if self._attached is None:
            return
        names, disk = self._attached
        if self.pid is None or self._broken:
            self._end_vm()  # the disk goes with the VM
            return
        try:
            self._unplug(names, disk)
        except DriverError as error:
            self._broken = True
            raise SwitchFailed(
                f"could not detach the test disk: {error}",
                cause="the guest is hung or still uses the disk",
                next_step="the VM is restarted for the next run",
            ) from error
        self._attached = None

    def _unplug(self, names: Names, disk: Disk) -> None:
        qmp = self._qemu.qmp
        for device in reversed(devices(names, disk)):
            qmp.execute_until(
                "device_del", {"id": device["id"]},
                event="DEVICE_DELETED", device=device["id"], timeout=SWITCH_SECONDS,
            )  # fmt: skip
        if disk.iothread:
            qmp.execute("object-del", {"id": names.iothread})
        for node in (names.format, names.file):
            qmp.execute("blockdev-del", {"node-name": node})

    def drop_caches(self, volume: Volume) -> int:
        """Write back and drop the host's page cache of `volume`. See the port."""
        return drop_page_cache(Path(volume.volid))

    def counters(self) -> BlockCounters:
        """Return QEMU's counters of the attached disk. See the port."""
        if self._attached is None:
            raise SwitchFailed("no test disk is attached")
        return block_counters(self._attached[0], self._qemu.qmp.execute("query-blockstats"))

    def environment(self) -> Environment:
        """Return the running environment. See the port."""
        return self._environment(self._qemu_facts() if self.pid is not None else {})

    def host_environment(self) -> Environment:
        """Return what is known without a VM. See the port."""
        return self._environment({})

    def _environment(self, more: Mapping[str, str]) -> Environment:
        facts = host_facts() | {
            "accel": str(self._accelerator),
            "guest_image": self._image.digest[:12],
            "guest_kernel": self._image.versions.get("kernel", ""),
            "fio": self._image.versions.get("fio", ""),
            **more,
        }
        return Environment(
            node=self._node, facts={key: value for key, value in facts.items() if value}
        )

    def _qemu_facts(self) -> dict[str, str]:
        qmp = self._qemu.qmp
        version: dict[str, Any] = qmp.execute("query-version")
        number = version["qemu"]
        machine = qmp.execute("qom-get", {"path": "/machine", "property": "type"})
        return {
            "qemu": f"{number['major']}.{number['minor']}.{number['micro']}",
            "qemu_package": str(version.get("package", "")),
            "machine": str(machine).removesuffix("-machine"),
        }

    def shutdown(self) -> None:
        """End the VM, remove the volumes. See the port."""
        self._end_vm()
        for key, volume in list(self._volumes.items()):
            self._storages[volume.storage].remove(volume)
            del self._volumes[key]

    def _end_vm(self) -> None:
        if self._vm is not None:
            self._vm.kill()
        self._vm = self._guest = self._machine = self._attached = None

    @property
    def _qemu(self) -> QemuMachine:
        if self._vm is None:
            raise SwitchFailed("the VM is not running")
        return self._vm

    @property
    def _running_guest(self) -> AgentGuest:
        if self._guest is None:
            raise SwitchFailed("the VM is not running")
        return self._guest


def opened_direct(pid: int | None, path: Path) -> bool | None:
    """Return whether a process has `path` open with O_DIRECT; None if that cannot be seen."""
    if pid is None:
        return None
    wanted = str(path.resolve())
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if str(fd.readlink()) == wanted:
                info = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text("ascii")
                flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDWR:
                    return bool(int(flags.split()[1], 8) & os.O_DIRECT)
    except OSError:
        return None
    return None
