"""The real qemu-ga.exe and fio.exe in Wine, reached as in a VM: by the agent's port.

The port is a pty here, and a serial port for Wine. A thread copies between it and a UNIX socket,
which is what QEMU offers. `tests/windows/build` makes the programs, outside the repository.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import socket
import subprocess
import threading
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.qemu.qmp import Channel, CommandRefused
from pvebench_lab.windows.powershell import Line

HERE: Final = Path(__file__).parent
WINE: Final = "/usr/lib/wine/wine64"
"""Not `wine`, which needs the 32-bit programs too."""
SYSTEM: Final = Path("drive_c/windows/system32")


def witnesses() -> Path | None:
    """Return the directory of the built programs; None: not built, or Wine is not installed."""
    place = subprocess.run(
        [str(HERE / "build"), "--where"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return Path(place) if (Path(place) / "complete").exists() and Path(WINE).exists() else None


class WineAgent:
    """Agent in Wine, with a raw disk, a volume `T:` and answers of PowerShell.

    Args:
        programs: directory of the built programs, with a prefix of Wine.
        place: directory for this agent's files.
        options: of the agent.
    """

    def __init__(
        self, programs: Path, place: Path, *, disk_bytes: int, options: Sequence[str] = ()
    ) -> None:
        self.socket = place / "agent.sock"
        self.prefix = place / "prefix"
        self.disk = place / "disk.img"
        self._lines: list[str] = []
        _link_prefix(programs / "prefix", self.prefix)
        self._put(programs)
        with self.disk.open("wb") as file:
            file.truncate(disk_bytes)
        devices = self.prefix / "dosdevices"
        (devices / "physicaldrive1").symlink_to(self.disk)
        self.volume = place / "volume"
        self.volume.mkdir()
        (devices / "t:").symlink_to(self.volume)
        self._master, self._slave = os.openpty()
        tty.setraw(self._master)
        tty.setraw(self._slave)
        (devices / "com2").symlink_to(os.ttyname(self._slave))
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.socket))
        self._server.listen(1)
        self._stop, self._wake = os.pipe()
        threading.Thread(target=self._copy, daemon=True).start()
        with (place / "agent.log").open("wb") as log:
            self._process = subprocess.Popen(
                [WINE, r"C:\witness\qemu-ga.exe", "-m", "isa-serial", "-p", "COM2", *options],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        self.channel = Channel("agent", str(self.socket), negotiate=False, check=lambda: None)
        self.channel.connect(timeout=10.0)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "WINEPREFIX": str(self.prefix), "WINEDEBUG": "-all", "DISPLAY": ""}

    def _put(self, programs: Path) -> None:
        drive = self.prefix / "drive_c"
        for name, path in {
            "fio.exe": "Program Files/fio/fio.exe",
            "qemu-ga.exe": "witness/qemu-ga.exe",
            "gspawn-win64-helper.exe": "witness/gspawn-win64-helper.exe",
            "gspawn-win64-helper-console.exe": "witness/gspawn-win64-helper-console.exe",
            "echo_words.exe": "witness/echo words.exe",
            "powershell.exe": "windows/system32/WindowsPowerShell/v1.0/powershell.exe",
        }.items():
            target = drive / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy(programs / name, target)
        (drive / "answers").mkdir(exist_ok=True)
        (drive / "pvebench").mkdir(exist_ok=True)  # what powershell.DIRECTORY does

    def answer(self, line: Line, values: Mapping[str, Any], reply: object) -> None:
        """Let PowerShell answer a line with JSON."""
        code = line.argv(**values)[-1]
        digest = 14695981039346656037
        for byte in code.encode():
            digest = ((digest ^ byte) * 1099511628211) % 2**64
        path = self.prefix / "drive_c/answers" / f"{digest:016x}"
        path.write_bytes(json.dumps(reply).encode() + b"\r\n")

    def _copy(self) -> None:
        peer, _ = self._server.accept()
        with peer:
            while True:
                ready, _, _ = select.select([peer, self._master, self._stop], [], [])
                if self._stop in ready:
                    return
                if self._master in ready:
                    peer.sendall(os.read(self._master, 65536))
                if peer in ready:
                    if not (sent := peer.recv(65536)):
                        return
                    while sent:
                        sent = sent[os.write(self._master, sent) :]

    def close(self) -> None:
        """End the agent, and every program of this prefix."""
        self.channel.close()
        os.write(self._wake, b"x")
        subprocess.run(["/usr/lib/wine/wineserver64", "-k"], env=self._environment(), check=False)
        self._process.wait(30)
        for descriptor in (self._master, self._slave, self._stop, self._wake):
            os.close(descriptor)
        self._server.close()


def _link_prefix(source: Path, target: Path) -> None:
    """Copy a prefix: its programs as links, its registry and directories as copies."""
    for root, directories, files in os.walk(source):
        below = target / Path(root).relative_to(source)
        below.mkdir()
        for name in [*files, *directories]:
            path = Path(root) / name
            if path.is_symlink():
                (below / name).symlink_to(path.readlink())
                directories[:] = [kept for kept in directories if kept != name]
            elif path.suffix == ".reg":
                shutil.copy(path, below / name)
            elif path.is_file():
                (below / name).symlink_to(path)


class Transcript:
    """Channel that records requests and replies, or replays them; each request has its own queue.

    Args:
        channel: channel to the real agent; None: replay.
    """

    def __init__(self, path: Path, channel: Any = None) -> None:
        self._path = path
        self._channel = channel
        self._replies: dict[str, list[dict[str, Any]]] = {}
        if channel is None:
            for line in path.read_text("utf-8").splitlines():
                entry = json.loads(line)
                self._replies.setdefault(entry["request"], []).append(entry)
        else:
            path.unlink(missing_ok=True)

    def execute(
        self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float = 30.0
    ) -> Any:
        """As `Channel.execute`."""
        request = json.dumps([command, arguments or {}], sort_keys=True)
        if self._channel is not None:
            return self._record(request, command, arguments, timeout)
        queue = self._replies.get(request)
        if not queue:
            raise AssertionError(
                f"request not recorded: {_readable(request)}; run make e2e-windows"
            )
        entry = queue.pop(0)
        if "refused" in entry:
            raise CommandRefused(command, "GenericError", entry["refused"])
        return entry["reply"]

    def _record(
        self, request: str, command: str, arguments: dict[str, Any] | None, timeout: float
    ) -> Any:
        entry: dict[str, Any] = {"request": request}
        try:
            entry["reply"] = self._channel.execute(command, arguments, timeout=timeout)
        except CommandRefused as error:
            entry["refused"] = error.text
            raise
        finally:
            if len(entry) > 1:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry, sort_keys=True) + "\n")
        return entry["reply"]


def _readable(request: str) -> str:
    command, arguments = json.loads(request)
    words = arguments.get("arg") or []
    if "-EncodedCommand" in words:
        return f"{command} {base64.b64decode(words[-1]).decode('utf-16-le')}"
    return f"{command} {arguments}"[:500]
