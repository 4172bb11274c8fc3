"""The benchmark guest through Proxmox's door to the QEMU guest agent.

That door is narrow: 5 seconds a command, some 512 KiB of output, each result handed out once,
bytes dressed up as Latin-1 characters. So long programs run detached, with their output and
their exit code in files of the guest, which can be read as often as need be.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import LostReply, Rejected
from pvebench.errors import (
    DriverError,
    GuestSilent,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    ServerGone,
    ToolFailed,
)
from pvebench.model.ports import Clock, Completed

T = TypeVar("T")

JOBS: Final = "/run/pvebench"
"""Directory in the guest; in RAM."""
_SLICE_BYTES: Final = 256 * 1024
"""Of a file, per call; half of what the agent's door passes within its 5 seconds."""
_WRITE_BYTES: Final = 45_000
"""Per file-write: 61440 characters of base64, with some room."""
_INPUT_CHARACTERS: Final = 65536
_POLL_SECONDS: Final = 1.0
"""Every agent call holds one of the node's three API workers, so a job is not asked more often."""

_DETACH: Final = """\
d=$1; shift
mkdir -p "$d" || exit 1
{
    sh -c 'echo $$ >"$0/pid.new"; mv "$0/pid.new" "$0/pid"
           exec "$@" >"$0/out" 2>"$0/err" </dev/null' "$d" "$@"
    echo $? >"$d/code.new"
    mv "$d/code.new" "$d/code"
} >/dev/null 2>&1 &
until [ -e "$d/pid" ]; do sleep 0.05; done
cat "$d/pid"
"""
"""Script for /bin/sh: run a program in the background, leave its pid and exit code in files."""


class AgentGuest:
    """`model.ports.Guest` over the API. Valid as long as the VM's number is."""

    def __init__(self, api: Api, path: str, clock: Clock, *, offsets: bool) -> None:
        """Make the guest of the VM at `path` (`/nodes/NODE/qemu/VMID`).

        Args:
            offsets: whether file-read can read slices (version 9.1 and later).
        """
        self._api = api
        self._path = f"{path}/agent"
        self._clock = clock
        self._offsets = offsets
        self._count = 0
        self._jobs: dict[int, str] = {}
        """pid -> directory of the job in the guest."""
        self._asked: dict[int, float] = {}

    def ping(self) -> None:
        """Return if the agent answers.

        Raises:
            GuestSilent, HypervisorGone.
        """
        self._call(lambda: self._api.post(f"{self._path}/ping"))

    def wait(self, *, seconds: float) -> None:
        """Wait for the agent's first answer.

        Raises:
            GuestSilent: none within `seconds`.
        """
        deadline = self._clock.monotonic() + seconds
        while True:
            try:
                self.ping()
            except (GuestSilent, OutcomeUnknown) as error:
                if self._clock.monotonic() > deadline:
                    raise GuestSilent(
                        f"the guest's agent did not answer within {seconds:.0f} s of power-on",
                        cause="the guest hangs while booting, or the node is overloaded",
                    ) from error
                self._clock.sleep(1.0)
            else:
                return

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
        """Run a short program with little output to its end. See the port."""
        pid = self._exec(*self._with_input(argv, stdin))
        deadline = self._clock.monotonic() + timeout
        pause = 0.05
        while True:
            done = self._status(pid, argv[0])
            if done is not None:
                return done
            if self._clock.monotonic() > deadline:
                raise GuestSilent(f"{argv[0]} did not end within {timeout:.0f} s in the guest")
            self._clock.sleep(pause)
            pause = min(1.0, pause * 2)

    def _with_input(self, argv: list[str], stdin: bytes) -> tuple[list[str], str]:
        # Proxmox passes on ASCII only; everything else goes through a file.
        if stdin.isascii() and len(stdin) <= _INPUT_CHARACTERS:
            return argv, stdin.decode("ascii")
        place = f"{JOBS}/stdin"
        self.write_file(place, stdin)
        return ["/bin/sh", "-c", f'exec "$0" "$@" <{place}', *argv], ""

    def _exec(self, argv: list[str], stdin: str) -> int:
        options: dict[str, Any] = {"input-data": stdin} if stdin else {}
        try:
            answer = self._call(
                lambda: self._api.post(f"{self._path}/exec", command=argv, **options)
            )
        except LostReply as error:
            if "Broken pipe" in error.text:  # how Proxmox says it, after five seconds
                raise _missing(argv[0]) from error
            raise
        except Rejected as error:
            raise _missing(argv[0], error.text) from error
        return int(answer["pid"])

    def _status(self, pid: int, name: str) -> Completed | None:
        try:
            status = self._call(lambda: self._api.once(f"{self._path}/exec-status", pid=pid))
        except (Rejected, ServerGone) as error:
            # A result is handed out once: an answer that was lost cannot be asked for again.
            raise GuestSilent(f"how {name} ended in the guest is lost: {error.reason}") from error
        if not status["exited"]:
            return None
        if status.get("out-truncated") or status.get("err-truncated"):
            raise OutputUnreadable(
                f"the output of {name} was cut off by the guest's agent",
                next_step="have it write into a file: those are read in slices",
            )
        return Completed(
            exit_code=int(status.get("exitcode", 128 + int(status.get("signal", 0)))),
            stdout=_bytes(status.get("out-data", "")),
            stderr=_bytes(status.get("err-data", "")),
        )

    def start(self, argv: list[str]) -> int:
        """Start a long program detached; return its pid. See the port."""
        self._count += 1
        place = f"{JOBS}/job-{self._count}"
        try:
            done = self.run(["/bin/sh", "-c", _DETACH, "sh", place, *argv])
        except (OutcomeUnknown, GuestSilent):
            # Never started twice: a started job has left its pid.
            try:
                said = self.read_file(f"{place}/pid")
            except OutputUnreadable:
                said = b""
            if not said:
                raise
        else:
            said = done.stdout
            if done.exit_code:
                raise ToolFailed(f"{argv[0]} cannot be started in the guest", evidence=repr(done))
        pid = int(said)
        self._jobs[pid] = place
        return pid

    def poll(self, pid: int) -> Completed | None:
        """Return how `pid` ended, or None while it runs. See the port."""
        now = self._clock.monotonic()
        if now - self._asked.get(pid, 0.0) < _POLL_SECONDS:
            return None
        self._asked[pid] = now
        place = self._jobs[pid]
        try:
            code = self.read_file(f"{place}/code")
        except OutputUnreadable:
            return None
        del self._asked[pid]
        return Completed(
            exit_code=int(code),
            stdout=self.read_file(f"{place}/out"),
            stderr=self.read_file(f"{place}/err"),
        )

    def read_file(self, path: str) -> bytes:
        """Return a whole file, read in slices. See the port."""
        pieces: list[bytes] = []
        while True:
            at = sum(map(len, pieces))
            piece, more = self._slice(path, at)
            pieces.append(piece)
            if not more or not piece:
                return b"".join(pieces)

    def _slice(self, path: str, at: int) -> tuple[bytes, bool]:
        if at and not self._offsets:
            return self._slice_by_dd(path, at)
        place = {"offset": at, "count": _SLICE_BYTES} if self._offsets else {}
        try:
            got = self._call(lambda: self._api.get(f"{self._path}/file-read", file=path, **place))
        except Rejected as error:
            raise OutputUnreadable(f"{path} cannot be read in the guest: {error.text}") from error
        piece = _bytes(got["content"])
        if self._offsets:
            return piece, len(piece) == _SLICE_BYTES
        return piece, bool(got.get("truncated"))

    def _slice_by_dd(self, path: str, at: int) -> tuple[bytes, bool]:
        """Read on where version 8 stops, after 16 MiB."""
        command = f'tail -c +{at + 1} "$0" | head -c {_SLICE_BYTES}'
        piece = self.run(["/bin/sh", "-c", command, path]).stdout
        return piece, len(piece) == _SLICE_BYTES

    def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file. See the port."""
        slices = [content[at : at + _WRITE_BYTES] for at in range(0, len(content), _WRITE_BYTES)]
        if len(slices) <= 1:
            self._write(path, content)
            return
        parts = [f"{path}.part{number}" for number in range(len(slices))]
        for part, piece in zip(parts, slices, strict=True):
            self._write(part, piece)
        done = self.run(["/bin/sh", "-c", 'cat "$@" >"$0" && rm "$@"', path, *parts])
        if done.exit_code:
            raise OutputUnreadable(f"{path} cannot be written in the guest: {done.stderr!r}")

    def _write(self, path: str, content: bytes) -> None:
        text = base64.b64encode(content).decode("ascii")
        write = lambda: self._api.post(  # noqa: E731 # named, because it is called at two places
            f"{self._path}/file-write", file=path, content=text, encode=0
        )
        try:
            self._call(write)
        except OutcomeUnknown:
            self._call(write)  # the same bytes at the same place: to repeat changes nothing
        except Rejected as error:
            raise OutputUnreadable(
                f"{path} cannot be written in the guest: {error.text}"
            ) from error

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Rejected as error:
            raise agent_fault(error) from error


def agent_fault(error: Rejected) -> DriverError:
    """Return what a refusal of an agent call means; itself if it is about the call."""
    text = error.text
    if "agent is not running" in text or "got timeout" in text or "has been disabled" in text:
        return GuestSilent(
            f"the guest agent does not answer: {text}",
            cause="the guest hangs, is frozen by a backup, or its storage is full",
        )
    if "is not running" in text or "No QEMU guest agent configured" in text:
        return HypervisorGone(f"the guest cannot be reached: {text}", cause="the VM was stopped")
    return error


def _bytes(text: str) -> bytes:
    """Return the bytes that Proxmox has dressed up as characters, one each."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")  # a server that decodes: nothing to repair


def _missing(name: str, text: str = "there is no such program") -> ToolFailed:
    return ToolFailed(
        f"{name} cannot be started in the guest: {text}",
        cause="the program is missing from the guest image",
        next_step="rebuild it: pvebench guest build --force",
    )
