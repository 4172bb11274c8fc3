"""Real QEMU: which writes survive its end by SIGKILL, and what reached the volume before."""

from __future__ import annotations

from integration.conftest import Lab
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import DriverContext
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.guest.image import GuestImage
from pvebench.model.durability import Barrier, Durability
from pvebench_lab.durability.qemu import QemuDurability
from testing.storages import storage_context


def found(result: Durability, sync: Barrier) -> list[int]:
    return [one.found for one in result.killed if one.sync is sync]


def test_an_unflushed_first_write_to_qcow2_dies_with_qemu_and_a_flushed_one_survives(
    own_lab: Lab, image: GuestImage
) -> None:
    """As 7.2.22 was seen to: 16 of 16 on raw, 0 of 16 on qcow2 without preallocation."""
    place = DriverContext(
        runtime=own_lab.directory / "run",
        journal=own_lab.store.journal,
        clock=SystemClock(),
        say=print,
    )
    options = storage_context(name="local", kind="dir", owner="test", path=str(own_lab.storage))
    probe = QemuDurability(
        options, node="lab", image=image, accelerator=Accelerator.TCG, place=place
    )
    raw, qcow2 = probe.measure(["raw.unsafe", "qcow2.preallocation-off.none"])
    assert found(raw, Barrier.NONE) == [16, 16]
    assert found(qcow2, Barrier.NONE) == [0, 16]
    for one in (raw, qcow2):
        assert found(one, Barrier.FLUSH) == found(one, Barrier.FUA) == [16, 16]
        assert one.lost_killed == 0
    # A loss of power: unsafe sends no flush to the volume, so nothing is guaranteed.
    assert (raw.requested > 1, raw.flushed) == (True, 0)
    assert [one.found for one in raw.power] == [0, 0, 0]
    assert not raw.durable
    assert qcow2.flushed >= qcow2.requested > 1
    assert [one.found for one in qcow2.power][:2] == [16, 16]
    assert qcow2.durable
    assert list(own_lab.storage.iterdir()) == []
    assert not own_lab.store.journal.pending()
