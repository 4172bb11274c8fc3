"""Is a port free, and if not, who has it?"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence
from pathlib import Path

from services import HOST, Service

from pvebench.errors import MachineError, PortInUse


def check_ports(services: Sequence[Service]) -> None:
    """Look at every port before anything is started.

    Raises:
        PortInUse: names every port that is taken, by whom, and the variable to change.
    """
    taken = []
    for position, service in enumerate(services):
        rival = next((one for one in services[:position] if one.port == service.port), None)
        holder = f"{rival.variable} as well" if rival else port_holder(service.port)
        if holder:
            taken.append((service, holder))
    if taken:
        lines = [f"port {one.port} for {one.name} is taken by {by}" for one, by in taken]
        change = " ".join(f"{service.variable}=…" for service, _ in taken)
        raise PortInUse(
            "\n  ".join(lines),
            next_step=f"stop what holds it, or choose another port: make run {change}",
        )


def port_holder(port: int) -> str:
    """Return who listens on `port` of the loopback addresses, or answers; empty if nobody does.

    Raises:
        MachineError: the port cannot be had for another reason.
    """
    # A port that can be had may still be somebody else's to a browser: `localhost` is ::1 first,
    # and a container's port may be led past our socket.
    if any(answers_at(address, port) for address in (HOST, "::1")):
        return socket_owner(port)
    with socket.socket() as probe:
        # As servers do: connections of an earlier run that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise MachineError(f"cannot listen on port {port}: {error.strerror}") from error
            return socket_owner(port)
    return ""


def answers_at(address: str, port: int) -> bool:
    """Return whether somebody takes connections there; on this machine that is known at once."""
    try:
        with socket.create_connection((address, port), timeout=1.0) as made:
            # A free port among those that connections come from may be given to this very one.
            return bool(made.getsockname() != made.getpeername())
    except OSError:
        return False


def socket_owner(port: int) -> str:
    """Return name and id of the process that listens on `port`, as far as we may know."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        rows = table.read_text().splitlines()[1:] if table.exists() else []
        for row in rows:
            columns = row.split()
            if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{columns[9]}]")
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        # Processes end while we look, and other users' are closed to us.
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()) in inodes:
                process = descriptor.parents[1]
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return "a process of another user"
