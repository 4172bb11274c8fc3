"""The proof that guests boot under KVM: a guest that boots. The device alone says too little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pvebench.drivers.qemu.accel import Accelerator
from pvebench.drivers.qemu.machine import QemuMachine
from pvebench.errors import DriverError
from pvebench.guest import GuestImage
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB


def prove_kvm(
    image: GuestImage, runtime: Path, *, journal: Journal, clock: Clock, timeout: float
) -> Callable[[], None]:
    """Return a function that boots a guest under KVM and ends it; it raises DriverError if not."""

    def prove() -> None:
        vm = QemuMachine(runtime, journal=journal, clock=clock)
        small = Machine(memory_bytes=768 * MIB, cpus=1)
        try:
            vm.start(image, small, Accelerator.KVM, timeout=timeout)
        except OSError as error:
            raise DriverError(f"QEMU could not be started: {error}") from error
        finally:
            vm.kill()

    return prove
