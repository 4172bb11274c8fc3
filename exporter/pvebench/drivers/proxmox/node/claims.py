"""Claims of pvebench instances on a node, stored with an end time in the descriptions of their VMs.

Instances with different state directories are independent, but see each other's VMs in their pool.
A claim expires, so a killed instance does not block others for long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.bench_vm import TAG, BenchVm, node_time, read_config
from pvebench.drivers.proxmox.vm.description import CLAIM_SECONDS, claim_of, is_valid_claim
from pvebench.errors import AccessDenied, HypervisorGone, NotOwned
from pvebench.model.ports import Clock

_RENEW_SECONDS: Final = 900.0
"""Remaining time at which a claim is renewed, seconds; longer than most runs."""


class Claims:
    """Claims on a node with VMs of several instances. Owned by one worker thread.

    Args:
        vm: returns this instance's benchmark VM; None: none at present.
        further: returns the IDs of its other VMs.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        vm: Callable[[], BenchVm | None],
        clock: Clock,
        further: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._api = api
        self._node = node
        self._vm = vm
        self._further = further
        self._clock = clock
        self._until = 0.0
        self._offset: tuple[float, float] | None = None
        """Time of the last time request, monotonic seconds, and the node's offset, seconds."""
        self._alone = False
        """Whether no other instance was measuring, since this instance's VM was created."""

    @property
    def vmid(self) -> int:
        """ID of this instance's VM; 0: none at present."""
        vm = self._vm()
        return vm.vmid if vm else 0

    def take(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Claim the node for the next run; return the other owner, empty if the claim succeeded.

        Of two concurrent claims, the VM with the lower ID wins.

        Args:
            rows: a response of /cluster/resources.
        """
        other_claims = self._others(rows)
        if busy := self._busy(other_claims):
            return busy
        vm = self._vm()
        if vm is not None:
            # A VM that is gone or not owned must not block the run that creates another.
            with contextlib.suppress(HypervisorGone, NotOwned):
                return self._claimed(vm, other_claims)
        self._alone = False
        return ""  # a new VM is created with a claim

    def _claimed(self, vm: BenchVm, others: Collection[int]) -> str:
        now = self._now()
        self._until = claim_of(vm.recent_config().values)
        if self._until < now + _RENEW_SECONDS:
            self._until = now + CLAIM_SECONDS
            vm.claim(self._until)
        if busy := self._busy(number for number in others if number < vm.vmid):
            vm.claim(0.0)
        return busy

    def disturbed(self) -> str:
        """Return the other instance that measured at the same time, empty if none.

        That is possible in the first run of a new VM and in runs longer than their claim.
        """
        if self._alone and self._now() < self._until:
            return ""
        busy = self._busy(self._others(self._api.get("/cluster/resources", type="vm")))
        self._alone = not busy
        return busy

    def _now(self) -> float:
        """Return the node's time: clocks of other instances may differ by hours."""
        local, at = self._clock.now().timestamp(), self._clock.monotonic()
        if self._offset is None or at - self._offset[0] > _RENEW_SECONDS:
            self._offset = at, node_time(self._api, self._node, self._clock) - local
        return local + self._offset[1]

    def _others(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        numbers = [
            int(row.get("vmid", 0))
            for row in rows
            if row.get("node") == self._node
            and row.get("status") == "running"
            and TAG in str(row.get("tags", "")).split(";")
        ]
        return [number for number in numbers if number not in {0, self.vmid, *self._further()}]

    def _busy(self, others: Iterable[int]) -> str:
        """Return a description of the first VM with a valid claim, else an empty string."""
        now = self._now()
        for number in others:
            try:
                config = read_config(self._api, f"/nodes/{self._node}/qemu/{number}")
            except (AccessDenied, Rejected):
                continue  # removed since the listing
            until = claim_of(config.values)
            if is_valid_claim(until, now):
                moment = datetime.fromtimestamp(until, UTC)
                return (
                    f"another pvebench measures on {self._node}, with VM {number} "
                    f"(its claim ends at {moment:%H:%M} UTC unless it is renewed)"
                )
        return ""
