"""Every request that the driver can make, from requests.txt.

A line is `METHOD PATH | parameters | privileges`; `-` stands for no parameter, and `scsi[n]` for a
family of them. The privileges of version 9 follow those of version 8 if they are different.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pvebench.drivers.proxmox.api.bounds import SHAPES
from pvebench.drivers.responses import Shape, anything


@dataclass(frozen=True)
class Request:
    """A request of the driver."""

    name: str
    sends: tuple[str, ...]
    privileges: str

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.name.partition(" ")[2]

    @property
    def answer(self) -> Shape:
        """Shape of the response; `anything` if the driver does not use it."""
        return SHAPES.get(self.name, anything)


def _request(line: str) -> Request:
    name, sends, privileges = line.split(" | ", 2)
    return Request(name, tuple(sends.split() if sends != "-" else ()), privileges)


REQUESTS = [
    _request(line)
    for line in Path(__file__).with_name("requests.txt").read_text("utf-8").splitlines()
]


def unlisted(name: str, params: Iterable[str]) -> str:
    """Return what of a request is not in the list; empty: nothing."""
    request = next((one for one in REQUESTS if one.name == name), None)
    if request is None:
        return f"{name} is not in tests/pve/requests.txt"
    inside = set(re.findall(r"\{(\w+)\}", request.path))
    sent = {key if key in request.sends else re.sub(r"\d+\Z", "[n]", key) for key in params}
    more = sent - inside - set(request.sends)
    return f"{name} sends {', '.join(sorted(more))}" if more else ""
