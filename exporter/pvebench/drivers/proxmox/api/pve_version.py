"""Version of Proxmox VE as its API reports it."""

from __future__ import annotations

import re
from typing import Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import InvalidResponse, spoken

_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")


def version_number(api: Api) -> tuple[int, ...]:
    """Return the version of pve-manager as numbers, such as (9, 2, 11). Raises as `Connection`."""
    reported = str(api.get("/version")["version"])
    if not (match := _VERSION.match(reported)):
        raise InvalidResponse("GET /version", f"{spoken(reported):.80} is not a version")
    return numbers_of(match[0])


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the numbers in a version, in order: 6.8.12-4-pve -> (6, 8, 12, 4)."""
    return tuple(int(part) for part in re.findall("[0-9]{1,9}", text))
