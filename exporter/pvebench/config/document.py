"""YAML 1.2 files with the position of each value, and their validation.

ruamel.yaml provides line and column; pydantic reports all problems at once with their path in the
file. This module joins the two into `file:line:column: message`.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scanner import RoundTripScanner, ScannerError

from pvebench.errors import ConfigError, Problem
from pvebench.fields import MAX_NAMED
from pvebench.files import read_text

MAX_VALUES: Final = 50_000
MAX_DEPTH: Final = 50
SHOWN: Final = 300
"""Maximum characters of an external value in a message."""

_VALUES: Final = re.compile(r'(?<=") with value ".*')

Location = tuple[int | str, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)

_SECRET: Final = ("notify",)
"""Path in the settings below which addresses contain secrets."""
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


_YAML_WORDS: Final = {
    "but got": "found",
    "but found": "found",
    "'<stream end>'": "the end of the file",
    "<stream end>": "the end of the file",
    "'<block end>'": "a line with less indentation",
    "<block end>": "a line with less indentation",
    "'<block mapping start>'": "a line with more indentation",
    "'<block sequence start>'": "a list",
    "'<scalar>'": "text",
    "mapping values are not allowed here": "unexpected ':'; check the indentation, or quote",
    "could not find expected ':'": "a key without ':'",
    "found character '\\t' that cannot start any token": "found a tab; indent with spaces",
    "that cannot start any token": "where a value starts; quote the value",
    "found unexpected end of stream": "a quotation mark is missing before the end of the file",
    "found undefined alias": "unknown alias",
}
"""Words of the parser -> words of users."""


def _child(node: Any, part: int | str) -> Any:
    """Return a value of a mapping or list; None: it does not exist, as a key that is no text."""
    if isinstance(node, CommentedMap):
        return node.get(part)
    exists = isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node)
    return node[part] if exists else None


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its name as written by the user, and ruamel's tree."""

    file: str
    root: CommentedMap

    def place(self, location: Location) -> Location:
        """Return `location` without indexes that have no list in the file, as of a sweep."""
        node: Any = self.root
        parts: list[int | str] = []
        for part in location:
            if isinstance(part, int) and not isinstance(node, CommentedSeq):
                continue
            parts.append(part)
            node = _child(node, part)
        return tuple(parts)

    def has(self, location: Location) -> bool:
        """Return whether the file has a key at `location`."""
        *above, key = location
        node: Any = self.root
        for part in above:
            node = _child(node, part)
        return isinstance(node, CommentedMap) and key in node

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> Problem:
        """Return a problem at `location`, or at the nearest enclosing value with a position."""
        line, column = self._position(location, at_key=at_key)
        return Problem(self.file, line + 1, column + 1, message)

    def _position(self, location: Location, *, at_key: bool) -> tuple[int, int]:
        node: Any = self.root
        place = (0, 0)
        for depth, part in enumerate(location):
            last = depth == len(location) - 1
            if isinstance(node, CommentedMap) and part in node:
                place = node.lc.key(part) if last and at_key else node.lc.value(part)
            elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
                place = node.lc.item(part)
            else:
                break
            node = node[part]
        return place


def read_document(path: Path) -> Document:
    """Return the parsed file.

    Raises:
        ConfigError: the file is unreadable, not YAML 1.2, not a mapping, or repeats a key.
    """
    file, text = str(path), read_text(path)
    try:
        yaml = YAML(typ="rt", pure=True)
        yaml.Scanner = _Scanner
        root = yaml.load(text)
    except MarkedYAMLError as error:
        raise ConfigError([_yaml_problem(file, error)]) from error
    except YAMLError as error:
        raise ConfigError([Problem(file, 0, 0, f"invalid YAML: {error}")]) from error
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError([Problem(file, 0, 0, "nested too deeply")]) from error
    except Exception as error:
        # ruamel.yaml does not convert errors of its constructors: `!!bool maybe` is a KeyError.
        message = f"invalid YAML: unreadable value ({type(error).__name__}: {shown(error)})"
        raise ConfigError([Problem(file, 0, 0, message)]) from error
    if not isinstance(root, CommentedMap):
        message = "empty file" if root is None else "expected a mapping at the top level"
        raise ConfigError([Problem(file, 1, 1, message)])
    return Document(file, root)


class _Scanner(RoundTripScanner):
    """Rejects excessive nesting, which would take ruamel.yaml minutes to parse."""

    def fetch_more_tokens(self) -> None:
        super().fetch_more_tokens()
        if len(self.indents) + self.flow_level > MAX_DEPTH:
            raise ScannerError(None, None, "nested too deeply", self.tokens[-1].start_mark)


def _yaml_problem(file: str, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    # For a repeated key ruamel.yaml shows both values, which may be secrets.
    text = _VALUES.sub("", (error.problem or "invalid YAML").splitlines()[0])
    for words, plain in _YAML_WORDS.items():
        text = text.replace(words, plain)
    return Problem(file, line, column, shown(text))


def validate(document: Document, model: type[ModelT]) -> ModelT:
    """Return `document` as `model`.

    Raises:
        ConfigError: with all problems of the file by line; of many similar ones, with the first
            ones and the number of others.
    """
    try:
        return model.model_validate(_Plain(document).of(document.root))
    except ValidationError as error:
        # Each combination of a sweep repeats the problems of its entry.
        kinds = {
            _problem(document, model, dict(detail)): str(detail["type"])
            for detail in error.errors()
        }
        raise ConfigError(_limit(kinds)) from error


def _limit(kinds: Mapping[Problem, str]) -> list[Problem]:
    """Return problems by position, with at most MAX_NAMED of each kind."""
    listed: list[Problem] = []
    omitted: list[Problem] = []
    counts: Counter[str] = Counter()
    for problem in sorted(kinds, key=lambda problem: (problem.line, problem.column)):
        counts[kinds[problem]] += 1
        (listed if counts[kinds[problem]] <= MAX_NAMED else omitted).append(problem)
    if omitted:
        message = f"{len(omitted)} more similar problem{'s' * (len(omitted) > 1)} from here on"
        listed.append(replace(omitted[0], message=message))
    return listed


class _Plain:
    """Conversion of ruamel's tree to plain dicts and lists, as pydantic's strict types require.

    An anchor's value counts at each use: a few lines with aliases of aliases expand to billions of
    values.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_VALUES

    def of(self, node: Any) -> Any:
        """Return a node of the tree as plain values."""
        self._left -= 1
        if self._left < 0:
            message = f"more than {MAX_VALUES} values; remove aliases of aliases"
            raise ConfigError([Problem(self._document.file, 0, 0, message)])
        if isinstance(node, CommentedMap):
            return {str(key): self.of(value) for key, value in node.items()}
        if isinstance(node, CommentedSeq):
            return [self.of(value) for value in node]
        if isinstance(node, bool) or node is None:
            return node
        for kind in (int, float, str):
            if isinstance(node, kind):
                return kind(node)
        return str(node)  # a date, or a value with a tag


def shown(value: object) -> str:
    """Return a value for a message, truncated if long."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _problem(document: Document, model: type[BaseModel], fault: dict[str, Any]) -> Problem:
    location, kind = document.place(fault["loc"]), fault["type"]
    if kind == "extra_forbidden":
        message = _unknown_key(str(location[-1]), _model_at(document, model, location[:-1]))
        return document.problem(location, message, at_key=True)
    if kind == "missing":
        return document.problem(location[:-1], f"missing key '{location[-1]}'")
    text = message_of(fault, secret=location[:1] == _SECRET)
    # A rule about several keys starts with the key of the problem.
    key, colon, rest = text.partition(": ")
    if kind == "value_error" and colon and document.has((*location, key)):
        location, text = (*location, key), rest
    path = ".".join(str(part) for part in location)
    return document.problem(location, f"{path}: {text}" if path else text)


def message_of(fault: Mapping[str, Any], *, secret: bool = False) -> str:
    """Return the message for a fault of pydantic, in pvebench's wording where it has one.

    Args:
        secret: whether the value may be a secret, which the message must not contain.
    """
    kind, value, context = fault["type"], fault["input"], fault.get("ctx", {})
    if secret and kind != "value_error":
        return f"expected {_EXPECTED[kind]}" if kind in _EXPECTED else str(fault["msg"])
    if kind in {"enum", "literal_error"}:
        return f"{shown(repr(value))} is not one of {context['expected']}"
    if kind == "value_error":
        return shown(str(context["error"]))
    if kind == "greater_than_equal":
        return f"expected {context['ge']} or more, found {_found(value)}"
    if kind == "less_than_equal":
        return f"expected {context['le']} or less, found {_found(value)}"
    expected = f"expected {_EXPECTED[kind]}" if kind in _EXPECTED else fault["msg"]
    return f"{expected}, found {_found(value)}"


def _found(value: object) -> str:
    """Return a value as YAML writes it."""
    words = {True: "true", False: "false", None: "nothing"}
    return words[value] if value is None or isinstance(value, bool) else shown(repr(value))


def unknown_key(key: str, known: list[str], *, cutoff: float = 0.6) -> str:
    """Return the message for an unknown key, with the nearest known one."""
    near = difflib.get_close_matches(key[:SHOWN], known, n=1, cutoff=cutoff)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key '{shown(key)}'; {hint}"


def _unknown_key(key: str, model: Any) -> str:
    """Return the message for a key that a model does not have; the model may explain it."""
    explained = getattr(model, "explained", {})
    if key in explained:
        return f"no key '{key}': {explained[key]}"
    return unknown_key(key, sorted(_fields(model)), cutoff=getattr(model, "cutoff", 0.6))


def _model_at(document: Document, model: type[BaseModel], location: Location) -> Any:
    """Return the model at `location`. The type of a mapping's values may depend on the value."""
    current: Any = model
    value: Any = document.root
    choose: Callable[[Any], Any] | None = None
    for part in location:
        value = _child(value, part)
        if isinstance(part, int):
            continue
        if choose is not None:
            current, choose = choose(value), None
        elif field := _fields(current).get(part):
            current, choose = _inner_model(field.annotation), _choice(field.annotation)
    return current


def _choice(annotation: Any) -> Callable[[Any], Any] | None:
    """Return the function from a value of a mapping to its model; None: it is no mapping."""
    if get_origin(annotation) is not dict:
        return None
    kind = get_args(annotation)[1]
    choices = [rule.model_of for rule in get_args(kind)[1:] if hasattr(rule, "model_of")]
    return choices[0] if choices else lambda _: _inner_model(kind)


def _fields(model: Any) -> dict[str, FieldInfo]:
    """Return a model's fields by their keys in files."""
    fields: dict[str, FieldInfo] = getattr(model, "model_fields", {})
    return {field.alias or name: field for name, field in fields.items()}


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        model = _inner_model(inner)
        if model is not None:
            return model
    return None
