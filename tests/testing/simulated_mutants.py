"""The product broken on purpose: each mutant breaks a rule of `simulated_rules` that it names.

A rule that no mutant can break would be none. Each is what a hasty change might do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from unittest import mock

from pvebench.drivers.proxmox.hypervisor import ProxmoxHypervisor
from pvebench.drivers.storages import contract
from pvebench.errors import DriverError, StoreError
from pvebench.model.ports import Journal
from pvebench.model.run import Run
from pvebench.runner import measure, prepare
from pvebench.runner import runner as runner_module
from pvebench.runner.runner import Runner
from pvebench.scheduler import due_cases
from pvebench.service.housekeeping import Reloader
from pvebench.store import state_directory
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import StateDirectory
from pvebench_lab.lxc import proxmox_backend, proxmox_container
from testing import faulty_node, simulated_crashes
from testing.faulty_node import FaultyHypervisor
from testing.null_journal import NullJournal

_keep, _look, _next_due = LiveResults.keep, Runner.run, due_cases.next_due
_BEYOND: Final = datetime.max.replace(tzinfo=UTC)
_wait_for_end, _undo = measure.wait_for_end, faulty_node.undo_simulated


def reported_before_stored() -> AbstractContextManager[Any]:
    """A run that the database rejects is reported as finished."""

    def keep(results: LiveResults, run: Run) -> bool:
        try:
            return _keep(results, run)
        except StoreError:
            return False

    return mock.patch.object(LiveResults, "keep", keep)


def stored_again() -> AbstractContextManager[Any]:
    """A run whose storing is tried again is another run."""
    return mock.patch.object(
        LiveResults, "keep", lambda results, run: _keep(results, replace(run, uid=uuid.uuid4().hex))
    )


def not_read_back() -> AbstractContextManager[Any]:
    """What was asked for is believed to be there."""
    return mock.patch.object(prepare, "mismatch", return_value="")


def dated_by_the_wall() -> AbstractContextManager[Any]:
    """A run lasts as long as the clock on the wall says."""

    def run(runner: Runner, *given: Any, **named: Any) -> Run:
        begun = runner._site.clock.now()
        return replace(_look(runner, *given, **named), started=begun)

    return mock.patch.object(Runner, "run", run)


def undone_by_looks() -> AbstractContextManager[Any]:
    """A start removes whatever is on the node."""

    def undo(journal: Journal, node: faulty_node.Reality) -> list[str]:
        for name in [*node.vms]:
            node.end_vm(name)
        for name in [*node.volumes]:
            node.remove_volume(name)
        return _undo(journal, node)

    return mock.patch.object(simulated_crashes, "undo_simulated", undo)


def named_alike() -> AbstractContextManager[Any]:
    """Two instances give their volumes the same names."""
    return mock.patch.object(FaultyHypervisor, "_own", lambda _, name: f"b.{name}")


def _unnoted(method: str) -> AbstractContextManager[Any]:
    """What a method of the node makes is noted nowhere."""
    real = getattr(FaultyHypervisor, method)

    def make(node: FaultyHypervisor, *given: Any) -> Any:
        journal, node._journal = node._journal, NullJournal()
        try:
            return real(node, *given)
        finally:
            node._journal = journal

    return mock.patch.object(FaultyHypervisor, method, make)


def without_journal() -> AbstractContextManager[Any]:
    """Nothing is noted before it is made."""
    return _unnoted("_begin_start")


def journalled_too_late() -> AbstractContextManager[Any]:
    """A volume is noted when it is there."""
    real = FaultyHypervisor.volume

    def volume(node: FaultyHypervisor, scenario: Any) -> Any:
        journal, node._journal = node._journal, NullJournal()
        try:
            found = real(node, scenario)
        finally:
            node._journal = journal
        if found[1]:
            name = node._own(scenario.volume)
            node._entries[scenario.volume] = journal.open(faulty_node.VOLUME_KIND, {"name": name})
        return found

    return mock.patch.object(FaultyHypervisor, "volume", volume)


def operation_without_journal() -> AbstractContextManager[Any]:
    """The target of an operation is noted nowhere."""
    return _unnoted("make_target")


def further_vm_without_journal() -> AbstractContextManager[Any]:
    """Only the benchmark VM is noted, not those beside it."""
    real = FaultyHypervisor.further_vm

    def make(node: FaultyHypervisor, number: int) -> Any:
        made = real(node, number)
        made._journal = NullJournal()
        return made

    return mock.patch.object(FaultyHypervisor, "further_vm", make)


def clusters_further_vm_without_journal() -> AbstractContextManager[Any]:
    """On a cluster, only the benchmark VM is noted."""
    real = ProxmoxHypervisor.further_vm

    def make(node: ProxmoxHypervisor, number: int) -> ProxmoxHypervisor:
        made = real(node, number)
        made._held._context = replace(made._held._context, journal=NullJournal())
        return made

    return mock.patch.object(ProxmoxHypervisor, "further_vm", make)


def further_vm_taken_for_the_benchmark_vm() -> AbstractContextManager[Any]:
    """On a cluster, a further VM is treated as the one of its node."""
    real = ProxmoxHypervisor.further_vm

    def make(node: ProxmoxHypervisor, number: int) -> ProxmoxHypervisor:
        made = real(node, number)
        made._options = made._held._options = replace(made._options, number=1)
        return made

    return mock.patch.object(ProxmoxHypervisor, "further_vm", make)


def vm_given_up_before_its_marker() -> AbstractContextManager[Any]:
    """A VM that has no marker yet at a start is nobody's, and its entry is struck out."""

    def undo(journal: Journal, node: faulty_node.Reality) -> list[str]:
        with mock.patch.object(faulty_node.Reality, "await_vm"):
            return _undo(journal, node)

    return mock.patch.object(simulated_crashes, "undo_simulated", undo)


def container_without_journal() -> AbstractContextManager[Any]:
    """A container of a node is made before anything is noted of it."""
    real = proxmox_backend.make_container

    def make(node: Any, access: Any, options: Any) -> Any:
        made = real(node, replace(access, journal=NullJournal()), options)
        details = {"node": access.node, "vmid": str(made.vmid), "mark": made.mark}
        made.entry = access.journal.open(proxmox_container.KIND, details)
        return made

    return mock.patch.object(proxmox_backend, "make_container", make)


def container_forgotten() -> AbstractContextManager[Any]:
    """A container that cannot be removed now is struck out of the journal."""
    real = proxmox_container._undo

    def undo(made: proxmox_container.BenchContainer) -> str:
        try:
            return real(made)
        except DriverError:
            return "could not be removed"

    return mock.patch.object(proxmox_container, "_undo", undo)


def not_locked() -> AbstractContextManager[Any]:
    """Whoever comes gets the state directory."""
    return mock.patch.object(StateDirectory, "_lock")


def without_deadline() -> AbstractContextManager[Any]:
    """A tool that hangs is waited for."""

    def wait(*given: Any, deadline: float) -> Any:
        return _wait_for_end(*given, deadline=float("inf"))

    return mock.patch.object(measure, "wait_for_end", wait)


def without_a_pause() -> AbstractContextManager[Any]:
    """A case that failed is tried again at once."""

    def due(record: Any, now: datetime, **rules: Any) -> datetime | None:
        if record is not None and record.failures_in_row:
            return now
        return _next_due(record, now, **rules)

    return mock.patch.object(due_cases, "next_due", due)


def believing_the_clock() -> AbstractContextManager[Any]:
    """A run of the future is waited for. This was pvebench's own until the simulation found it."""

    def due(record: Any, now: datetime, **rules: Any) -> datetime | None:
        return _next_due(record, _BEYOND, **rules)

    return mock.patch.object(due_cases, "next_due", due)


def giving_up() -> AbstractContextManager[Any]:
    """A pack that cannot be read ends the service."""

    def check(reloader: Reloader) -> None:
        reloader._load()

    return mock.patch.object(Reloader, "check", check)


def copy_believed() -> AbstractContextManager[Any]:
    """An instance ID may be used twice."""
    return mock.patch.object(state_directory, "_hold_id", return_value=nullcontext())


def machine_ignored() -> AbstractContextManager[Any]:
    """A state directory is this machine's, wherever it is from."""
    return mock.patch.object(contract, "machine_token", return_value="")


def process_believed() -> AbstractContextManager[Any]:
    """The recorded process is believed to hold the lock."""
    return mock.patch.object(state_directory, "holds_lock", return_value=True)


def device_believed() -> AbstractContextManager[Any]:
    """A storage is what its name says."""
    return mock.patch.object(runner_module, "check_identity")


MUTANTS: Final[dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]]] = {
    "reported-before-stored": (reported_before_stored, "lost"),
    "stored-again": (stored_again, "doubled"),
    "not-read-back": (not_read_back, "mislabeled"),
    "dated-by-the-wall": (dated_by_the_wall, "mislabeled"),
    "undone-by-looks": (undone_by_looks, "foreign"),
    "named-alike": (named_alike, "foreign"),
    "copy-believed": (copy_believed, "unproved"),
    "machine-ignored": (machine_ignored, "unproved"),
    "process-believed": (process_believed, "unproved"),
    "device-believed": (device_believed, "moved"),
    "without-journal": (without_journal, "orphaned"),
    "journalled-too-late": (journalled_too_late, "orphaned"),
    "operation-without-journal": (operation_without_journal, "orphaned"),
    "further-vm-without-journal": (further_vm_without_journal, "orphaned"),
    "clusters-further-vm-without-journal": (clusters_further_vm_without_journal, "orphaned"),
    "vm-given-up-before-its-marker": (vm_given_up_before_its_marker, "orphaned"),
    "container-without-journal": (container_without_journal, "orphaned"),
    "container-forgotten": (container_forgotten, "orphaned"),
    "not-locked": (not_locked, "shared"),
    "without-deadline": (without_deadline, "stuck"),
    "without-a-pause": (without_a_pause, "unbounded"),
    "believing-the-clock": (believing_the_clock, "stuck"),
    "further-vm-taken-for-the-benchmark-vm": (further_vm_taken_for_the_benchmark_vm, "stuck"),
    "giving-up": (giving_up, "ended"),
}
"""Name -> what puts it in force while inside, and the rule that it breaks."""
