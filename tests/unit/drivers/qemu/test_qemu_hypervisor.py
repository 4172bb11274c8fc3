"""Programs that a lab needs are asked for at once, and not found missing case by case.

Debian 13 has fincore in a package of its own that is not always there, seen in a fresh container.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.drivers.qemu.qemu_hypervisor import require_tools
from pvebench.drivers.storages.own_files import cached_bytes
from pvebench.errors import ToolsMissing


def only(directory: Path, *names: str) -> str:
    """Return a PATH on which there are these programs and no others."""
    for name in names:
        (directory / name).write_text("#!/bin/sh\n", "utf-8")
        (directory / name).chmod(0o755)
    return str(directory)


def test_all_missing_programs_are_named_at_once_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "qemu-system-x86_64"))
    with pytest.raises(ToolsMissing, match="not installed: qemu-img, fincore") as error:
        require_tools()
    installing = "apt-get install --no-install-recommends"
    assert error.value.next_step == f"run `{installing} qemu-utils util-linux-extra`"


def test_a_lab_that_has_all_of_them_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "qemu-system-x86_64", "qemu-img", "fincore"))
    require_tools()


def test_a_volume_cannot_be_looked_at_without_fincore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolsMissing, match="fincore is not installed"):
        cached_bytes(tmp_path / "volume.raw")
