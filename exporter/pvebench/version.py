"""Which pvebench this is: its version, and the commit that it was made of.

The standard library only: `scripts/build_hook.py` asks the same, before anything is installed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

COMMIT_FILE: Final = "commit.txt"
"""Beside this module in what was built; a checkout is asked itself, so that it is never stale."""
_HERE: Final = Path(__file__).resolve().parent
_GIT_SECONDS: Final = 10


def commit() -> str:
    """Return the commit, with `-dirty` where files differ from it; empty: it cannot be known."""
    try:
        return (_HERE / COMMIT_FILE).read_text("utf-8").strip()
    except OSError:
        return commit_of(_HERE.parents[1])


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout as `commit` does; empty: this is none, or git is not here.

    A directory inside of somebody else's repository is no checkout of ours.
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
    """Return what git says; None: it cannot be asked. Hooks set GIT_…, for another repository."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            env=clean,
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
