"""Is everything here that a run needs? For `pvebench check`, and for `doctor` among the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.driver import Finding, attempt
from pvebench.drivers.storages.directory import existing
from pvebench.errors import NotWritable, PvebenchError
from pvebench.model.volume import Identity, change, is_certain, is_same, show
from pvebench.scheduler.order import make_plan
from pvebench.service.instance import access_of
from pvebench.service.selection import assignments
from pvebench.store import identities_at

ACCEPT: Final = "mount the right one, or start a new history: pvebench storage accept {}"
"""What to do about a storage that is another one."""

_DOORS: Final = ("token", "server")
"""Findings without which nothing else can be asked."""


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
    found = list(engine_of(settings.driver).check(settings, cases))
    yield from found
    # A server that refused the token is asked nothing more.
    if not any(good is False and name.endswith(_DOORS) for name, good, _ in found):
        yield from _identities(settings)


def _identities(settings: Settings) -> Iterator[Finding]:
    """Yield whether each storage is the one that it was."""
    nodes = settings.nodes_in_force()
    with identities_at(settings.state / "pvebench.db") as records:
        for (node, name), look in engine_of(settings.driver).identities(settings).items():
            what = f"identity of {name}"
            what = f"{node}: {what}" if len(nodes) > 1 else what
            try:
                now = look()
            except PvebenchError as error:
                yield what, False, str(error)
            else:
                was = records.recorded(node, name) if records else None
                yield what, *_compared(name, was, now)


def _compared(storage: str, was: Identity | None, now: Identity) -> tuple[bool | None, str]:
    if was is not None and not is_same(was, now):
        return False, f"{change(storage, was, now)}; {ACCEPT.format(storage)}"
    known = "as recorded" if was is not None else "the first run records it"
    if is_certain(now):
        return True, f"{known}: {show(now)}"
    if not now:
        return None, "not known: another device under this name would not be noticed"
    return None, f"{known}: {show(now)}; which device is below is not known"


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
