"""hdparm: real output and its errors."""

from __future__ import annotations

import pytest

from pvebench.errors import ToolFailed
from pvebench.model.units import MIB
from pvebench.model.workload import Caveat, WorksOn
from testing.tools import golden, resolve, values


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("buffered.txt", 236.79),
        ("buffered_de.txt", 180.36),
        ("direct.txt", 3376.42),
        ("cached.txt", 10842.93),
        ("cached_direct.txt", 4829.10),
    ],
)
def test_hdparm_megabytes_are_mebibytes(name: str, rate: float) -> None:
    found = values(golden(resolve("hdparm"), name))
    assert found["bandwidth", "read", ""] == pytest.approx(rate * MIB)
    ratio = found["bytes", "read", ""] / found["runtime", "read", ""] / (rate * MIB)
    assert ratio == pytest.approx(1, rel=0.1)


def test_hdparm_on_a_file_fails_with_its_own_words() -> None:
    with pytest.raises(ToolFailed, match="BLKFLSBUF failed"):
        golden(resolve("hdparm"), "not_a_device.txt")


def test_hdparm_needs_a_device_and_its_cache_test_says_what_it_is() -> None:
    assert resolve("hdparm").place is WorksOn.DEVICE
    assert resolve("hdparm", cached=True).caveats == (Caveat.CACHE,)
