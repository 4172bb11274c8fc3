"""The benchmark guest through the QEMU guest agent."""

from __future__ import annotations

import base64
from typing import Any

from pvebench.drivers.qemu.qmp import Channel, Refused
from pvebench.errors import GuestSilent, OutcomeUnknown, OutputUnreadable, ToolFailed
from pvebench.model.ports import Clock, Completed

_SLICE_BYTES = 1024 * 1024


class AgentGuest:
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

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
        """Run a short program to its end. See the port."""
        pid = self._exec(argv, stdin)
        deadline = self._clock.monotonic() + timeout
        pause = 0.01
        while True:
            done = self.poll(pid)
            if done is not None:
                return done
            if self._clock.monotonic() > deadline:
                raise GuestSilent(f"{argv[0]} did not end within {timeout:.0f} s in the guest")
            self._clock.sleep(pause)
            pause = min(0.5, pause * 2)

    def start(self, argv: list[str]) -> int:
        """Start a long program; return its pid. See the port."""
        return self._exec(argv, b"")

    def poll(self, pid: int) -> Completed | None:
        """Return how `pid` ended, or None while it runs. See the port."""
        status = self._call("guest-exec-status", {"pid": pid})
        if not status["exited"]:
            return None
        return Completed(
            exit_code=int(status.get("exitcode", 128 + int(status.get("signal", 0)))),
            stdout=base64.b64decode(status.get("out-data", "")),
            stderr=base64.b64decode(status.get("err-data", "")),
        )

    def read_file(self, path: str) -> bytes:
        """Return a whole file. See the port."""
        try:
            handle = self._call("guest-file-open", {"path": path, "mode": "r"})
        except Refused as error:
            raise OutputUnreadable(f"{path} cannot be read in the guest: {error.text}") from error
        try:
            return self._read_slices(handle)
        finally:
            self._call("guest-file-close", {"handle": handle})

    def _read_slices(self, handle: int) -> bytes:
        pieces = []
        while True:
            got = self._call("guest-file-read", {"handle": handle, "count": _SLICE_BYTES})
            pieces.append(base64.b64decode(got["buf-b64"]))
            if got["eof"] or not got["count"]:
                return b"".join(pieces)

    def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file. See the port."""
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
        except Refused as error:
            raise ToolFailed(
                f"{argv[0]} cannot be started in the guest: {error.text}",
                cause="the program is missing from the guest image",
                next_step="rebuild it: pvebench guest build --force",
            ) from error

    def _call(self, command: str, arguments: dict[str, Any], *, timeout: float = 15.0) -> Any:
        try:
            return self._channel.execute(command, arguments or None, timeout=timeout)
        except OutcomeUnknown as error:
            raise GuestSilent(
                f"the guest agent did not answer {command} within {timeout:.0f} s",
                cause="the guest hangs or is starved of CPU",
            ) from error
