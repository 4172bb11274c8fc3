"""How many CPUs a guest has, and that QEMU never takes it for alone.

The witness is QEMU's source, read for versions 7 to 10: `mttcg_start_vcpu_thread` in
accel/tcg/tcg-accel-ops-mttcg.c calls `tcg_cpu_init_cflags(cpu, current_machine->smp.max_cpus > 1)`,
which sets CF_PARALLEL (accel/tcg/tcg-accel-ops.c). Without it `GEN_ATOMIC_HELPER` in
tcg/tcg-op-ldst.c (7.2: tcg/tcg-op.c) makes `do_nonatomic_op_…` of a `lock` instruction: load, add,
store, no barrier; Linux's `virtio_mb` on x86 is `lock addl`. `tcg_gen_mb` in tcg/tcg-op.c left out
fences as well, until commit c914d46d0a64 (8.1): "even with a single cpu we have i/o threads running
in parallel, and lack of memory order can result in e.g. virtio queue entries being read
incorrectly". `make hang` counts what comes of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.conftest import MACHINE, Lab, scenario
from pvebench.model.disk import Bus


@pytest.mark.parametrize("cpus", [1, 2])
def test_the_guest_has_as_many_cpus_as_asked_for_and_qemu_has_room_for_two(
    request: pytest.FixtureRequest, cpus: int
) -> None:
    lab: Lab = request.getfixturevalue("shared_lab" if cpus == MACHINE.cpus else "own_lab")
    guest = lab.qemu.boot(replace(MACHINE, cpus=cpus))
    qmp = lab.qemu._qemu.qmp
    assert len(qmp.execute("query-cpus-fast")) == cpus
    assert len(qmp.execute("query-hotpluggable-cpus")) == 2
    assert int(guest.run(["/bin/nproc"]).stdout) == cpus
    online = guest.run(["/bin/cat", "/sys/devices/system/cpu/online"]).stdout.decode().strip()
    assert online == ("0" if cpus == 1 else "0-1")


def test_room_for_two_gives_a_disk_no_more_queues_than_the_guest_has_cpus(shared_lab: Lab) -> None:
    guest, attachment = shared_lab.plug(scenario(Bus.VIRTIO))
    name = attachment.device.rpartition("/")[2]
    queues = guest.run(["/bin/sh", "-c", f"ls -d /sys/block/{name}/mq/*"]).stdout.split()
    assert len(queues) == MACHINE.cpus
