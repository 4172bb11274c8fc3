"""Real QEMU, real kill -9. `make crash` does the same at more moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.crashes import LabCrashTest
from testing.real_outcomes import MEASURED


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("image")
def test_killed_at_random_moments_nothing_is_lost_mislabelled_or_left(tmp_path: Path) -> None:
    report = LabCrashTest(tmp_path, seed=1).play(2, within_seconds=20)
    print(report)
    assert report.wrong == []
    assert report.moments == 2
    assert sum(report.outcomes[outcome] for outcome in MEASURED) >= 3
