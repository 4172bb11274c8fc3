"""Removing a file on an NFS server through libnfs, which QEMU's nfs driver brings along.

QEMU can create, read and write such files but not remove them, and libnfs has no Python
binding in the distributions; four of its functions are all that is needed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno

from pvebench.drivers.qemu.storages import MARK
from pvebench.errors import VolumeError


def unlink(server: str, export: str, name: str) -> None:
    """Remove a file of ours from a directory of a server; one that is not there is fine.

    Raises:
        VolumeError: libnfs is not installed, or the server does not do it.
    """
    if not name.startswith(MARK):
        raise VolumeError(f"{name} does not carry pvebench's mark; it is left alone")
    library = _library()
    context = library.nfs_init_context()
    if not context:
        raise VolumeError("libnfs gives no context")
    try:
        if library.nfs_mount(context, server.encode(), export.encode()) < 0:
            raise _failed(library, context, f"nfs://{server}{export} cannot be mounted")
        code = library.nfs_unlink(context, f"/{name}".encode())
        if code < 0 and code != -errno.ENOENT:
            raise _failed(library, context, f"{name} cannot be removed on {server}")
    finally:
        library.nfs_destroy_context(context)


def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("nfs")
    if name is None:
        raise VolumeError(
            "a storage of kind nfs needs libnfs and QEMU's nfs driver",
            next_step="install them: apt-get install qemu-block-extra",
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
    said = library.nfs_get_error(context) or b""
    return VolumeError(f"{what}: {said.decode('utf-8', 'replace')}")
