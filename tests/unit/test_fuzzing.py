"""A few seconds of fuzzing in every run: what once broke, and the same few mutations each time.

`make fuzz` looks for more, by coverage. The seeds are what real tools and servers said (`golden/`,
`pve/recordings-*`), so that what is refused was not refused from the start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.mutate import mutations
from fuzz.targets import _TOOLS, TARGETS, found
from pvebench.workloads import TOOLS


def test_the_parser_of_every_tool_is_a_target() -> None:
    parsed = {name for name, tool in TOOLS.items() if tool.program}
    assert _TOOLS.keys() == parsed
    assert {name.rstrip("+") for name in parsed} <= TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_read_is_understood_or_refused_by_one_error_of_ours(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    for content in mutations(seeds, seed=1, count=target.runs):
        target(content)


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name in TARGETS for path in found(name)]
)
def test_what_once_broke_a_reader_does_not_any_more(name: str, path: Path) -> None:
    TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_understands_some_of_its_seeds(name: str) -> None:
    target = TARGETS[name]
    understood = [target(content) for content in target.seeds()]  # all: none may break it
    assert any(understood)
