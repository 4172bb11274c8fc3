"""The way from this machine to a storage's server: what the link carries, how long a round trip is.

What the link carries is declared, never guessed. A round trip is the time that a TCP connection
takes to be opened: one packet there, one back, answered by the server's kernel.
"""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass
from typing import Final

PROBES: Final = 5
"""The median of several: the first may wait for an address to be resolved on the link."""
TIMEOUT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLink:
    """`model.ports.StorageNetwork` of one storage.

    Attributes:
        server, port: what is asked; without a server there is no round trip to measure.
        link_bits_per_second: what the slowest link on the way carries; 0: not declared.
    """

    server: str = ""
    port: int = 0
    link_bits_per_second: int = 0

    def round_trip(self) -> float | None:
        """Return the median round trip in seconds; None where nothing answers. See the port."""
        if not self.server:
            return None
        try:
            # Looked up once and before: a name server's answer is no part of a round trip.
            found = socket.getaddrinfo(self.server, self.port, type=socket.SOCK_STREAM)
            times = [_connect(found[0]) for _ in range(PROBES)]
        except OSError:
            return None
        return statistics.median(times)


_Address = tuple[
    socket.AddressFamily, socket.SocketKind, int, str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]  # fmt: skip


def _connect(address: _Address) -> float:
    """Return how long one connection takes to be opened. Raises OSError."""
    family, kind, protocol, _, where = address
    with socket.socket(family, kind, protocol) as opened:
        opened.settimeout(TIMEOUT_SECONDS)
        started = time.perf_counter()
        opened.connect(where)
        return time.perf_counter() - started
