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
from dataclasses import asdict, dataclass
from typing import Final

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
    """

    reason: str = ""
    permanent: bool = False


def send(url: str, *message: str, seconds: float = MAX_SECONDS) -> Sent:
    """Send a title and a text; without them, only check the address. Raises nothing."""
    command, request = [sys.executable, "-m", __name__], json.dumps([url, *message])
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=seconds, check=False
        )
        return Sent(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Sent(reason=f"no complete response within {seconds:.0f} s")
    except (OSError, ValueError, TypeError):
        return Sent(reason="the delivery process returned no result")


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
    os.write(answer, json.dumps(asdict(_sent(*request))).encode())


def _sent(url: str, title: str = "", body: str = "") -> Sent:
    # Slow to import, and only needed in this process.
    import apprise  # noqa: PLC0415 # see above

    asset = apprise.AppriseAsset(app_id="pvebench", app_desc="pvebench", async_mode=False)
    target = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if target is None:
        return Sent(reason="unknown apprise address", permanent=True)
    if not target.verify_certificate:
        reason = "the address disables certificate checks, which pvebench does not allow"
        return Sent(reason=reason, permanent=True)
    target.redirects = False  # one would pass the message to another server
    plain = apprise.NotifyFormat.TEXT
    try:
        with apprise.LogCapture(level=logging.WARNING) as warnings:  # type: ignore[no-untyped-call] # apprise has no types here
            if not title or target.notify(title=title, body=body, body_format=plain):
                return Sent()
    except Exception as error:  # noqa: BLE001 # any error of a plugin: its text may contain secrets
        return Sent(reason=f"sending failed ({type(error).__name__})")
    statuses = _STATUS.findall(warnings.getvalue())  # the rest may contain secrets
    if not statuses:
        return Sent(reason="the server is unreachable or rejected the message")
    refused = statuses[-1].startswith("4") and statuses[-1] not in _LATER
    return Sent(reason=f"the server returned status {statuses[-1]}", permanent=refused)


if __name__ == "__main__":
    main()
