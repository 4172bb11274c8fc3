"""Style rules of the documentation: forbidden words, line length, page length."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from testing.packs import ROOT

FORBIDDEN: Final = re.compile(
    r"\b(told|tells?|wants?|anew|whoever|nobody|somebody|mend(?:s|ed|ing)?|by itself|to and fro"
    r"|for want of|in force|lies on|stands in|cannot be told|goes on)\b",
    re.IGNORECASE,
)
"""Words of a private language; each has a standard term, such as "reports" for "tells"."""
LONGEST_LINE: Final = 120
LONGEST_PAGE: Final = {
    "CHANGELOG": 100,
    "advice": 150,
    "CONTRIBUTING": 120,
    "README": 115,
    "cli": 100,
    "configuration": 100,
    "containers": 130,
    "cost": 60,
    "dashboards": 60,
    "design": 120,
    "during": 90,
    "detection": 100,
    "durability": 75,
    "existing-grafana": 60,
    "fleet": 150,
    "glossary": 80,
    "index": 40,
    "install": 120,
    "measurement": 120,
    "notifications": 65,
    "operations": 110,
    "packs": 190,
    "performance": 45,
    "plugins": 60,
    "pools": 60,
    "proxmox": 230,
    "published": 80,
    "quickstart": 75,
    "releasing": 45,
    "runbooks": 135,
    "scaling": 40,
    "security": 105,
    "snapshots": 45,
    "storages": 60,
    "ssh": 85,
    "trust": 60,
    "uninstall": 80,
    "windows": 90,
    "verdict": 120,
    "wall-screen": 60,
}
"""Lines of each page. A page that outgrows its limit needs a cut or a second page."""
GENERATED: Final = "by `make generate`"
"""What a generated page says of itself; its tables are as wide and long as the code makes them."""
GENERATED_PART: Final = re.compile(r"^<!-- \w+ -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
"""What is generated in a written page."""


def pages() -> list[Path]:
    """Return the pages whose language is checked."""
    roots = (ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING"))
    return [*roots, *sorted((ROOT / "docs").glob("*.md"))]


PAGES: Final = pages()
WRITTEN: Final = [page for page in PAGES if GENERATED not in page.read_text("utf-8")]


def without_fences(text: str) -> str:
    """Return the text without fenced blocks, whose lines are commands, files and output."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)


def prose(text: str) -> list[str]:
    """Return the paragraphs without code, block quotes and link targets, each on one line."""
    text = re.sub(r"^>.*$", "", without_fences(text), flags=re.MULTILINE)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    spanless = (re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "CODE", part) for part in paragraphs)
    return [re.sub(r"\]\([^)]*\)", "]", part) for part in spanless]


def forbidden(text: str) -> list[str]:
    """Return each forbidden word of the text with the words around it."""
    return [
        paragraph[max(0, match.start() - 30) : match.end() + 30]
        for paragraph in prose(text)
        for match in FORBIDDEN.finditer(paragraph)
    ]


def long_lines(text: str) -> list[str]:
    """Return the lines that are too long; links and table rows cannot be broken."""
    written = GENERATED_PART.sub("", without_fences(text))
    lines = [line for line in written.splitlines() if not line.startswith("|")]
    return [line for line in lines if len(re.sub(r"https?://\S+", "URL", line)) > LONGEST_LINE]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md"], ids=lambda path: path.stem)
def test_a_page_uses_the_terms_of_the_field(page: Path) -> None:
    assert forbidden(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.stem)
def test_the_lines_of_a_page_fit_an_editor(page: Path) -> None:
    assert long_lines(page.read_text("utf-8")) == []


@pytest.mark.parametrize("name", sorted(LONGEST_PAGE))
def test_a_page_has_at_most_its_lines(name: str) -> None:
    (page,) = (page for page in PAGES if page.stem == name)
    written = GENERATED_PART.sub("", page.read_text("utf-8"))
    assert len(written.splitlines()) <= LONGEST_PAGE[name]


@pytest.mark.parametrize(
    "text",
    [
        "pvebench tells you.",
        "It is\nmended now.",
        "Nobody reads | a table.",
        "It runs by\nitself.",
        "- `code` and what the log told",
        "[What it wants](page.md)",
    ],
)
def test_a_forbidden_word_is_found(text: str) -> None:
    assert len(forbidden(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`nobody` is a user, ``a ` that tells``.",
        "```console\n$ su nobody\n```",
        "- item\n\n  ```\n  it wants\n  ```\n",
        "> said of old: nobody\n",
        "[verdicts](verdict.md#told)",
        "Foretold, amended and recommended are other words.",
    ],
)
def test_code_output_and_longer_words_are_exempt(text: str) -> None:
    assert forbidden(text) == []


def test_a_long_line_is_found_but_for_its_address() -> None:
    assert long_lines("x" * 121) == ["x" * 121]
    assert long_lines("x" * 120) == []
    assert long_lines(f"See <https://example.org/{'x' * 120}>.") == []
    assert long_lines(f"```\n{'x' * 121}\n```") == []
    assert long_lines(f"<!-- table -->\n{'x' * 121}\n<!-- end -->") == []


def test_every_written_page_has_a_limit() -> None:
    """The API's page is as long as the API."""
    assert {page.stem for page in WRITTEN} - {"api"} == set(LONGEST_PAGE)
