"""A private PostgreSQL cluster from Debian's programs, reached by a Unix socket only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path:
    """Return the folder of PostgreSQL's programs: Debian has one per version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "install the Debian package postgresql"
    return found[-1].parent


@contextmanager
def cluster() -> Iterator[str]:
    """Yield the connection string of a new cluster; fsync is off, since nothing must survive."""
    where = Path(tempfile.mkdtemp(prefix="pvebench-pg-"))
    user = 65534 if os.geteuid() == 0 else None  # PostgreSQL refuses root
    try:
        if user is not None:
            os.chown(where, user, user)
        bin_, data = programs(), where / "data"

        def run(*command: str) -> None:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                timeout=60,
                user=user,
                group=user,
                cwd=where,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            )

        run(f"{bin_}/initdb", "-D", str(data), "-U", "owner", "-A", "trust", "-N", "-E", "UTF8")
        options = f"-k {where} -c listen_addresses='' -c fsync=off -c shared_buffers=32MB"
        run(f"{bin_}/pg_ctl", "-D", str(data), "-l", f"{where}/log", "-w", "-o", options, "start")
        try:
            yield f"postgresql://owner@/postgres?host={where}"
        finally:
            run(f"{bin_}/pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(where, ignore_errors=True)
