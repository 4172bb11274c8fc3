"""A YAML 1.2 file with the position of everything in it, and its validation.

ruamel.yaml keeps line and column; pydantic finds all faults at once and says at which
path. This module joins the two into `file:line:column: message`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pvebench.errors import ConfigError, Problem

Location = tuple[int | str, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)

_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its name as the user wrote it, and ruamel's tree."""

    file: str
    root: CommentedMap

    def problem(self, location: Location, message: str, *, at_key: bool = False) -> Problem:
        """Return a complaint at `location`, or at the nearest enclosing thing that has a place."""
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
        ConfigError: it cannot be read, is not YAML 1.2, repeats a key, or is not a mapping.
    """
    file = str(path)
    try:
        root = YAML(typ="rt", pure=True).load(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError([Problem(file, 0, 0, f"cannot be read: {reason}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(file, 0, 0, "is not UTF-8 text")]) from error
    except MarkedYAMLError as error:
        raise ConfigError([_yaml_problem(file, error)]) from error
    except YAMLError as error:
        raise ConfigError([Problem(file, 0, 0, f"is not YAML: {error}")]) from error
    if not isinstance(root, CommentedMap):
        message = "is empty" if root is None else "wants keys and values at the top level"
        raise ConfigError([Problem(file, 1, 1, message)])
    return Document(file, root)


def _yaml_problem(file: str, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    text = (error.problem or "is not YAML").splitlines()[0]
    return Problem(file, line, column, text)


def validate(document: Document, model: type[ModelT]) -> ModelT:
    """Return `document` as `model`.

    Raises:
        ConfigError: with every fault of the file, in the order of its lines.
    """
    try:
        return model.model_validate(_plain(document.root))
    except ValidationError as error:
        problems = [_problem(document, model, dict(fault)) for fault in error.errors()]
        problems.sort(key=lambda problem: (problem.line, problem.column))
        raise ConfigError(problems) from error


def _plain(node: Any) -> Any:
    """Return ruamel's tree as plain dicts and lists, which pydantic's strict types want."""
    if isinstance(node, CommentedMap):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _problem(document: Document, model: type[BaseModel], fault: dict[str, Any]) -> Problem:
    location: Location = fault["loc"]
    kind, found = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        message = unknown_key(str(location[-1]), _known_keys(model, location[:-1]))
        return document.problem(location, message, at_key=True)
    if kind == "missing":
        return document.problem(location[:-1], f"missing key '{location[-1]}'")
    path = ".".join(str(part) for part in location)
    if kind in {"enum", "literal_error"}:
        message = f"{path}: {found!r} is not one of {fault['ctx']['expected']}"
    elif kind == "value_error":
        message = f"{path}: {fault['ctx']['error']}" if path else str(fault["ctx"]["error"])
    elif kind in _WANTED:
        message = f"{path}: wants {_WANTED[kind]}, found {found!r}"
    else:
        message = f"{path}: {fault['msg']}, found {found!r}"
    return document.problem(location, message)


def unknown_key(key: str, known: list[str]) -> str:
    """Return the complaint about a key that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key '{key}'; {hint}"


def _known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """Return the keys that the model at `location` knows."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        if part in fields:
            current = _inner_model(fields[part].annotation)
    return sorted(getattr(current, "model_fields", {}))


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _inner_model(inner)
        if found is not None:
            return found
    return None
