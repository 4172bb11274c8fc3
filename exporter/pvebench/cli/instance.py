"""Putting an instance together from its settings: every concrete room meets here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from pvebench.config import Settings
from pvebench.drivers.host import ProcProbe, SystemClock
from pvebench.drivers.host.beside import Beside
from pvebench.drivers.host.disk import KIND as SCRATCH_KIND
from pvebench.drivers.host.disk import HostDisk, undo_scratch
from pvebench.drivers.host.network import ServerLink
from pvebench.drivers.host.tuning import KIND as SETTING_KIND
from pvebench.drivers.host.tuning import undo_setting
from pvebench.drivers.qemu import QemuLab, choose_accelerator, undo_pending
from pvebench.drivers.qemu.accel import PROOF_SECONDS
from pvebench.drivers.qemu.proof import prove_kvm
from pvebench.drivers.qemu.registry import STORAGES
from pvebench.drivers.qemu.storages import Storage, StorageOptions
from pvebench.drivers.simulated import (
    Reality,
    SimulatedClock,
    World,
    simulated_site,
    undo_simulated,
)
from pvebench.guest import GuestImage, build_image, default_directory
from pvebench.metrics import Snapshot
from pvebench.model.ports import Journal, Site
from pvebench.model.wall import WallSlot
from pvebench.store import StateDirectory, Store

StopClock = SystemClock | SimulatedClock
Say = Callable[[str], None]


def kvm_memory() -> Path:
    """Return the file that remembers whether KVM was proved, for all instances of this user."""
    return default_directory().parent / "kvm.json"


@dataclass(frozen=True, slots=True)
class StoreSource:
    """`metrics.ResultSource` over the store, for the cases of the present packs."""

    store: Store
    settings: Callable[[], Settings]
    intervals: Callable[[], dict[str, float]]
    now: Callable[[], datetime]

    def snapshot(self, case_key: str | None = None) -> Snapshot:
        """Read the present results, of one case or of all."""
        intervals, settings = self.intervals(), self.settings()
        nodes = settings.nodes_in_force()
        keys = [case_key] if case_key in intervals else [] if case_key else list(intervals)
        records = [self.store.case(key) for key in keys]
        return Snapshot(
            now=self.now(),
            records=[record for record in records if record is not None],
            environments=[entry for node in nodes for entry in self.store.environments(node)],
            intervals=intervals,
            totals=self.store.totals(),
            max_age_seconds=settings.max_age,
            simulated=settings.driver == "simulated",
            wall=[WallSlot(**dict(slot)) for slot in settings.wall],
        )


@contextmanager
def opened_store(settings: Settings) -> Iterator[tuple[StateDirectory, Store]]:
    """Take the state directory for this process alone and open its database."""
    with StateDirectory(settings.state.absolute(), exclusive=True) as state:
        store = Store(state.database, simulated=settings.driver == "simulated")
        try:
            yield state, store
        finally:
            store.close()


def undo_everything(settings: Settings, journal: Journal) -> list[str]:
    """Undo what a killed process left open in the journal; return a line about each thing."""
    if settings.driver == "simulated":
        return undo_simulated(journal, Reality())
    if settings.driver == "proxmox":
        # Imported only when it is used: the library behind it takes its time.
        cluster = import_module("pvebench.cli.cluster")
        lines: list[str] = cluster.undo_on_cluster(settings, journal, SystemClock())
        return lines
    return undo_pending(journal, {SCRATCH_KIND: undo_scratch, SETTING_KIND: undo_setting})


def kept(settings: Settings, journal: Journal) -> list[str]:
    """Return a line about each thing that stays by choice when pvebench ends."""
    if settings.driver != "proxmox":
        return []
    lines: list[str] = import_module("pvebench.cli.cluster").kept_lines(journal)
    return lines


def make_sites(
    settings: Settings, state: StateDirectory, journal: Journal, clock: StopClock, say: Say
) -> list[Site]:
    """Return the nodes that the settings name, with everything of a crashed run undone."""
    for line in undo_everything(settings, journal):
        say(f"after an unclean end: {line}")
    if isinstance(clock, SimulatedClock):
        seed = settings.simulation.seed
        return [simulated_site(World(node=settings.node, seed=seed, clock=clock, journal=journal))]
    if settings.driver == "host":
        storages = _storages(settings, state, journal)
        host = HostDisk(
            node=settings.node, storages=storages, runtime=state.runtime, journal=journal
        )
        probe = ProcProbe(lambda: None, lambda: host.volume_path)
        networks = networks_of(settings)
        return [
            Site(
                node=settings.node, hypervisor=host, probe=probe, clock=clock, networks=networks
            )
        ]  # fmt: skip
    image = build_image(settings.guest_image or default_directory(), say=say)
    if settings.driver == "proxmox":
        cluster = import_module("pvebench.cli.cluster")
        return [
            cluster.cluster_site(settings, node, image, journal, clock)
            for node in settings.nodes_in_force()
        ]
    return [_lab_site(settings, state, image, journal, clock, say)]


def _lab_site(
    settings: Settings, state: StateDirectory, image: GuestImage, journal: Journal,
    clock: SystemClock, say: Say,
) -> Site:  # fmt: skip
    proof = prove_kvm(image, state.runtime, journal=journal, clock=clock, timeout=PROOF_SECONDS)
    accelerator = choose_accelerator(
        settings.accelerator, memory=kvm_memory(), prove=proof, say=say
    )
    storages = _storages(settings, state, journal)
    lab = QemuLab(
        node=settings.node, storages=storages, image=image, accelerator=accelerator,
        runtime=state.runtime, journal=journal, clock=clock,
    )  # fmt: skip
    host = HostDisk(node=settings.node, storages=storages, runtime=state.runtime, journal=journal)
    both = Beside(lab, host)
    # While the host measures, the idle VM's counters have nothing to do with it.
    probe = ProcProbe(
        lambda: None if both.on_host else lab.pid,
        lambda: (host if both.on_host else lab).volume_path,
    )
    return Site(
        node=settings.node,
        hypervisor=both,
        probe=probe,
        clock=clock,
        networks=networks_of(settings),
    )


_PORTS = {"nbd": 10809, "nfs": 2049}
"""Kind of storage -> where its server listens, unless the settings say otherwise."""


def networks_of(settings: Settings) -> dict[str, ServerLink]:
    """Return the network to each storage that is a server's."""
    return {
        name: ServerLink(
            server=entry.server, port=entry.port or _PORTS.get(entry.kind, 0),
            link_bits_per_second=entry.link_bits_per_second,
        )
        for name, entry in settings.storages_in_force().items()
        if entry.server or entry.link_bits_per_second
    }  # fmt: skip


def _storages(settings: Settings, state: StateDirectory, journal: Journal) -> dict[str, Storage]:
    options = storage_options(settings, state)
    return {one.name: STORAGES[one.kind](one, journal) for one in options}


def storage_options(settings: Settings, state: StateDirectory) -> list[StorageOptions]:
    """Return the storages of the settings in the lab's words."""
    # Two instances may share a directory; their volumes must not share a name.
    owner = hashlib.sha256(str(state.runtime).encode()).hexdigest()[:8]
    return [
        StorageOptions(
            name=name, kind=entry.kind, owner=owner, server=entry.server, port=entry.port,
            path=str(entry.path.absolute()) if entry.path else "",
            socket=str(entry.socket.absolute()) if entry.socket else "", export=entry.export,
        )
        for name, entry in settings.storages_in_force().items()
    ]  # fmt: skip


def make_clock(settings: Settings, *, endless: bool) -> StopClock:
    """Return the clock of the settings' driver; an endless simulation goes at real pace."""
    if settings.driver == "simulated":
        return SimulatedClock(datetime.now(UTC), pace=1.0 if endless else 0.0)
    return SystemClock()
