"""A simulated node that records the steps of a run."""

from __future__ import annotations

from collections.abc import Callable

from pvebench.drivers.clocks import SimulatedClock
from pvebench.errors import SwitchFailed
from pvebench.model.disk import Disk
from pvebench.model.volume import Attachment, BlockCounters, Volume
from testing.faulty_node import FaultyHypervisor
from testing.null_journal import NullJournal


class RecordingHypervisor(FaultyHypervisor):
    """A simulated node that remembers what was done to its VM and its disk, and how."""

    def __init__(self) -> None:
        super().__init__(node="lab", seed=1, clock=SimulatedClock(), journal=NullJournal())
        self.steps: list[str] = []
        self.read_back: Callable[[Attachment], Attachment] = lambda attachment: attachment
        self.counts: Callable[[BlockCounters], BlockCounters | None] = lambda counters: counters
        self.held = False
        """Whether the guest keeps the disk, and lives on."""

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        self.steps.append("attach")
        return self.read_back(super().attach(volume, disk))

    def detach(self) -> None:
        if self.plugged is None:
            return
        self.steps.append("detach")
        if self.held:
            raise SwitchFailed("the guest keeps the disk")
        super().detach()

    def power_off(self) -> None:
        if self.guest is not None:
            self.steps.append("power off")
        super().power_off()

    def counters(self) -> BlockCounters | None:  # type: ignore[override] # as a host's row
        return self.counts(super().counters())
