"""Network to the server of a storage."""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import Field, StrictInt, StrictStr, model_validator

from pvebench.drivers.storages.contract import StorageSettings

PROBES: Final = 5
"""Connections per measurement, of which the median counts: the first may wait for ARP."""
TIMEOUT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLink:
    """`model.ports.StorageNetwork` of one storage.

    Attributes:
        server, port: of the connection; without a server there is no round trip.
        link_bits_per_second: capacity of the slowest link on the path; 0: not declared.
    """

    server: str = ""
    port: int = 0
    link_bits_per_second: int = 0

    def round_trip(self) -> float | None:
        if not self.server:
            return None
        try:
            # Resolved once and before: name resolution is not part of a round trip.
            addresses = socket.getaddrinfo(self.server, self.port, type=socket.SOCK_STREAM)
            times = [_connect(addresses[0]) for _ in range(PROBES)]
        except OSError:
            return None
        return statistics.median(times)


def _connect(address: tuple[Any, ...]) -> float:
    """Return the seconds to open a connection to an address of `getaddrinfo`. Raises OSError."""
    family, kind, protocol, _, where = address
    with socket.socket(family, kind, protocol) as opened:
        opened.settimeout(TIMEOUT_SECONDS)
        started = time.perf_counter()
        opened.connect(where)
        return time.perf_counter() - started


class LinkSettings(StorageSettings):
    """Keys of a storage on a server.

    Attributes:
        link_bits_per_second: capacity of the network to the server.
    """

    link_bits_per_second: StrictInt = Field(default=0, ge=1)

    def link(self) -> ServerLink:
        """Return the network to the server. Without a server of its own, only its capacity."""
        server = getattr(self, "server", "")
        port = getattr(self, "port", 0) if server else 0
        return ServerLink(server=server, port=port, link_bits_per_second=self.link_bits_per_second)


class ServerSettings(LinkSettings):
    """Keys of a storage that may be on a server: a mounted CIFS or NFS share, iSCSI.

    Attributes:
        server, port: of the server, to measure round trips.
    """

    server: StrictStr = ""
    port: int = Field(default=0, ge=0, le=65535)

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if bool(self.server) != bool(self.port):
            raise ValueError("set server and port together: 445 is CIFS, 2049 NFS, 3260 iSCSI")
        return self
