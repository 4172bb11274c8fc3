"""Is everything here that a run needs? For `pvebench check`, and for `doctor` among the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.driver import Finding, attempt
from pvebench.drivers.storages.settings import existing
from pvebench.errors import NotWritable
from pvebench.plan import make_plan
from pvebench.service.choice import assignments
from pvebench.service.instance import access_of


def findings(settings: Settings, scale: float = 1.0) -> Iterator[Finding]:
    """Yield what is found of settings, packs, state and everything the driver needs.

    Nothing is changed by looking.

    Raises:
        ConfigError: a pack or the web configuration is wrong; nothing after it means much.
    """
    yield "settings", True, f"{_nodes(settings)}, driver {settings.driver}"
    given = assignments(settings, scale=scale)
    for entry in given:
        made = make_plan(entry.matrix, seed=entry.pack.seed)
        yield f"pack {entry.pack.name}", True, f"{len(made.cases)} cases on {entry.node}"
    yield attempt("state", lambda: _state(settings))
    if settings.web_config_file is not None:
        access = access_of(settings)
        yield "web configuration", True, f"{settings.web_config_file}: {access.scheme}"
    cases = [case for entry in given for case in entry.matrix.cases]
    yield from engine_of(settings.driver).check(settings, cases)


def _nodes(settings: Settings) -> str:
    nodes = settings.nodes_in_force()
    return f"node{'s' * (len(nodes) > 1)} {', '.join(nodes)}"


def _state(settings: Settings) -> str:
    # Looked at, not made: as root it would then belong to root.
    there = existing(settings.state)
    if not os.access(there, os.W_OK | os.X_OK):
        raise NotWritable(
            f"state directory {settings.state}: {there} cannot be written",
            next_step="mend its permissions, or name another one with --state",
        )
    return str(settings.state) + ("" if there == settings.state else " (will be made)")
