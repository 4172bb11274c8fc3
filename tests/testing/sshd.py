"""OpenSSH's own server on a loopback port, with a configuration and keys of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pvebench.drivers.ssh import SshSettings

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
_CONFIGURATION = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
LogLevel VERBOSE
PermitRootLogin prohibit-password
SetEnv SHLVL=2
"""
"""With that level bash does not take itself for a login's first shell: whatever ~/.bashrc of this
machine does, it would do before each command."""


class SshServer:
    """One sshd a connection (`sshd -i`), of this very user, so that each can be cut off.

    Attributes:
        away: it accepts connections and ends them at once, as a machine that starts does.
        logins: how many connections there were.
    """

    def __init__(self, folder: Path) -> None:
        assert SSHD, "the tests want openssh-server (scripts/packages.txt)"
        self.folder = folder
        self.away = False
        self.logins = 0
        self._connections: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        folder.mkdir(parents=True)
        for name in ("host_key", "user_key"):
            make_key(folder / name)
        self.allow()
        (folder / "sshd_config").write_text(_CONFIGURATION.format(folder=folder))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # root's sshd wants it
        self._log = (folder / "log").open("wb")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.trust()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def allow(self, options: str = "") -> None:
        """Let the user's key in, with options of authorized_keys such as a forced command."""
        key = (self.folder / "user_key.pub").read_text()
        (self.folder / "authorized_keys").write_text(f"{options} {key}".lstrip())

    def allow_script(self, path: Path, script: str, places: Mapping[str, str]) -> None:
        """Install a node's script with its places changed, and let the key run only that."""
        for here, there in places.items():
            assert here in script
            script = script.replace(here, there)
        path.write_text(script)
        path.chmod(0o755)
        self.allow(f'restrict,command="{path}"')

    def trust(self) -> None:
        """Note the host key as it is now."""
        key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")

    def settings(self, **changes: object) -> SshSettings:
        """Return how pvebench reaches it."""
        given = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "key_file": self.folder / "user_key",
            "known_hosts": self.folder / "known_hosts",
        }
        return SshSettings.model_validate(given | changes)

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self.logins += 1
                if self.away:
                    connection.close()
                    continue
                command = [str(SSHD), "-i", "-e", "-f", str(self.folder / "sshd_config")]
                process = subprocess.Popen(
                    command, stdin=connection, stdout=connection, stderr=self._log
                )
                self._connections.append((connection, process))

    def cut(self) -> None:
        """Break every connection, as a cable does; what runs there goes on."""
        for connection, _ in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection, process in self._connections:
            process.wait(timeout=10)
            connection.close()
        self._log.close()


def make_key(path: Path) -> None:
    """Make a key pair without a passphrase."""
    path.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)


def fingerprint(path: Path) -> str:
    """Return a key's fingerprint as ssh-keygen tells it."""
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(path)], check=True, capture_output=True, text=True
    )
    return done.stdout.split()[1]


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """Yield a server, and end it."""
    server = SshServer(folder)
    try:
        yield server
    finally:
        server.close()
