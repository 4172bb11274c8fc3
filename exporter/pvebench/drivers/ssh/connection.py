"""Programs on another machine, over one ssh connection that is opened when needed.

The host key is always verified before anything is sent. Time and bytes of each response are
limited: the machine may be overloaded, broken or manipulated.
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
from pvebench.model.guest import Completed
from pvebench.model.units import MIB, show_bytes

_CONNECT_SECONDS: Final = 15.0
_ALIVE_SECONDS: Final = 10.0
_CHUNK: Final = 64 * 1024
_STDERR_BYTES: Final = 64 * 1024
MAX_BYTES: Final = 64 * MIB
"""Maximum of a response; the logs of a long job are the largest."""


class Shell(Protocol):
    """Interface to run programs as a user of a machine, or in a container. As `SshConnection`."""

    @property
    def where(self) -> str:
        """Name for messages."""

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program that can be repeated without further changes."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program to its end."""

    def close(self) -> None:
        """Close the connection; the next `run` opens another."""


class SshConnection:
    """Connection as one user of one machine. Owned by one worker thread."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected: asyncssh.SSHClientConnection | None = None

    @property
    def where(self) -> str:
        return self.settings.where

    def ask(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program that can be repeated without further changes.

        Raises:
            As `run`; OutcomeUnknown only if the reply was lost twice.
        """
        try:
            return self.run(argv, stdin=stdin, timeout=timeout)
        except OutcomeUnknown:
            return self.run(argv, stdin=stdin, timeout=timeout)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program to its end.

        Raises:
            ServerGone: the machine is unreachable; nothing was run.
            ServerUntrusted: host key mismatch; nothing was sent.
            AccessDenied: it rejects the key.
            ConfigError: invalid key file.
            OutcomeUnknown: the connection was lost, or the time expired, before the program's end.
            OutputUnreadable: the output exceeds MAX_BYTES.
        """
        loop = self._running_loop()
        work = self._run(shlex.join(argv), stdin, timeout)
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def close(self) -> None:
        """Close the connection; the next `run` opens another."""
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
            # A slow connection may be dead: the next call opens another one.
            await self._drop()
            raise OutcomeUnknown(
                f"no result of a command on {self.settings.where}: {_text_of(error)}",
                cause="the connection was lost, or the machine is overloaded",
                next_step="no action needed; pvebench checks the state before it changes anything",
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


def _text_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _finish(process: asyncssh.SSHClientProcess[bytes], stdin: bytes) -> Completed:
    with suppress(BrokenPipeError):  # it has ended; its exit code still arrives
        process.stdin.write(stdin)
        process.stdin.write_eof()
    stdout, stderr = await asyncio.gather(
        _read(process.stdout, MAX_BYTES), _read(process.stderr, _STDERR_BYTES)
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
                f"output of a command exceeds {show_bytes(most)}",
                cause="the program there failed or was replaced",
                next_step="run it there by hand",
            )
    return b"".join(parts)


class _Pinned(asyncssh.SSHClient):
    """Client that verifies the fingerprint of the host key."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        return key.get_fingerprint() == self._fingerprint


async def _connect(settings: SshSettings) -> asyncssh.SSHClientConnection:
    where = f"ssh to {settings.where} failed"
    login = f"ssh -i {settings.key_file} -p {settings.port} {settings.user}@{settings.host}"
    try:
        return await asyncssh.connect(
            settings.host,
            settings.port,
            username=settings.user,
            client_keys=[_key(settings.key_file)],
            connect_timeout=_CONNECT_SECONDS,
            login_timeout=_CONNECT_SECONDS,
            keepalive_interval=_ALIVE_SECONDS,
            keepalive_count_max=3,
            **_trust(settings),
            **_NOTHING_ELSE,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise ServerUntrusted(
            f"{where}: SSH host key mismatch ({error.reason})",
            cause="it was reinstalled, its key was never stored, or it is another machine",
            next_step="compare the key with the output on its console of "
            "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`",
        ) from error
    except asyncssh.PermissionDenied as error:
        raise AccessDenied(
            f"{where}: it rejects the key in {settings.key_file}",
            cause="the public key is not in the user's authorized_keys, or the user is locked",
            next_step=f"run `{login}`",
        ) from error
    except (OSError, asyncssh.Error, TimeoutError) as error:
        raise ServerGone(
            f"{where}: {_text_of(error)}",
            cause="it is off, or a firewall blocks the connection",
            next_step=f"run `{login}`",
        ) from error


_NOTHING_ELSE: Final[dict[str, Any]] = {
    "config": None,  # ~/.ssh/config must not redirect the connection
    "agent_path": None,
    "password_auth": False,
    "kbdint_auth": False,
    "gss_auth": False,
    "gss_kex": False,
    "host_based_auth": False,
    "x509_trusted_certs": None,
}
"""Disabled ways to log in."""


def _trust(settings: SshSettings) -> dict[str, Any]:
    if settings.fingerprint:
        # No known hosts, so that the fingerprint of every key is verified.
        return {"known_hosts": b"", "client_factory": lambda: _Pinned(settings.fingerprint)}
    path = settings.known_hosts or Path("~/.ssh/known_hosts").expanduser()
    if not path.is_file():
        message = "file not found; without a host key, pvebench does not connect"
        step = f"run `ssh-keyscan -p {settings.port} {settings.host} > {path}`, then verify the key"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step)
    return {"known_hosts": str(path)}


def _key(path: Path) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(read_secret(path) + "\n")
    except (OSError, asyncssh.KeyImportError) as error:
        message = f"not a usable private key: {_text_of(error)}"
        step = f"create one without a passphrase: ssh-keygen -t ed25519 -N '' -f {path}"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step) from error
