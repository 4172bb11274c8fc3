"""YAML text becomes the model's values here; every complaint has file:line:column."""

from pvebench.config.pack import Pack, load_pack
from pvebench.config.settings import Settings, load_settings

__all__ = ["Pack", "Settings", "load_pack", "load_settings"]
