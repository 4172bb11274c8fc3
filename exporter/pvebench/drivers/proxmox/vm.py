"""The benchmark VM at the API: made, marked, changed, started, stopped, destroyed.

Every change first proves that the VM is ours: it is in the pool, and its description carries
the mark with the number that was drawn when it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.marks import Filled, description, mark_of
from pvebench.drivers.proxmox.tasks import Ended, Tasks
from pvebench.errors import AccessDenied, Busy, HypervisorGone, NotOurs
from pvebench.model.ports import Clock

KIND: Final = "proxmox-vm"
"""Kind of the journal entries made here."""
TAG: Final = "pvebench"
CHANGE_SECONDS: Final = 120.0
_POWER_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where VMs may be made.

    Attributes:
        vmids: first and last number to try.
    """

    node: str
    pool: str
    vmids: tuple[int, int]


class BenchVm:
    """One VM that carries our mark. Owned by one worker thread."""

    def __init__(self, api: Api, clock: Clock, place: Place, vmid: int, mark: str) -> None:
        self.vmid = vmid
        self.mark = mark
        self.path = f"/nodes/{place.node}/qemu/{vmid}"
        self._api = api
        self._place = place
        self._clock = clock
        self._tasks = Tasks(api, place.node, clock, vmid=vmid)

    def learn(self) -> None:
        """Note the tasks of VMs that had this number before. Call once, before any change."""
        self._tasks.learn()

    def config(self) -> dict[str, Any]:
        """Return the configuration in force, without what is pending."""
        found: dict[str, Any] = self._api.get(f"{self.path}/config", current=1)
        return found

    def pending(self) -> dict[str, Any]:
        """Return key -> its entry, for every key that is not yet applied."""
        entries = self._api.get(f"{self.path}/pending")
        return {
            str(entry["key"]): entry for entry in entries if "pending" in entry or "delete" in entry
        }

    def status(self) -> dict[str, Any]:
        """Return status/current."""
        found: dict[str, Any] = self._api.get(f"{self.path}/status/current")
        return found

    def prove_ours(self) -> dict[str, Any]:
        """Return the configuration in force if the VM carries our mark and is in our pool.

        Raises:
            NotOurs: it does not, or is not; it is left alone.
            HypervisorGone: it does not exist any more.
        """
        try:
            config = self.config()
        except (Rejected, AccessDenied) as error:
            # Of a VM that does not exist the server says that we may not see it.
            raise HypervisorGone(
                f"VM {self.vmid} is not there: {error.reason}",
                cause="somebody deleted it or moved it out of the pool",
            ) from error
        if mark_of(config) != self.mark:
            raise NotOurs(_stranger(self.vmid, "it does not carry the mark of this pvebench"))
        if self.vmid not in pool_members(self._api, self._place.pool):
            raise NotOurs(_stranger(self.vmid, f"it is not in the pool {self._place.pool}"))
        return config

    def change(self, what: str, **params: Any) -> Ended:
        """Change the configuration; applied at once where Proxmox can, else pending.

        Raises:
            NotOurs, Busy, Rejected, OutcomeUnknown.
        """
        config = self.prove_ours()
        # With the digest nobody's change in between is overwritten.
        digest = config.get("digest")
        return self._tasks.run(
            lambda: self._api.post(f"{self.path}/config", **params, digest=digest),
            kind="qmconfig", what=f"VM {self.vmid}: {what}", seconds=CHANGE_SECONDS,
        )  # fmt: skip

    def start(self) -> Ended:
        """Power on; returns the task's warnings. Raises as `change`."""
        self.prove_ours()
        return self._tasks.run(
            lambda: self._api.post(f"{self.path}/status/start"),
            kind="qmstart", what=f"VM {self.vmid}: start", seconds=_POWER_SECONDS,
        )  # fmt: skip

    def stop(self) -> None:
        """Power off; fine if it is off already. Raises as `change`."""
        self.prove_ours()
        self._tasks.run(
            lambda: self._api.post(f"{self.path}/status/stop"),
            kind="qmstop", what=f"VM {self.vmid}: stop", seconds=_POWER_SECONDS,
        )  # fmt: skip

    def destroy(self) -> None:
        """Stop and remove the VM with all its volumes; fine if it is gone already."""
        try:
            self.stop()
        except HypervisorGone:
            return
        options = {"purge": 1, "destroy-unreferenced-disks": 1}
        self._tasks.run(
            lambda: self._api.delete(self.path, **options),
            kind="qmdestroy", what=f"VM {self.vmid}: destroy", seconds=_POWER_SECONDS,
        )  # fmt: skip

    def note_filled(self, filled: Iterable[Filled]) -> None:
        """Write into the description which volumes are filled. Raises as `change`."""
        self.change("note what is filled", description=description(self.mark, filled))

    def monitor(self, command: str) -> str | None:
        """Return what QEMU's monitor says, or None where the token may not ask."""
        try:
            return str(self._api.post(f"{self.path}/monitor", command=command))
        except (AccessDenied, Rejected):
            return None


def pool_members(api: Api, pool: str) -> set[int]:
    """Return the numbers of the VMs in a pool."""
    members = api.get(f"/pools/{pool}")["members"]
    return {int(member["vmid"]) for member in members if "vmid" in member}


def _stranger(vmid: int, why: str) -> str:
    return f"VM {vmid} is left alone: {why}"


def refuse_lock(status: Mapping[str, Any], vmid: int) -> None:
    """Raise Busy if somebody's work holds the VM."""
    if status.get("lock"):
        raise Busy(f"VM {vmid} is locked ({status['lock']})", next_step="it is tried again later")
