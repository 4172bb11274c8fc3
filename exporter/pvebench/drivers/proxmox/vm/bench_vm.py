"""Benchmark VM at the API: proof of ownership, changes, start, stop, removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.connection import Api, version_number
from pvebench.drivers.proxmox.api.faults import INIT, Forbidden, Rejected, specific
from pvebench.drivers.proxmox.api.privileges import RequiredGrants, missing_rights, privileges_in
from pvebench.drivers.proxmox.api.tasks import Ended, Tasks
from pvebench.drivers.proxmox.vm.description import (
    Filled,
    claim_of,
    description,
    filled_of,
    mark_of,
    system_slots,
)
from pvebench.drivers.proxmox.vm.drive import (
    belongs,
    disks_in,
    held_volumes,
    is_given,
    is_moved,
    test_slots,
)
from pvebench.errors import AccessDenied, Busy, HypervisorGone, NotOwned, OutcomeUnknown
from pvebench.log import log
from pvebench.model.ports import Clock, Journal, remember

KIND: Final = "proxmox-vm"
"""Kind of this module's journal entries."""
TAG: Final = "pvebench"
CHANGE_SECONDS: Final = 120.0
_POWER_SECONDS: Final = 120.0
_SCSI_SLOTS: Final = 31
_NO_CONFIGURATION: Final = "does not exist"
"""Part of the response if the token has rights on a VM ID without a VM."""
_MEMBER_SECONDS: Final = 60.0
_RECENT_SECONDS: Final = 5.0
_STILL_SECONDS: Final = 10.0
"""Time without changes after which a configuration change counts as complete, seconds."""
_LOST_SECONDS: Final = 45.0
"""Time without a change after which a request counts as lost, seconds; pveproxy waits 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """Access of one worker thread to a node, for VMs and containers.

    Attributes:
        vmids: first and last VM ID to try.
    """

    api: Api
    clock: Clock
    journal: Journal
    node: str
    pool: str
    vmids: tuple[int, int]


@dataclass(frozen=True, slots=True)
class VmConfig:
    """VM configuration.

    Attributes:
        values: key -> effective value, including the digest.
        waiting: key -> entry of each pending change.
    """

    values: Mapping[str, Any]
    waiting: Mapping[str, Any]


def read_config(api: Api, path: str) -> VmConfig:
    """Return the configuration of the VM at `path`, without an ownership check."""
    rows = api.get(f"{path}/pending")
    return VmConfig(
        values={str(row["key"]): row["value"] for row in rows if "value" in row},
        waiting={str(row["key"]): row for row in rows if "pending" in row or "delete" in row},
    )


class ForeignDisk(NotOwned):
    """Disk in the VM that pvebench did not create; VM and disk are not changed."""

    default_cause = "the disk was attached to the benchmark VM outside pvebench"
    default_next_step = "detach it from that VM, then run `pvebench cleanup`"


class BenchVm:
    """VM with pvebench's ownership marker. Owned by one worker thread."""

    def __init__(self, access: NodeAccess, vmid: int, mark: str) -> None:
        self.access = access
        self.vmid = vmid
        self.mark = mark
        self.path = f"/nodes/{access.node}/qemu/{vmid}"
        self._api, self._clock = access.api, access.clock
        self.tasks = Tasks(access.api, access.node, access.clock, vmid=vmid)
        self._member_at: float | None = None
        self._seen: tuple[float, VmConfig] | None = None
        self._may_ask = True
        self._may_start = False

    def owns(self, volid: str) -> bool:
        """Return whether a volume's name shows that pvebench created it for this VM.

        The VM ID alone proves nothing: `qm disk rescan` adds every volume named after it to the
        configuration. On a storage that two clusters share, these include another pvebench's.
        """
        return belongs(volid, self.vmid, self.mark)

    def read(self) -> VmConfig:
        """Return the effective configuration and its pending changes, in one call.

        Raises AccessDenied: the token lost a right on the pool, so the VM only seems to be gone.
        """
        try:
            return read_config(self._api, self.path)
        except Forbidden:
            refuse_without_rights(self._api, self.access.pool)
            raise

    def status(self) -> dict[str, Any]:
        """Return status/current."""
        status: dict[str, Any] = self._api.get(f"{self.path}/status/current")
        return status

    def verify_owner(self) -> VmConfig:
        """Return the configuration if the VM has pvebench's ownership marker and is in the pool.

        Pool membership is checked once per minute: removal from the pool also removes the rights.

        Raises:
            NotOwned: marker or membership is missing; the VM is not changed.
            HypervisorGone: it does not exist any more.
        """
        try:
            config = self.read()
        except (Rejected, Forbidden) as error:
            # For a VM that does not exist the server reports a missing right.
            if isinstance(error, Rejected) and _NO_CONFIGURATION not in error.text:
                raise
            raise HypervisorGone(
                f"VM {self.vmid} not found: {error.reason}",
                cause="it was deleted, removed from the pool or moved to another node",
            ) from error
        if mark_of(config.values) != self.mark:
            raise NotOwned(_unchanged(self.vmid, "no ownership marker of this pvebench"))
        if str(config.values.get("template", "0")) == "1":
            raise NotOwned(_unchanged(self.vmid, "it was converted to a template"))
        now = self._clock.monotonic()
        if self._member_at is None or now - self._member_at > _MEMBER_SECONDS:
            if self.vmid not in pool_members(self._api, self.access.pool):
                raise NotOwned(_unchanged(self.vmid, f"not in pool {self.access.pool}"))
            self._member_at = now
        self._seen = now, config
        return config

    def recent_config(self) -> VmConfig:
        """Return the latest configuration of `verify_owner`; repeat it after a change or 5 s."""
        at, config = self._seen or (0.0, None)
        recent = self._clock.monotonic() - at < _RECENT_SECONDS
        return config if config is not None and recent else self.verify_owner()

    def require_unlocked(self, what: str) -> None:
        """Raise Busy if a backup, snapshot or migration locks the VM. Raises as `verify_owner`."""
        if lock := self.verify_owner().values.get("lock"):
            self._seen = None  # the end of the lock changes the digest
            raise specific(Rejected(f"VM {self.vmid}: {what}", f"VM is locked ({lock})"))

    def change(self, what: str, seen: VmConfig | None = None, /, **params: Any) -> None:
        """Change the configuration; applied immediately where Proxmox can, else pending.

        PUT creates no task: a node keeps about 1,200 of them, and administrators look there for
        backups. PUT responds after the change; a change that takes longer than pveproxy's 30 s
        continues without a response.

        Args:
            seen: configuration that the change depends on; None: the recent one.

        Raises NotOwned, Busy, Rejected, OutcomeUnknown.
        """
        # The digest prevents overwriting a concurrent change.
        digest = (seen or self.recent_config()).values.get("digest")
        self._seen = None
        try:
            self.tasks.at_once(
                lambda: self._api.put(f"{self.path}/config", **params, digest=digest)
            )
        except Busy:
            self.require_unlocked(what)  # a lock changes the digest too, which is checked first
            raise
        except OutcomeUnknown as error:
            self._await_change(digest, f"VM {self.vmid}: {what}", error)

    def _await_change(self, before: Any, what: str, lost: OutcomeUnknown) -> None:
        """Wait until the configuration shows a change whose response was lost.

        Proxmox writes it once for unplugged and once for plugged devices, so it must stay the
        same for a while.

        Raises OutcomeUnknown: it was not changed.
        """
        deadline = self._clock.monotonic() + CHANGE_SECONDS
        last, since = before, self._clock.monotonic()
        while self._clock.monotonic() < deadline:
            self._clock.sleep(1.0)
            digest, now = self.read().values.get("digest"), self._clock.monotonic()
            if digest != last:
                last, since = digest, now
            if last != before and now - since >= _STILL_SECONDS:
                return
            if last == before and now - since >= _LOST_SECONDS:
                break
        raise OutcomeUnknown(
            f"{what}: {lost.happened}",
            cause="the request was lost in transit, or the node hangs",
            next_step="no action needed; pvebench checks the state before it changes anything",
        ) from lost

    def run_task(
        self, call: Callable[[], Any], *, kind: str, what: str, seconds: float = _POWER_SECONDS
    ) -> Ended:
        """Make a call that returns a UPID; wait for the end of its task. Raises as `change`.

        Args:
            kind: task type. seconds: deadline of the task.
        """
        self.recent_config()
        self._seen = None
        return self.tasks.run(call, kind=kind, what=f"VM {self.vmid}: {what}", seconds=seconds)

    def begin_start(self) -> str:
        """Begin to power on; return the task. Raises as `change`."""
        self.recent_config()
        self._seen = None
        self._may_start = True
        return self.tasks.begin(lambda: self._api.post(f"{self.path}/status/start"), kind="qmstart")

    def await_start(self, task: str) -> Ended:
        """Wait for the end of the task of `begin_start`, with its warnings. Raises as `change`."""
        ended = self.tasks.wait(task, what=f"VM {self.vmid}: start", seconds=_POWER_SECONDS)
        self._may_start = False
        return ended

    def stopped_by(self) -> HypervisorGone | None:
        """Return the error for a VM that a task stopped since its last start; None: no such task.

        Tasks of other users are visible only with Sys.Audit on the node.
        """
        if self.status()["status"] != "stopped" or not (who := self.tasks.stopped_by()):
            return None
        return HypervisorGone(
            f"VM {self.vmid} was stopped by {who}", cause="a user or another program stopped it"
        )

    def stop(self) -> None:
        """Power off; no task if the VM is off. Raises as `change`."""
        self.verify_owner()
        # A start with an unknown outcome may still be running; a stop waits for its lock.
        if not self._may_start and self.status()["status"] == "stopped":
            self._seen = None
            return
        ended = self.run_task(
            lambda: self._api.post(f"{self.path}/status/stop"), kind="qmstop", what="stop"
        )
        self._may_start = False
        if ":hastop:" in ended.upid:
            self._wait_for_ha()

    def _wait_for_ha(self) -> None:
        """Wait until the VM is off: for a VM under HA, the task only requests the stop."""
        for _ in attempts(self._clock, seconds=_POWER_SECONDS, pause=2.0):
            if self.status()["status"] == "stopped":
                return
        raise Busy(
            f"VM {self.vmid} runs {_POWER_SECONDS:.0f} s after the HA stop request",
            cause="the benchmark VM was added to HA",
            next_step=f"run ha-manager remove vm:{self.vmid}; pvebench retries later",
        )

    def destroy(self) -> str:
        """Stop and remove the VM with its own volumes; do nothing if it is gone.

        Proxmox frees the volumes of the configuration, and on request every volume named after the
        VM ID: on a storage that two clusters share, that could be another cluster's disk. So the
        latter stay, and the VM's last listing names them: a stopped task gets SIGKILL after 5 s,
        and then frees nothing (`check_worker` in PVE/RESTEnvironment.pm).

        Returns:
            A note on volumes that stay; empty: none.

        Raises ForeignDisk: it has a disk that pvebench did not create. Others as `change`.
        """
        try:
            self.stop()
        except HypervisorGone:
            return ""
        stay = self._adopt()
        self.run_task(
            lambda: self._api.delete(self.path, purge=1), kind="qmdestroy", what="destroy"
        )
        if not stay:
            return ""
        log.warning("volumes of a removed VM remain", vmid=self.vmid, volumes=stay)
        text = (
            f"{', '.join(stay)} on {self.access.node}, on a storage that is not active, or of a "
            "killed move, restore or backup; check each, then remove it with `pvesm free` there"
        )
        remember(self.access.journal, text)
        return f"; not removed: {text}"

    def _adopt(self) -> list[str]:
        """Attach the VM's own volumes that its configuration does not name.

        They were created, but never plugged in. A storage frees a volume only for its
        administrators; removing the VM, which must be off, also removes its attached volumes.

        Returns:
            Volumes with a name that Proxmox gave for this VM ID, in no configuration, and those
            that Proxmox cannot free (`destroy_vm` only prints a warning).
        """
        seen = self.verify_owner()
        # Pending disks are freed as well (`destroy_vm` in PVE/QemuServer.pm).
        waiting = {key: row["pending"] for key, row in seen.waiting.items() if "pending" in row}
        config = seen.values
        held = held_volumes(config) | held_volumes(waiting)
        self.refuse_foreign(held - self._moved(config) - self._cloned(config))
        if system_slots(config) and config.get("tags") != TAG:  # its creation did not end
            self.change("end the template's protection", protection=0)
        others = listed_volumes(self._api, self.access.node, self.vmid) - held
        loose = {volid for volid in others if self.owns(volid)}
        free = (f"scsi{index}" for index in range(_SCSI_SLOTS) if f"scsi{index}" not in config)
        if slots := dict(zip(free, sorted(loose), strict=False)):
            self.change("attach own volumes", **slots)
        active = active_storages(self._api, self.access.node)
        lost = {volid for volid in held if volid.partition(":")[0] not in active}
        return sorted(lost | {volid for volid in others if is_given(volid, self.vmid)})

    def _moved(self, config: Mapping[str, Any]) -> set[str]:
        slots = test_slots(config).items()
        return {volid for slot, volid in slots if is_moved(config[slot], self.vmid)}

    def _cloned(self, config: Mapping[str, Any]) -> set[str]:
        disks = disks_in(config)
        cloned = (disks[slot] for slot in system_slots(config) & disks.keys())
        return {volid for volid in cloned if is_given(volid, self.vmid)}

    def refuse_foreign(self, volids: Iterable[str]) -> None:
        """Raise ForeignDisk if pvebench did not create all of these volumes."""
        if foreign := ", ".join(sorted(volid for volid in volids if not self.owns(volid))):
            raise ForeignDisk(
                _unchanged(self.vmid, f"its disk {foreign} was not created by pvebench")
            )

    def has_snapshots(self) -> bool:
        """Return whether it has snapshots. Raises as `Api`."""
        rows = self._api.get(f"{self.path}/snapshot")
        return any(row["name"] != "current" for row in rows)

    def note_filled(self, filled: Iterable[Filled]) -> None:
        """Record the filled volumes in the description. Raises as `change`."""
        self._describe("record filled volumes", filled, claim_of(self.recent_config().values))

    def claim(self, until: float) -> None:
        """Record in the description until when pvebench claims the node; 0: no claim.

        Raises as `change`.
        """
        self._describe("claim the node", filled_of(self.recent_config().values), until)

    def _describe(self, what: str, filled: Iterable[Filled], claim: float) -> None:
        system = system_slots(self.recent_config().values)
        self.change(what, description=description(self.mark, filled, claim, system))

    def monitor(self, command: str) -> str | None:
        """Return the output of QEMU's monitor, or None if the token lacks the right."""
        if not self._may_ask:
            return None
        try:
            return str(self._api.post(f"{self.path}/monitor", command=command))
        except AccessDenied:
            self._may_ask = False
        except Rejected:
            pass
        return None


def refuse_without_rights(api: Api, pool: str) -> None:
    """Check missing rights after a rejected call; without one, make no request.

    A VM that the token may not see seems to be gone: each case would create another one.

    Raises AccessDenied: the right is still missing, so nothing may be created or started.
    """
    if not api.refused:
        return
    table = api.get("/access/permissions")
    missing = missing_rights(table, RequiredGrants(pool=pool, major=version_number(api)[0]))
    if lacking := [entry for entry in missing if privileges_in(entry) & api.refused]:
        raise AccessDenied(
            f"the token lacks {'; '.join(lacking)}",
            cause="a role of the token or its user was changed, or the cluster was upgraded",
            next_step=f"run `{INIT}`",
        )
    api.refused.clear()


def node_time(api: Api, node: str, clock: Clock) -> float:
    """Return the node's time, Unix seconds; this machine's time if the token lacks the right."""
    try:
        return float(api.get(f"/nodes/{node}/time")["time"])
    except (AccessDenied, Rejected):
        return clock.now().timestamp()


def active_storages(api: Api, node: str, content: str | None = None) -> list[str]:
    """Return the storages of the node whose content can be listed and removed."""
    rows = api.get(f"/nodes/{node}/storage", content=content, enabled=1)
    return [str(row["storage"]) for row in rows if row.get("active")]


def listed_volumes(api: Api, node: str, vmid: int) -> set[str]:
    """Return the volumes on all storages of the node that are named after the VM ID."""
    volids: set[str] = set()
    for storage in active_storages(api, node, "images"):
        path = f"/nodes/{node}/storage/{storage}/content"
        volids |= {str(row["volid"]) for row in api.get(path, content="images", vmid=vmid)}
    return volids


def pool_members(api: Api, pool: str) -> set[int]:
    """Return the IDs of the VMs in a pool."""
    members = api.get(f"/pools/{pool}")["members"]
    return {int(member["vmid"]) for member in members if "vmid" in member}


def _unchanged(vmid: int, why: str) -> str:
    return f"VM {vmid} not changed: {why}"
