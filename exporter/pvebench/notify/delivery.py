"""Deliver one message to one address in a separate process: `python -m pvebench.notify.delivery`.

Servers may hang, or respond slowly or without end; time and memory of the process are limited,
and its parent ends it. The address arrives on standard input, which no other user can read.
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

from pvebench.http_responses import accept_common_authorities

MAX_SECONDS: Final = 60
MAX_MEMORY_BYTES: Final = 1024**3
"""Limit of address space: libraries that are only mapped count too."""
_STATUS: Final = re.compile(r"error=(\d{3})\b")
_LATER: Final = {"408", "425", "429"}
"""Rejections that are temporary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Result of a delivery attempt.

    Attributes:
        reason: why it failed, without a secret; empty: it succeeded.
        permanent: later attempts will fail too.
        doubtful: it was interrupted, so the message may have arrived.
    """

    reason: str = ""
    permanent: bool = False
    doubtful: bool = False


def send(url: str, title: str, body: str, *, seconds: float = MAX_SECONDS) -> Sent:
    """Send one message; never raises for errors of the server."""
    return _deliver(url, [title, body], seconds)


def check_address(url: str, *, seconds: float = MAX_SECONDS) -> Sent:
    """Return why an address cannot work, as far as that is visible without sending."""
    return _deliver(url, [], seconds)


def _deliver(url: str, message: list[str], seconds: float) -> Sent:
    request = json.dumps({"url": url, "message": message})
    command = [sys.executable, "-m", "pvebench.notify.delivery"]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"no complete response within {seconds:.0f} s"
        return Sent(reason=reason, doubtful=True)
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return Sent(reason=str(result["reason"]), permanent=bool(result["permanent"]))
    except (ValueError, LookupError, TypeError):
        return Sent(reason="the delivery process returned no result", doubtful=True)


def main() -> None:
    """Read an address and an optional message from standard input, send, print the result."""
    signal.alarm(MAX_SECONDS)  # the parent may be gone
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin)
    # Discard what the library prints: it may contain the address.
    answer, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    accept_common_authorities()
    sent = _sent(request["url"], request["message"])
    text = json.dumps({"reason": sent.reason, "permanent": sent.permanent})
    os.write(answer, f"{text}\n".encode())


def _sent(url: str, message: list[str]) -> Sent:
    # Slow to import, and only needed in this process.
    import apprise  # noqa: PLC0415 # see above

    asset = apprise.AppriseAsset(app_id="pvebench", app_desc="pvebench", async_mode=False)
    notes = _Notes()
    logging.getLogger("apprise").addHandler(notes)
    target = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if target is None:
        return Sent(reason="unknown apprise address", permanent=True)
    if not target.verify_certificate:
        reason = "the address disables certificate checks, which pvebench does not allow"
        return Sent(reason=reason, permanent=True)
    if not message:
        return Sent()
    title, body = message
    # A redirect would pass the message to another server.
    target.redirects = False
    try:
        taken = target.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT)
    except Exception as error:  # noqa: BLE001 # any error of a plugin: its text may contain secrets
        return Sent(reason=f"sending failed ({type(error).__name__})")
    return Sent() if taken else notes.why()


class _Notes(logging.Handler):
    """The HTTP status from the library's warnings; the rest may contain secrets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Extract the status."""
        match = _STATUS.search(record.getMessage())
        self._status = match[1] if match else self._status

    def why(self) -> Sent:
        """Return why a message was rejected."""
        if not self._status:
            return Sent(reason="the server is unreachable or rejected the message")
        refused = self._status.startswith("4") and self._status not in _LATER
        return Sent(reason=f"the server returned status {self._status}", permanent=refused)


if __name__ == "__main__":
    main()
