"""The guest's image on a storage of the cluster: uploaded once, named by its digest."""

from __future__ import annotations

import io
import threading
from typing import Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.tasks import Tasks
from pvebench.errors import GuestImageError
from pvebench.guest import GuestImage
from pvebench.guest.image import file_digest
from pvebench.model.ports import Clock

_UPLOAD_SECONDS: Final = 600.0
_SEEN_SECONDS: Final = 20.0
"""How long a file that is uploaded may take to be listed, whole."""
_ONE_AT_A_TIME: Final = threading.Lock()
"""On a storage that several nodes share, a second upload would write over the first one's file."""


def iso_name(image: GuestImage) -> str:
    """Return the image's name on the storage: another content has another name."""
    return f"pvebench-guest-{file_digest(image.iso)[:16]}.iso"


def find_iso(api: Api, node: str, storage: str, image: GuestImage) -> str:
    """Return the image's volid if it is on the storage, whole; else an empty string.

    The API tells no digests, so the name carries one; a file cut off has another size.
    """
    wanted, size = f"{storage}:iso/{iso_name(image)}", image.iso.stat().st_size
    for entry in api.get(f"/nodes/{node}/storage/{storage}/content", content="iso"):
        if entry["volid"] == wanted and int(entry["size"]) == size:
            return wanted
    return ""


def upload_iso(api: Api, node: str, storage: str, image: GuestImage, clock: Clock) -> str:
    """Return the volid of the image on the storage, uploading it where it is missing.

    Raises:
        GuestImageError: it is not there after the upload. Others as `Connection` and `Tasks.run`.
    """
    with _ONE_AT_A_TIME:
        return find_iso(api, node, storage, image) or _upload(api, node, storage, image, clock)


def _upload(api: Api, node: str, storage: str, image: GuestImage, clock: Clock) -> str:
    tasks = Tasks(api, node, clock)
    tasks.learn()
    content = _Named(image.iso.read_bytes(), iso_name(image))
    # The server wants these parts in this order, the file last.
    parts = {
        "content": "iso",
        "checksum-algorithm": "sha256",
        "checksum": file_digest(image.iso),
        "filename": content,
    }
    tasks.run(
        lambda: api.post(
            f"/nodes/{node}/storage/{storage}/upload", seconds=_UPLOAD_SECONDS, **parts
        ),
        kind="imgcopy", what=f"upload of the guest image to {storage}", seconds=_UPLOAD_SECONDS,
    )  # fmt: skip
    deadline = clock.monotonic() + _SEEN_SECONDS
    while not (found := find_iso(api, node, storage, image)):
        if clock.monotonic() > deadline:
            raise GuestImageError(
                f"the guest image is not on storage {storage} of {node} after its upload",
                next_step="look at the storage's content; its type and content `iso` must be "
                "enabled",
            )
        clock.sleep(1.0)
    return found


class _Named(io.BytesIO):
    """Bytes that proxmoxer sends under `name`."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name
