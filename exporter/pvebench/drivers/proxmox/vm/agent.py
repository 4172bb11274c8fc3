"""The benchmark guest through Proxmox's door to the QEMU guest agent.

That door is narrow: 5 seconds a command, some 512 KiB of output, each result handed out once,
bytes dressed up as Latin-1 characters. So long programs run detached, with their output and
their exit code in files of the guest, which can be read as often as need be.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import LostReply, Rejected
from pvebench.errors import (
    DriverError,
    GuestTimeout,
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
_LONGEST_FILE: Final = 128 << 20
"""Bytes of a file that are read; results of the longest runs are a tenth of it."""
_WRITE_BYTES: Final = 45_000
"""Per file-write: 61440 characters of base64, with some room."""
_INPUT_CHARACTERS: Final = 65536
_STARTED_SECONDS: Final = 10.0
"""How long a job whose start was not answered may take to show that it runs."""
_FIRST_POLL, _LONGEST_POLL = 0.3, 3.0
"""Every agent call holds one of the node's three API workers: the longer a job takes, the rarer."""

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
"""Script for /bin/sh: write files, run a program, put all that came of it into one file.

Words: directory of the job, work directory to be emptied (or `-`), path and content of each
file, `--`, paths of results (without blanks), `--`, the program. A TERM is passed on to it, also
one that comes before it has started, and again: what was just forked has the shell's trap as yet.
"""


class AgentGuest:
    """`model.ports.Guest` over the API. Valid as long as the VM's number is."""

    def __init__(
        self,
        api: Api,
        path: str,
        clock: Clock,
        *,
        offsets: bool,
        why_silent: Callable[[], DriverError | None] = lambda: None,
    ) -> None:
        """Make the guest of the VM at `path` (`/nodes/NODE/qemu/VMID`).

        Args:
            offsets: whether file-read can read slices (version 9.1 and later).
            why_silent: asked before the agent is blamed; returns another cause, if there is one.
        """
        self._why_silent = why_silent
        self._api = api
        self._path = f"{path}/agent"
        self._clock = clock
        self._offsets = offsets
        self._count = 0
        self._jobs: dict[int, str] = {}
        """pid -> directory of the job in the guest."""
        self._asked: dict[int, tuple[float, float]] = {}
        """pid -> when it was first asked for, and when it is to be asked for again."""
        self._found: dict[str, bytes | None] = {}
        """Path -> content of the results of the last job; None: it has not written that."""

    def ping(self) -> None:
        """Return if the agent answers.

        Raises:
            GuestSilent, HypervisorGone.
        """
        self._call(lambda: self._api.post(f"{self._path}/ping"))

    def _is_up(self) -> bool:
        """Whether the agent answers; one that does not is no news while the guest boots."""
        try:
            self._api.post(f"{self._path}/ping")
        except Rejected as error:
            fault = agent_fault(error)
            if not isinstance(fault, GuestTimeout):
                raise fault from error
            return False
        except OutcomeUnknown:
            return False
        return True

    def wait(self, *, seconds: float) -> None:
        """Wait for the agent's first answer.

        Raises:
            GuestSilent: none within `seconds`.
        """
        deadline = self._clock.monotonic() + seconds
        while not self._is_up():
            if self._clock.monotonic() > deadline:
                raise GuestTimeout(
                    f"{self._path} did not answer within {seconds:.0f} s of power-on",
                    cause="the guest hangs while booting, or the node is overloaded",
                )
            self._clock.sleep(1.0)

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
        """Run a short program with little output to its end."""
        pid = self._exec(*self._with_input(argv, stdin))
        deadline = self._clock.monotonic() + timeout
        pause = 0.1
        while True:
            done = self._status(pid, argv[0])
            if done is not None:
                return done
            if self._clock.monotonic() > deadline:
                raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s in the guest")
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
            raise GuestTimeout(f"how {name} ended in the guest is lost: {error.reason}") from error
        if not status["exited"]:
            return None
        if status.get("out-truncated") or status.get("err-truncated"):
            raise OutputUnreadable(
                f"the output of {name} was cut off by the guest's agent",
                next_step="have it write into a file: those are read in slices",
            )
        code = status.get("exitcode")
        return Completed(
            exit_code=int(128 + int(status.get("signal") or 0) if code is None else code),
            stdout=_bytes(status.get("out-data") or ""),
            stderr=_bytes(status.get("err-data") or ""),
        )

    def start(self, argv: list[str]) -> int:
        return self.launch(argv)

    def launch(
        self,
        argv: list[str],
        *,
        work: str = "",
        files: Mapping[str, bytes] | None = None,
        results: Sequence[str] = (),
    ) -> int:
        """Start as `start` does, in one call. See `model.ports.TakesJobs`."""
        self._count += 1
        place = f"{JOBS}/job-{self._count}"
        words = [*_words(files or {}), "--", *results, "--", *argv]
        command = ["/bin/sh", "-c", LAUNCH, "sh", place, work or "-", *words]
        try:
            pid = self._exec(command, "")
        except OutcomeUnknown:
            pid = self._started(place)
            if not pid:
                raise
        self._jobs[pid] = place
        self._found = dict.fromkeys(results)
        return pid

    def _started(self, place: str) -> int:
        """Return the pid that a job has left, 0 if there is none: it is never started twice."""
        deadline = self._clock.monotonic() + _STARTED_SECONDS
        while self._clock.monotonic() < deadline:
            try:
                return int(self._read(f"{place}/pid"))
            except (OutputUnreadable, ValueError):  # not there, or not written to its end
                self._clock.sleep(1.0)
        return 0

    def poll(self, pid: int) -> Completed | None:
        now = self._clock.monotonic()
        begun, ask_at = self._asked.get(pid, (now, now))
        if now < ask_at:
            return None
        pause = min(_LONGEST_POLL, _FIRST_POLL + 0.1 * (now - begun))
        self._asked[pid] = begun, now + pause
        place = self._jobs[pid]
        try:
            whole = self._read(f"{place}/all")
        except OutputUnreadable:
            return None
        del self._asked[pid]
        parts = _parts(whole)
        if not re.fullmatch(rb"[0-9]{1,9}\s*", parts.get(0, b"")):
            raise OutputUnreadable(
                f"how a job in the guest ended is not told: {parts.get(0)!r:.80}"
            )
        for number, path in enumerate(self._found, 3):
            self._found[path] = parts.get(number)
        return Completed(
            exit_code=int(parts[0]), stdout=parts.get(1, b""), stderr=parts.get(2, b"")
        )

    def read_file(self, path: str) -> bytes:
        if path not in self._found:
            return self._read(path)
        content = self._found[path]
        if content is None:
            raise OutputUnreadable(f"{path} is not in the guest: the tool did not write it")
        return content

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
                    f"{path} in the guest is longer than {_LONGEST_FILE >> 20} MiB",
                    cause="it grows faster than it is read, or the guest is not ours any more",
                )

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
        piece = self.run(["/bin/sh", "-c", command, path], timeout=120.0).stdout
        return piece, len(piece) == _SLICE_BYTES

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
            fault = agent_fault(error)
            other = self._why_silent() if isinstance(fault, GuestTimeout) else None
            raise other or fault from error


def _words(files: Mapping[str, bytes]) -> list[str]:
    return [word for path, content in files.items() for word in (path, content.decode("ascii"))]


def _parts(text: bytes) -> dict[int, bytes]:
    """Return the files, by their numbers, that `LAUNCH` puts into one.

    Raises:
        OutputUnreadable: it is not that.
    """
    parts, at = {}, 0
    while at < len(text):
        head, newline, _ = text[at:].partition(b"\n")
        number, _, size = head.decode("ascii", "replace").partition(" ")
        start = at + len(head) + 1
        whole = newline and re.fullmatch("[0-9]{1,9} [0-9]{1,12}", f"{number} {size}")
        at = start + int(size) if whole else len(text) + 1
        if at > len(text):
            raise OutputUnreadable("what came of a job in the guest is cut off or damaged")
        parts[int(number)] = text[start:at]
    return parts


def agent_fault(error: Rejected) -> DriverError:
    """Return what a refusal of an agent call means; itself if it is about the call."""
    text = error.text
    if "agent is not running" in text or "got timeout" in text or "has been disabled" in text:
        return GuestTimeout(
            f"the guest agent does not answer: {error.reason}",
            cause="the guest hangs, is frozen by a backup, or its storage is full",
        )
    if "is not running" in text or "No QEMU guest agent configured" in text:
        return HypervisorGone(
            f"the guest cannot be reached: {error.reason}", cause="the VM was stopped"
        )
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
