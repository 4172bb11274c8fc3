"""Commands on a checkout, with nothing of this environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def run(
    *command: str | Path, cwd: Path, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done
    return done
