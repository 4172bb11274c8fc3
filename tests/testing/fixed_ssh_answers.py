"""A machine reached by ssh that answers everything with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pvebench.drivers.ssh import SshSettings
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.model.guest import Completed

SSH = SshSettings(host="pve1", key_file=Path("key"))


class Saying(SshConnection):
    """Says the same on stdout and stderr, and ends with the same code."""

    def __init__(self, said: bytes, code: int = 0) -> None:
        super().__init__(SSH)
        self._done = Completed(code, said, said)

    def run(self, argv: Any, *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        return self._done
