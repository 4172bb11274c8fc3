"""Choice of KVM or TCG: KVM only after a test boot of a guest.

The existence of /dev/kvm is not sufficient: with nested or broken virtualization the guest may
hang. So the benchmark guest is booted once with a deadline; the result is stored until the next
boot of the host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from pvebench.drivers.driver import Finding
from pvebench.errors import DriverError, MachineError
from pvebench.files import read_own, write_own
from pvebench.guest.image import default_directory
from pvebench.log import log

PROOF_SECONDS: Final = 20.0
_DEVICE: Final = Path("/dev/kvm")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Accelerator(StrEnum):
    """Supported accelerator of QEMU."""

    KVM = "kvm"
    TCG = "tcg"


def kvm_memory() -> Path:
    """Return the file with the result of the KVM test, for all instances of this user."""
    return default_directory().parent / "kvm.json"


def choose_accelerator(
    wish: str,
    *,
    memory: Path,
    prove: Callable[[], None],
    say: Callable[[str], None],
    device: Path = _DEVICE,
) -> Accelerator:
    """Return the accelerator to use.

    Args:
        wish: `auto`, `kvm` or `tcg` from the settings.
        memory: file with the stored result.
        prove: boots a guest under KVM within PROOF_SECONDS, or raises DriverError.
        say: prints one line for the user.

    Raises MachineError: `kvm` is set, but does not work.
    """
    if wish == "tcg":
        return Accelerator.TCG
    fault = _why_no_kvm(memory, prove, say, device)
    if fault is None:
        return Accelerator.KVM
    if wish == "kvm":
        raise MachineError(
            f"accelerator is set to kvm, but {fault}",
            next_step="set accelerator: auto, or fix KVM on this host",
        )
    say(f"no KVM ({logged(fault)}); using TCG, results carry accel=tcg")
    return Accelerator.TCG


def logged(fault: str) -> str:
    """Log a fault of KVM; return it without QEMU's own words, which `pvebench check -v` logs."""
    log.info("KVM is unusable", reason=fault)
    fact, separator, _ = fault.partition(": ")
    return f"{fact}; details: `pvebench check -v`" if separator else fact


def _why_no_kvm(
    memory: Path, prove: Callable[[], None], say: Callable[[str], None], device: Path
) -> str | None:
    """Return None if a test boot succeeded, else the reason."""
    if not device.exists():
        return f"{device} does not exist"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"{_DEVICE} is not accessible; `sudo usermod -aG kvm $USER` and a new login allow it"
    known = remembered_fault(memory)
    if known is None:
        say(
            f"testing KVM with a guest, at most {PROOF_SECONDS:.0f} s, once per host boot "
            f"(result stored in {memory}; remove it to repeat the test)"
        )
        try:
            prove()
            known = ""
        except DriverError as error:
            known = f"a guest does not boot with KVM: {error.reason}"
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_own(memory, json.dumps({"boot": _boot(), "fault": known}))
    return known or None


def remembered_fault(memory: Path) -> str | None:
    """Return the result of the test since the host's boot: "" if KVM works, None: not tested."""
    try:
        known = json.loads(read_own(memory))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or known.get("boot") != _boot():
        return None
    return str(known.get("fault", ""))


def _boot() -> str:
    return _BOOT_ID.read_text("ascii").strip()


def check_accelerator(setting: str) -> Finding:
    """Return whether the accelerator of the settings can be used."""
    usable = os.access(_DEVICE, os.R_OK | os.W_OK)
    if setting == "tcg" or not usable:
        why = "by the settings" if setting == "tcg" else f"{_DEVICE} is not accessible"
        return "accelerator", setting != "kvm", f"tcg ({why}); results carry accel=tcg"
    fault = remembered_fault(kvm_memory())
    if fault is None:
        return "accelerator", True, f"{_DEVICE} exists; the first run tests it"
    if not fault:
        return "accelerator", True, "kvm, tested with a guest"
    return "accelerator", setting != "kvm", f"tcg ({logged(fault)}); results carry accel=tcg"
