"""The benchmark VM of one node and its volumes: made, or taken up again from an earlier start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.iso import upload_iso
from pvebench.drivers.proxmox.keeping import find_kept, fit
from pvebench.drivers.proxmox.making import make_vm
from pvebench.drivers.proxmox.shape import VmOptions, vm_options
from pvebench.drivers.proxmox.storages import ClusterStorage
from pvebench.drivers.proxmox.undo import undo_pending
from pvebench.drivers.proxmox.vm import KIND, BenchVm, Place
from pvebench.drivers.proxmox.volumes import Volumes
from pvebench.errors import HypervisorGone, NotOurs, ServerGone, SwitchFailed
from pvebench.guest import GuestImage
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine


class Holding:
    """What a node holds of ours. Owned by one worker thread.

    Args:
        storages: name in packs -> storage of the cluster.
    """

    def __init__(
        self, api: Api, *, place: Place, options: VmOptions, image: GuestImage, journal: Journal,
        clock: Clock, storages: Mapping[str, ClusterStorage],
    ) -> None:  # fmt: skip
        self._api = api
        self._place = place
        self._options = options
        self._image = image
        self._journal = journal
        self._clock = clock
        self._storages = storages
        self._held: tuple[BenchVm, Volumes] | None = None

    @property
    def vm(self) -> BenchVm | None:
        """The VM; None: there is none."""
        return self._held[0] if self._held else None

    @property
    def the_vm(self) -> BenchVm:
        """The VM that must be there. Raises SwitchFailed."""
        return self._both()[0]

    @property
    def the_volumes(self) -> Volumes:
        """Its volumes. Raises SwitchFailed."""
        return self._both()[1]

    def _both(self) -> tuple[BenchVm, Volumes]:
        if self._held is None:
            raise SwitchFailed("there is no VM")
        return self._held

    def is_there(self) -> bool:
        """Return whether there is a VM and it is ours still; it is forgotten otherwise.

        Raises:
            DriverError: it cannot be told now.
        """
        if self.vm is None:
            return False
        try:
            self.vm.prove_ours()
        except (HypervisorGone, NotOurs):
            self._held = None
        return self._held is not None

    def obtain(self, machine: Machine) -> None:
        """Take up the VM that was kept, or make one.

        Raises:
            NotOurs, GuestImageError, DriverError: as `make_vm` and `upload_iso`.
        """
        node, storage = self._place.node, self._options.iso_storage
        iso = upload_iso(self._api, node, storage, self._image, self._clock)
        options = vm_options(node, self._options, machine)
        if not (self._options.keep and self._take_up(options, iso)):
            vm, _ = make_vm(
                self._api, self._clock, self._place, self._journal, options=options, iso=iso
            )
            self._held = vm, Volumes(self._api, node, vm, self._storages)

    def _take_up(self, options: Mapping[str, Any], iso: str) -> bool:
        """Take up the VM that was kept with filled volumes; return whether there is one."""
        found = find_kept(self._api, self._clock, self._place, self._journal)
        if found is None:
            return False
        vm, in_use = found
        fit(vm, options, iso)
        volumes = Volumes(self._api, self._place.node, vm, self._storages)
        volumes.take_over()
        in_use()
        self._held = vm, volumes
        return True

    def give_up(self, clock: Clock) -> None:
        """Remove the VM with its volumes, or set it aside with them.

        Args:
            clock: one that nobody has stopped: the wish to stop must not stop the tidying up.

        Raises:
            ServerGone: it could not be done now.
        """
        node = self._place.node
        lines = undo_pending(
            self._journal, self._api, clock, node=node, keep=self._options.keep, clean=True
        )
        self._held = None
        if any(
            kind == KIND and details["node"] == node for _, kind, details in self._journal.pending()
        ):
            raise ServerGone(
                "; ".join(lines), next_step="it is removed at the next start of pvebench"
            )
