"""Storages to which QEMU itself speaks: an NBD export, a directory on an NFS server.

What the server caches cannot be seen from here, so `drop_caches` knows nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from pvebench.drivers.qemu.devices import part_of
from pvebench.drivers.qemu.nfs import unlink
from pvebench.drivers.qemu.storages import MARK, Node, StorageOptions
from pvebench.drivers.qemu.volumes import create_image
from pvebench.errors import VolumeError
from pvebench.model.disk import Disk
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.units import show_bytes
from pvebench.model.volume import Volume

NFS_KIND: Final = "nfs"
"""Kind of the journal entries of NFS volumes."""


class NbdStorage:
    """A storage of kind `nbd`: one export, whose name must carry our mark."""

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        del journal  # the export is there before us and stays
        self._options = options

    def create(self, scenario: Scenario) -> Volume:
        """Return the export as a volume. Raises VolumeError if it is not ours, or too small."""
        options = self._options
        if not options.export.startswith(MARK):
            raise VolumeError(
                f"storage {options.name}: export {options.export!r} is left alone",
                cause=f"its content would be destroyed, and its name does not begin with {MARK}",
                next_step=f"export it under a name like {MARK}{options.name}",
            )
        image = {"driver": "raw", "file": self._server_node()}
        size = int(_image_info(image, f"storage {options.name}")["virtual-size"])
        if size < scenario.volume_bytes:
            raise VolumeError(
                f"storage {options.name}: the export has {show_bytes(size)}, "
                f"{show_bytes(scenario.volume_bytes)} are needed"
            )
        return Volume(
            storage=options.name, volid=f"nbd:{options.export}",
            format=str(scenario.disk.format), size_bytes=scenario.volume_bytes,
            local=False,
        )  # fmt: skip

    def _server_node(self) -> Node:
        options = self._options
        server: dict[str, Any] = {"type": "unix", "path": options.socket}
        if not options.socket:
            server = {"type": "inet", "host": options.server, "port": str(options.port or 10809)}
        return {"driver": "nbd", "server": server, "export": options.export}

    def remove(self, volume: Volume) -> None:
        """Leave the export as it is. See `Storage`."""

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return QEMU's node of the export, cut to the volume's size. See `Storage`."""
        return part_of(self._server_node(), 0, volume.size_bytes)

    def drop_caches(self, volume: Volume) -> int | None:
        """Return None: the cache is the server's. See `Storage`."""
        return None

    def opened(self, volume: Volume) -> str:
        """Return nothing: QEMU has a socket. See `Storage`."""
        return ""

    def close(self) -> None:
        """Nothing is kept."""


class NfsStorage:
    """A storage of kind `nfs`: files in a directory of a server, through QEMU's own client."""

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        self._options = options
        self._journal = journal
        self._entries: dict[str, int] = {}

    def create(self, scenario: Scenario) -> Volume:
        """Return a new volume on the server. See `Storage`."""
        options = self._options
        name = f"{MARK}{options.owner}-{scenario.volume}"
        details = {"server": options.server, "export": options.export, "name": name}
        unlink(**details)
        entry = self._journal.open(NFS_KIND, details)
        url = f"nfs://{options.server}{options.export}/{name}"
        try:
            create_image(url, scenario.disk, scenario.volume_bytes)
        except VolumeError:
            unlink(**details)
            self._journal.close(entry)
            raise
        self._entries[name] = entry
        return Volume(
            storage=options.name, volid=name, format=str(scenario.disk.format),
            size_bytes=scenario.volume_bytes, local=False,
        )  # fmt: skip

    def remove(self, volume: Volume) -> None:
        """Remove the file on the server. See `Storage`."""
        unlink(self._options.server, self._options.export, volume.volid)
        entry = self._entries.pop(volume.volid, None)
        if entry is not None:
            self._journal.close(entry)

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return QEMU's node of the file on the server. See `Storage`."""
        return {
            "driver": "nfs",
            "server": {"type": "inet", "host": self._options.server},
            "path": f"{self._options.export}/{volume.volid}",
        }

    def drop_caches(self, volume: Volume) -> int | None:
        """Return None: the cache is the server's. See `Storage`."""
        return None

    def opened(self, volume: Volume) -> str:
        """Return nothing: QEMU has a socket. See `Storage`."""
        return ""

    def close(self) -> None:
        """Nothing is kept beside the volumes."""


def undo_nfs(details: Mapping[str, str]) -> str:
    """Undo a journal entry of an NFS volume; return a line about it."""
    unlink(details["server"], details["export"], details["name"])
    return f"removed test volume {details['name']} on {details['server']}"


def _image_info(image: Node, what: str) -> dict[str, Any]:
    command = ["qemu-img", "info", "--output=json", "json:" + json.dumps(image)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VolumeError(
            f"{what} cannot be opened: {done.stderr.strip()}",
            cause="the server does not run, or does not export that name",
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
