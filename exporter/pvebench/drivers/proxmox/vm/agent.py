"""Benchmark guest over Proxmox's API to the QEMU guest agent.

That API is limited: 5 seconds per command, about 512 KiB of output, each result returned once,
bytes encoded as Latin-1 characters. So long programs run detached and leave their output and
exit code in files of the guest, which can be read repeatedly.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import LostReply, Rejected
from pvebench.drivers.responses import completed, enabled_commands
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    ServerGone,
    ToolFailed,
)
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Clock

T = TypeVar("T")

JOBS: Final = "/run/pvebench"
"""Job directory in the guest, in RAM."""
_SLICE_BYTES: Final = 256 * 1024
"""Bytes of a file per call; half of what the agent API transfers within its 5 seconds."""
_LONGEST_FILE: Final = 128 << 20
"""Maximum bytes of a file; results of the longest runs need a tenth."""
_WRITE_BYTES: Final = 45_000
"""Bytes per file-write; the limit is 61440 base64 characters."""
_INPUT_CHARACTERS: Final = 65536
_STARTED_SECONDS: Final = 10.0
"""Time within which a job must write its pid after an unanswered start, seconds."""
_FIRST_POLL, _LONGEST_POLL = 0.3, 3.0
"""Poll intervals, seconds. Each agent call occupies one of the node's three API workers, so long
jobs are polled less often."""

LAUNCH: Final = """\
d=$1 work=$2 tool= ended=; shift 2
trap 'ended=yes; [ -z "$tool" ] || kill "$tool"' TERM
[ "$work" = - ] && work=$d || rm -rf "$work"
mkdir -p "$d" "$work" || exit 1
echo $$ >"$d/pid.new"; mv "$d/pid.new" "$d/pid"
while [ "$1" != -- ]; do printf %s "$2" >"$1"; shift 2; done; shift
results=
while [ "$1" != -- ]; do results="$results $1"; shift; done; shift
exec >/dev/null 2>&1
"$@" >"$d/out" 2>"$d/err" </dev/null & tool=$!
[ -n "$ended" ] || wait "$tool"
while [ -n "$ended" ] && kill "$tool"; do sleep 0.2; done
wait "$tool"; code=$?
echo "$code" >"$d/code"
number=0
for file in "$d/code" "$d/out" "$d/err" $results; do
    [ -f "$file" ] && echo "$number $(($(wc -c <"$file")))" && cat "$file"
    number=$((number + 1))
done >"$d/all.new"
mv "$d/all.new" "$d/all"
"""
"""Script for /bin/sh: write files, run a program, collect its results in one file.

Arguments: job directory, work directory to empty (or `-`), path and content of each file, `--`,
result paths (without blanks), `--`, the program. TERM is forwarded to the program, even before it
starts, and repeatedly: a process that was just forked still has the shell's trap.
"""


class AgentClient(Guest):
    """`model.ports.Guest` of any system, over the API. Valid as long as the VM ID is."""

    def __init__(
        self,
        api: Api,
        path: str,
        clock: Clock,
        *,
        offsets: bool,
        why_silent: Callable[[], DriverError | None] = lambda: None,
    ) -> None:
        """Create the guest of the VM at `path` (`/nodes/NODE/qemu/VMID`).

        Args:
            offsets: whether file-read supports offsets (version 9.1 and later).
            why_silent: called before a silent agent is reported; returns another cause, if any.
        """
        self._why_silent = why_silent
        self._api = api
        self._path = f"{path}/agent"
        self._clock = clock
        self._offsets = offsets
        self._answered = float("-inf")
        """Time of the agent's last response, monotonic seconds."""
        self._polls: dict[int, tuple[float, float]] = {}
        """pid -> times of the first and the next poll, monotonic seconds."""

    def ping(self) -> None:
        """Check that the agent responds. Raises GuestTimeout, HypervisorGone."""
        self._call(lambda: self._api.post(f"{self._path}/ping"))

    def commands(self) -> Mapping[str, bool]:
        try:
            info = self._call(lambda: self._api.get(f"{self._path}/info"))
        except GuestTimeout as error:
            if "guest-info has been disabled" not in error.happened:
                raise
            return {}  # blocked: a frozen guest allows it
        return enabled_commands(info["result"])

    def answered_within(self, seconds: float) -> bool:
        """Return whether the agent responded in the last `seconds`."""
        return self._clock.monotonic() - self._answered < seconds

    def wait(self, *, seconds: float) -> None:
        """Wait for the agent's first response; while the guest boots, a timeout is expected.

        Raises GuestTimeout: no response within `seconds`.
        """
        for _ in attempts(self._clock, seconds=seconds, pause=1.0):
            try:
                self._api.post(f"{self._path}/ping")
            except Rejected as error:
                fault = agent_fault(error)
                if not isinstance(fault, GuestTimeout):
                    raise fault from error
            except OutcomeUnknown:
                pass
            else:
                return
        raise self._why_silent() or GuestTimeout(
            f"{self._path} did not respond within {seconds:.0f} s of power-on",
            cause="the guest hangs during boot, or the node is overloaded",
        )

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
        """Run a short program with little output and wait for it."""
        pid = self._exec(*self._with_input(argv, stdin))
        self._clock.sleep(0.1)  # no program ends before the first question
        for _ in attempts(self._clock, seconds=timeout, pause=0.2, longest=1.0):
            if (done := self._status(pid, argv[0])) is not None:
                return done
        raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s in the guest")

    def _with_input(self, argv: list[str], stdin: bytes) -> tuple[list[str], str]:
        if not _is_transferable(stdin):
            raise OutputUnreadable("Proxmox transfers ASCII as input, of at most 64 KiB")
        return argv, stdin.decode("ascii")

    def start(self, argv: list[str]) -> int:
        return self._exec(argv, "")

    def poll(self, pid: int) -> Completed | None:
        if not self._is_due(pid):
            return None
        if (done := self._status(pid, f"program {pid}")) is not None:
            del self._polls[pid]
        return done

    def _is_due(self, pid: int) -> bool:
        """Return whether to poll now; even after its window, a tool has to write its results."""
        now = self._clock.monotonic()
        begun, next_poll = self._polls.setdefault(pid, (now, now + _FIRST_POLL))
        if now < next_poll:
            return False
        self._polls[pid] = begun, now + min(_LONGEST_POLL, _FIRST_POLL + 0.1 * (now - begun))
        return True

    def read_file(self, path: str) -> bytes:
        return self._read(path)

    def write_file(self, path: str, content: bytes) -> None:
        if len(content) > _WRITE_BYTES:
            raise OutputUnreadable(f"{path}: Proxmox writes at most {_WRITE_BYTES} bytes")
        self._write(path, content)

    def _exec(self, argv: list[str], stdin: str) -> int:
        options: dict[str, Any] = {"input-data": stdin} if stdin else {}
        try:
            answer = self._call(
                lambda: self._api.post(f"{self._path}/exec", command=argv, **options)
            )
        except LostReply as error:
            if "Broken pipe" in error.text:  # Proxmox's message after five seconds
                raise _missing(argv[0]) from error
            raise
        except Rejected as error:
            raise _missing(argv[0], error.text) from error
        return int(answer["pid"])

    def _status(self, pid: int, name: str) -> Completed | None:
        try:
            status = self._call(lambda: self._api.once(f"{self._path}/exec-status", pid=pid))
        except (Rejected, ServerGone) as error:
            # The agent returns a result once: a lost response cannot be requested again.
            raise GuestTimeout(f"result of {name} in the guest lost: {error.reason}") from error
        if not status["exited"]:
            return None
        return completed(status, name, _bytes)

    def _read(self, path: str) -> bytes:
        pieces: list[bytes] = []
        while True:
            at = sum(map(len, pieces))
            piece, more = self._slice(path, at)
            pieces.append(piece)
            if not more or not piece:
                return b"".join(pieces)
            if at > _LONGEST_FILE:
                raise OutputUnreadable(
                    f"{path} in the guest exceeds {_LONGEST_FILE >> 20} MiB",
                    cause="it grows faster than it is read, or the VM was replaced",
                )

    def _slice(self, path: str, at: int) -> tuple[bytes, bool]:
        if at and not self._offsets:
            return self._slice_beyond(path, at)
        place = {"offset": at, "count": _SLICE_BYTES} if self._offsets else {}
        try:
            answer = self._call(
                lambda: self._api.get(f"{self._path}/file-read", file=path, **place)
            )
        except Rejected as error:
            raise OutputUnreadable(f"reading {path} in the guest failed: {error.text}") from error
        piece = _bytes(answer["content"])
        if self._offsets:
            return piece, len(piece) == _SLICE_BYTES
        return piece, bool(answer.get("truncated"))

    def _slice_beyond(self, path: str, at: int) -> tuple[bytes, bool]:
        """Read beyond 16 MiB, where version 8's file-read stops."""
        raise OutputUnreadable(
            f"{path} in the guest is longer than {at} bytes, Proxmox VE 8's limit"
        )

    def _write(self, path: str, content: bytes) -> None:
        text = base64.b64encode(content).decode("ascii")
        write = lambda: self._api.post(  # noqa: E731 # named, because it is called at two places
            f"{self._path}/file-write", file=path, content=text, encode=0
        )
        try:
            self._call(write)
        except OutcomeUnknown:
            self._call(write)  # repeating writes the same bytes to the same file
        except Rejected as error:
            raise OutputUnreadable(f"writing {path} in the guest failed: {error.text}") from error

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            answer = call()
        except Rejected as error:
            self._answered = float("-inf")
            fault = agent_fault(error)
            silent = isinstance(fault, (GuestTimeout, HypervisorGone))
            raise (self._why_silent() if silent else None) or fault from error
        self._answered = self._clock.monotonic()
        return answer


class AgentGuest(AgentClient):
    """Guest image over the API: jobs leave their results in files."""

    def __init__(self, api: Api, path: str, clock: Clock, **options: Any) -> None:
        """Create the guest; arguments as `AgentClient`."""
        super().__init__(api, path, clock, **options)
        self._count = 0
        self._work = ""
        self._files: Mapping[str, bytes] = {}
        """Directory to empty and files to write with the next start."""
        self._expected: Sequence[str] = ()
        """Paths of results to return with the end of each program."""
        self._jobs: dict[int, str] = {}
        """pid -> job directory in the guest."""
        self._results: dict[str, bytes | None] = {}
        """Path -> content of each result of the last job; None: not written."""

    def _with_input(self, argv: list[str], stdin: bytes) -> tuple[list[str], str]:
        # Proxmox transfers ASCII only; other input goes through a file.
        if _is_transferable(stdin):
            return argv, stdin.decode("ascii")
        place = f"{JOBS}/stdin"
        self.write_file(place, stdin)
        return ["/bin/sh", "-c", f'exec "$0" "$@" <{place}', *argv], ""

    def prepare_job(self, work: str, files: Mapping[str, bytes], results: Sequence[str]) -> None:
        self._work, self._files, self._expected = work, files, results

    def start(self, argv: list[str]) -> int:
        """Write the files of the prepared job and start a program, in one call."""
        self._count += 1
        place = f"{JOBS}/job-{self._count}"
        words = [*_words(self._files), "--", *self._expected, "--", *argv]
        command = ["/bin/sh", "-c", LAUNCH, "sh", place, self._work or "-", *words]
        self._work, self._files = "", {}
        try:
            pid = self._exec(command, "")
        except OutcomeUnknown:
            pid = self._started(place)
            if not pid:
                raise
        self._jobs[pid] = place
        self._results = dict.fromkeys(self._expected)
        return pid

    def _started(self, place: str) -> int:
        """Return the pid that a job wrote, 0 if none; the job is never started twice."""
        for _ in attempts(self._clock, seconds=_STARTED_SECONDS, pause=1.0):
            with suppress(OutputUnreadable, ValueError):  # missing or incomplete
                return int(self._read(f"{place}/pid"))
        return 0

    def poll(self, pid: int) -> Completed | None:
        if not self._is_due(pid):
            return None
        place = self._jobs[pid]
        try:
            whole = self._read(f"{place}/all")
        except OutputUnreadable:
            return None
        del self._polls[pid]
        parts = _parts(whole)
        if not re.fullmatch(rb"[0-9]{1,9}\s*", parts.get(0, b"")):
            raise OutputUnreadable(f"guest job returned no exit status: {parts.get(0)!r:.80}")
        for number, path in enumerate(self._results, 3):
            self._results[path] = parts.get(number)
        return Completed(
            exit_code=int(parts[0]), stdout=parts.get(1, b""), stderr=parts.get(2, b"")
        )

    def read_file(self, path: str) -> bytes:
        if path not in self._results:
            return self._read(path)
        content = self._results[path]
        if content is None:
            raise OutputUnreadable(f"{path} missing in the guest: the tool did not write it")
        return content

    def _slice_beyond(self, path: str, at: int) -> tuple[bytes, bool]:
        """Read beyond 16 MiB, where version 8's file-read stops."""
        command = f'tail -c +{at + 1} "$0" | head -c {_SLICE_BYTES}'
        piece = self.run(["/bin/sh", "-c", command, path], timeout=120.0).stdout
        return piece, len(piece) == _SLICE_BYTES

    def has_file(self, path: str) -> bool:
        try:
            self.read_file(path)  # a result is here already
        except OutputUnreadable:
            return False
        return True

    def write_file(self, path: str, content: bytes) -> None:
        slices = [content[at : at + _WRITE_BYTES] for at in range(0, len(content), _WRITE_BYTES)]
        if len(slices) <= 1:
            self._write(path, content)
            return
        parts = [f"{path}.part{number}" for number in range(len(slices))]
        for part, piece in zip(parts, slices, strict=True):
            self._write(part, piece)
        done = self.run(["/bin/sh", "-c", 'cat "$@" >"$0" && rm "$@"', path, *parts])
        if done.exit_code:
            raise OutputUnreadable(f"writing {path} in the guest failed: {done.stderr!r}")


def _is_transferable(stdin: bytes) -> bool:
    return stdin.isascii() and len(stdin) <= _INPUT_CHARACTERS


def _words(files: Mapping[str, bytes]) -> list[str]:
    return [word for path, content in files.items() for word in (path, content.decode("ascii"))]


def _parts(text: bytes) -> dict[int, bytes]:
    """Split the output of `LAUNCH` into files by number.

    Raises OutputUnreadable: the format is different.
    """
    parts, at = {}, 0
    while at < len(text):
        head, newline, _ = text[at:].partition(b"\n")
        number, _, size = head.decode("ascii", "replace").partition(" ")
        start = at + len(head) + 1
        whole = newline and re.fullmatch("[0-9]{1,9} [0-9]{1,12}", f"{number} {size}")
        at = start + int(size) if whole else len(text) + 1
        if at > len(text):
            raise OutputUnreadable("guest job output truncated or damaged")
        parts[int(number)] = text[start:at]
    return parts


def agent_fault(error: Rejected) -> DriverError:
    """Return the error for a rejected agent call; the rejection itself if it concerns the call."""
    text = error.text
    if "agent is not running" in text or "got timeout" in text or "has been disabled" in text:
        return GuestTimeout(
            f"guest agent does not respond: {error.reason}",
            cause="the guest hangs or is frozen by a backup, or its storage is full",
        )
    if "is not running" in text or "No QEMU guest agent configured" in text:
        return HypervisorGone(f"guest not reachable: {error.reason}", cause="the VM was stopped")
    return error


def _bytes(text: str) -> bytes:
    """Return the bytes that Proxmox encoded as one character each."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")  # the server decoded the text already


def _missing(name: str, text: str = "program not found") -> ToolFailed:
    return ToolFailed(
        f"starting {name} in the guest failed: {text}",
        cause="the program is missing from the guest image",
        next_step="rebuild the image with `pvebench guest build --force`",
    )
