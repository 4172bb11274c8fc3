"""qemu.qmp's asynchronous client behind plain method calls, for QMP and the guest agent.

One event loop in one daemon thread serves all connections of the process. A reply that does
not come is never asked for again: the caller gets OutcomeUnknown and must query.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from qemu.qmp import EventListener, ExecuteError, Message, QMPClient, QMPError

from pvebench.drivers.responses import Shape, anything, fields, text, whole
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    ToolFailed,
)
from pvebench.model.ports import Clock, Completed

T = TypeVar("T")
REPLY_SECONDS: Final = 30.0
"""Deadline of an ordinary answer: QEMU's and the agent's come in milliseconds, but on a host that
swaps or is overcommitted they took more than fifteen seconds."""
_SLICE_SECONDS: Final = 0.2

# The library logs what it also raises; the raised error is what we report.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)


class CommandRefused(DriverError):
    """QEMU or the agent understood the command and declined it. `kind` is its error class."""

    def __init__(self, command: str, kind: str, text: str) -> None:
        super().__init__(f"{command}: {text}")
        self.kind = kind
        self.text = text


class _LoopThread:
    """The event loop, started with the first connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "pvebench-qmp"
                threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


_LOOP = _LoopThread()


class Channel:
    """One connection: to QMP (`negotiate=True`) or to a guest agent.

    Args:
        name: for messages.
        path: of the UNIX socket.
        check: called between slices of every wait; raises to abort it (Interrupted).
    """

    def __init__(self, name: str, path: str, *, negotiate: bool, check: Callable[[], None]) -> None:
        self._name = name
        self._path = path
        self._check = check
        self._client = QMPClient(name)
        self._client.negotiate = negotiate
        self._client.await_greeting = negotiate
        # The library keeps every event for whoever may ask; a VM lives for weeks.
        self._client.events.event_filter = lambda _: False

    def connect(self, *, timeout: float) -> None:
        """Connect, trying again while the socket does not exist yet.

        Raises:
            HypervisorGone: no connection within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._wait(self._client.connect(self._path), timeout=timeout)
            except (QMPError, OSError, OutcomeUnknown) as error:
                if time.monotonic() > deadline:
                    raise HypervisorGone(f"no connection to {self._name}: {error}") from error
                self._check()
                time.sleep(0.02)
            else:
                return

    def execute(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float = REPLY_SECONDS,
    ) -> Any:
        """Return what `command` returns.

        Raises:
            CommandRefused: it was declined.
            OutcomeUnknown: no reply within `timeout` seconds.
            HypervisorGone: the connection is closed.
        """
        return self._translate(command, self._client.execute(command, arguments), timeout)

    def ask(
        self, command: str, arguments: dict[str, Any] | None = None, *, shape: Shape = anything
    ) -> Any:
        """Return what `command` returns ; raises as `execute`.

        Raises:
            HypervisorGone: it is not of the `shape`.
        """
        answer = self.execute(command, arguments)
        if wrong := shape(answer):
            raise HypervisorGone(
                f"what {self._name} answers to {command} is not understood: {wrong}",
                cause="a QEMU that this pvebench does not know, or something else at its socket",
                next_step="look at `qemu-system-x86_64 --version`, and report it",
            )
        return answer

    def execute_until(
        self, command: str, arguments: dict[str, Any], *, event: str, device: str, timeout: float
    ) -> None:
        """Run `command` and wait for `event` about `device`; raises as `execute`."""
        work = self._run_and_listen(command, arguments, event, device)
        self._translate(f"{command} {device}", work, timeout)

    async def _run_and_listen(
        self, command: str, arguments: dict[str, Any], event: str, device: str
    ) -> None:
        def wanted(message: Message) -> bool:
            data = message["data"]
            return isinstance(data, dict) and data.get("device") == device

        listener = EventListener(event, wanted)
        with self._client.listen(listener):
            await self._client.execute(command, arguments)
            await listener.get()

    def _translate(self, command: str, work: Coroutine[Any, Any, T], timeout: float) -> T:
        try:
            return self._wait(work, timeout=timeout)
        except ExecuteError as error:
            raise CommandRefused(command, error.error_class, str(error)) from error
        except (QMPError, OSError, EOFError) as error:
            raise HypervisorGone(
                f"the connection to {self._name} closed during {command}",
                cause="QEMU exited or was killed",
            ) from error

    def _wait(self, work: Coroutine[Any, Any, T], *, timeout: float) -> T:
        future = _LOOP.submit(work)
        deadline = time.monotonic() + timeout
        while True:
            try:
                return future.result(timeout=_SLICE_SECONDS)
            except TimeoutError:
                if future.done():  # a TimeoutError of the work itself
                    raise
            except CancelledError as error:
                raise HypervisorGone(f"the connection to {self._name} was closed") from error
            try:
                self._check()
            except BaseException:
                future.cancel()
                raise
            if time.monotonic() > deadline:
                future.cancel()
                raise OutcomeUnknown(f"{self._name} gave no reply within {timeout:.0f} s")

    def close(self) -> None:
        """Disconnect; a connection that is gone already is fine."""
        with contextlib.suppress(Exception):
            _LOOP.submit(self._client.disconnect()).result(timeout=2.0)


_SLICE_BYTES: Final = 1024 * 1024
_MOST_SLICES: Final = 128
"""Of a file that is read; results of the longest runs are a tenth of it."""
_ANSWERS: Final[Mapping[str, Shape]] = {
    "guest-exec": fields(pid=whole),
    "guest-exec-status": fields(
        exited=whole, exitcode_=whole, signal_=whole, out__data_=text, err__data_=text
    ),
    "guest-file-open": whole,
    "guest-file-read": fields(count=whole, buf__b64=text, eof=whole),
}
"""Of which shape the agent's answers are; the guest may say anything."""


class QemuGuest:
    """`model.ports.Guest` over a connected guest agent channel."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock

    def ping(self, *, timeout: float) -> None:
        """Wait for the agent's answer.

        Raises:
            GuestSilent: none within `timeout` seconds.
        """
        self._call("guest-ping", {}, timeout=timeout)

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        pid = self._exec(argv, stdin)
        deadline = self._clock.monotonic() + timeout
        pause = 0.01
        while True:
            done = self.poll(pid)
            if done is not None:
                return done
            if self._clock.monotonic() > deadline:
                raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s in the guest")
            self._clock.sleep(pause)
            pause = min(0.5, pause * 2)

    def start(self, argv: list[str]) -> int:
        return self._exec(argv, b"")

    def poll(self, pid: int) -> Completed | None:
        status = self._call("guest-exec-status", {"pid": pid})
        if not status["exited"]:
            return None
        code = status.get("exitcode")
        return Completed(
            exit_code=int(128 + int(status.get("signal") or 0) if code is None else code),
            stdout=_decoded(status.get("out-data") or ""),
            stderr=_decoded(status.get("err-data") or ""),
        )

    def read_file(self, path: str) -> bytes:
        try:
            handle = self._call("guest-file-open", {"path": path, "mode": "r"})
        except CommandRefused as error:
            raise OutputUnreadable(f"{path} cannot be read in the guest: {error.text}") from error
        try:
            return self._read_slices(path, handle)
        finally:
            self._call("guest-file-close", {"handle": handle})

    def _read_slices(self, path: str, handle: int) -> bytes:
        pieces: list[bytes] = []
        while len(pieces) < _MOST_SLICES:
            got = self._call("guest-file-read", {"handle": handle, "count": _SLICE_BYTES})
            pieces.append(_decoded(got["buf-b64"]))
            if got["eof"] or not got["count"]:
                return b"".join(pieces)
        raise OutputUnreadable(
            f"{path} in the guest is longer than {_MOST_SLICES} slices of a MiB",
            cause="it grows faster than it is read, or the guest is not ours any more",
        )

    def write_file(self, path: str, content: bytes) -> None:
        handle = self._call("guest-file-open", {"path": path, "mode": "w"})
        try:
            text = base64.b64encode(content).decode("ascii")
            self._call("guest-file-write", {"handle": handle, "buf-b64": text})
        finally:
            self._call("guest-file-close", {"handle": handle})

    def _exec(self, argv: list[str], stdin: bytes) -> int:
        arguments: dict[str, Any] = {"path": argv[0], "arg": argv[1:], "capture-output": True}
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin).decode("ascii")
        try:
            return int(self._call("guest-exec", arguments)["pid"])
        except CommandRefused as error:
            raise ToolFailed(
                f"{argv[0]} cannot be started in the guest: {error.text}",
                cause="the program is missing from the guest image",
                next_step="rebuild it: pvebench guest build --force",
            ) from error

    def _call(
        self, command: str, arguments: dict[str, Any], *, timeout: float = REPLY_SECONDS
    ) -> Any:
        try:
            answer = self._channel.execute(command, arguments or None, timeout=timeout)
        except OutcomeUnknown as error:
            raise GuestTimeout(
                f"the guest agent did not answer {command} within {timeout:.0f} s",
                cause="the guest hangs or is starved of CPU",
            ) from error
        if wrong := _ANSWERS.get(command, anything)(answer):
            raise _other(f"{command}: {wrong}")
        return answer


def _decoded(coded: str) -> bytes:
    try:
        return base64.b64decode(coded)
    except ValueError as error:
        raise _other(str(error)) from error


def _other(wrong: str) -> GuestTimeout:
    return GuestTimeout(
        f"what the guest agent says is not understood: {wrong}",
        cause="something else than QEMU's agent answers in the guest",
        next_step="boot it anew; if it stays so: pvebench guest build --force",
    )
