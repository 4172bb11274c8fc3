"""Conversion of YAML files to settings and packs; each problem has file:line:column."""

from pvebench.config.pack import (
    Pack,
    is_pack_name,
    load_pack,
    no_such_pack,
    pack_named,
    shipped_packs,
)
from pvebench.config.settings import Settings, load_settings

__all__ = [
    "Pack",
    "Settings",
    "is_pack_name",
    "load_pack",
    "load_settings",
    "no_such_pack",
    "pack_named",
    "shipped_packs",
]
