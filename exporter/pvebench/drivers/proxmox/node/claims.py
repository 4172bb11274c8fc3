"""Which pvebench measures on a node: each says so in the description of its own VM, with an age.

Two instances with different state directories know nothing of each other, but see each other's VMs
in their pool. A claim ends by itself: an instance that was killed holds up nobody for long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.bench_vm import (
    CLAIM_SECONDS,
    TAG,
    BenchVm,
    claim_of,
    node_time,
    read_configuration,
)
from pvebench.errors import AccessDenied, HypervisorGone, NotOwned
from pvebench.model.ports import Clock

_RENEW_SECONDS: Final = 900.0
"""What is left of a claim when it is made anew: longer than most runs."""


class Claims:
    """Whose turn it is on one node, where several instances have VMs. Owned by one worker thread.

    Args:
        vm: returns our VM; None: there is none now.
    """

    def __init__(self, api: Api, node: str, vm: Callable[[], BenchVm | None], clock: Clock) -> None:
        self._api = api
        self._node = node
        self._vm = vm
        self._clock = clock
        self._until = 0.0
        self._ahead: tuple[float, float] | None = None
        """When the node was asked for its time, and by how much that was ahead of ours."""
        self._alone = False
        """Whether, since our VM was made, it was seen that nobody else measures."""

    @property
    def vmid(self) -> int:
        """Number of our VM; 0: there is none now."""
        vm = self._vm()
        return vm.vmid if vm else 0

    def take(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Claim the node for the next run; return who else has it, empty: it is ours.

        Of two that claim it at once the VM with the lower number has it.

        Args:
            rows: an answer of /cluster/resources.
        """
        others = self._others(rows)
        if busy := self._busy(others):
            return busy
        vm = self._vm()
        if vm is not None:
            # One that is gone, or somebody else's by now, must not hold the run that makes another.
            with contextlib.suppress(HypervisorGone, NotOwned):
                return self._claimed(vm, others)
        self._alone = False
        return ""  # it is made with a claim

    def _claimed(self, vm: BenchVm, others: Collection[int]) -> str:
        now = self._now()
        self._until = claim_of(vm.lately().values)
        if self._until < now + _RENEW_SECONDS:
            self._until = now + CLAIM_SECONDS
            vm.claim(self._until)
        if busy := self._busy(number for number in others if number < vm.vmid):
            vm.claim(0.0)
        return busy

    def disturbed(self) -> str:
        """Return who measured at the same time.

        That can be in the first run of a new VM, and in one that was longer than its claim.
        """
        if self._alone and self._now() < self._until:
            return ""
        busy = self._busy(self._others(self._api.get("/cluster/resources", type="vm")))
        self._alone = not busy
        return busy

    def _now(self) -> float:
        """Return the node's time: those who claim it may run where clocks differ by hours."""
        here, asked = self._clock.now().timestamp(), self._clock.monotonic()
        if self._ahead is None or asked - self._ahead[0] > _RENEW_SECONDS:
            self._ahead = asked, node_time(self._api, self._node, self._clock) - here
        return here + self._ahead[1]

    def _others(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        numbers = [
            int(row.get("vmid", 0))
            for row in rows
            if row.get("node") == self._node
            and row.get("status") == "running"
            and TAG in str(row.get("tags", "")).split(";")
        ]
        return [number for number in numbers if number not in (0, self.vmid)]

    def _busy(self, others: Iterable[int]) -> str:
        """Return what is known of the first that holds a claim."""
        now = self._now()
        for number in others:
            try:
                found = read_configuration(self._api, f"/nodes/{self._node}/qemu/{number}")
            except (AccessDenied, Rejected):
                continue  # gone meanwhile
            until = claim_of(found.values)
            if now < until <= now + 2 * CLAIM_SECONDS:
                moment = datetime.fromtimestamp(until, UTC)
                return (
                    f"another pvebench measures on {self._node}, with VM {number} "
                    f"(its claim ends at {moment:%H:%M} UTC unless it is renewed)"
                )
        return ""
