"""Time zones are known on a machine that has none: a bare Debian comes without `tzdata`.

The witness is CPython's zoneinfo, which PYTHONTZPATH lets look nowhere but in packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from testing.packs import SMALL, write_pack


def test_a_machine_without_time_zones_measures_all_the_same(tmp_path: Path) -> None:
    config = tmp_path / "pvebench.yaml"
    pack = write_pack(tmp_path, SMALL)
    config.write_text(f"driver: simulated\npacks: [{pack}]\ntime_zone: Europe/Vienna\n")
    command = [sys.executable, "-m", "pvebench", "plan", "--config", str(config)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONTZPATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
