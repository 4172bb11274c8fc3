"""The whole error tree of pvebench. Every room may import it.

    PvebenchError                    1
    ├── ConfigError                  2   a settings file or a pack is wrong
    ├── MachineError                 3   this machine lacks something
    │   ├── ToolsMissing                 programs that are not installed
    │   ├── NoSpace                      a file system is too full for the volume
    │   ├── NotWritable                  a directory cannot be written
    │   ├── PortInUse                    somebody else listens there
    │   └── ChainBroken                  a result does not reach where people look
    ├── AlreadyRunning               4   another instance holds the state directory
    ├── StoreError                   5   the results database cannot be used
    │   ├── StoreLost                    damaged, or removed while in use
    │   ├── StoreTooNew                  made by a newer pvebench
    │   ├── StoreMixed                   simulated and measured results do not mix
    │   └── StoreUnavailable         3   not now: a full file system, another's lock
    ├── DriverError                  6   the hypervisor or the guest did not do as told
    │   ├── HypervisorGone               QEMU exited, or its socket closed (retryable)
    │   ├── OutcomeUnknown               a reply was lost: query, never repeat
    │   ├── SwitchFailed                 a disk could not be attached or detached (retryable)
    │   ├── GuestSilent                  the agent does not answer in time (retryable)
    │   │   └── ToolStuck                it answers, but a tool in it does not end
    │   ├── VolumeError                  a volume could not be made, read or removed
    │   ├── ServerGone                   the Proxmox API, or ssh, is away (retryable)
    │   ├── ServerUntrusted              its certificate or host key is another one
    │   ├── AccessDenied                 the token is refused, or lacks a right
    │   ├── Busy                         a backup, migration … holds the VM (retryable)
    │   └── NotOurs                      pvebench did not make it and does not touch it
    ├── GuestImageError              7   the guest image is missing, half-built or damaged
    ├── WorkloadError                8   the benchmark tool failed or its output is unreadable
    │   ├── ToolFailed
    │   └── OutputUnreadable
    ├── CycleIncomplete              9   the cycle ended, but not every run is ok
    └── Interrupted                130   the user asked to stop

A message has three parts: what happened, the likely cause, the next step. `exit_code`
is what the command line ends with; `retryable` says whether the same attempt may work
later without anybody changing anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pvebench.sanitize import printable

_LONGEST: Final = 1000
"""Characters of a complaint."""


class PvebenchError(Exception):
    """Root of every error that a user can see.

    Where whoever raises it knows neither cause nor next step, the class tells what it usually is.
    Words of others may be in it as they came: what it shows is cleaned here, for terminals.

    Args:
        happened: what went wrong, with the names and numbers that matter.
        cause: the likely cause, if it is known.
        next_step: what to do about it.
        evidence: raw material for the log and the run's record (never secrets).
    """

    exit_code = 1
    retryable = False
    usual_cause = ""
    usual_next_step = ""

    def __init__(
        self, happened: str, *, cause: str = "", next_step: str = "", evidence: str = ""
    ) -> None:
        self.happened = printable(happened)
        super().__init__(self.happened)
        known = cause or next_step
        self.cause = printable(cause if known else self.usual_cause)
        self.next_step = printable(next_step if known else self.usual_next_step)
        self.evidence = evidence

    def __str__(self) -> str:
        parts = [self.happened]
        if self.cause:
            parts.append(f"likely cause: {self.cause}")
        if self.next_step:
            parts.append(f"next step: {self.next_step}")
        return "\n  ".join(parts)

    @property
    def reason(self) -> str:
        """One line for a run's record: what happened, without advice."""
        return " ".join(self.happened.split())


@dataclass(frozen=True, slots=True)
class Problem:
    """One complaint about a file. `line` and `column` count from 1; 0 means unknown."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ""
        # What stands in a file may have no end.
        text = self.message if len(self.message) <= _LONGEST else f"{self.message[:_LONGEST]}…"
        return f"{self.file}{place}: {text}"


class ConfigError(PvebenchError):
    """A settings file or pack is wrong; carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[Problem], *, next_step: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), next_step=next_step)
        self.problems = problems


class MachineError(PvebenchError):
    """This machine lacks something that the job needs."""

    exit_code = 3


class ToolsMissing(MachineError):
    """Programs are not installed; the message names them all at once."""


class NoSpace(MachineError):
    """A file system is too full for what would be written to it."""


class NotWritable(MachineError):
    """A directory that must be written cannot be."""

    usual_cause = "a missing right, or a file system that is mounted read-only"
    usual_next_step = "mend that, or name another directory"


class PortInUse(MachineError):
    """The address to listen on is taken."""


class PipelineError(MachineError):
    """A result does not get from the exporter to where people look."""


class AlreadyRunning(PvebenchError):
    """Another pvebench holds the lock of this state directory."""

    exit_code = 4


class StoreError(PvebenchError):
    """The results database cannot be used."""

    exit_code = 5
    usual_next_step = (
        "look at the state directory and its file system; `pvebench restore` lists the copies"
    )


class StoreLost(StoreError):
    """The database is damaged or no longer there: to try again is of no use."""


class StoreTooNew(StoreError):
    """The database was written by a newer pvebench; it is left untouched."""


class StoreMixed(StoreError):
    """Simulated and measured results must not share a database."""


class StoreUnavailable(StoreError):
    """The database cannot be read or written now; nothing is wrong with it.

    It ends as what the machine lacks does, because a service is worth starting again then.
    """

    exit_code = MachineError.exit_code


class DriverError(PvebenchError):
    """The hypervisor or the guest did not do what it was told."""

    exit_code = 6
    usual_next_step = "`pvebench check` tells what is missing; then look at the host's log"


class HypervisorGone(DriverError):
    """QEMU exited or its control socket closed."""

    retryable = True
    usual_cause = "QEMU was killed, for instance for want of memory, or has crashed"
    usual_next_step = (
        "look at QEMU's log with the run and at the kernel's log; the case is tried again by itself"
    )


class OutcomeUnknown(DriverError):
    """The reply to a command was lost.

    It cannot be known whether the command took effect: query the state, never repeat
    the command.
    """

    usual_cause = "the machine was very busy, or QEMU hangs"
    usual_next_step = "none: what is true is asked before anything else is changed"


class SwitchFailed(DriverError):
    """A disk could not be attached or detached; the VM must be restarted before reuse."""

    retryable = True
    usual_cause = "a busy node or guest, or somebody else changed the VM meanwhile"
    usual_next_step = (
        "none: the VM starts anew for the next case; if it stays, look at the node's task log"
    )


class GuestTimeout(DriverError):
    """The guest agent does not answer within its deadline."""

    retryable = True
    usual_cause = "a very busy host, or a guest that hangs in I/O"
    usual_next_step = "look at the host's load and the storage; the case is tried again by itself"


class ToolStuck(GuestTimeout):
    """A tool moves no data or does not end; `evidence` is what guest and QEMU say of it."""


class VolumeError(DriverError):
    """A volume could not be created, inspected or removed."""

    usual_next_step = "look at the storage: `pvebench check` tells what it lacks"


class FaultFailed(DriverError):
    """The command that the settings name for a fault of a storage did not do it."""

    usual_next_step = (
        "run the command of `faults` by hand: it must begin the fault, end it, and exit with 0"
    )


class ServerGone(DriverError):
    """The Proxmox API or a machine cannot be reached, or its node or cluster does not work."""

    retryable = True


class ServerUntrusted(DriverError):
    """The server has not the certificate or host key that it should have; nothing was sent."""


class AccessDenied(DriverError):
    """The credentials are refused, or a right is missing."""


class Busy(DriverError):
    """Something else, such as a backup, holds the VM; nothing was changed."""

    retryable = True


class NotOwned(DriverError):
    """An object without pvebench's mark, or outside its pool: it is never touched."""

    usual_cause = "somebody else made it, or changed what pvebench made"
    usual_next_step = "look at it; if it is to go, remove it by hand"


class GuestImageError(PvebenchError):
    """The guest image is missing, half-built or damaged; it is never booted then."""

    exit_code = 7
    usual_cause = "an interrupted build, or a release of Debian that is not known here"
    usual_next_step = "build it again: `pvebench guest build`"


class WorkloadError(PvebenchError):
    """A benchmark tool failed or said something that cannot be understood."""

    exit_code = 8


class ToolFailed(WorkloadError):
    """The tool is missing in the guest or ended with an error."""

    usual_cause = "the storage gave an I/O error, or the tool does not know an option"
    usual_next_step = "read what the tool said, with the run; then the guest's kernel log"


class OutputUnreadable(WorkloadError):
    """The tool's output is truncated or not of the expected form."""

    usual_cause = "a version of the tool that writes another form, or output that was cut off"
    usual_next_step = (
        "the raw output is with the run; after an update `pvebench reparse` reads it again"
    )


class CycleIncomplete(PvebenchError):
    """The asked-for cycles have ended, but not every run of them is ok."""

    exit_code = 9


class NotificationError(PvebenchError):
    """A message to people did not arrive."""

    usual_next_step = "mend its address; what the service's own log says; see docs/notifications.md"


class Interrupted(PvebenchError):
    """The user asked to stop; everything is restored."""

    exit_code = 130
