"""Images of a Ceph pool, and the state of the cluster during runs.

The images are used with QEMU's rbd driver, and created and removed with Ceph's `rbd`.
librbd's cache is in QEMU's process, as part of the opened image: on in the modes without O_DIRECT,
off in the others (qemu_rbd_connect in QEMU's block/rbd.c). So a newly attached disk begins with an
empty one. The caches of the OSDs are not visible from here.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import Field, StrictStr

from pvebench.drivers.ceph_state import STATUS, Trouble, trouble
from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.responses import Shape, anything, fields, rows, table, text, whole
from pvebench.drivers.storages.contract import MARK, Kind, Node, Storage, StorageContext
from pvebench.drivers.storages.server_link import ServerSettings
from pvebench.errors import DriverError, VolumeError
from pvebench.fields import FilePath
from pvebench.model.disk import Disk, Format, HostCache
from pvebench.model.ports import Hold, Journal
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.storage_use import Space
from pvebench.model.units import MIB, show_bytes
from pvebench.model.volume import Identity, Volume
from pvebench.model.workload import Case


@dataclass(frozen=True, slots=True)
class CephGuard:
    """`model.ports.Guard` of Ceph pools, checked before and after each run.

    Attributes:
        statuses: storage -> function that returns the output of `ceph status` of its cluster.
    """

    statuses: Mapping[str, Callable[[], Mapping[str, Any]]]

    def enter(self, case: Case) -> Hold | None:
        state = self._trouble(case)
        return state.hold() if state else None

    def leave(self, case: Case) -> str:
        state = self._trouble(case)
        return state.text if state else ""

    def _trouble(self, case: Case) -> Trouble | None:
        status = self.statuses.get(case.scenario.storage)
        if status is None:
            return None
        try:
            return trouble(status())
        except DriverError:
            return None  # the run itself reports the cluster's error


KIND: Final = "rbd"
"""Kind of the journal entries of these images."""
OWNER_KEY: Final = "pvebench.instance"
"""Key of an image's metadata with its owner, in addition to its name."""
RESERVE_BYTES: Final = 1024 * MIB
"""Space that stays free in the pool: a full cluster stops for all clients."""
COMMAND_SECONDS: Final = 60.0
"""Time limit; without monitors Ceph's programs would wait for five minutes."""
WATCHED_SECONDS: Final = 60.0
"""Time limit; the cluster lists a killed QEMU as a user of the image for half a minute."""
_INFO: Final = fields(id=text)
_SPACE: Final = fields(pools=rows(fields(name=text, stats=fields(max_avail=whole))))
_EVIDENCE_CHARACTERS: Final = 2000
_ABSENT: Final = 2  # ENOENT
_BUSY: Final = 16  # EBUSY


_NAME: Final = r"^[A-Za-z0-9_.][A-Za-z0-9_.-]*$"
"""Excludes options of `rbd`, and separators in POOL/IMAGE."""


class RbdSettings(ServerSettings):
    """Keys of kind `rbd`: a pool of a Ceph cluster.

    Attributes:
        pool: the pool.
        conf: configuration file of the cluster; default: `/etc/ceph/ceph.conf`.
        user: user of the cluster, without `client.`; default: `admin`.
    """

    pool: StrictStr = Field(pattern=_NAME)
    conf: FilePath | None = None
    user: StrictStr = Field(default="", pattern=_NAME)


class RbdStorage(Storage):
    """Storage of kind `rbd`: images with the ownership marker in one pool."""

    def __init__(self, context: StorageContext[RbdSettings], journal: Journal) -> None:
        self._name, self._owner = context.name, context.owner
        self.pool = _pool_of(context)
        self._journal = journal
        self._created: dict[str, tuple[str, int]] = {}
        """Image -> its id in the cluster, and the number of its journal entry."""

    def create(self, scenario: Scenario) -> Volume:
        pool, owner = self.pool, self._owner
        name = f"{MARK}{owner}-{scenario.volume}"
        remove_image(pool, name, owner)  # leftover of a crash: the name contains this id
        self._check_space(scenario.volume_bytes)
        entry = self._journal.open(KIND, {**asdict(pool), "name": name, "owner": owner})
        try:
            pool.rbd("create", "--size", f"{scenario.volume_bytes}B", pool.path(name))
            pool.rbd("image-meta", "set", pool.path(name), OWNER_KEY, owner)
            self._created[name] = pool.identity(name), entry
        except VolumeError:
            remove_image(pool, name, owner)
            self._journal.close(entry)
            raise
        return Volume.of(scenario, name, local=False)

    def _check_space(self, size_bytes: int) -> None:
        free, where = self.pool.free_bytes(), f"in pool {self.pool.pool}"
        space = Space(free=free, where=where, reserve=RESERVE_BYTES)
        space.require(self._name, size_bytes)

    def remove(self, volume: Volume) -> None:
        remove_image(self.pool, volume.volid, self._owner)
        created = self._created.pop(volume.volid, None)
        if created is not None:
            self._journal.close(created[1])

    def check(self, volume: Volume) -> None:
        image_id, _ = self._created[volume.volid]
        now = self.pool.identity(volume.volid)
        owner = self.pool.owner(volume.volid)
        if now != image_id or owner != self._owner:
            raise VolumeError(
                f"image {self.pool.path(volume.volid)} was replaced; not changed",
                cause="removed, replaced or renamed outside pvebench during its use",
                next_step="inspect it with `rbd info`, then restart pvebench",
            )

    def node(self, volume: Volume, disk: Disk) -> Node:
        named = {key: value for key, value in asdict(self.pool).items() if value}
        return {"driver": "rbd", "image": volume.volid, **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Pool with a user of its cluster."""

    pool: str
    conf: str
    user: str

    def path(self, image: str) -> str:
        """Return the image's name as `rbd` expects it."""
        return f"{self.pool}/{image}"

    def rbd(self, *arguments: str) -> str:
        """Run `rbd`; return its output. Raises VolumeError."""
        code, output, errors = self._run("rbd", *arguments)
        if code:
            raise _failed("rbd", arguments, errors)
        return output

    def identity(self, image: str) -> str:
        """Return the cluster's id of an image. Raises VolumeError."""
        output = self.rbd("info", "--format", "json", self.path(image))
        return str(_read("rbd info", output, _INFO)["id"])

    def owner(self, image: str) -> str:
        """Return the owner of an image; empty: not set. Raises VolumeError: it is missing."""
        output = self.rbd("image-meta", "list", "--format", "json", self.path(image))
        return str(_read("rbd image-meta", output, table(anything)).get(OWNER_KEY, ""))

    def attempt(self, verb: str, image: str, *options: str) -> int:
        """Run a command on an image that may be absent or busy; return Ceph's error number.

        Raises VolumeError for other numbers.
        """
        code, _, errors = self._run("rbd", verb, *options, self.path(image))
        if code not in (0, _ABSENT, _BUSY):
            raise _failed("rbd", (verb, self.path(image)), errors)
        return code

    def status(self) -> Mapping[str, Any]:
        """Return the answer to `ceph status`. Raises VolumeError."""
        return self._ask("status", STATUS)

    def free_bytes(self) -> int:
        """Return the writable bytes of the pool, after replication and limits."""
        pools = self._ask("df", _SPACE)["pools"]
        entry = next((pool for pool in pools if pool["name"] == self.pool), None)
        if entry is None:
            raise VolumeError(
                f"pool {self.pool} does not exist in this Ceph cluster",
                next_step="create it, or use another one in the settings",
            )
        return int(entry["stats"]["max_avail"])

    def _ask(self, what: str, shape: Shape) -> dict[str, Any]:
        code, output, errors = self._run("ceph", what, "--format", "json")
        if code:
            raise _failed("ceph", (what,), errors)
        return _read(f"ceph {what}", output, shape)

    def _run(self, program: str, *arguments: str) -> tuple[int, str, str]:
        access = ["--conf", self.conf] if self.conf else []
        access += ["--id", self.user] if self.user else []
        command = [program, *access, *arguments]
        try:
            done = run_program(command, seconds=COMMAND_SECONDS)
        except FileNotFoundError as error:
            raise VolumeError(
                f"{program} is not installed",
                cause="a storage of kind rbd needs Ceph's own programs",
                next_step="run `apt-get install ceph-common qemu-block-extra`",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise VolumeError(
                f"no answer of the Ceph cluster to {program} within {COMMAND_SECONDS:.0f} s",
                cause="no monitor is reachable, or too few OSDs are up for this pool",
                next_step="check the cluster with `ceph status`",
            ) from error
        return done.returncode, done.stdout, done.stderr


def _pool_of(context: StorageContext[RbdSettings]) -> _Pool:
    settings = context.settings
    return _Pool(pool=settings.pool, conf=str(settings.conf or ""), user=settings.user)


def _read(what: str, output: str, shape: Shape) -> dict[str, Any]:
    data: dict[str, Any] = {}
    try:
        data = json.loads(output)
        problem = shape(data)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise VolumeError(
            f"unexpected output of {what}: {problem}",
            cause="unsupported release of Ceph",
            evidence=output[:_EVIDENCE_CHARACTERS],
        )
    return data


def _failed(program: str, arguments: tuple[str, ...], errors: str) -> VolumeError:
    lines = errors.strip().splitlines()
    last = lines[-1] if lines else "no reason given"
    return VolumeError(
        f"{program} {' '.join(arguments)} failed: {last}",
        cause="the user lacks a capability, or the pool or the cluster is missing",
        next_step="check the capabilities of the user: docs/configuration.md, Ceph",
        evidence=errors,
    )


def remove_image(pool: _Pool, name: str, owner: str) -> None:
    """Remove an image of this instance, if it exists.

    Raises:
        VolumeError: it belongs to another instance, is in use, or the cluster failed.
    """
    if not name.startswith(f"{MARK}{owner}-"):
        raise VolumeError(f"image {pool.path(name)} not changed: not created by this pvebench")
    if pool.attempt("info", name) == _ABSENT:
        return
    # Without an owner it is owned too: the name has the random id, the crash came in between.
    if pool.owner(name) not in ("", owner):
        raise VolumeError(
            f"image {pool.path(name)} not changed: another instance owns it",
            next_step="inspect it with `rbd image-meta list`; remove it if you don't need it",
        )
    deadline = time.monotonic() + WATCHED_SECONDS
    while pool.attempt("remove", name, "--no-progress") == _BUSY:
        if time.monotonic() > deadline:
            raise VolumeError(
                f"image {pool.path(name)} is still in use",
                cause="another program has it open, or it has snapshots",
                next_step=f"check it with `rbd status {pool.path(name)}`",
            )
        time.sleep(1.0)


def undo_image(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it."""
    pool = _Pool(pool=details["pool"], conf=details["conf"], user=details["user"])
    remove_image(pool, details["name"], details["owner"])
    return f"removed test volume {pool.path(details['name'])}"


def identify(context: StorageContext[RbdSettings]) -> Identity:
    """Return the identity of cluster and pool. Raises VolumeError."""
    pool = _pool_of(context)
    cluster = pool.status().get("fsid", "")
    return {"type": "rbd", "pool": pool.pool} | ({"cluster": str(cluster)} if cluster else {})


def look(context: StorageContext[RbdSettings]) -> str:
    """Return a line about the pool, for `pvebench check`. Raises VolumeError; changes nothing."""
    pool = _pool_of(context)
    free, health = pool.free_bytes(), pool.status().get("health", {})
    return f"pool {pool.pool}: {show_bytes(free)} free, {health.get('status', 'health unknown')}"


RBD: Final = Kind(
    holds=StorageKind(
        name="rbd", formats=frozenset({Format.RAW}), network=True, host_cache=HostCache.REOPENED
    ),
    settings=RbdSettings,
    make=RbdStorage,
    identify=identify,
    undo={KIND: undo_image},
    look=look,
    guard=lambda storages: CephGuard({name: it.pool.status for name, it in storages.items()}),
)
