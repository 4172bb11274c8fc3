"""pvebench without the packages that join it by entry points, as if they were not installed."""

from __future__ import annotations

import ast
import os
import sys
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any, Final

from pvebench import plugins

OTHERS: Final = ("pvebench_lab", "pvebench_fleet")
VARIABLE: Final = "PVEBENCH_TEST_CORE_ONLY"
TESTS: Final = Path(__file__).parents[1]
NEEDS: Final = ("simulated", "--driver host", "driver: host", "= pytest.mark.lab", "testing.tools")
"""Words in a test of what `pvebench_lab` adds, without an import."""


class _Hidden(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)
        return None


def hide() -> None:
    """Hide the packages and their entry points from this process."""
    sys.meta_path.insert(0, _Hidden())
    found = plugins.entry_points

    def others_hidden(*, group: str = "") -> EntryPoints:
        all_points = found()
        return EntryPoints(
            point
            for name in ([group] if group else sorted(all_points.groups))
            for point in all_points.select(group=name)
            if not point.value.startswith(OTHERS)
        )

    plugins.entry_points = others_hidden  # type: ignore[assignment]


def hidden() -> bool:
    """Return whether this run of the tests is one of the core alone."""
    return os.environ.get(VARIABLE) == "1"


def needs_others(path: Path) -> bool:
    """Return whether a test module is about the other packages, or stands on one that is."""
    text = path.read_text("utf-8")
    return any(word in text for word in NEEDS) or imports_others(path)


@cache
def imports_others(path: Path) -> bool:
    """Return whether a module of the tests imports the other packages, itself or by others."""
    names = {
        node.module
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    if any(name.partition(".")[0] in OTHERS for name in names):
        return True
    modules = (TESTS / f"{name.replace('.', '/')}.py" for name in names)
    return any(imports_others(module) for module in modules if module.is_file())
