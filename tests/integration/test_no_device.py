"""Rows of the host on a file system without a block device: here, and by ssh."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.model.run import Outcome, Run
from pvebench.runner.runner import UNCOUNTED
from testing.host_row import SIZE, measured
from testing.overlay import overlay
from testing.real_outcomes import MEASURED
from testing.sshd import ssh_server


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with overlay(tmp_path) as where:
        yield where


def must_say_what_nobody_saw(run: Run) -> None:
    assert run.outcome in MEASURED, run.reason
    metrics = {sample.metric for sample in run.samples}
    assert {"iops", "host_cpu", "window"} <= metrics
    assert not metrics & {"device_share", "host_bytes"}
    assert UNCOUNTED in run.evidence["notes"]
    assert run.evidence["host_cached_bytes"] == "0"
    assert run.written_bytes == SIZE  # the fill: fio reads only


def test_a_row_on_a_file_system_without_a_device_is_measured_and_says_what_no_one_saw(
    tmp_path: Path, place: Path
) -> None:
    must_say_what_nobody_saw(measured(tmp_path, place))
    assert list(place.iterdir()) == []


def test_so_is_one_by_ssh(tmp_path: Path, place: Path) -> None:
    with ssh_server(tmp_path / "sshd") as server:
        ssh = server.settings().model_dump(exclude_unset=True)
        must_say_what_nobody_saw(measured(tmp_path, place, ssh=ssh))
    assert list(place.iterdir()) == []


def test_a_directory_in_memory_is_no_storage(tmp_path: Path) -> None:
    """tmpfs has no device either, and is the page cache itself: nothing of it can be dropped."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as where:
        run = measured(tmp_path, Path(where))
        assert list(Path(where).iterdir()) == []
    assert run.outcome is Outcome.FAILED
    assert f"storage local: {where} is in memory (tmpfs), not on a disk" in run.reason
