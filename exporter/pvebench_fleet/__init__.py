"""The hub of a fleet, and a site's connection to it.

It joins `pvebench` by entry points only, see `pvebench.plugins`.
"""

from __future__ import annotations

from pvebench.errors import MachineError, PvebenchError


class FleetError(PvebenchError):
    """A failure between a site and the hub of its fleet."""

    default_next_step = "check the hub with `pvebench hub sites list`; see docs/fleet.md"


class FleetMessageInvalid(FleetError):
    """A message that does not follow the protocol.

    Attributes:
        too_large: whether it exceeds a limit of size.
        column: of the fault, from 1.
    """

    default_cause = "another program, or another version of the protocol"
    default_next_step = "upgrade the hub first, then its sites"

    def __init__(self, happened: str, *, too_large: bool = False, column: int = 1) -> None:
        super().__init__(happened)
        self.too_large, self.column = too_large, column


class HubUnreachable(FleetError):
    """No usable answer of the hub; the site repeats its request later."""

    retryable = True


class HubDatabaseError(FleetError):
    """The database of the hub, which is unreachable, full or has another schema.

    Attributes:
        full: whether its disk is full.
    """

    exit_code = MachineError.exit_code
    full = False
