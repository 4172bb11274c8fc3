"""Drive strings as Proxmox normalises them: volume first, keys sorted, booleans 1 and 0."""

from __future__ import annotations

import re

SLOT = re.compile(r"(scsi|virtio|sata|ide)\d+\Z")
LIVE = re.compile(r"(scsi|virtio)\d+\Z")
UNUSED = re.compile(r"unused\d+\Z")
NEW = re.compile(r"(?P<storage>[a-z][\w.-]*):(?P<size>\d+(\.\d+)?)\Z", re.IGNORECASE)
_BOOLEANS = ("iothread", "ssd", "backup", "replicate", "detect_zeroes", "ro")


def parse(value: str) -> tuple[str, dict[str, str]]:
    volid, options = "", {}
    for part in value.split(","):
        key, equals, text = part.partition("=")
        if not equals or key in ("file", "volume"):
            volid = text if equals else key
        else:
            options[key] = text
    return volid, options


def render(volid: str, options: dict[str, str]) -> str:
    plain = {
        key: str(int(text in ("1", "on", "yes", "true"))) if key in _BOOLEANS else text
        for key, text in options.items()
        if key != "format"
    }
    return ",".join([volid, *(f"{key}={plain[key]}" for key in sorted(plain))])


def size_text(size: int) -> str:
    for factor, suffix in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
