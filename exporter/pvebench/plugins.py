"""Plug-ins: parts of pvebench in other packages, which their entry points name.

A package adds drivers, storage kinds, tools, commands and more with entry points of these groups,
without a change of pvebench; `pvebench.plugin` lists what it may use. A plug-in that cannot be
loaded is skipped and reported, so that it never prevents a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from pvebench.log import log
from pvebench.sanitize import one_line

T = TypeVar("T")

_NAME: Final = re.compile(r"[a-z][a-z0-9.+-]{0,39}")


@dataclass(frozen=True, slots=True)
class SkippedPlugin:
    """Plug-in that is installed and not used.

    Attributes:
        group: group of its entry point, such as `pvebench.tools`.
        package: the installed package that names it.
    """

    group: str
    name: str
    package: str
    reason: str


GROUPS: Final = frozenset(
    {
        "backends",
        "commands",
        "drivers",
        "guests",
        "node_backends",
        "observers",
        "references",
        "services",
        "storages",
        "tools",
        "undo",
    }
)
"""Groups of entry points, without `pvebench.`."""
SKIPPED: Final[dict[tuple[str, str, str], SkippedPlugin]] = {}
"""Group, name and package -> the plug-ins that this process skipped."""


REGISTRIES: Final[list[Registry[Any]]] = []
"""All that this process has."""


class Registry(Mapping[str, T]):
    """Objects of one kind by their names: pvebench's own, then those of plug-ins.

    They are loaded at the first use. A plug-in never replaces another object of the same name.

    Args:
        group: name of the group of entry points, without `pvebench.`.
        valid: whether an object is of this kind.
        own: name -> place of pvebench's own objects, as `module:attribute`.
    """

    def __init__(self, group: str, valid: Callable[[Any], bool], own: Mapping[str, str]) -> None:
        self._group = group
        self._valid = valid
        self._own = own
        REGISTRIES.append(self)

    def __getitem__(self, name: str) -> T:
        return self._objects[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def names(self) -> list[str]:
        """Names of all objects, without loading them; also of plug-ins that cannot be loaded."""
        return [*self._own, *plugins(self._group, frozenset(self._own))]

    @cached_property
    def _objects(self) -> dict[str, T]:
        objects = {name: load(place) for name, place in self._own.items()}
        for name, point in plugins(self._group, frozenset(self._own)).items():
            try:
                plugin = _instance(point.load())
            except (Exception, SystemExit) as error:  # noqa: BLE001 # another package's code
                skip(point, f"{type(error).__name__}: {error}")
                continue
            if self._valid(plugin):
                objects[name] = plugin
            else:
                skip(point, f"{point.value} is not one of {point.group}")
        return objects


def load(place: str) -> Any:
    """Return the object at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return _instance(getattr(import_module(module), attribute))


def _instance(loaded: Any) -> Any:
    return loaded() if isinstance(loaded, type) else loaded


@cache
def plugins(group: str, taken: frozenset[str] = frozenset()) -> Mapping[str, EntryPoint]:
    """Return name -> entry point of the installed plug-ins of a group, not loaded.

    Args:
        taken: names of pvebench's own objects.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=f"pvebench.{group}"), key=_order):
        if not _NAME.fullmatch(point.name):
            skip(point, "its name is not of a-z, 0-9, '.', '+' and '-'")
        elif point.name in taken or point.name in found:
            skip(point, "another one has its name")
        else:
            found[point.name] = point
    return found


def _order(point: EntryPoint) -> tuple[bool, str, str]:
    return package_of(point) != "pvebench", point.name, package_of(point)


def package_of(point: EntryPoint) -> str:
    """Return the name of the package with an entry point."""
    return point.dist.name if point.dist is not None else ""


def skipped() -> list[SkippedPlugin]:
    """Return the plug-ins that cannot be used; load each of another package to find out."""
    for registry in REGISTRIES:
        registry.names  # noqa: B018 # skips those with a name that is wrong or taken
    found = entry_points()
    for group in sorted(name for name in found.groups if name.startswith("pvebench.")):
        for point in found.select(group=group):
            if group.removeprefix("pvebench.") not in GROUPS:
                skip(point, f"unknown group; known: {', '.join(sorted(GROUPS))}")
                continue
            if package_of(point) == "pvebench":
                continue  # in the same wheel, and slow to load
            try:
                point.load()
            except (Exception, SystemExit) as error:  # noqa: BLE001 # another package's code
                skip(point, f"{type(error).__name__}: {error}")
    return sorted(SKIPPED.values(), key=lambda entry: (entry.group, entry.name, entry.package))


def skip(point: EntryPoint, reason: str) -> SkippedPlugin:
    """Report and return a plug-in that is not used."""
    entry = SkippedPlugin(point.group, point.name, package_of(point), one_line(reason))
    if SKIPPED.setdefault((entry.group, entry.name, entry.package), entry) is entry:
        log.warning("plug-in skipped", plugin=entry.name, package=entry.package, reason=reason)
    return entry
