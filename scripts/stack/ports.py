"""Checks for free ports, and the processes that use them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from services import HOST, Service

from pvebench.errors import MachineError, PortInUse
from pvebench.web.server import socket_owner


def check_ports(services: Sequence[Service]) -> None:
    """Check every port before starting any service.

    Raises:
        PortInUse: a port is in use; the error names each port, its process and its variable.
    """
    taken = []
    for position, service in enumerate(services):
        other = next((item for item in services[:position] if item.port == service.port), None)
        holder = f"{other.variable} as well" if other else port_holder(service.port)
        if holder:
            taken.append((service, holder))
    if taken:
        lines = [f"port {item.port} for {item.name} is used by {holder}" for item, holder in taken]
        change = " ".join(f"{service.variable}=…" for service, _ in taken)
        raise PortInUse(
            "\n  ".join(lines),
            next_step=f"stop that process, or choose another port: make run {change}",
        )


def port_holder(port: int) -> str:
    """Return the process that listens on `port` of the loopback addresses; empty if none does.

    Raises:
        MachineError: binding to the port fails for another reason.
    """
    # A port that can be bound may still lead a browser elsewhere: `localhost` is ::1 first, and a
    # container's port may be forwarded before it reaches this socket.
    if any(answers_at(address, port) for address in (HOST, "::1")):
        return socket_owner(port)
    with socket.socket() as probe:
        # Like servers, ignore closing connections of an earlier run.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise MachineError(f"cannot listen on port {port}: {error.strerror}") from error
            return socket_owner(port)
    return ""


def answers_at(address: str, port: int) -> bool:
    """Return whether a process accepts connections there; local connections answer at once."""
    try:
        with socket.create_connection((address, port), timeout=1.0) as connection:
            # A free ephemeral port can become the source port of this connection itself.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False
