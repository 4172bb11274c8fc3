"""Access to included files: packs, dashboards, rules.

The files are in the root of the repository. The wheel has copies in this package, as listed in
`pyproject.toml`. Other modules find them only through this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pvebench.errors import MachineError

_HERE: Final = Path(__file__).resolve().parent
_ROOTS: Final = (_HERE, _HERE.parents[2])
"""Roots of an installed pvebench and of a checkout."""


def shipped(name: str) -> Path:
    """Return the file or directory `name`, such as `scenarios` or `prometheus/rules`.

    Raises:
        MachineError: it is missing.
    """
    for root in _ROOTS:
        if (root / name).exists():
            return root / name
    raise MachineError(
        f"{name} of pvebench is missing in {_HERE}",
        cause="incomplete installation",
        next_step="install pvebench again from its wheel or package",
    )
