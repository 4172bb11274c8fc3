"""A second VM that a backup of the benchmark VM is restored to. It never starts.

It is created empty, in the pool and with a marker of its own, before Proxmox restores over it:
after a restore that fails or is stopped, Proxmox leaves a new VM outside the pool, where the token
may not remove it, but an existing one as it was (`create_vm` in PVE/API2/Qemu.pm).
"""

from __future__ import annotations

from typing import Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, VmPlace
from pvebench.drivers.proxmox.vm.description import description
from pvebench.drivers.proxmox.vm.vm_create import make_vm
from pvebench.errors import NotOwned
from pvebench.log import log
from pvebench.model.ports import Clock, Journal

_OPTIONS: Final = {"name": "pvebench-restore", "ostype": "l26", "memory": 64}
"""Those of the backup replace them."""


class RestoredVm:
    """Second VM of one operation.

    Args:
        iso: volid of the guest image.
    """

    def __init__(
        self, api: Api, clock: Clock, place: VmPlace, journal: Journal, *, iso: str
    ) -> None:
        self._api, self._place, self._journal = api, place, journal
        self._vm: BenchVm | None
        self._vm, self._entry = make_vm(api, clock, place, journal, options=_OPTIONS, iso=iso)

    def begin(self, archive: str, storage: str) -> str:
        """Begin to restore an archive to a storage; return the task. Raises DriverError."""
        if self._vm is None:
            return ""
        vm = self._vm
        vm.verify_owner()  # `force` overwrites it
        return vm.tasks.begin(
            lambda: self._api.post(
                f"/nodes/{self._place.node}/qemu",
                vmid=vm.vmid,
                archive=archive,
                storage=storage,
                force=1,
                unique=1,
                description=description(vm.mark),
            ),
            kind="qmrestore",
        )

    def remove(self) -> None:
        """Remove it. Raises DriverError: not possible at present, and the journal has it."""
        if self._vm is None:
            return
        try:
            self._vm.destroy()
            self._journal.close(self._entry)
        except NotOwned as error:
            log.warning("VM of a restore not removed", reason=error.reason)
        self._vm = None
