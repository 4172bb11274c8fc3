"""pvebench in the foreground: it owns the terminal and receives the signals to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from processes import GRACE_SECONDS, Stack, guarded, processes_below, stop_signals
from services import Layout

SI_KERNEL: Final = 0x80
"""`si_code` of a signal from the terminal, which pvebench receives as well."""


def measure(command: Sequence[str], stack: Stack, layout: Layout) -> int:
    """Run pvebench on the terminal until it ends; return its exit code."""
    watched = stop_signals()
    # Blocked instead of handled, because only sigtimedwait reports the sender of a signal; before
    # the start, because a handler would end this process and not yet pvebench.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*watched, signal.SIGCHLD})

    def receive() -> None:
        # A closed terminal would end pvebench before it removes its VM: it gets SIGTERM instead.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*watched, signal.SIGCHLD})

    child = subprocess.Popen(guarded(command), preexec_fn=receive)  # noqa: PLW1509 # no threads here
    deadline = float("inf")
    stack_missed = False
    while child.poll() is None:
        if stack.has_ended and not stack_missed:
            stack_missed = True
            say(
                "Prometheus and the other services ended unexpectedly; pvebench keeps measuring, "
                f"and the results are visible after the next start\n  {stack.tail()}"
            )
        if time.monotonic() > deadline:
            kill(child, layout)
            break
        info = signal.sigtimedwait({*watched, signal.SIGCHLD}, 0.5)
        if info is None or info.si_signo == signal.SIGCHLD:
            continue
        if info.si_code != SI_KERNEL or info.si_signo != signal.SIGINT:
            terminal_lost = info.si_signo == signal.SIGHUP
            child.send_signal(signal.SIGTERM if terminal_lost else info.si_signo)
        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    code = child.wait()
    return code if code >= 0 else 128 - code


def kill(child: subprocess.Popen[bytes], layout: Layout) -> None:
    """Kill a pvebench that does not stop, and its remaining VMs."""
    child.kill()
    child.wait()
    for process, name in processes_below(layout.run).items():
        if name.startswith("qemu-system-"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    say(
        f"killed because it did not stop within {GRACE_SECONDS:.0f} s; the next start removes its "
        "leftovers"
    )


def say(text: str) -> None:
    """Print an error line."""
    print(f"pvebench: {text}", file=sys.stderr)
