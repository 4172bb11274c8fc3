"""What this machine is, for the environment. A fact that cannot be read is absent."""

from __future__ import annotations

import os
from pathlib import Path


def host_facts() -> dict[str, str]:
    """Return kernel, CPU model, microcode, governor and distribution of the running host."""
    cpu = _first_cpu()
    found = {
        "kernel": os.uname().release,
        "cpu_model": cpu.get("model name", ""),
        "microcode": cpu.get("microcode", ""),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "host_os": _os_name(),
        "cpus": str(os.cpu_count() or ""),
    }
    return {key: value for key, value in found.items() if value}


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError:
        return ""


def _first_cpu() -> dict[str, str]:
    block = _read("/proc/cpuinfo").partition("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _os_name() -> str:
    pairs = (line.partition("=") for line in _read("/etc/os-release").splitlines())
    return {key: value.strip('"') for key, _, value in pairs}.get("PRETTY_NAME", "")
