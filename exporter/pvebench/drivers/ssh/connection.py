"""Programs on another machine, over ssh: one connection, made when it is needed and after a loss.

The host key is always checked, before anything is sent. What is asked of a machine is bounded in
time and in bytes: it may be busy, broken, or somebody else's by now.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import asyncssh

from pvebench.drivers.ssh import SshSettings
from pvebench.errors import (
    AccessDenied,
    ConfigError,
    OutcomeUnknown,
    OutputUnreadable,
    Problem,
    ServerGone,
    ServerUntrusted,
)
from pvebench.files import read_secret
from pvebench.model.ports import Completed
from pvebench.model.units import MIB, show_bytes

_CONNECT_SECONDS: Final = 15.0
_ALIVE_SECONDS: Final = 10.0
_CHUNK: Final = 64 * 1024
_STDERR_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 64 * MIB
"""Of an answer: a long job's logs are the largest."""


class Shell(Protocol):
    """Where programs are run: as one user of a machine, or in a container. As `SshConnection`."""

    @property
    def where(self) -> str:
        """For people."""

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run something that changes nothing, or nothing more when it is run again."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program to its end."""

    def close(self) -> None:
        """End the way there; the next `run` makes another."""


class SshConnection:
    """Runs programs as one user of one machine. Owned by one worker thread."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected: asyncssh.SSHClientConnection | None = None

    @property
    def where(self) -> str:
        return self.settings.where

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run something that changes nothing, or nothing more when it is run again.

        Raises:
            As `run`; OutcomeUnknown only when the answer was lost twice.
        """
        try:
            return self.run(argv, stdin=stdin, timeout=timeout)
        except OutcomeUnknown:
            return self.run(argv, stdin=stdin, timeout=timeout)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program to its end.

        Raises:
            ServerGone: the machine cannot be reached; nothing was run.
            ServerUntrusted: it has not the host key that it should have; nothing was sent.
            AccessDenied: it refuses the key.
            ConfigError: the key file cannot be used.
            OutcomeUnknown: the connection was lost, or time ran out, before the program's end.
            OutputUnreadable: it says more than MOST_BYTES.
        """
        loop = self._running_loop()
        work = self._run(shlex.join(argv), stdin, timeout)
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def close(self) -> None:
        """End the connection; the next `run` makes another."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(loop,), name="ssh", daemon=True).start()
        return self._loop

    async def _run(self, command: str, stdin: bytes, seconds: float) -> Completed:
        connected = await self._connection()
        try:
            async with asyncio.timeout(seconds):
                process = await connected.create_process(command, encoding=None)
                return await _finish(process, stdin)
        except OutputUnreadable:
            await self._drop()
            raise
        except (OSError, asyncssh.Error, TimeoutError) as error:
            # A connection that was slow once may be a dead one: the next call makes another.
            await self._drop()
            raise OutcomeUnknown(
                f"{self.settings.where} did not tell how a command ended: {_said(error)}",
                cause="the connection was lost, or the machine is very busy",
                next_step="none: what is true there is asked before anything else is changed",
            ) from error

    async def _connection(self) -> asyncssh.SSHClientConnection:
        if self._connected is None or self._connected.is_closed():
            self._connected = await _connect(self.settings)
        return self._connected

    async def _drop(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.abort()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _finish(process: asyncssh.SSHClientProcess[bytes], stdin: bytes) -> Completed:
    with suppress(BrokenPipeError):  # it has ended by now; how, is told all the same
        process.stdin.write(stdin)
        process.stdin.write_eof()
    stdout, stderr = await asyncio.gather(
        _read(process.stdout, MOST_BYTES), _read(process.stderr, _STDERR_BYTES)
    )
    await process.wait_closed()
    if process.returncode is None:
        raise asyncssh.ConnectionLost("the connection ended before the command")
    code = process.returncode
    return Completed(code if code >= 0 else 128 - code, stdout, stderr)


async def _read(stream: asyncssh.SSHReader[bytes], most: int) -> bytes:
    parts, size = [], 0
    while chunk := await stream.read(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise OutputUnreadable(
                f"the machine says more than {show_bytes(most)}",
                cause="the program there went wrong, or it is not what it should be",
                next_step="run it there by hand",
            )
    return b"".join(parts)


class _Pinned(asyncssh.SSHClient):
    """Knows the machine by its key's fingerprint."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        return key.get_fingerprint() == self._fingerprint


async def _connect(given: SshSettings) -> asyncssh.SSHClientConnection:
    where = f"{given.where} cannot be used by ssh"
    try:
        return await asyncssh.connect(
            given.host,
            given.port,
            username=given.user,
            client_keys=[_key(given.key_file)],
            connect_timeout=_CONNECT_SECONDS,
            login_timeout=_CONNECT_SECONDS,
            keepalive_interval=_ALIVE_SECONDS,
            keepalive_count_max=3,
            **_trust(given),
            **_NOTHING_ELSE,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise ServerUntrusted(
            f"{where}: its host key is not the one that the settings ask for ({error.reason})",
            cause="it was installed anew, its key was never noted, or it is another machine",
            next_step="compare with what it shows on its own console: "
            "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        ) from error
    except asyncssh.PermissionDenied as error:
        raise AccessDenied(
            f"{where}: it refuses the key in {given.key_file}",
            cause="the public key is not in the user's authorized_keys, or the user is locked",
            next_step=f"try it: ssh -i {given.key_file} -p {given.port} {given.user}@{given.host}",
        ) from error
    except (OSError, asyncssh.Error, TimeoutError) as error:
        raise ServerGone(
            f"{where}: {_said(error)}",
            cause="it is off, or something on the way refuses",
            next_step=f"try it: ssh -i {given.key_file} -p {given.port} {given.user}@{given.host}",
        ) from error


_NOTHING_ELSE: Final[dict[str, Any]] = {
    "config": None,  # nobody's ~/.ssh/config decides whom we speak to
    "agent_path": None,
    "password_auth": False,
    "kbdint_auth": False,
    "gss_auth": False,
    "gss_kex": False,
    "host_based_auth": False,
    "x509_trusted_certs": None,
}
"""How else one could log in."""


def _trust(given: SshSettings) -> dict[str, Any]:
    if given.fingerprint:
        # Nobody is known beforehand, so that the fingerprint is asked of every key.
        return {"known_hosts": b"", "client_factory": lambda: _Pinned(given.fingerprint)}
    path = given.known_hosts or Path("~/.ssh/known_hosts").expanduser()
    if not path.is_file():
        message = "is no file: without the machine's host key nothing is sent to it"
        step = f"ssh-keyscan -p {given.port} {given.host} > {path}, then compare what is in it"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step)
    return {"known_hosts": str(path)}


def _key(path: Path) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(read_secret(path) + "\n")
    except (OSError, asyncssh.KeyImportError) as error:
        message = f"cannot be used as a private key: {_said(error)}"
        step = f"make one without a passphrase: ssh-keygen -t ed25519 -N '' -f {path}"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step) from error
