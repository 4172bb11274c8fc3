"""The end of a snapshot with memory, whose migration may have completed before it is canceled.

Witness: `migration_completion` in migration/migration.c of QEMU leaves the VM stopped, in state
postmigrate; a canceled migration lets it go on.
"""

from __future__ import annotations

from typing import cast

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.qemu.block_graph import Names
from pvebench.drivers.qemu.operations_under_load import DiskOperation
from pvebench.drivers.qemu.qmp import Channel
from pvebench.drivers.storages.contract import SnapshotStorage
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.volume import Plug, Volume
from pvebench.model.workload import SNAPSHOT_RAM


class Monitor:
    """A QMP with a migration in some state."""

    def __init__(self, status: str) -> None:
        self._status = status
        self.commands: list[str] = []

    def execute(self, command: str, arguments: object = None) -> None:
        self.commands.append(command)

    def ask(self, command: str, *, shape: object) -> dict[str, str]:
        return {"status": self._status}


@pytest.mark.parametrize(
    ("status", "commands"),
    [("completed", ["migrate_cancel", "cont"]), ("cancelled", ["migrate_cancel"])],
)
def test_a_vm_whose_snapshot_was_complete_when_canceled_goes_on(
    status: str, commands: list[str]
) -> None:
    monitor = Monitor(status)
    volume = Volume(storage="local", volid="/v", format="qcow2", size_bytes=1)
    operation = DiskOperation(
        cast(Channel, monitor),
        Names(1),
        cast(SnapshotStorage, None),
        Plug(volume, Disk(bus=Bus.SCSI, format=Format.QCOW2, cache=Cache.NONE)),
        SimulatedClock(),
        name=SNAPSHOT_RAM,
        target_rate=0,
    )
    operation._running = True
    operation.cancel()
    assert monitor.commands == commands
