"""The commit that this pvebench was built from.

It uses the standard library only, because `scripts/build_hook.py` imports it before installation.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

COMMIT_FILE: Final = "commit.txt"
"""File next to this module in a build; in a checkout, Git is queried, so it is never stale."""
_HERE: Final = Path(__file__).resolve().parent
_GIT_SECONDS: Final = 10


def commit() -> str:
    """Return the commit, with `-dirty` if files differ from it; empty: unknown."""
    try:
        return (_HERE / COMMIT_FILE).read_text("utf-8").strip()
    except OSError:
        return commit_of(_HERE.parents[1])


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout as `commit` does; empty: no checkout, or Git is missing.

    A directory inside another project's repository is no checkout.
    """
    top = _git(checkout, "rev-parse", "--show-toplevel")
    if not top or Path(top) != checkout.resolve():
        return ""
    head = _git(checkout, "rev-parse", "--verify", "HEAD")
    changes = _git(checkout, "status", "--porcelain")
    if not head or changes is None:
        return ""
    return f"{head}-dirty" if changes else head


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return Git's output; None: it failed. Hooks set GIT_* variables for other repositories."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        process = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            env=clean,
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return process.stdout.strip()
