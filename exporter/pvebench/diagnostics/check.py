"""Prerequisites of a run, for `pvebench check` and as a part of `pvebench doctor`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers import engine_of
from pvebench.drivers.driver import Finding, attempt
from pvebench.drivers.linux.block_devices import memory_below
from pvebench.drivers.storages.directory import existing
from pvebench.errors import Interrupted, NoSpace, NotWritable, PvebenchError
from pvebench.model.ports import Site
from pvebench.model.storage_use import cost_lines
from pvebench.model.units import count_text, show_seconds, show_span
from pvebench.model.volume import Identity, change, is_certain, is_same, show
from pvebench.model.workload import Case
from pvebench.plugins import skipped
from pvebench.scheduler.guards import GuardChain
from pvebench.scheduler.plan import Assignment, boot_seconds
from pvebench.service.startup import (
    FittingCases,
    assignments,
    fitting,
    locked_store,
    make_sites,
    paced,
)
from pvebench.service.workers import handle_signals
from pvebench.store.state_directory import stored_at
from pvebench.web.tls_and_users import exposure, scheme_of

ACCEPT: Final = (
    "mount the right one, or start a new history with `pvebench storage accept {}` "
    "and the same settings"
)
"""Action for a storage on another device."""

_PREREQUISITES: Final = ("token", "server")
"""Findings whose failure prevents all further queries."""


def findings(
    settings: Settings, scale: float = 1.0, *, boot: Callable[[str], None] | None = None
) -> Iterator[Finding]:
    """Yield findings about settings, packs, state and the driver. Without `boot` it only reads.

    Args:
        boot: also boot each guest; it gets a line before each of them.

    Raises:
        ConfigError: a pack, known issues or the web configuration are wrong, so later findings
            would be meaningless.
    """
    yield "settings", True, f"{_nodes(settings)}, driver {settings.driver}"
    for entry in skipped():
        text = f"{entry.group} of package {entry.package} skipped: {entry.reason}"
        yield f"plug-in {entry.name}", False, f"{text}; reinstall or remove that package"
    planned = assignments(settings, scale=scale)
    try:
        fits, _ = fitting(settings, planned)  # the driver reports why free space is unknown
    except NoSpace as error:
        yield "space", False, str(error)
    else:
        planned = [fit.assignment for fit in fits]
        yield from map(_pack, fits)
    yield attempt("cost", lambda: "; ".join(cost_lines(paced(settings, planned).costs)))
    yield attempt("state", lambda: _state(settings))
    if files := settings.known_issues:
        text = f"{len(load_known_issues(*files))} with {', '.join(map(str, files))}"
        yield "known issues", True, text
    if warning := exposure(settings.listen, settings.web_config_file):
        yield "web UI", None, warning.removeprefix("warning: ")
    if settings.web_config_file is not None:
        scheme = scheme_of(settings.web_config_file)
        yield "web configuration", True, f"{settings.web_config_file}: {scheme}"
    cases = [case for entry in planned for case in entry.matrix.cases]
    of_driver = list(engine_of(settings.driver).check(settings, cases))
    yield from of_driver
    # No more requests to a server that rejected the token.
    if not any(good is False and name.endswith(_PREREQUISITES) for name, good, _ in of_driver):
        yield from _identities(settings)
    guests = _guests(planned)
    if boot is None:
        yield from _unproved(settings, guests)
    elif any(good is False for _, good, _ in of_driver):
        yield "guests", None, "not booted; fix the failures above first"
    else:
        yield from _booted(settings, guests, boot)


def _guests(planned: Sequence[Assignment]) -> dict[str, list[Case]]:
    """Return title of each VM -> its cases; a difference of VMs is in the title."""
    guests: dict[str, list[Case]] = {}
    for case in (case for entry in planned for case in entry.matrix.cases):
        machine = case.scenario.machine
        if case.scenario.disk.in_vm:
            title = f"guest {machine.os} on {case.scenario.node} ({machine.details})"
            guests.setdefault(title, []).append(case)
    return guests


def _unproved(settings: Settings, guests: Mapping[str, Sequence[Case]]) -> Iterator[Finding]:
    """Yield for each guest from the user's own VM whether a run has proved what is in it."""
    foreign = {name: cases for name, cases in guests.items() if cases[0].scenario.machine.foreign}
    with stored_at(settings.state / "pvebench.db") as stored:
        measured = stored.oldest_good_runs() if stored and foreign else {}
    for title, cases in foreign.items():
        good: bool | None = any(case.key in measured for case in cases) or None
        text = "proved by a run; to prove it again" if good else "not proved yet"
        text += f", run `pvebench check --boot`: it starts a VM, about {_minutes(cases[0])}"
        if (fio := cases[0].scenario.machine.fio) and not os.access(fio, os.R_OK):
            good, text = False, f"{fio} is missing or unreadable; correct guest.fio in the pack"
        yield title, good, text


def _minutes(case: Case) -> str:
    clone = " and the time of a clone" if case.scenario.machine.template else ""
    return f"{show_seconds(boot_seconds(case))}{clone}"


def _booted(
    settings: Settings, guests: Mapping[str, Sequence[Case]], say: Callable[[str], None]
) -> Iterator[Finding]:
    """Boot each guest once, as a run does, and yield what it has or lacks.

    Raises Interrupted, after the VM was removed. Others as `locked_store` and `shutdown`.
    """
    engine = engine_of(settings.driver)
    clock, limit = engine.make_clock(endless=False), engine.boot_limit
    stop = dict.fromkeys((signal.SIGINT, signal.SIGTERM), clock.stop)
    with handle_signals(stop), locked_store(settings) as (state, store), ExitStack() as stack:
        sites = {s.node: s for s in make_sites(settings, state, store.journal, clock, say)}
        for site in sites.values():
            stack.callback(site.hypervisor.shutdown)
        for title, (case, *_) in guests.items():
            most = f"; at most {show_span(limit)}" if limit else ""
            say(f"{title}: booting, about {_minutes(case)}{most}; Ctrl-C removes it")
            yield title, *_boot(sites[case.scenario.node], case)


def _boot(site: Site, case: Case) -> tuple[bool | None, str]:
    guards = GuardChain(site.guards)
    if hold := guards.enter(case):
        return None, f"not booted, as a run would wait now: {hold.reason}"
    try:
        facts = site.hypervisor.boot(case.scenario.machine).facts()
    except Interrupted:
        raise
    except PvebenchError as error:
        return False, str(error)
    finally:
        guards.leave(case)
    known = "".join(f", {name} {text}" for name, text in facts.items())
    return True, f"booted in {show_seconds(site.hypervisor.boot_seconds)}{known}"


def _pack(fit: FittingCases) -> Finding:
    """Return cases and space of a pack, as of `pvebench plan`."""
    entry = fit.assignment
    text = f"{count_text(len(entry.matrix.cases), 'case')} on {entry.node}; at most {fit.text}"
    if fit.lacking:
        text += f"; {count_text(len(fit.lacking), 'case')} excluded: {fit.lacking[0].reason}"
    return f"pack {entry.pack.name}", None if fit.lacking else True, text


def _identities(settings: Settings) -> Iterator[Finding]:
    """Yield whether each storage still is on the recorded device."""
    nodes = settings.measured_nodes()
    with stored_at(settings.database) as stored:
        for (node, name), read in engine_of(settings.driver).identities(settings).items():
            title = f"identity of {name}"
            title = f"{node}: {title}" if len(nodes) > 1 else title
            try:
                current = read()
            except PvebenchError as error:
                yield title, False, str(error)
            else:
                recorded = stored.identities.recorded(node, name) if stored else None
                yield title, *_compare(name, recorded, current)


def _compare(storage: str, recorded: Identity | None, current: Identity) -> tuple[bool | None, str]:
    if recorded is not None and not is_same(recorded, current):
        return False, f"{change(storage, recorded, current)}; {ACCEPT.format(storage)}"
    status = "as recorded" if recorded is not None else "the first run records it"
    if is_certain(current):
        return True, f"{status}: {show(current)}"
    if not current:
        return None, "unknown; pvebench would not detect another device under this name"
    return None, f"{status}: {show(current)}; device below it unknown"


def _nodes(settings: Settings) -> str:
    nodes = settings.measured_nodes()
    return f"node{'s' * (len(nodes) > 1)} {', '.join(nodes)}"


def _state(settings: Settings) -> str:
    # Checked, not created: a directory created by root would belong to root.
    ancestor = existing(settings.state)
    if not os.access(ancestor, os.W_OK | os.X_OK):
        raise NotWritable(
            f"state directory {settings.state}: {ancestor} cannot be written",
            next_step="correct its permissions, or use another directory with --state",
        )
    created = "" if ancestor == settings.state else " (will be created)"
    memory = memory_warning(settings.state)
    return f"{settings.state}{created}{'; ' * bool(memory)}{memory}"


def memory_warning(state: Path) -> str:
    """Return what a state directory in memory means; empty: it is on a disk."""
    kind = memory_below(existing(state))
    return f"in memory ({kind}): a reboot loses all results" if kind else ""
