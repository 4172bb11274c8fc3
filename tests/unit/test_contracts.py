"""The contracts of imports in `pyproject.toml` cover every library."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions

from testing.packs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EVERYWHERE = {"typing-extensions", "tzdata"}
"""Libraries that any package may import, and data without a module."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_library_has_a_contract_that_says_who_may_import_it() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    # The first one is of `model`, which imports no library at all.
    contained = [
        module
        for contract in contracts
        if contract["type"] == "forbidden" and len(contract["forbidden_modules"]) < 10
        for module in contract["forbidden_modules"]
    ]
    covered = {
        _normal(name)
        for module, names in packages_distributions().items()
        if module in contained
        for name in names
    }
    dependencies = {
        _normal(re.split(r"[<>=\[; ]", text)[0]) for text in PROJECT["project"]["dependencies"]
    }
    assert dependencies - covered - EVERYWHERE == set()
