"""Real kill -9 of a whole pvebench with a container on a node.

The container is real, the VM beside it and the API are the tests'. `make crash ARGS=--node` does
the same at more moments, and kills the node's program at others; where that is killed in a given
step is in test_proxmox_container.py and test_proxmox_backend.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.node_crashes import node_crashes


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("image")
def test_killed_at_random_moments_nothing_of_a_container_is_lost_or_left(tmp_path: Path) -> None:
    with node_crashes(tmp_path, seed=1, victims=["pvebench"]) as crashes:
        report = crashes.play(2, within_seconds=10)
    print(report)
    assert report.wrong == []
    assert report.moments == 2
    assert report.stored >= 1
