"""The locks say everything that is installed, and nothing about where it comes from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-hub.lock",
    "requirements-run.lock",
    "requirements-build.lock",
    "requirements-fuzz.lock",
    "requirements-site.lock",
)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str | dict[str, str]]) -> set[str]:
    """Names of the requirements; a table includes another group."""
    texts = [text for text in requirements if isinstance(text, str)]
    return {normal(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in texts}


def entries(lock: str) -> dict[str, list[str]]:
    """Pinned name -> its hashes."""
    found: dict[str, list[str]] = {}
    for logical in (ROOT / lock).read_text("utf-8").replace("\\\n", " ").splitlines():
        head, *hashes = logical.split(" --hash=")
        pinned = re.match(r"([\w.-]+)==\S+", head)
        assert pinned, f"{lock}: no pin in {logical!r}"
        found[normal(pinned[1])] = hashes
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_carries_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text("utf-8")
    assert "://" not in text
    assert not re.search(
        r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)", text, re.MULTILINE
    )


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock: str) -> None:
    without = [
        name
        for name, hashes in entries(lock).items()
        if not hashes or not all(re.match(r"sha256:[0-9a-f]{64}\s*$", one) for one in hashes)
    ]
    assert without == []


def test_every_dependency_of_the_project_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    runtime = names(project["project"]["dependencies"])
    development = names(project["dependency-groups"]["dev"])
    assert runtime - entries("requirements.lock").keys() == set()
    assert names(project["dependency-groups"]["fuzz"]) == entries("requirements-fuzz.lock").keys()
    assert (
        names(project["dependency-groups"]["site"]) - entries("requirements-site.lock").keys()
        == set()
    )
    building = names(project["build-system"]["requires"])
    assert building == names(project["dependency-groups"]["build"])
    assert building - entries("requirements-build.lock").keys() == set()
    running = names(project["dependency-groups"]["run"])
    assert building <= running
    assert running - entries("requirements-run.lock").keys() == set()
    assert (runtime | development | running) - entries("requirements-dev.lock").keys() == set()


def test_what_is_tested_is_what_is_installed() -> None:
    pins = [
        set(re.findall(r"^([\w.-]+==\S+)", (ROOT / lock).read_text("utf-8"), re.MULTILINE))
        for lock in LOCKS
    ]
    assert (pins[0] | pins[2]) - pins[1] == set()
