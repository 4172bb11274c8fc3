"""The benchmark VM at the API: made, marked, changed, started, stopped, destroyed.

Its description says whose it is and what its volumes hold. It goes with the VM wherever it goes,
so that what is kept from one start of pvebench to the next is found again by what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Forbidden, Rejected
from pvebench.drivers.proxmox.api.tasks import Ended, Tasks
from pvebench.drivers.proxmox.vm.drive import belongs, held_volumes
from pvebench.errors import AccessDenied, Busy, HypervisorGone, NotOwned, OutcomeUnknown
from pvebench.model.ports import Clock

KIND: Final = "proxmox-vm"
"""Kind of the journal entries made here."""
TAG: Final = "pvebench"
CHANGE_SECONDS: Final = 120.0
CLAIM_SECONDS: Final = 1200.0
"""How long a claim of the node holds."""
_POWER_SECONDS: Final = 120.0
_SCSI_SLOTS: Final = 31
_NO_CONFIGURATION: Final = "does not exist"
"""In the answer to whoever has rights on a number, but no VM."""
_MEMBER_SECONDS: Final = 60.0
_LATELY_SECONDS: Final = 5.0
_STILL_SECONDS: Final = 10.0
"""So long a configuration stays the same once a change of it has ended."""
_LOST_SECONDS: Final = 45.0
"""A request that changed nothing in that time never arrived: pveproxy itself waits for 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmPlace:
    """Where VMs may be made.

    Attributes:
        vmids: first and last number to try.
    """

    node: str
    pool: str
    vmids: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A VM's configuration.

    Attributes:
        values: key -> what is in force, the digest among them.
        waiting: key -> its entry, for every key that is not yet applied.
    """

    values: Mapping[str, Any]
    waiting: Mapping[str, Any]


def read_configuration(api: Api, path: str) -> Configuration:
    """Return the configuration of the VM at `path`, whosever it is."""
    rows = api.get(f"{path}/pending")
    return Configuration(
        values={str(row["key"]): row["value"] for row in rows if "value" in row},
        waiting={str(row["key"]): row for row in rows if "pending" in row or "delete" in row},
    )


class BenchVm:
    """One VM that carries our mark. Owned by one worker thread."""

    def __init__(self, api: Api, clock: Clock, place: VmPlace, vmid: int, mark: str) -> None:
        self.vmid = vmid
        self.mark = mark
        self.path = f"/nodes/{place.node}/qemu/{vmid}"
        self._api = api
        self._place = place
        self._clock = clock
        self._tasks = Tasks(api, place.node, clock, vmid=vmid)
        self._member_at: float | None = None
        self._seen: tuple[float, Configuration] | None = None
        self._may_ask = True
        self._may_start = False

    def owns(self, volid: str) -> bool:
        """Return whether a volume's name says that it was made for this very VM.

        Its number says nothing: `qm disk rescan` puts whatever is named after it into the
        configuration, on a storage that two clusters share another pvebench's volumes too.
        """
        return belongs(volid, self.vmid, self.mark)

    def learn(self) -> None:
        """Note the tasks of VMs that had this number before. Call once, before any change."""
        self._tasks.learn()

    def read(self) -> Configuration:
        """Return the configuration; one call tells what is in force and what waits."""
        return read_configuration(self._api, self.path)

    def status(self) -> dict[str, Any]:
        """Return status/current."""
        found: dict[str, Any] = self._api.get(f"{self.path}/status/current")
        return found

    def prove_ours(self) -> Configuration:
        """Return the configuration if the VM carries our mark and is in our pool.

        That it is in the pool is asked once a minute: whoever takes it out takes our rights, too.

        Raises:
            NotOurs: it does not, or is not; it is left alone.
            HypervisorGone: it does not exist any more.
        """
        try:
            found = self.read()
        except (Rejected, Forbidden) as error:
            # Of a VM that does not exist the server says that we may not see it.
            if isinstance(error, Rejected) and _NO_CONFIGURATION not in error.text:
                raise
            raise HypervisorGone(
                f"VM {self.vmid} is not there: {error.reason}",
                cause="somebody deleted it, moved it out of the pool or to another node",
            ) from error
        if mark_of(found.values) != self.mark:
            raise NotOwned(_stranger(self.vmid, "it does not carry the mark of this pvebench"))
        if str(found.values.get("template", "0")) == "1":
            raise NotOwned(_stranger(self.vmid, "somebody has made a template of it"))
        now = self._clock.monotonic()
        if self._member_at is None or now - self._member_at > _MEMBER_SECONDS:
            if self.vmid not in pool_members(self._api, self._place.pool):
                raise NotOwned(_stranger(self.vmid, f"it is not in the pool {self._place.pool}"))
            self._member_at = now
        self._seen = now, found
        return found

    def lately(self) -> Configuration:
        """Return what `prove_ours` found a moment ago, if we changed nothing since; else ask it."""
        at, found = self._seen or (0.0, None)
        recent = self._clock.monotonic() - at < _LATELY_SECONDS
        return found if found is not None and recent else self.prove_ours()

    def change(self, what: str, **params: Any) -> None:
        """Change the configuration; applied at once where Proxmox can, else pending.

        By PUT, which makes no task: a node remembers some 1,200 of them, and an administrator
        looks there for the backups. It is answered when it is done; what takes longer than
        pveproxy waits (30 s) goes on without an answer.

        Raises:
            NotOurs, Busy, Rejected, OutcomeUnknown.
        """
        # With the digest nobody's change in between is overwritten.
        digest = self.lately().values.get("digest")
        self._seen = None
        try:
            self._tasks.at_once(
                lambda: self._api.put(f"{self.path}/config", **params, digest=digest)
            )
        except OutcomeUnknown as error:
            self._await_change(digest, f"VM {self.vmid}: {what}", error)

    def _await_change(self, before: Any, what: str, lost: OutcomeUnknown) -> None:
        """Wait until a change whose reply was lost has been made: the configuration is another.

        Proxmox writes it once for what it unplugs and once for what it plugs in, so it must have
        stayed the same for a while.

        Raises:
            OutcomeUnknown: it was not changed.
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
            cause="the request was lost on its way, or the node hangs",
            next_step="pvebench looks at the VM again before it changes anything",
        ) from lost

    def start(self) -> Ended:
        """Power on; returns the task's warnings. Raises as `change`."""
        self.lately()
        self._seen, self._may_start = None, True
        ended = self._tasks.run(
            lambda: self._api.post(f"{self.path}/status/start"),
            kind="qmstart",
            what=f"VM {self.vmid}: start",
            seconds=_POWER_SECONDS,
        )
        self._may_start = False
        return ended

    def stop(self) -> None:
        """Power off; no task if it is off already. Raises as `change`."""
        self.prove_ours()
        self._seen = None
        # A start whose end is not known may still be on its way; a stop waits for its lock.
        if not self._may_start and self.status()["status"] == "stopped":
            return
        ended = self._tasks.run(
            lambda: self._api.post(f"{self.path}/status/stop"),
            kind="qmstop",
            what=f"VM {self.vmid}: stop",
            seconds=_POWER_SECONDS,
        )
        self._may_start = False
        if ":hastop:" in ended.upid:
            self._wait_for_ha()

    def _wait_for_ha(self) -> None:
        """Wait until the VM is off: of one that somebody gave to HA the task only asks for that."""
        deadline = self._clock.monotonic() + _POWER_SECONDS
        while self.status()["status"] != "stopped":
            if self._clock.monotonic() > deadline:
                raise Busy(
                    f"VM {self.vmid} runs {_POWER_SECONDS:.0f} s after HA was told to stop it",
                    cause="somebody gave the benchmark VM to HA",
                    next_step=f"ha-manager remove vm:{self.vmid}; it is tried again later",
                )
            self._clock.sleep(2.0)

    def destroy(self) -> None:
        """Stop and remove the VM with its own volumes; fine if it is gone already.

        Proxmox frees with it what the configuration names, and would free on request whatever is
        named after its number: on a storage that two clusters share that is another's disk.

        Raises:
            NotOurs: somebody gave it a disk of theirs. Others as `change`.
        """
        try:
            self.stop()
        except HypervisorGone:
            return
        self._adopt()
        self._tasks.run(
            lambda: self._api.delete(self.path, purge=1),
            kind="qmdestroy",
            what=f"VM {self.vmid}: destroy",
            seconds=_POWER_SECONDS,
        )

    def _adopt(self) -> None:
        """Put those of the VM's own volumes into free slots that its configuration does not name.

        They were made, but never plugged in. A storage frees a volume only for its administrators;
        the VM, which must be off, takes along what is plugged into it.
        """
        seen = self.prove_ours()
        # What only waits to be plugged in is freed as well (`destroy_vm` in PVE/QemuServer.pm).
        waiting = {key: row["pending"] for key, row in seen.waiting.items() if "pending" in row}
        config = seen.values
        held = held_volumes(config) | held_volumes(waiting)
        if foreign := sorted(volid for volid in held if not self.owns(volid)):
            raise NotOwned(
                _stranger(self.vmid, f"{', '.join(foreign)} in it is not one of ours"),
                cause="somebody gave the benchmark VM a disk",
                next_step="take it out of that VM, then: pvebench cleanup --orphans",
            )
        loose = named_volumes(self._api, self._place.node, self.vmid, self.mark) - held
        free = (f"scsi{index}" for index in range(_SCSI_SLOTS) if f"scsi{index}" not in config)
        if slots := dict(zip(free, sorted(loose), strict=False)):
            self.change("adopt what was never plugged in", **slots)

    def note_filled(self, filled: Iterable[Filled]) -> None:
        """Write into the description which volumes are filled. Raises as `change`."""
        claim = claim_of(self.lately().values)
        self.change("note what is filled", description=description(self.mark, filled, claim))

    def claim(self, until: float) -> None:
        """Write into the description until when the node is ours to measure on; 0: it is not.

        Raises as `change`.
        """
        filled = filled_of(self.lately().values)
        self.change("claim the node", description=description(self.mark, filled, until))

    def monitor(self, command: str) -> str | None:
        """Return what QEMU's monitor says, or None where the token may not ask."""
        if not self._may_ask:
            return None
        try:
            return str(self._api.post(f"{self.path}/monitor", command=command))
        except AccessDenied:
            self._may_ask = False
        except Rejected:
            pass
        return None


def node_time(api: Api, node: str, clock: Clock) -> float:
    """Return the node's time, seconds since 1970; this machine's where the token may not ask."""
    try:
        return float(api.get(f"/nodes/{node}/time")["time"])
    except (AccessDenied, Rejected):
        return clock.now().timestamp()


def named_volumes(api: Api, node: str, vmid: int, mark: str) -> set[str]:
    """Return the volumes, on any storage of the node, whose names say that this VM owns them."""
    found: set[str] = set()
    for storage in api.get(f"/nodes/{node}/storage", content="images", enabled=1):
        if not storage.get("active"):
            continue  # it cannot be asked
        path = f"/nodes/{node}/storage/{storage['storage']}/content"
        entries = api.get(path, content="images", vmid=vmid)
        found |= {str(entry["volid"]) for entry in entries}
    return {volid for volid in found if belongs(volid, vmid, mark)}


def pool_members(api: Api, pool: str) -> set[int]:
    """Return the numbers of the VMs in a pool."""
    members = api.get(f"/pools/{pool}")["members"]
    return {int(member["vmid"]) for member in members if "vmid" in member}


def _stranger(vmid: int, why: str) -> str:
    return f"VM {vmid} is left alone: {why}"


_MARK: Final = re.compile(r"^pvebench-mark: (?P<mark>[0-9a-f]{32})$", re.MULTILINE)
_CLAIM: Final = re.compile(r"^pvebench-measures-until: (?P<until>\d{1,12})$", re.MULTILINE)
_FILLED: Final = re.compile(r"^pvebench-filled: (?P<json>\{.*\})$", re.MULTILINE)
_CHARACTERS: Final = 8192
"""Longest description that Proxmox takes."""
_WORDS: Final = (
    "Benchmark VM of pvebench. It is changed and removed automatically: keep nothing here.\n\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A volume that was written from end to end, and not spoiled since.

    Attributes:
        key: what scenarios need it for, `Scenario.volume`.
        storage: name in packs.
        size_bytes: as it was asked for; `listed_bytes`: as the storage told it then.
        content: what it holds, in the words of `Layout.content`.
    """

    key: str
    storage: str
    volid: str
    format: str
    size_bytes: int
    listed_bytes: int
    content: str


def description(mark: str, filled: Iterable[Filled] = (), claim: float = 0.0) -> str:
    """Return the text that says it all; a note that does not fit in is left out, and made later.

    Args:
        claim: until when the node is measured on, seconds since 1970; 0: it is not.
    """
    text = f"{_WORDS}pvebench-mark: {mark}\n"
    if claim:
        text += f"pvebench-measures-until: {claim:.0f}\n"
    for one in filled:
        line = f"pvebench-filled: {json.dumps(asdict(one), sort_keys=True)}\n"
        if len(text) + len(line) <= _CHARACTERS:
            text += line
    return text


def mark_of(config: Mapping[str, Any]) -> str:
    """Return the mark in a VM's description, or an empty string."""
    found = _MARK.search(str(config.get("description", "")))
    return found["mark"] if found else ""


def claim_of(config: Mapping[str, Any]) -> float:
    """Return until when some pvebench measures with this VM, seconds since 1970; 0: it does not."""
    found = _CLAIM.search(str(config.get("description", "")))
    return float(found["until"]) if found else 0.0


def filled_of(config: Mapping[str, Any]) -> list[Filled]:
    """Return what a VM's description says of its volumes; a line that is broken says nothing."""
    found = []
    for match in _FILLED.finditer(str(config.get("description", ""))):
        try:
            found.append(_checked(Filled(**json.loads(match["json"]))))
        except (TypeError, ValueError, RecursionError):
            continue
    return found


def _checked(one: Filled) -> Filled:
    sizes = (one.size_bytes, one.listed_bytes)
    names = (one.key, one.storage, one.volid, one.format, one.content)
    if {*map(type, sizes)} != {int} or {*map(type, names)} != {str}:
        raise TypeError("a size is no number, or a name no text")
    return one
