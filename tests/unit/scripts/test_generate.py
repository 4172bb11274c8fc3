"""`make generate`: the lists of the reference pages are complete, and say each thing once."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvebench.cli.main import COMMANDS
from pvebench.metrics.state_metrics import CATALOG
from testing.packs import ROOT

pytestmark = pytest.mark.lab  # its pages list all commands and tools

SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield runpy.run_path(str(SCRIPTS / "generate_text.py"))


def test_every_page_is_one_of_a_command(loaded: dict[str, Any]) -> None:
    pages = loaded["commands_text"].__globals__["_PAGES"]
    assert set(pages) - set(COMMANDS) == set()


def test_every_metric_is_listed_once(loaded: dict[str, Any]) -> None:
    text = loaded["metrics_text"]()
    assert all(text.count(f"- `{metric.exposed}`") == 1 for metric in CATALOG.values())


def test_a_shape_that_an_address_repeats_is_listed_once(loaded: dict[str, Any]) -> None:
    text = loaded["addresses_text"]()
    assert "`samples[]` (`metric`, `direction`, `part`, `value`, `unit`)" in text
    assert text.count("`runs[]` (as above)") == 1


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ({"type": "string", "examples": ["8s"], "default": 172800.0}, "duration (`2d`)"),
        ({"type": "string", "examples": ["256M"], "default": 805306368}, "size (`768M`)"),
        ({"type": "string", "examples": ["256M"], "default": 512}, "size (`512`)"),
        ({"type": "string", "examples": [0.2], "default": 0.5}, "share (`0.5`)"),
        ({"type": "boolean", "default": False}, "boolean (`false`)"),
        ({"type": "array", "items": {"type": "string"}, "default": []}, "list of text"),
        ({"type": "string", "examples": ["x"], "default": ""}, "text, for example `x`"),
    ],
)
def test_a_key_has_its_format_and_its_default(
    rule: dict[str, Any], line: str, loaded: dict[str, Any]
) -> None:
    rows = loaded["keys_text"].__globals__["_rows"]
    assert list(rows({"properties": {"key": rule}})) == [f"- `key`: {line}"]


def test_equal_rows_of_the_durability_results_are_one(loaded: dict[str, Any]) -> None:
    text = loaded["durability_text"]()
    assert "| raw.none, raw.writeback, qcow2.none, qcow2.writeback |" in text
    assert "In every row: flushed or FUA 64 of 64" in text


def test_a_changed_file_fails_the_check(
    tmp_path: Path,
    loaded: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(loaded["main"].__globals__, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate_text.py"])
    assert loaded["main"]() == 0
    sys.argv.append("--check")
    assert (loaded["main"](), capsys.readouterr().out) == (0, "")
    name = "packaging/proxmox/proxmox-lxc.sh"
    (tmp_path / name).write_text("changed", "utf-8")
    assert loaded["main"]() == 1
    assert name in capsys.readouterr().out


def test_a_part_of_a_page_is_replaced_and_the_rest_stays(
    tmp_path: Path, loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_part = loaded["with_part"]
    monkeypatch.setitem(with_part.__globals__, "ROOT", tmp_path)
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    page.write_text("a\n<!-- list -->\nold\n<!-- end -->\nb\n", "utf-8")
    assert with_part("page.md", "list", "new") == "a\n<!-- list -->\nnew\n<!-- end -->\nb\n"
