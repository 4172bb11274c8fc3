"""Names of environments, and versions in Debian's order, checked against dpkg where it is there."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest

from pvebench.model.environment import Environment, Version

ORDERED = [
    "0",
    "0.6.5.3",
    "0.7.9",
    "2.2.4~rc1",
    "2.2.4",
    "2.2.4-pve1",
    "2.2.10",
    "6.2.16-3",
    "6.2.16-14",
    "6.11.11-1~bpo12+1",
    "6.11.11-1",
    "6.11.11-2",
    "7.0-4",
    "7.0-11",
    "9.2.0-2",
    "9.2.0-3",
    "10.0.0",
    "10.2.1-1+pve1",
    "1:0.5",
]


def test_versions_are_in_the_order_in_which_they_were_released() -> None:
    shuffled = sorted(ORDERED, key=lambda text: text[::-1])
    assert [version.text for version in sorted(Version(text) for text in shuffled)] == ORDERED


def test_a_missing_revision_is_revision_zero() -> None:
    assert Version("9.2.0") == Version("9.2.0-0")
    assert hash(Version("9.2.0")) == hash(Version("9.2.0"))


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="the oracle is Debian's own dpkg")
def test_dpkg_orders_every_pair_alike() -> None:
    for one, other in itertools.product(ORDERED, repeat=2):
        done = subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=False)
        assert (Version(one) < Version(other)) == (done.returncode == 0), (one, other)


@pytest.mark.parametrize("digits", ["²", "٣", "9" * 5000, "0" * 5000, "1" * 5000 + ":1"])
def test_a_version_of_any_text_has_a_place_in_the_order(digits: str) -> None:
    """Facts of other machines: `str.isdigit` accepts `²`, and `int` refuses 4,301 digits."""
    for text in (digits, f"{digits}:1.0", f"1:{digits}", f"1.0-{digits}"):
        version = Version(text)
        places = version < Version("2.0"), version == Version("2.0"), Version("2.0") < version
        assert places.count(True) == 1
        assert hash(version) == hash(Version(text))
    assert Version("1." + "9" * 5000) < Version("1.1" + "0" * 5000)
    assert Version("1.007") == Version("1.7")


def test_environments_with_equal_versions_never_share_a_name() -> None:
    """Of a thousand digests, several begin with the same 16 bits."""
    kernel = {"kernel": "6.8.12-4-pve"}
    some = [Environment(node=f"pve{number}", facts=kernel) for number in range(1000)]
    assert len({environment.digest[:4] for environment in some}) < len(some)
    assert len({environment.slug for environment in some}) == len(some)
