"""Texts that become labels are bounded where they enter."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.config import load_pack, load_settings
from pvebench.errors import ConfigError
from pvebench.model.environment import Environment
from testing.packs import SMALL, write_pack

LONG = "x" * 13_000


@pytest.mark.parametrize(
    "text",
    [
        SMALL.replace("Two scenarios", LONG),
        SMALL.replace("rw: randread", f"title: {LONG}, rw: randread"),
        SMALL.replace("iodepth: 8", f"iodepth: 8, random_distribution: 'zoned:{'1/1:' * 5000}1/1'"),
        SMALL + f"source: {LONG}\n",
    ],
)
def test_a_text_of_13_000_characters_in_a_pack_is_a_complaint(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="at most 300 characters"):
        load_pack(write_pack(tmp_path, text))


def test_so_it_is_in_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"wall: [{{scenario: a, workload: b, direction: read, title: {LONG}}}]\n")
    with pytest.raises(ConfigError, match=r"wall\.0\.title: .*at most 300 characters"):
        load_settings(path)


def test_what_a_node_says_of_itself_is_cut(tmp_path: Path) -> None:
    environment = Environment(node="n", facts={"cpu_model": LONG, "kernel": "6.8"})
    assert environment.facts == {"cpu_model": "x" * 300, "kernel": "6.8"}
