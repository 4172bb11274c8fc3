"""Packs by name: `quick` is the nearest `quick.yaml`, or the one that comes with pvebench."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pvebench.errors import ConfigError, Problem
from pvebench.shipped import shipped

_MOST_NAME: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
"""What is joined to a directory: anything with a dot or a slash is a path, and used as it is."""


def is_pack_name(given: Path) -> bool:
    """Return whether this is a name, not a path."""
    return _NAME.fullmatch(str(given)) is not None


def shipped_packs() -> dict[str, Path]:
    """Return name -> file of the packs that come with pvebench."""
    return {path.stem: path for path in sorted(shipped("scenarios").glob("*.yaml"))}


def pack_named(name: str, places: Sequence[Path]) -> Path | None:
    """Return the file of the pack `name`: of the first of `places` that has one, else our own.

    A file that is called so without `.yaml` comes last. What is there but no file, such as a pipe
    or a link that leads nowhere, is returned too: reading it tells what it is.
    """
    nearest = [place / f"{name}.yaml" for place in places]
    ours = shipped_packs().get(name)
    literal = [place / name for place in places]
    candidates = [*nearest, *([ours] if ours else []), *literal]
    return next((path for path in candidates if _is_there(path)), None)


def _is_there(path: Path) -> bool:
    # Not pathlib's: of a directory that may not be looked into it raises.
    return os.path.lexists(path) and not os.path.isdir(path)  # noqa: PTH112 # see above


def no_such_pack(name: str, places: Sequence[Path]) -> str:
    """Return the complaint about a name that no pack has, with where it was looked for."""
    looked = ", ".join(str(place.absolute()) for place in places)
    return f"there is no {name}.yaml in {looked}, and {_none_of_ours(name)}"


def check_there(path: Path) -> None:
    """Lead who names a pack's file that is not there to the packs that are.

    Raises:
        ConfigError: it is not there; where that cannot be told, reading it tells why.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            to = f"is a link to {path.readlink()}, which is not there"
            raise ConfigError([Problem(str(path), 0, 0, to)]) from error
        ours = path.stem in shipped_packs()
        hint = (
            f"that of pvebench has the name {path.stem} alone" if ours else _none_of_ours(path.stem)
        )
        raise ConfigError([Problem(str(path), 0, 0, f"is not there; {hint}")]) from error
    except (OSError, ValueError):
        # A NUL in a path is a ValueError.
        return


def _none_of_ours(name: str) -> str:
    known = list(shipped_packs())
    near = difflib.get_close_matches(name[:_MOST_NAME], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"those that do are {', '.join(known)}"
    return f"no pack called {name[:_MOST_NAME]} comes with pvebench; {hint}"
