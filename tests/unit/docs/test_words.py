"""Texts for readers use plain words: none of those that once made up a private language.

Checked are string constants and docstrings, templates, alerts, and the messages of shell scripts.
Code spans are exempt, and so are strings without a space, which are keys, labels or names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from testing.packs import ROOT

FORBIDDEN = (
    "told",
    "tells?",
    "wants?",
    "anew",
    "whoever",
    "nobody",
    "somebody",
    "mend(?:s|ed|ing)?",
    "by itself",
    "to and fro",
    "for want of",
    "in force",
    "lies on",
    "stands in",
    "cannot be told",
    "goes on",
)
PATTERN = re.compile(rf"\b({'|'.join(FORBIDDEN)})\b".replace(" ", r"\s+"), re.IGNORECASE)
CODE_SPAN = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`")
ATTRIBUTE = re.compile(r"^ +\w+(, \w+)*: ", re.MULTILINE)
"""A parameter or attribute in a docstring, which a text explains by its name."""

Texts = Iterator[tuple[int, str]]
"""Line number and text."""


def forbidden(text: str) -> list[str]:
    """Return the forbidden words of a text, outside of code spans."""
    if " " not in text.strip():
        return []
    return [" ".join(found[1].split()).lower() for found in PATTERN.finditer(plain(text))]


def plain(text: str) -> str:
    return ATTRIBUTE.sub("name: ", CODE_SPAN.sub("code", text))


# --- The texts of each kind of file.


def python_texts(source: str) -> Texts:
    """Yield string constants, among them docstrings and the fixed parts of f-strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


JS_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`)',
    re.DOTALL,
)


def javascript_texts(source: str) -> Texts:
    """Yield the content of string literals."""
    for found in JS_TOKEN.finditer(source):
        if found["text"]:
            yield line_of(source, found), found["text"][1:-1]


JINJA_CODE = re.compile(r"\{#.*?#\}|\{\{.*?\}\}|\{%.*?%\}|<code\b.*?</code>", re.DOTALL)
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'", re.DOTALL)


def template_texts(source: str) -> Texts:
    """Yield the text of a template, and the strings in its expressions; without its comments."""
    for found in JINJA_CODE.finditer(source):
        code = "" if found[0].startswith("{#") else found[0]
        yield line_of(source, found), " ".join(QUOTED.findall(code))
    blank = JINJA_CODE.sub(lambda found: re.sub(r"[^\n]+", " ", found[0]), source)
    yield from enumerate(blank.splitlines(), 1)


def rule_texts(source: str) -> Texts:
    """Yield the annotations of alerts."""
    content = YAML(typ="safe", pure=True).load(source)
    for group in content["groups"]:
        for rule in group["rules"]:
            for text in strings(rule.get("annotations", {})):
                yield 0, f"{rule.get('alert')}: {text}"


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        return iter([value])
    inner = value.values() if isinstance(value, Mapping) else []
    return (text for one in inner for text in strings(one))


SHELL_TOKEN = re.compile(
    r"(?:(?<=\s)|^)#[^\n]*"
    r"|<<-?\s*['\"]?(?P<end>\w+)['\"]?[^\n]*\n(?P<document>.*?)\n\s*(?P=end)\b"
    r"|(?P<text>\"(?:\\.|[^\"\\])*\"|'[^']*')",
    re.DOTALL | re.MULTILINE,
)


def shell_texts(source: str) -> Texts:
    """Yield quoted strings and here-documents."""
    for found in SHELL_TOKEN.finditer(source):
        text = found["document"] or (found["text"] or "")[1:-1]
        if text:
            yield line_of(source, found), text


def line_of(source: str, found: re.Match[str]) -> int:
    return source.count("\n", 0, found.start()) + 1


# --- The files of each part.


def is_shell(path: Path) -> bool:
    first = path.read_bytes()[:64].splitlines()[:1]
    return path.suffix == ".sh" or bool(first and re.match(rb"#!.*\b(ba|da)?sh\b", first[0]))


def files(folder: str, pattern: str = "**/*.py") -> list[Path]:
    return sorted(path for path in (ROOT / folder).glob(pattern) if path.is_file())


PACKAGE = "exporter"
FOLDERS = sorted(
    f"{path.parent.name}/{path.name}"
    for path in (ROOT / PACKAGE).glob("*/*")
    if any(path.glob("**/*.py"))
)
Kind = Callable[[str], Texts]
PARTS: dict[str, tuple[list[Path], Kind]] = {
    PACKAGE: (files(PACKAGE, "*/*.py"), python_texts),
    **{f"{PACKAGE}/{name}": (files(f"{PACKAGE}/{name}"), python_texts) for name in FOLDERS},
    "grafana/builder": (files("grafana/builder"), python_texts),
    "HTML templates": (files(PACKAGE, "**/*.html"), template_texts),
    "web scripts": (files(f"{PACKAGE}/pvebench/web/static", "*.js"), javascript_texts),
    "prometheus/rules": (files("prometheus/rules", "*.yml"), rule_texts),
    "shell scripts of pvebench": (files(PACKAGE, "**/*.sh"), shell_texts),
    "shell scripts of packaging": (
        [path for path in files("packaging", "**/*") if is_shell(path)],
        shell_texts,
    ),
    "Python of packaging": (files("packaging"), python_texts),
}


@pytest.mark.parametrize("part", PARTS)
def test_texts_use_plain_words(part: str) -> None:
    paths, kind = PARTS[part]
    texts = [(path, line, text) for path in paths for line, text in kind(path.read_text("utf-8"))]
    assert texts
    assert [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(words)}: {' '.join(text.split())[:100]}"
        for path, line, text in texts
        if (words := forbidden(text))
    ] == []


def test_every_module_and_script_belongs_to_a_part() -> None:
    checked = {path for paths, _ in PARTS.values() for path in paths}
    assert {
        *files(PACKAGE, "pvebench*/**/*.py"),
        *files(PACKAGE, "**/*.html"),
        *files(PACKAGE, "**/*.js"),
    } <= checked
    scripts = {path.name for path in PARTS["shell scripts of packaging"][0]}
    assert scripts >= {"postinst", "preinst", "prerm", "postrm", "proxmox-lxc.sh"}


@pytest.mark.parametrize(
    "word",
    ["told", "tells", "wants", "mending", "by\n    itself", "Nobody", "cannot be told", "goes on"],
)
def test_a_forbidden_word_is_found(word: str) -> None:
    assert forbidden(f"It {word} here.") == [" ".join(word.split()).lower()]


@pytest.mark.parametrize(
    "text",
    [
        "`systemd was told` is old",
        "told",
        "untold stories",
        "amend it",
        "told_ready is old",
        "It is.\n\n    Attributes:\n        told, wants: their names.",
    ],
)
def test_code_names_and_longer_words_are_exempt(text: str) -> None:
    assert forbidden(text) == []


@pytest.mark.parametrize(
    ("kind", "source", "line"),
    [
        (python_texts, 'def f():\n    """It is\n    told."""\n', 2),
        (python_texts, 'x = 1\ny = (f"it {x} "\n    f"is told")\n', 2),
        (javascript_texts, 'let a = 1; // "was told"\nlet b = "is told";', 2),
        (template_texts, "{# was told #}\n<p>\nis told</p>", 3),
        (template_texts, '{{ told(a) }} {# was told #}\n{{ f("is told") }}', 2),
        (shell_texts, 'a=1 # "was told"\necho "is told"\n', 2),
        (shell_texts, "told\ncat <<'END'\nis told\nEND\ntold\n", 2),
        (rule_texts, "groups: [{rules: [{alert: A, annotations: {summary: is told}}]}]", 0),
    ],
)
def test_texts_are_found_with_their_line_and_nothing_else_is(
    kind: Kind, source: str, line: int
) -> None:
    assert [number for number, text in kind(source) if forbidden(text)] == [line]
