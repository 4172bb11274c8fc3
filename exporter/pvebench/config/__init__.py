"""Conversion of YAML to model values; each error has file, line and column."""

from pvebench.config.pack import Pack, find_pack, load_pack, shipped_packs, unknown_pack
from pvebench.config.settings import Settings, load_settings

__all__ = [
    "Pack",
    "Settings",
    "find_pack",
    "load_pack",
    "load_settings",
    "shipped_packs",
    "unknown_pack",
]
