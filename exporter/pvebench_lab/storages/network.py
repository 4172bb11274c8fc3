"""Storages on servers: an NBD export, a directory on an NFS server, and the network to them.

QEMU itself is the client of NBD and NFS. Caches of the server are not visible from here, so
`drop_caches` returns None. The link's capacity is declared, never guessed. A round trip is the
time to open a TCP connection: one packet in each direction, answered by the server's kernel.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from pydantic import Field, StrictStr, model_validator

from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import MARK, Kind, Node, Storage, StorageContext, part_of
from pvebench.drivers.storages.qemu_img import create_image
from pvebench.drivers.storages.server_link import LinkSettings
from pvebench.errors import VolumeError
from pvebench.fields import FilePath
from pvebench.model.disk import Disk, Format
from pvebench.model.ports import Journal
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.units import show_bytes
from pvebench.model.volume import Identity, Volume


class NbdSettings(LinkSettings):
    """Keys of kind `nbd`: an NBD export.

    Attributes:
        server, port: of the server; `socket`: its UNIX socket instead.
        export: name of the export.
    """

    server: StrictStr = ""
    port: int = Field(default=10809, ge=1, le=65535)
    socket: FilePath | None = None
    export: StrictStr

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if bool(self.server) == bool(self.socket):
            raise ValueError("a storage of kind nbd needs either server or socket")
        return self


class NfsSettings(LinkSettings):
    """Keys of kind `nfs`: a directory of an NFS server.

    Attributes:
        server: the server.
        export: the exported directory.
    """

    port: ClassVar[int] = 2049
    server: StrictStr
    export: StrictStr


def identify_export(context: StorageContext[NbdSettings]) -> Identity:
    """Return the server of the settings, because the server's disks are not visible."""
    settings = context.settings
    where = settings.socket or f"{settings.server}:{settings.port}"
    return {"type": "nbd", "source": f"{where} {settings.export}"}


def identify_directory(context: StorageContext[NfsSettings]) -> Identity:
    """Return the server of the settings, because the server's disks are not visible."""
    settings = context.settings
    return {"type": "nfs", "source": f"{settings.server} {settings.export}"}


NFS_KIND: Final = "nfs"
"""Kind of the journal entries of NFS volumes."""


class NbdStorage(Storage):
    """Storage of kind `nbd`: one export, whose name must have the ownership marker."""

    def __init__(self, context: StorageContext[NbdSettings], journal: Journal) -> None:
        del journal  # pvebench does not create the export
        self._context, self._settings = context, context.settings

    def create(self, scenario: Scenario) -> Volume:
        """Return the export as a volume. Raises VolumeError: no marker, or too small."""
        name, export = self._context.name, self._settings.export
        if not export.startswith(MARK):
            raise VolumeError(
                f"storage {name}: export {export!r} not changed",
                cause=f"its content would be destroyed, but its name does not begin with {MARK}",
                next_step=f"export it under a name like {MARK}{name}",
            )
        image = {"driver": "raw", "file": self._server_node()}
        size = int(_image_info(image, f"storage {name}")["virtual-size"])
        if size < scenario.volume_bytes:
            raise VolumeError(
                f"storage {name}: {show_bytes(scenario.volume_bytes)} needed, "
                f"the export has {show_bytes(size)}"
            )
        return Volume.of(scenario, f"nbd:{export}", local=False)

    def _server_node(self) -> Node:
        settings = self._settings
        server: dict[str, Any] = {"type": "unix", "path": str(settings.socket)}
        if not settings.socket:
            server = {"type": "inet", "host": settings.server, "port": str(settings.port)}
        return {"driver": "nbd", "server": server, "export": settings.export}

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return QEMU's node of the export, cut to the volume's size."""
        return part_of(self._server_node(), 0, volume.size_bytes)


class NfsStorage(Storage):
    """Storage of kind `nfs`: files in a directory of a server, used with QEMU's client."""

    def __init__(self, context: StorageContext[NfsSettings], journal: Journal) -> None:
        self._context, self._settings = context, context.settings
        self._journal = journal
        self._entries: dict[str, int] = {}

    def create(self, scenario: Scenario) -> Volume:
        context, settings = self._context, self._settings
        name = f"{MARK}{context.owner}-{scenario.volume}"
        details = {"server": settings.server, "export": settings.export, "name": name}
        unlink(**details)
        entry = self._journal.open(NFS_KIND, details)
        url = _url(settings.server, settings.export, name)
        try:
            create_image(url, scenario.disk, scenario.volume_bytes)
        except VolumeError:
            unlink(**details)
            self._journal.close(entry)
            raise
        self._entries[name] = entry
        return Volume.of(scenario, name, local=False)

    def remove(self, volume: Volume) -> None:
        unlink(self._settings.server, self._settings.export, volume.volid)
        entry = self._entries.pop(volume.volid, None)
        if entry is not None:
            self._journal.close(entry)

    def node(self, volume: Volume, disk: Disk) -> Node:
        return {
            "driver": "nfs",
            "server": {"type": "inet", "host": self._settings.server},
            "path": f"{self._settings.export}/{volume.volid}",
        }


def undo_nfs(details: Mapping[str, str]) -> str:
    """Undo a journal entry of an NFS volume; return a line about it."""
    unlink(details["server"], details["export"], details["name"])
    return f"removed test volume {details['name']} on {details['server']}"


def _image_info(image: Node, what: str) -> dict[str, Any]:
    command = ["qemu-img", "info", "--output=json", "json:" + json.dumps(image)]
    done = run_program(command)
    if done.returncode:
        raise VolumeError(
            f"{what}: cannot open the export: {done.stderr.strip()}",
            cause="the server is not running, or does not export that name",
        )
    info: dict[str, Any] = json.loads(done.stdout)
    return info


def unlink(server: str, export: str, name: str) -> None:
    """Remove a file with the ownership marker from a server's directory, if it exists.

    Raises:
        VolumeError: libnfs is not installed, or the server failed.
    """
    if not name.startswith(MARK):
        raise VolumeError(f"{name} not changed: not created by pvebench")
    library = _library()
    context = library.nfs_init_context()
    if not context:
        raise VolumeError("libnfs returned no context")
    try:
        if library.nfs_mount(context, server.encode(), export.encode()) < 0:
            raise _failed(library, context, f"cannot mount {_url(server, export)}")
        code = library.nfs_unlink(context, f"/{name}".encode())
        if code < 0 and code != -errno.ENOENT:
            raise _failed(library, context, f"cannot remove {name} on {server}")
    finally:
        library.nfs_destroy_context(context)


def _url(server: str, *path: str) -> str:
    """Return the URL of a path; an IPv6 address needs brackets, which QEMU 7.2 does not resolve."""
    return f"nfs://{f'[{server}]' if ':' in server else server}{'/'.join(path)}"


def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("nfs")
    if name is None:
        raise VolumeError(
            "a storage of kind nfs needs libnfs and QEMU's nfs driver",
            next_step="run `apt-get install qemu-block-extra`",
        )
    library = ctypes.CDLL(name)
    library.nfs_init_context.restype = ctypes.c_void_p
    library.nfs_mount.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    library.nfs_unlink.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.nfs_destroy_context.argtypes = [ctypes.c_void_p]
    library.nfs_get_error.argtypes = [ctypes.c_void_p]
    library.nfs_get_error.restype = ctypes.c_char_p
    return library


def _failed(library: ctypes.CDLL, context: int, what: str) -> VolumeError:
    message = library.nfs_get_error(context) or b""
    return VolumeError(f"{what}: {message.decode('utf-8', 'replace')}")


NBD: Final = Kind(
    holds=StorageKind(name="nbd", formats=frozenset({Format.RAW}), network=True),
    settings=NbdSettings,
    make=NbdStorage,
    identify=identify_export,
)

NFS: Final = Kind(
    holds=StorageKind(name="nfs", formats=frozenset({Format.RAW, Format.QCOW2}), network=True),
    settings=NfsSettings,
    make=NfsStorage,
    identify=identify_directory,
    undo={NFS_KIND: undo_nfs},
)
