"""`make sizes`, and the check of its bounds."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/sizes.py"


def test_every_size_has_a_bound() -> None:
    loaded = runpy.run_path(str(SCRIPT))
    rows = loaded["BOUNDS"].read_text("utf-8").splitlines()
    assert {row.partition("\t")[0] for row in rows if row[0] != "#"} == set(loaded["sizes"]())


@pytest.mark.parametrize(("more", "code"), [(0, 0), (1, 1)])
def test_a_size_above_its_bound_fails_the_check(
    more: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = runpy.run_path(str(SCRIPT))
    main, bounds = loaded["main"], tmp_path / "sizes.tsv"
    bounds.write_text("# name\tbound\nboards\t14\n", "utf-8")
    main.__globals__.update(ROOT=tmp_path, BOUNDS=bounds, sizes=lambda: {"boards": 14 + more})
    monkeypatch.setattr(sys, "argv", ["sizes.py", "--check"])
    assert main() == code


def test_a_module_that_one_other_imports_counts_once(tmp_path: Path) -> None:
    loaded = runpy.run_path(str(SCRIPT))
    count = loaded["single_importers"]
    count.__globals__["SOURCE"] = tmp_path
    package = tmp_path / "p"
    package.mkdir()
    texts = {"__init__": "", "a": "import p.c", "b": "from p import c, d", "c": "", "d": ""}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, "utf-8")
    # Of a, b, c, d and the package itself: d and p have one importer, c has two.
    assert count(sorted(package.glob("*.py"))) == 2
