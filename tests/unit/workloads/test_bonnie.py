"""bonnie++: real output, its caveats and its job on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pvebench.errors import OutputUnreadable
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Caveat
from pvebench.workloads import TOOLS
from testing.tools import file_target, golden, ran, resolve, values


def test_bonnie_gives_speeds_seeks_and_cpu() -> None:
    found = values(golden(resolve("bonnie++", size="64M"), "guest.csv"))
    assert found["bandwidth", "write", ""] == 10347 * KIB
    assert found["rewrite_bandwidth", "", ""] == 24567 * KIB
    assert found["bandwidth", "read", ""] == 65712 * KIB
    assert found["seeks", "", ""] == 3774
    assert found["phase_cpu", "write", ""] == pytest.approx(0.87)


def test_a_phase_too_quick_for_bonnie_is_absent_and_said() -> None:
    parsed = golden(resolve("bonnie++", size="64M"), "too_quick.csv")
    assert parsed.samples == ()
    assert "write: too fast for bonnie++ to measure; use a larger size" in parsed.notes


def test_bonnie_without_a_result_line_is_unreadable() -> None:
    with pytest.raises(OutputUnreadable):
        golden(resolve("bonnie++", size="64M"), "ram.txt")


def test_bonnie_says_that_it_measures_caches_and_zeros() -> None:
    assert resolve("bonnie++", size="1G").caveats == (Caveat.CACHE, Caveat.ZEROES)
    assert resolve("bonnie++", size="1G", direct=True).caveats == (Caveat.ZEROES,)


@pytest.mark.parametrize(("user", "option"), [("0", "-u 0"), ("1000", "")])
def test_bonnie_sets_a_user_only_where_root_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, option: str
) -> None:
    """Under the unit of the package, bonnie++ with `-u` ends: "Can't set gid to 999"."""
    for name, line in {"id": f"echo {user}", "bonnie++": 'echo "$*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = TOOLS["bonnie++"].job(resolve("bonnie++", size="16M"), file_target(tmp_path, 16 * MIB))
    Path(job.output).parent.mkdir(exist_ok=True)
    subprocess.run(job.argv, check=True)
    assert Path(job.output).read_text("utf-8").partition("pvebench")[2].strip() == option


def test_the_bonnie_job_runs_here_and_leaves_no_file(tmp_path: Path) -> None:
    workload = resolve("bonnie++", size="16M")
    ran(workload, tmp_path, size=16 * MIB)
    assert list((tmp_path / "scratch").iterdir()) == []
