"""The example files of the documentation are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.config import load_settings
from pvebench.service.startup import assignments
from testing.packs import ROOT

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid_and_has_cases_on_every_node(path: Path) -> None:
    settings = load_settings(path)
    given = assignments(settings)
    assert {entry.node for entry in given} == set(settings.measured_nodes())


def test_there_are_examples() -> None:
    assert EXAMPLES
