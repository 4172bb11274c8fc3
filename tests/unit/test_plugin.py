"""The surface of plug-ins: it names each type and error that its own objects use."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_args, get_type_hints

from pvebench import errors, plugin

PUBLIC = [getattr(plugin, name) for name in plugin.__all__]
SURFACE = {
    id(value)
    for public in PUBLIC
    for value in (vars(public).values() if isinstance(public, ModuleType) else [public])
}


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes of pvebench in an annotation."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("pvebench"):
        yield annotation
    parts = annotation if isinstance(annotation, list | tuple) else get_args(annotation)
    for part in parts:
        yield from classes_in(part)


def functions_of(value: Any) -> list[Any]:
    if not inspect.isclass(value):
        return [value] if inspect.isfunction(value) else []
    members = inspect.getmembers(value)
    functions = [
        getattr(member, "fget", member)
        for name, member in members
        if name == "__init__" or not name.startswith("_")
    ]
    return [each for each in functions if inspect.isfunction(each)]


def used_by(value: Any) -> Iterator[type]:
    """Yield the types in the annotations of an object, and the errors in its docstrings."""
    annotated = [*functions_of(value), *([value] if inspect.isclass(value) else [])]
    for each in annotated:
        if not each.__module__.startswith("pvebench"):
            continue
        for hint in get_type_hints(each).values():
            yield from classes_in(hint)
        for word in re.findall(r"\b[A-Z]\w+\b", inspect.getdoc(each) or ""):
            if isinstance(error := getattr(errors, word, None), type):
                yield error


def test_the_surface_names_each_type_and_error_that_it_uses() -> None:
    missing = {
        f"{each.__module__}.{each.__qualname__} of {getattr(public, '__name__', public)}"
        for public in PUBLIC
        if not isinstance(public, ModuleType)
        for each in used_by(public)
        if id(each) not in SURFACE
    }
    assert missing == set()


def test_the_protocols_of_the_surface_use_nothing_else() -> None:
    modules = (plugin.drivers, plugin.ports, plugin.vm_lifecycle, plugin.references)
    missing = {
        f"{each.__module__}.{each.__qualname__} of {name}"
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
        for each in used_by(value)
        if id(each) not in SURFACE
    }
    assert missing == set()
