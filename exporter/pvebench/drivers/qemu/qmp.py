"""Synchronous calls of qemu.qmp's asynchronous client, for QMP and the guest agent.

One event loop in one daemon thread serves all connections of the process. A command without a
reply is never repeated: the caller gets OutcomeUnknown and must query the state.
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

from pvebench.drivers.clocks import attempts
from pvebench.drivers.responses import (
    AGENT_INFO,
    Shape,
    anything,
    completed,
    enabled_commands,
    fields,
    text,
    whole,
)
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    ToolFailed,
)
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Clock

T = TypeVar("T")
REPLY_SECONDS: Final = 30.0
"""Deadline of a reply: QEMU and the agent usually reply in milliseconds, but can take more than
15 s on a host that swaps or is overcommitted."""
_SLICE_SECONDS: Final = 0.2

# The library logs the errors that it raises; pvebench reports the raised ones.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)


class CommandRefused(DriverError):
    """A command that QEMU or the agent rejected. `kind` is its error class."""

    def __init__(self, command: str, kind: str, text: str) -> None:
        super().__init__(f"{command}: {text}")
        self.kind = kind
        self.text = text


class _LoopThread:
    """Event loop in a thread, started with the first connection."""

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
    """Connection to QMP (`negotiate=True`) or to a guest agent.

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
        # By default the library stores every event; a VM runs for weeks.
        self._client.events.event_filter = lambda _: False

    def connect(self, *, timeout: float) -> None:
        """Connect; retry while the socket does not exist yet.

        Raises HypervisorGone: no connection within `timeout` seconds, or closed at once.
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
            except AssertionError as error:  # the library's: it does not expect that
                raise HypervisorGone(f"connection to {self._name} closed") from error
            else:
                return

    def execute(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float = REPLY_SECONDS,
    ) -> Any:
        """Return the result of `command`.

        Raises:
            CommandRefused: it was rejected.
            OutcomeUnknown: no reply within `timeout` seconds.
            HypervisorGone: the connection is closed.
        """
        return self._translate(command, self._client.execute(command, arguments), timeout)

    def ask(
        self, command: str, arguments: dict[str, Any] | None = None, *, shape: Shape = anything
    ) -> Any:
        """Return the result of `command`. Raises as `execute`.

        Raises HypervisorGone: it is not of the `shape`.
        """
        answer = self.execute(command, arguments)
        if problem := shape(answer):
            raise HypervisorGone(
                f"unexpected response of {self._name} to {command}: {problem}",
                cause="unsupported QEMU version, or another program at its socket",
                next_step="report it, with the output of `qemu-system-x86_64 --version`",
            )
        return answer

    def execute_until(
        self, command: str, arguments: dict[str, Any], *, event: str, device: str, timeout: float
    ) -> None:
        """Run `command` and wait for `event` of `device`. Raises as `execute`."""
        work = self._run_and_listen(command, arguments, event, device)
        self._translate(f"{command} {device}", work, timeout)

    async def _run_and_listen(
        self, command: str, arguments: dict[str, Any], event: str, device: str
    ) -> None:
        def is_of_device(message: Message) -> bool:
            data = message["data"]
            return isinstance(data, dict) and data.get("device") == device

        listener = EventListener(event, is_of_device)
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
                f"connection to {self._name} closed during {command}",
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
                raise HypervisorGone(f"connection to {self._name} closed") from error
            try:
                self._check()
            except BaseException:
                future.cancel()
                raise
            if time.monotonic() > deadline:
                future.cancel()
                raise OutcomeUnknown(f"no reply of {self._name} within {timeout:.0f} s")

    def close(self) -> None:
        """Disconnect, if connected."""
        with contextlib.suppress(Exception):
            _LOOP.submit(self._client.disconnect()).result(timeout=2.0)


_SLICE_BYTES: Final = 1024 * 1024
MAX_SLICES: Final = 128
"""Maximum slices of a file; results of the longest runs are a tenth of it."""
_ANSWERS: Final[Mapping[str, Shape]] = {
    "guest-exec": fields(pid=whole),
    "guest-exec-status": fields(
        exited=whole, exitcode_=whole, signal_=whole, out__data_=text, err__data_=text
    ),
    "guest-info": AGENT_INFO,
    "guest-file-open": whole,
    "guest-file-read": fields(count=whole, buf__b64=text, eof=whole),
}
"""Shapes of the agent's responses, which are checked because guests are not trusted."""


class QemuGuest(Guest):
    """`model.ports.Guest` over a connected guest agent channel."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock

    def ping(self, *, timeout: float) -> None:
        """Wait for the agent's response. Raises GuestTimeout: none within `timeout` seconds."""
        with contextlib.suppress(CommandRefused):  # a refusal is a response
            self._call("guest-ping", {}, timeout=timeout)

    def commands(self) -> Mapping[str, bool]:
        with contextlib.suppress(CommandRefused):
            return enabled_commands(self._call("guest-info", {}))
        return {}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        pid = self._exec(argv, stdin)
        for _ in attempts(self._clock, seconds=timeout, pause=0.01, longest=0.5):
            if (done := self.poll(pid)) is not None:
                return done
        raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s in the guest")

    def start(self, argv: list[str]) -> int:
        return self._exec(argv, b"")

    def poll(self, pid: int) -> Completed | None:
        status = self._call("guest-exec-status", {"pid": pid})
        if not status["exited"]:
            return None
        return completed(status, f"program {pid}", _decoded)

    def read_file(self, path: str) -> bytes:
        try:
            handle = self._call("guest-file-open", {"path": path, "mode": "r"})
        except CommandRefused as error:
            raise OutputUnreadable(f"cannot read {path} in the guest: {error.text}") from error
        try:
            return self._read_slices(path, handle)
        finally:
            self._call("guest-file-close", {"handle": handle})

    def _read_slices(self, path: str, handle: int) -> bytes:
        pieces: list[bytes] = []
        while len(pieces) < MAX_SLICES:
            piece = self._call("guest-file-read", {"handle": handle, "count": _SLICE_BYTES})
            pieces.append(_decoded(piece["buf-b64"]))
            if len(pieces[-1]) > _SLICE_BYTES:
                raise _unexpected(f"guest-file-read: a slice of {len(pieces[-1])} bytes")
            if piece["eof"] or not piece["count"]:
                return b"".join(pieces)
        raise OutputUnreadable(
            f"{path} in the guest is longer than {MAX_SLICES} slices of 1 MiB",
            cause="it grows faster than it is read, or the guest was manipulated",
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
                f"cannot start {argv[0]} in the guest: {error.text}",
                cause="the program is missing from the guest image",
                next_step="run `pvebench guest build --force`",
            ) from error

    def _call(
        self, command: str, arguments: dict[str, Any], *, timeout: float = REPLY_SECONDS
    ) -> Any:
        try:
            answer = self._channel.execute(command, arguments or None, timeout=timeout)
        except OutcomeUnknown as error:
            raise GuestTimeout(
                f"no response of the guest agent to {command} within {timeout:.0f} s",
                cause="the guest hangs or lacks CPU time",
            ) from error
        if problem := _ANSWERS.get(command, anything)(answer):
            raise _unexpected(f"{command}: {problem}")
        return answer


def _decoded(coded: str) -> bytes:
    try:
        return base64.b64decode(coded)
    except ValueError as error:
        raise _unexpected(str(error)) from error


def _unexpected(problem: str) -> GuestTimeout:
    return GuestTimeout(
        f"unexpected guest agent response: {problem}",
        cause="another program than QEMU's agent responds in the guest",
        next_step="if this recurs, run `pvebench guest build --force`",
    )
