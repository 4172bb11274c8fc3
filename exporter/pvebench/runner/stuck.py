"""What the guest and QEMU say of a tool that does not end, so that it is understood at first sight.

I/O in flight in the guest that QEMU has completed is a lost interrupt; I/O that QEMU has not
completed hangs below QEMU; a tool that sleeps without any I/O waits for something of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from pvebench.errors import Interrupted
from pvebench.model.ports import Guest, Site, TellsStatistics

MOST_BYTES: Final = 64 * 1024
"""How much is kept; the least interesting, which is the longest, comes last and is cut off."""
_SECONDS: Final = 10.0
"""How long the guest may take to tell."""
_ASK: Final = """\
part() { echo; echo "== $1"; shift; "$@" 2>&1 | head -c "$most"; }
in_flight() { grep -H . /sys/block/*/inflight; }
family() {
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children); do family "$child"; done
}
tasks() {
    for pid in $(family "$1" | head -n 40); do
        for task in /proc/"$pid"/task/*; do
            echo "-- ${task#/proc/}: $(cat "$task/comm") $(cat "$task/wchan")"
            grep -E '^(State|PPid|SigPnd|ShdPnd|.*ctxt_switches)' "$task/status"
            cat "$task/stack"
        done
    done
}
kernel_log() { [ -e /lib/modules/load.list ] && dmesg | tail -n 80 | tail -c 8000; }
most=2000 part 'in flight, reads and writes (/sys/block/*/inflight)' in_flight
most=16000 part 'the tool and what it started' tasks "$0"
most=8000 part 'end of the kernel log' kernel_log
most=16000 part interrupts cat /proc/interrupts
"""
"""Script for /bin/sh; `$0` is the tool's pid.

No command lines: to read them a hung process is waited for. The kernel log only in our own guest:
the log of a machine that runs tools itself (bus `host`) has no place on a page.
"""


def look_at_stuck(site: Site, guest: Guest, pid: int) -> str:
    """Return what guest and QEMU say now, at most MOST_BYTES; what they do not say is told.

    Raises:
        Interrupted: a stop was requested meanwhile. Nothing else: the caller has an error to tell.
    """
    before = _said(lambda: _counters(site))
    guest_says = _said(lambda: _ask_guest(guest, pid))
    after = _said(lambda: _counters(site))
    parts = [f"== QEMU's counters before the guest was asked\n{before}"]
    parts += [f"== QEMU's counters after it\n{after}", guest_says.strip()]
    hypervisor = site.hypervisor
    if isinstance(hypervisor, TellsStatistics):
        parts.append(f"== QEMU's statistics\n{_said(hypervisor.statistics)}")
    whole = "\n\n".join(parts).encode("utf-8")
    return whole[:MOST_BYTES].decode("utf-8", "ignore")


def _counters(site: Site) -> str:
    counted = site.hypervisor.counters()
    return json.dumps(asdict(counted)) if counted is not None else "nothing counts its I/O"


def _ask_guest(guest: Guest, pid: int) -> str:
    done = guest.run(["/bin/sh", "-c", _ASK, str(pid)], timeout=_SECONDS)
    return (done.stdout or done.stderr).decode("utf-8", "replace")


def _said(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 # whatever is wrong here, the tool's end is the news
        return f"not told: {type(error).__name__}: {error}"
