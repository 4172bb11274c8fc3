"""One message to one address, in a process of its own: `python -m pvebench.notify.delivery`.

Servers may hang, drip or answer without end; the process has a bound of time and memory, and
whoever started it ends it. The address comes by standard input, where nobody else can read it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Final

MOST_SECONDS: Final = 60
MOST_MEMORY_BYTES: Final = 1024**3
"""Of address space: libraries that are only mapped count too."""
_STATUS: Final = re.compile(r"error=(\d{3})\b")
_LATER: Final = {"408", "425", "429"}
"""Refusals that say: not now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How an attempt ended.

    Attributes:
        reason: why it was in vain, without a secret; empty: it arrived.
        hopeless: the same message will not be taken later either.
        doubtful: it was cut off, so it may have arrived.
    """

    reason: str = ""
    hopeless: bool = False
    doubtful: bool = False


def send(url: str, title: str, body: str, *, seconds: float = MOST_SECONDS) -> Sent:
    """Send one message; never raises for what the other side does."""
    return _asked(url, [title, body], seconds)


def check_address(url: str, *, seconds: float = MOST_SECONDS) -> Sent:
    """Return why no message will ever go to an address, if that can be seen without sending one."""
    return _asked(url, [], seconds)


def _asked(url: str, message: list[str], seconds: float) -> Sent:
    asked = json.dumps({"url": url, "message": message})
    command = [sys.executable, "-m", "pvebench.notify.delivery"]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"the server did not come to an end within {seconds:.0f} s"
        return Sent(reason=reason, doubtful=True)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return Sent(reason=str(found["reason"]), hopeless=bool(found["hopeless"]))
    except (ValueError, LookupError, TypeError):
        return Sent(reason="sending ended without an answer", doubtful=True)


def main() -> None:
    """Read an address and a message, or none, from standard input, send, print how it ended."""
    signal.alarm(MOST_SECONDS)  # whoever started it may be gone
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    # What the library prints goes nowhere: the address may stand in it.
    answer, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    found = _sent(asked["url"], asked["message"])
    text = json.dumps({"reason": found.reason, "hopeless": found.hopeless})
    os.write(answer, f"{text}\n".encode())


def _sent(url: str, message: list[str]) -> Sent:
    # Slow to import, and wanted nowhere but in a process of its own.
    import apprise  # noqa: PLC0415 # see above

    asset = apprise.AppriseAsset(app_id="pvebench", app_desc="pvebench", async_mode=False)
    notes = _Notes()
    logging.getLogger("apprise").addHandler(notes)
    target = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if target is None:
        return Sent(reason="its address is none that apprise knows", hopeless=True)
    if not target.verify_certificate:
        reason = "its address asks not to check the server's certificate, which is not done"
        return Sent(reason=reason, hopeless=True)
    if not message:
        return Sent()
    title, body = message
    # What is meant for one server is no other one's to read.
    target.redirects = False
    try:
        taken = target.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT)
    except Exception as error:  # noqa: BLE001 # whatever a plugin does: its text may hold secrets
        return Sent(reason=f"sending failed ({type(error).__name__})")
    return Sent() if taken else notes.why()


class _Notes(logging.Handler):
    """Keeps from the library's warnings the status that a server answered, and nothing else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Look for a status."""
        found = _STATUS.search(record.getMessage())
        self._status = found[1] if found else self._status

    def why(self) -> Sent:
        """Return why a message was not taken."""
        if not self._status:
            return Sent(reason="the server cannot be reached, or did not take it")
        refused = self._status.startswith("4") and self._status not in _LATER
        return Sent(reason=f"the server answered {self._status}", hopeless=refused)


if __name__ == "__main__":
    main()
