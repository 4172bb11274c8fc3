"""Where the addresses of the targets are read: a file, the environment, or the settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from pvebench.config import Settings
from pvebench.config.notify import NotifyTarget
from pvebench.errors import ConfigError, Problem
from pvebench.files import read_secret

Address = Callable[[], str]
"""Reads an address anew. Raises ConfigError, OSError."""


def addresses_of(settings: Settings) -> dict[str, Address]:
    """Return name of a target -> what reads its address."""
    targets = settings.notify.to if settings.notify else ()
    return {one.name: partial(address_of, one) for one in targets}


def address_of(target: NotifyTarget) -> str:
    """Return the address of a target.

    Raises:
        ConfigError, OSError: it cannot be read; the message does not hold it.
    """
    if target.url is not None:
        return target.url.get_secret_value()
    if target.url_file is not None:
        return read_secret(target.url_file)
    name = target.url_env or ""
    found = os.environ.get(name, "").strip()
    if not found:
        problem = Problem(f"notify target {target.name}", 0, 0, f"{name} is not in the environment")
        raise ConfigError([problem], next_step="set it for the service, or use url_file")
    return found
