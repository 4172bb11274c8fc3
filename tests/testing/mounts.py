"""Mounts of a test's own: made in a mount namespace that ends with the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def with_mounts(
    script: str, *, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount; nobody else sees what it mounts.

    Without root a user namespace stands in for it.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", "--mount", *user, "sh", "-euc", script]
    return subprocess.run(
        command, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )


def bind(source: Path, target: Path) -> str:
    """Return the line of a script that makes one directory appear at another."""
    return f"mount --bind '{source}' '{target}'\n"
