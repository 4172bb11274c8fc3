"""Errors that a user can see; every package may import them.

A message has three parts: fact, likely cause, next step. `exit_code` is the exit code of the
command line. `retryable`: the same attempt may succeed later without any change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pvebench.sanitize import printable

_SERVICE: Final = r"no action needed(; pvebench \w+s\b[^;.\n]*)?|pvebench re\w+s\b[^;.\n]*"
"""What only a service does after an error."""
_LONGEST: Final = 1000
"""Maximum characters of a problem's message."""


class PvebenchError(Exception):
    """Root of every error that a user can see.

    Without `cause` and `next_step`, the class's usual ones are used. The texts may quote other
    programs: they are sanitized here, for terminals.

    Args:
        happened: the fact, with names and numbers.
        cause: the likely cause, if known.
        next_step: the action for the user.
        evidence: raw output for the log and the run's record (never secrets).
    """

    exit_code = 1
    retryable = False
    default_cause = ""
    default_next_step = ""

    def __init__(
        self, happened: str, *, cause: str = "", next_step: str = "", evidence: str = ""
    ) -> None:
        self.happened = printable(happened)
        super().__init__(self.happened)
        explained = cause or next_step
        self.cause = printable(cause if explained else self.default_cause)
        self.next_step = printable(next_step if explained else self.default_next_step)
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
        """The fact in one line, for a run's record."""
        return " ".join(self.happened.split())


def command_text(error: str, command: str) -> str:
    """Return an error's text for a command that ends: it retries nothing and advises another."""
    text = re.sub(f"(?<=next step: )({_SERVICE})", "run the command again", error)
    return text.replace(f"run `pvebench {command}`, then ", "")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file. `line` and `column` count from 1; 0 means unknown."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ""
        # A message may quote the file, whose lines can be very long.
        text = self.message if len(self.message) <= _LONGEST else f"{self.message[:_LONGEST]}…"
        return f"{self.file}{place}: {text}"


class ConfigError(PvebenchError):
    """Invalid settings file or pack, with all of its problems."""

    exit_code = 2

    def __init__(self, problems: list[Problem], *, next_step: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), next_step=next_step)
        self.problems = problems

    @classmethod
    def of_options(cls, *messages: str) -> ConfigError:
        """Return the error for options of the command line."""
        return cls([Problem("command line", 0, 0, message) for message in messages])


class MachineError(PvebenchError):
    """A requirement that this machine does not meet."""

    exit_code = 3


class ToolsMissing(MachineError):
    """Programs that are not installed; the message names all of them."""


class NoSpace(MachineError):
    """A file system with less free space than needed."""


class NotWritable(MachineError):
    """A directory that is not writable."""

    default_cause = "missing permission or read-only file system"
    default_next_step = "make the directory writable, or use another one"


class PortInUse(MachineError):
    """A listen address that is in use."""


class PipelineError(MachineError):
    """A result that does not reach Prometheus or Grafana."""


class AlreadyRunning(PvebenchError):
    """A state directory whose lock another pvebench holds."""

    exit_code = 4


class StoreError(PvebenchError):
    """A results database that cannot be used."""

    exit_code = 5
    default_next_step = (
        "check the state directory and its file system; list backups with `pvebench restore`"
    )


class StoreLost(StoreError):
    """A damaged or removed database; a retry cannot succeed."""


class StoreTooNew(StoreError):
    """A database written by a newer pvebench; it is not changed."""


class StoreMixed(StoreError):
    """Simulated and measured results for one database."""


class StoreUnavailable(StoreError):
    """An intact database that cannot be read or written now.

    The exit code is that of MachineError, because restarting the service can help.
    """

    exit_code = MachineError.exit_code


class DriverError(PvebenchError):
    """A failure of the hypervisor or the guest."""

    exit_code = 6
    default_next_step = "run `pvebench check`, then check the host log"


class HypervisorGone(DriverError):
    """An exit of QEMU, or a closed control socket."""

    retryable = True
    default_cause = "QEMU crashed or was killed, possibly out of memory"
    default_next_step = (
        "check QEMU's log in the run's evidence and the kernel log; pvebench retries the case"
    )


class OutcomeUnknown(DriverError):
    """A command whose reply was lost.

    The command may have taken effect: query the state, never repeat the command.
    """

    default_cause = "the host is overloaded or QEMU hangs"
    default_next_step = "no action needed; pvebench checks the state before it changes anything"


class SwitchFailed(DriverError):
    """A failed attach or detach of a disk; the VM must be restarted before reuse."""

    retryable = True
    default_cause = "the node or guest is overloaded, or the VM was changed outside pvebench"
    default_next_step = "no action needed; if this recurs, check the node's task log"


class GuestTimeout(DriverError):
    """A guest agent that does not answer within its deadline."""

    retryable = True
    default_cause = "the host is overloaded or the guest is blocked on I/O"
    default_next_step = "check the host's load and the storage; pvebench retries the case"


class NeverBooted(GuestTimeout):
    """A guest of a user's image that never answers; a cycle skips its further cases."""

    retryable = False


class ToolStuck(GuestTimeout):
    """A tool that moves no data or does not end; `evidence` holds the guest's and QEMU's state."""


class VolumeError(DriverError):
    """A volume that could not be created, inspected or removed."""

    default_next_step = "run `pvebench check`, then check the storage"


class PathUnusable(VolumeError):
    """A storage's path that is missing or in memory.

    The exit code is that of MachineError, as of `pvebench check`.
    """

    exit_code = MachineError.exit_code


class StorageHangs(VolumeError):
    """A disk or server that does not complete I/O. To close an opened device may hang as well."""

    default_cause = "its I/O hangs: the disk or server does not respond"
    default_next_step = "check the storage, and the kernel log with `dmesg`"


class FaultFailed(DriverError):
    """A failed command of the storage setting `faults`."""

    default_next_step = (
        "run the command of `faults` by hand: it must begin the fault, end it, and exit with 0"
    )


class OperationFailed(DriverError):
    """A backup, move or snapshot of the test disk that failed during a run."""

    default_next_step = "free space on the storage; with a slow target, use a longer runtime"


class OperationUnfinished(DriverError):
    """An operation that still runs after its run; the next case tries to end it again."""

    default_next_step = "check its task or job; pvebench removes what is left later"


class ServerGone(DriverError):
    """An unreachable Proxmox API or host, or a failing node or cluster."""

    retryable = True


class ServerUntrusted(DriverError):
    """A certificate or host key mismatch; nothing was sent."""


class AccessDenied(DriverError):
    """Rejected credentials or a missing permission."""


class Busy(DriverError):
    """A VM locked by something else, such as a backup; nothing was changed."""

    retryable = True


class NotOwned(DriverError):
    """An object without pvebench's ownership marker, or outside its pool; it is never changed."""

    default_cause = "created or changed outside pvebench"
    default_next_step = "inspect it; remove it if you don't need it"


class GuestImageError(PvebenchError):
    """A missing, incomplete or damaged guest image; it is never booted."""

    exit_code = 7
    default_cause = "interrupted build, or a Debian release that this pvebench does not know"
    default_next_step = "run `pvebench guest build`"


class WorkloadError(PvebenchError):
    """A failure or unexpected output of a benchmark tool."""

    exit_code = 8


class ToolFailed(WorkloadError):
    """A tool that is missing in the guest or ended with an error."""

    default_cause = "I/O error of the storage, or unsupported tool option"
    default_next_step = "read the tool's output in the run's evidence, then the guest's kernel log"


class OutputUnreadable(WorkloadError):
    """Tool output that is truncated or not of the expected form."""

    default_cause = "unsupported tool version or truncated output"
    default_next_step = (
        "read the raw output in the run's evidence; after an update, run `pvebench reparse`"
    )


class CycleIncomplete(PvebenchError):
    """Requested cycles that have ended; a case has no publishable result."""

    exit_code = 9


class NotificationError(PvebenchError):
    """A notification that was not delivered."""

    default_next_step = (
        "check the receiver's address and the receiver's log; see docs/notifications.md"
    )


class Interrupted(PvebenchError):
    """A stop requested by the user; everything is restored."""

    exit_code = 130
