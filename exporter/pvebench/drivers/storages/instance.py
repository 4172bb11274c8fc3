"""Who made a volume: each instance has a random id, which the names of its volumes carry.

The id is in a file beside the database, not in it: a database that is put back elsewhere does
not make its new owner the owner of what the old one made. Two hosts with equal paths that share
a directory have two ids, so neither takes the other's volumes for its own leftovers.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.storages.contract import MARK
from pvebench.errors import NotWritable

_FILE: Final = "instance"
_BYTES: Final = 8
_ID: Final = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")


def instance_id(state: Path) -> str:
    """Return the id of the instance with this state directory, made when it is first asked for.

    Raises:
        NotWritable: it cannot be read, made, or is no id.
    """
    path = state / _FILE
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as opened:
            found = opened.read(64).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotWritable(
            f"the instance's id in {path} cannot be read or made: {error.strerror}",
            next_step="mend the permissions of the state directory",
        ) from error
    if not _ID.fullmatch(found):
        raise NotWritable(
            f"{path} does not hold an instance's id",
            cause="it was damaged or edited",
            next_step="remove it: a new id is made, and volumes with the old one are left alone",
        )
    return found


def _make(path: Path) -> None:
    """Write a new id: whole or not at all, also when the machine stops meanwhile."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(_BYTES)}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def is_own(details: Mapping[str, str], instance: str) -> bool:
    """Tell whether a journal entry may be acted upon: the name in it carries this instance's id.

    An entry without a name (a VM, a device's setting) is proved by what undoes it.
    """
    if "path" not in details and "name" not in details:
        return True
    name = Path(details.get("path") or details["name"]).name
    return name.startswith(f"{MARK}{instance}-")
