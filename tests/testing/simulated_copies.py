"""Copies of a state directory, process IDs that mean another process, and storages that moved.

Each act happens to a running or ended simulated instance; the rules `unproved` and `moved` say what
pvebench must do about it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest import mock

from pvebench.drivers.storages import contract
from pvebench.errors import AlreadyRunning, VolumeError
from pvebench.model.volume import Identity
from pvebench.store import state_directory
from pvebench.store.backups import copy_database
from pvebench.store.state_directory import StateDirectory, recorded_holder, stop_holder
from pvebench.store.store import Store
from testing.faulty_node import Reality, undo_simulated
from testing.simulated_rules import Broken

FIRST: Final = "4f6c0a52"
"""The device that the storage's results are of; nobody accepts another."""
DEVICES: Final = (FIRST, FIRST, "9e1d77b0", "")
"""Devices that a storage may have; empty: it is not mounted."""


@contextmanager
def on_machine(directory: Path, letter: str) -> Iterator[None]:
    """Let this process run on a machine of which the id has only that letter."""
    file = directory / f"machine-{letter}"
    file.write_text(letter * 32)
    with mock.patch.object(contract, "_MACHINE_ID", file):
        yield


@dataclass
class SimulatedDevice:
    """The device below the simulated storage."""

    uuid: str = FIRST

    def identify(self, _: str) -> Identity:
        if not self.uuid:
            raise VolumeError("storage local: /srv/local does not exist")
        return {"uuid": self.uuid}


@dataclass
class Copies:
    """What people do to a state directory, each act from the seed's own numbers."""

    state: Path
    broken: Broken
    rng: random.Random
    device: SimulatedDevice = field(default_factory=SimulatedDevice)

    def act(self) -> None:
        """Do one thing beside a running instance, which holds the lock unless a mutant does not."""
        if recorded_holder(self.state) is None:
            return
        self.rng.choice((self._start_copy, self._reuse_id, self._move))()

    def act_between_lives(self, reality: Reality) -> None:
        """Do one thing while no instance runs."""
        if not (self.state / "instance").exists():
            return
        self.rng.choice((self._start_elsewhere, lambda: self._restore(reality)))()

    def _copied(self) -> Path:
        copy = self.state.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("lock", "instance"):
            shutil.copy(self.state / name, copy / name)
        return copy

    def _start_copy(self) -> None:
        self._expect_refusal("a copy started beside the original")

    def _start_elsewhere(self) -> None:
        with on_machine(self.state.parent, "b"):
            self._expect_refusal("a copy started on another machine")

    def _expect_refusal(self, what: str) -> None:
        try:
            StateDirectory(self._copied(), exclusive=True).close()
        except AlreadyRunning:
            return
        self.broken.add("unproved", what)

    def _restore(self, reality: Reality) -> None:
        """Clean up by an older database, whose journal names what is another's now."""
        reality.moment = lambda: None
        older = self.state.with_name("older.db")
        if older.exists():
            with closing(Store(older, simulated=True)) as store:
                undo_simulated(store.journal, reality)
        older.unlink(missing_ok=True)
        copy_database(self.state / "pvebench.db", older)

    def _reuse_id(self) -> None:
        """The recorded process has ended, and another one has its ID."""
        self._abort(os.getppid())

    def _abort(self, pid: int) -> None:
        lock, signaled = self.state / "lock", mock.Mock()
        recorded = lock.read_bytes()
        lock.write_bytes(f"{pid} host\n".encode())
        try:
            with mock.patch.object(state_directory.signal, "pidfd_send_signal", signaled):
                stop_holder(self.state)
        except AlreadyRunning:
            pass
        finally:
            lock.write_bytes(recorded)
        if signaled.called:
            self.broken.add("unproved", "a process was signaled that does not hold the lock")

    def _move(self) -> None:
        self.device.uuid = self.rng.choice(DEVICES)
