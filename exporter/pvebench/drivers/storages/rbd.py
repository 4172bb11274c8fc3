"""Images of a Ceph pool, through QEMU's own rbd; made and removed by Ceph's own `rbd`.

librbd keeps its cache in QEMU's process, as part of the opened image: on in the modes without
O_DIRECT, off in the others (qemu_rbd_connect in QEMU's block/rbd.c). So a disk that is plugged in
anew begins with an empty one. What the OSDs cache cannot be seen from here.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from typing import Any, Final

from pvebench.drivers.responses import Shape, anything, fields, rows, table, text, whole
from pvebench.drivers.storages.ceph import STATUS
from pvebench.drivers.storages.contract import MARK, Node, StorageOptions
from pvebench.errors import NoSpace, VolumeError
from pvebench.model.disk import Disk
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB, show_bytes
from pvebench.model.volume import Identity, Volume

KIND: Final = "rbd"
"""Kind of the journal entries made here."""
OWNER_KEY: Final = "pvebench.instance"
"""Of an image's metadata: whose it is, beside its name."""
RESERVE_BYTES: Final = 1024 * MIB
"""Left free in the pool: a cluster that is full stops for everybody."""
COMMAND_SECONDS: Final = 60.0
"""Without monitors Ceph's programs would wait for five minutes."""
WATCHED_SECONDS: Final = 60.0
"""The cluster counts a killed QEMU among an image's users for half a minute."""
_INFO: Final = fields(id=text)
_SPACE: Final = fields(pools=rows(fields(name=text, stats=fields(max_avail=whole))))
_EVIDENCE_CHARACTERS: Final = 2000
_ABSENT: Final = 2  # ENOENT
_BUSY: Final = 16  # EBUSY


class RbdStorage:
    """A storage of kind `rbd`: images with our mark in one pool."""

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        self._options = options
        self._pool = _Pool(pool=options.pool, conf=options.conf, user=options.user)
        self._journal = journal
        self._made: dict[str, tuple[str, int]] = {}
        """Image -> its id in the cluster, and the number of its journal entry."""

    def create(self, scenario: Scenario) -> Volume:
        pool, owner = self._pool, self._options.owner
        name = f"{MARK}{owner}-{scenario.volume}"
        remove_image(pool, name, owner)  # ours by our id in its name, left by a crash
        self._check_space(scenario.volume_bytes)
        entry = self._journal.open(KIND, {**pool.details, "name": name, "owner": owner})
        try:
            pool.rbd("create", "--size", f"{scenario.volume_bytes}B", pool.path(name))
            pool.rbd("image-meta", "set", pool.path(name), OWNER_KEY, owner)
            self._made[name] = pool.identity(name), entry
        except VolumeError:
            remove_image(pool, name, owner)
            self._journal.close(entry)
            raise
        return Volume(
            storage=self._options.name,
            volid=name,
            format=str(scenario.disk.format),
            size_bytes=scenario.volume_bytes,
            local=False,
        )

    def _check_space(self, size_bytes: int) -> None:
        free = self._pool.free_bytes()
        if free < size_bytes + RESERVE_BYTES:
            raise NoSpace(
                f"storage {self._options.name}: {show_bytes(free)} free in pool "
                f"{self._pool.pool}, a volume of {show_bytes(size_bytes)} does not fit "
                f"({show_bytes(RESERVE_BYTES)} stay free)",
                next_step="free space, or make volume.size or the scale of the pack smaller",
            )

    def remove(self, volume: Volume) -> None:
        remove_image(self._pool, volume.volid, self._options.owner)
        made = self._made.pop(volume.volid, None)
        if made is not None:
            self._journal.close(made[1])

    def check(self, volume: Volume) -> None:
        made, _ = self._made[volume.volid]
        now = self._pool.identity(volume.volid)
        owner = self._pool.owner(volume.volid)
        if now != made or owner != self._options.owner:
            raise VolumeError(
                f"image {self._pool.path(volume.volid)} is another one than was made; "
                "it is left alone",
                cause="somebody removed, replaced or renamed it while pvebench had it",
                next_step="look at it with `rbd info`, and start pvebench anew",
            )

    def node(self, volume: Volume, disk: Disk) -> Node:
        pool = self._pool
        given = {"conf": pool.conf, "user": pool.user}
        named = {key: value for key, value in given.items() if value}
        return {"driver": "rbd", "pool": pool.pool, "image": volume.volid, **named}

    def drop_caches(self, volume: Volume) -> int | None:
        """Tell nothing: librbd's cache goes with the plug, the OSDs' are theirs."""
        return None

    def opened(self, volume: Volume) -> str:
        """Return nothing: QEMU has sockets."""
        return ""

    def close(self) -> None:
        """Nothing is kept beside the images."""

    def status(self) -> Mapping[str, Any]:
        """Return the cluster's answer to `ceph status`. Raises VolumeError."""
        return self._pool.status()


class _Pool:
    """One pool, as one user of its cluster."""

    def __init__(self, *, pool: str, conf: str, user: str) -> None:
        self.pool = pool
        self.conf = conf
        self.user = user

    @property
    def details(self) -> dict[str, str]:
        """What a journal entry needs to find it again."""
        return {"pool": self.pool, "conf": self.conf, "user": self.user}

    def path(self, image: str) -> str:
        """Return the image's name in the words of `rbd`."""
        return f"{self.pool}/{image}"

    def rbd(self, *arguments: str) -> str:
        """Return what `rbd` says. Raises VolumeError."""
        code, said, complaint = self._run("rbd", *arguments)
        if code:
            raise _failed("rbd", arguments, complaint)
        return said

    def identity(self, image: str) -> str:
        """Return the id that the cluster gave an image. Raises VolumeError."""
        said = self.rbd("info", "--format", "json", self.path(image))
        return str(_read("rbd info", said, _INFO)["id"])

    def owner(self, image: str) -> str:
        """Return whose an image is; empty: nobody said. Raises VolumeError if it is not there."""
        said = self.rbd("image-meta", "list", "--format", "json", self.path(image))
        return str(_read("rbd image-meta", said, table(anything)).get(OWNER_KEY, ""))

    def has(self, image: str) -> bool:
        """Return whether there is such an image."""
        code, _, complaint = self._run("rbd", "info", self.path(image))
        if code not in (0, _ABSENT):
            raise _failed("rbd", ("info", self.path(image)), complaint)
        return code == 0

    def remove(self, image: str) -> int:
        """Remove an image; return Ceph's error number, 0: none. Raises VolumeError for others."""
        code, _, complaint = self._run("rbd", "remove", "--no-progress", self.path(image))
        if code not in (0, _ABSENT, _BUSY):
            raise _failed("rbd", ("remove", self.path(image)), complaint)
        return code

    def status(self) -> Mapping[str, Any]:
        """Return the answer to `ceph status`. Raises VolumeError."""
        return self._ask("status", STATUS)

    def free_bytes(self) -> int:
        """Return what can still be written to the pool, copies and limits allowed for."""
        pools = self._ask("df", _SPACE)["pools"]
        mine = next((one for one in pools if one["name"] == self.pool), None)
        if mine is None:
            raise VolumeError(
                f"there is no pool {self.pool} in this Ceph cluster",
                next_step="make it, or name another in the settings",
            )
        return int(mine["stats"]["max_avail"])

    def _ask(self, what: str, shape: Shape) -> dict[str, Any]:
        code, said, complaint = self._run("ceph", what, "--format", "json")
        if code:
            raise _failed("ceph", (what,), complaint)
        return _read(f"ceph {what}", said, shape)

    def _run(self, program: str, *arguments: str) -> tuple[int, str, str]:
        chosen = ["--conf", self.conf] if self.conf else []
        chosen += ["--id", self.user] if self.user else []
        command = [program, *chosen, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
            )
        except FileNotFoundError as error:
            raise VolumeError(
                f"{program} is not installed",
                cause="a storage of kind rbd needs Ceph's own programs",
                next_step="install them: apt-get install ceph-common qemu-block-extra",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise VolumeError(
                f"the Ceph cluster does not answer {program} within {COMMAND_SECONDS:.0f} s",
                cause="no monitor can be reached, or too few OSDs are up for this pool",
                next_step="look at it: ceph status",
            ) from error
        return done.returncode, done.stdout, done.stderr


def _read(what: str, said: str, shape: Shape) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        found = json.loads(said)
        wrong = shape(found)
    except ValueError as error:
        wrong = str(error)
    if wrong:
        raise VolumeError(
            f"the answer of {what} cannot be read: {wrong}",
            cause="another release of Ceph than pvebench knows",
            evidence=said[:_EVIDENCE_CHARACTERS],
        )
    return found


def _failed(program: str, arguments: tuple[str, ...], complaint: str) -> VolumeError:
    lines = complaint.strip().splitlines()
    said = lines[-1] if lines else "no reason was given"
    return VolumeError(
        f"{program} {' '.join(arguments)} failed: {said}",
        cause="the user's capabilities do not allow it, or the pool or the cluster is not there",
        next_step="check the capabilities of the user: docs/configuration.md, Ceph",
        evidence=complaint,
    )


def remove_image(pool: _Pool, name: str, owner: str) -> None:
    """Remove an image of ours; one that is not there is fine.

    Raises:
        VolumeError: it is not ours, still in use, or the cluster does not do it.
    """
    if not name.startswith(f"{MARK}{owner}-"):
        raise VolumeError(f"image {pool.path(name)} does not carry our mark; it is left alone")
    if not pool.has(name):
        return
    # Without an owner it is ours too: its name has our random id, and the crash came in between.
    if pool.owner(name) not in ("", owner):
        raise VolumeError(
            f"image {pool.path(name)} says that it is another instance's; it is left alone",
            next_step="look at it with `rbd image-meta list`, and remove it if nobody needs it",
        )
    deadline = time.monotonic() + WATCHED_SECONDS
    while pool.remove(name) == _BUSY:
        if time.monotonic() > deadline:
            raise VolumeError(
                f"image {pool.path(name)} is still in use",
                cause="something else than this pvebench has it open, or it has snapshots",
                next_step=f"look at it: rbd status {pool.path(name)}",
            )
        time.sleep(1.0)


def undo_image(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it."""
    pool = _Pool(pool=details["pool"], conf=details["conf"], user=details["user"])
    remove_image(pool, details["name"], details["owner"])
    return f"removed test volume {pool.path(details['name'])}"


def identify(options: StorageOptions) -> Identity:
    """Return the cluster and the pool. Raises VolumeError."""
    pool = _Pool(pool=options.pool, conf=options.conf, user=options.user)
    cluster = pool.status().get("fsid", "")
    return {"type": "rbd", "pool": pool.pool} | ({"cluster": str(cluster)} if cluster else {})


def look(options: StorageOptions) -> str:
    """Return a line about the pool, for `pvebench check`. Raises VolumeError; changes nothing."""
    pool = _Pool(pool=options.pool, conf=options.conf, user=options.user)
    free, health = pool.free_bytes(), pool.status().get("health", {})
    return f"pool {pool.pool}: {show_bytes(free)} free, {health.get('status', 'health unknown')}"
