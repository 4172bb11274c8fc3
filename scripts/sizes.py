"""Print the sizes of the project beside their bounds; `--check` fails when a bound is passed.

The bounds are in `scripts/sizes.tsv`. Raise one in a commit of its own, which says what the growth
bought and what went out for it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BOUNDS: Final = ROOT / "scripts/sizes.tsv"
"""Name of a size, tab, bound; lines that begin with # are comments."""
SOURCE: Final = ROOT / "exporter"


def files(*patterns: str) -> list[Path]:
    """Return the files of the repository that match one of the patterns of git."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    output = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in output.splitlines() if (ROOT / name).is_file()]


def lines(paths: list[Path]) -> int:
    """Return the number of lines of files."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def single_importers(modules: list[Path]) -> int:
    """Return the number of modules that exactly one other module imports."""
    names = {module_name(path): path for path in modules}
    importers: dict[str, set[Path]] = {name: set() for name in names}
    for path in modules:
        for imported in imports(path):
            if imported in importers and names[imported] != path:
                importers[imported].add(path)
    return sum(len(found) == 1 for found in importers.values())


def module_name(path: Path) -> str:
    """Return the dotted name of a module or package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, each also with the name behind `import`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def sizes() -> dict[str, int]:
    """Return what is bounded."""
    modules, core = files("exporter/*.py"), files("exporter/pvebench/*.py")
    pages = files("docs/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md")
    return {
        "core lines": lines(core),
        "core modules": len(core),
        "product lines": lines(modules),
        "product modules": len(modules),
        "single-importer modules": single_importers(modules),
        "test lines": lines(files("tests/*.py")),
        "words of docs": sum(len(page.read_text("utf-8").split()) for page in pages),
        "boards": len(files("grafana/dashboards/*.json")),
        "lines of the board builder": lines(files("grafana/builder/*.py")),
    }


def main() -> int:
    """Print one line per size; return the exit code."""
    rows = (row.split("\t") for row in BOUNDS.read_text("utf-8").splitlines() if row[0] != "#")
    bounds = {name: int(bound) for name, bound in rows}
    found = sizes()
    over = [name for name in found if found[name] > bounds[name]]
    for name, size in found.items():
        print(f"{name:28} {size:7,}   bound {bounds[name]:7,}{'   PASSED' if name in over else ''}")
    if "--check" in sys.argv and over:
        print(f"next step: make it smaller, or raise the bound in {BOUNDS.relative_to(ROOT)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
