"""Access to included files: packs, dashboards, rules.

The files are in the root of the repository. The wheel has copies in this package, as listed in
`pyproject.toml`. Other modules find them only through this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pvebench.errors import MachineError

_HERE: Final = Path(__file__).resolve().parent
_PLACES: Final = (_HERE, _HERE.parents[2])
"""Of an installed pvebench, of a checkout."""


def shipped(name: str) -> Path:
    """Return the file or directory `name`, such as `scenarios` or `prometheus/rules`.

    Raises:
        MachineError: it did not come along.
    """
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    raise MachineError(
        f"{name}, which comes with pvebench, is not in {_HERE}",
        cause="an installation that is not complete",
        next_step="install pvebench again, from its wheel or its package",
    )
