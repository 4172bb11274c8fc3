"""The pages name only files and functions of the code that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from testing.packs import ROOT

ROOT_PAGES: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES: Final = [*(ROOT / page for page in ROOT_PAGES), *sorted((ROOT / "docs").glob("*.md"))]
SPAN: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PLACEHOLDER: Final = re.compile(r"[<>{}$…]|\b[A-Z]{2,}\b(?!\.md)")
"""What a word has that stands for several files, such as `<tool>.py` or `NAME.json`."""
SOURCE: Final = {".py", ".sh", ".js"}
"""A name of such a file is one of the repository, also without its folder."""
METHOD: Final = re.compile(r"[A-Z][a-z]\w*\.[a-z_]\w*|(?:[A-Z][a-z]+){2,}")
"""A method, or a class whose name is no other word."""
FUNCTION: Final = re.compile(r"([a-z_]\w*)\(\)")


def spans(page: Path) -> Iterator[str]:
    """Yield the code spans of a page, without its fenced blocks."""
    text = re.sub(
        r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return (" ".join(span.split()) for span in SPAN.findall(text))


# --- Files.


@cache
def tracked() -> frozenset[str]:
    """Return the files and folders of the repository, from its root and from each package."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [name for name in done.stdout.splitlines() if (ROOT / name).exists()]
    paths = [PurePosixPath(name) for name in names]
    below = [PurePosixPath(*path.parts[2:]) for path in paths if path.parts[0] == "exporter"]
    every = {str(parent) for path in (*paths, *below) for parent in (path, *path.parents)}
    return frozenset(every - {"."} | {path.name for path in paths if path.suffix in SOURCE})


def missing_files(span: str) -> list[str]:
    """Return the words of a code span that look like a file of the repository and are none."""
    return [word for word in span.split() if names_a_file(word) and not exists(word)]


def names_a_file(word: str) -> bool:
    path = PurePosixPath(word)
    if PLACEHOLDER.search(word) or not re.fullmatch(r"\.?[\w*][\w./*-]*", word):
        return False
    return path.suffix in SOURCE or (len(path.parts) > 1 and path.parts[0] in tracked())


def exists(word: str) -> bool:
    name = word.removeprefix("./").rstrip("/")
    return name in tracked() or ("*" in name and any(fnmatch(one, name) for one in tracked()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert [word for span in spans(page) for word in missing_files(span)] == []


@pytest.mark.parametrize(
    "span",
    [
        "drivers/proxmox/api/gone.py",
        "tests/pve/excerpt_gone.py",
        "gone.py",
        "bench/gone.py 50000",
        "packaging/nowhere/",
        "tests/unit/*.gone",
    ],
)
def test_a_file_that_does_not_exist_is_found(span: str) -> None:
    assert missing_files(span) == [span.split(maxsplit=1)[0]]


@pytest.mark.parametrize(
    "span",
    [
        "bench/soak.py 50000",
        "model/disk.py",
        "disk.py",
        "tests/unit",
        "workloads/<tool>.py",
        "references/NAME.json",
        "/api/v1/status",
        "scenario/workload",
        "dist/RELEASE.md",
        "make e2e",
    ],
)
def test_files_placeholders_and_other_words_are_no_missing_files(span: str) -> None:
    assert missing_files(span) == []


# --- Functions.


@cache
def defined() -> frozenset[str]:
    """Return `function`, `Class` and `Class.method` of all modules."""
    modules = (ROOT / "exporter").rglob("*.py")
    return frozenset(name for path in modules for name in names_in(path.read_text("utf-8")))


def names_in(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            functions = (part for part in node.body if isinstance(part, ast.FunctionDef))
            yield from (f"{node.name}.{part.name}" for part in functions)


def missing_functions(span: str) -> list[str]:
    """Return a span that looks like a function or method of the product and is none."""
    function = FUNCTION.fullmatch(span)
    name = function[1] if function else span if METHOD.fullmatch(span) else ""
    return [span] if name and name not in defined() else []


@pytest.mark.parametrize("name", ["docs/design.md", "CONTRIBUTING.md"])
def test_every_function_that_a_page_names_exists(name: str) -> None:
    assert [word for span in spans(ROOT / name) for word in missing_functions(span)] == []


def test_design_follows_a_run_through_the_functions_of_each_package() -> None:
    text = (ROOT / "docs/design.md").read_text("utf-8")
    section = text.partition("## Life of a run\n")[2].partition("\n## ")[0]
    named = [span for span in SPAN.findall(section) if METHOD.fullmatch(span) or "()" in span]
    assert len(named) >= 15


def test_design_names_every_package() -> None:
    spans_of_design = set(spans(ROOT / "docs/design.md"))
    folders = [path.parent.name for path in (ROOT / "exporter").glob("*/*/__init__.py")]
    assert set(folders) - spans_of_design == set()


@pytest.mark.parametrize("span", ["Runner.gone", "gone()", "RunnerGone"])
def test_a_function_that_does_not_exist_is_found(span: str) -> None:
    assert missing_functions(span) == [span]


@pytest.mark.parametrize("span", ["Runner.run", "run_job()", "CaseStep", "VM.Audit.x", "make run"])
def test_functions_and_other_words_are_no_missing_functions(span: str) -> None:
    assert missing_functions(span) == []
