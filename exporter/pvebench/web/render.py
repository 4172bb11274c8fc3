"""Templates and static files, read once."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any, Final

from pvebench import __version__
from pvebench.report.html import templates_of

KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
EVIDENCE_TITLES: Final = {
    "effective": "Effective configuration, read back after the switch",
    "error": "Error",
    "command": "Command in the guest",
    "output": "Raw output",
    "host": "Host figures at both ends of the window",
    "hypervisor": "What the hypervisor said",
    "notes": "Notes on the output",
    "host_cache": "What was done about the host's page cache before the run",
    "host_cached_bytes": "Bytes of the volume in the host's page cache before the run",
}


def _read_static() -> dict[str, bytes]:
    folder = files("pvebench.web") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


STATIC: Final = _read_static()
"""File name -> content; a handful of small files."""


def asset(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(STATIC[name]).hexdigest()[:12]}"


_ENVIRONMENT: Final = templates_of("pvebench.web")
_ENVIRONMENT.globals |= {"asset": asset, "version": __version__, "titles": EVIDENCE_TITLES}


def render(template: str, **values: Any) -> str:
    """Return a page; every value is escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)
