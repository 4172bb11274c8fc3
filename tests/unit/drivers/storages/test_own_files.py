"""Files of volumes that another program removed, or that cannot be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.drivers.storages.own_files import cached_bytes, drop_page_cache
from pvebench.errors import ToolsMissing, VolumeError


def test_a_volume_that_was_removed_during_its_use_is_named(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match=r"gone cannot be opened: No such file .*; not changed"):
        drop_page_cache(tmp_path / "gone")


def test_a_volume_cannot_be_looked_at_without_fincore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolsMissing, match="fincore is not installed"):
        cached_bytes(tmp_path / "volume.raw")
