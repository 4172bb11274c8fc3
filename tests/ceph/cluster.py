"""A small Ceph cluster for tests: one monitor, one manager, three OSDs, all of it on this machine.

Debian's own programs, started as children that end with this process; cephx is on, as it is on a
cluster that somebody uses. Each OSD is a BlueStore on a sparse file, so what is written passes
through real disks' code, and a pool keeps two copies of everything.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pvebench.model.units import GIB, MIB
from testing.prometheus import free_port

PROGRAMS: Final = {
    "ceph-mon": "ceph-mon",
    "ceph-mgr": "ceph-mgr",
    "ceph-osd": "ceph-osd",
    "ceph": "ceph-common",
    "rbd": "ceph-common",
    "ceph-authtool": "ceph-common",
    "monmaptool": "ceph-common",
}
"""Program -> Debian's package."""
POOL: Final = "pvebench"
USER: Final = "pvebench"
OSDS: Final = 3
START_SECONDS: Final = 180.0
"""Long: two busy cores took three quarters of a minute."""


class CephMissing(RuntimeError):
    """This machine lacks what a cluster needs; the message says what."""


def need_ceph() -> None:
    """Raise CephMissing with all that is lacking."""
    lacking = sorted({pkg for name, pkg in PROGRAMS.items() if shutil.which(name) is None})
    if lacking:
        raise CephMissing(
            f"no Ceph here: apt-get install --no-install-recommends {' '.join(lacking)}"
        )


@dataclass
class CephCluster:
    """A running cluster; made by `running_ceph`.

    Attributes:
        directory: all that it keeps; the admin sockets are in it too, so its path must be short.
        port: where the monitor listens on 127.0.0.1.
    """

    directory: Path
    port: int
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """The configuration file that clients are given."""
        return self.directory / "ceph.conf"

    def ceph(self, *arguments: str) -> Any:
        """Return the answer of a command of the administrator, read as JSON; None: it has none."""
        command = ["ceph", "--conf", str(self.conf), "--format", "json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def daemon(self, name: str, *arguments: str) -> Any:
        """Return the answer of a daemon (or client) at its own socket, such as `osd.0`."""
        socket = next(self.directory.glob(f"{name}*.asok"))
        command = ["ceph", "--admin-daemon", str(socket), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)

    def rbd(self, *arguments: str) -> str:
        """Return what the administrator's `rbd` says."""
        command = ["rbd", "--conf", str(self.conf), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    def stop_osd(self, number: int) -> None:
        """Kill an OSD: the cluster must find out by itself."""
        self._end(f"osd.{number}", signal.SIGKILL)

    def start_osd(self, number: int) -> None:
        """Start an OSD that was stopped."""
        self._start("ceph-osd", f"osd.{number}", str(number))

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """Keep an OSD from running, without its end: the others see it as slow, then as dead."""
        process = self._daemons[f"osd.{number}"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def wait_until(self, states: Sequence[str], *, seconds: float = START_SECONDS) -> None:
        """Wait until every placement group is in one of the states."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.ceph("status")
            found = {one["state_name"] for one in status["pgmap"].get("pgs_by_state", ())}
            if found and found <= set(states):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {seconds:.0f} s placement groups are {found}: {status}")
            time.sleep(0.5)

    # How it comes to be, in order.

    def make(self) -> None:
        """Start everything, and make the pool and its user."""
        self._configure()
        self._make_monitor()
        self._start("ceph-mon", "mon.a", "a")
        self._start_manager()
        for number in range(OSDS):
            self._make_osd(number)
        self.ceph("osd", "pool", "create", POOL, "16", "16")
        self.ceph("osd", "pool", "application", "enable", POOL, "rbd")
        self._make_user()
        self.wait_until(["active+clean"])

    def _configure(self) -> None:
        self.conf.write_text(
            f"""\
[global]
fsid = {uuid.uuid4()}
mon host = [v2:127.0.0.1:{self.port}]
mon initial members = a
public bind addr = [v2:127.0.0.1:{self.port}]
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {self.directory}/$name.keyring
run dir = {self.directory}
admin socket = {self.directory}/$name.$pid.asok
log file = {self.directory}/$name.log
ms bind ipv4 = true
osd pool default size = 2
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool delete = true
auth allow insecure global id reclaim = false
mon warn on pool no redundancy = false
osd pool default pg autoscale mode = off
[mon]
mon data = {self.directory}/mon
mon data avail crit = 1
mon data avail warn = 2
[mgr]
mgr data = {self.directory}/mgr
mgr initial modules =
[osd]
osd data = {self.directory}/osd.$id
osd objectstore = bluestore
bluestore block size = {3 * GIB}
bluestore cache autotune = false
bluestore cache size = {48 * MIB}
osd memory target = {1 * GIB}
osd max backfills = 2
osd heartbeat grace = 8
osd heartbeat interval = 2
""",
            "utf-8",
        )

    def _tool(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def _make_monitor(self) -> None:
        both, admin = self.directory / "mon.a.keyring", self.directory / "client.admin.keyring"
        self._tool(
            "ceph-authtool",
            "--create-keyring",
            str(both),
            "--gen-key",
            "-n",
            "mon.",
            "--cap",
            "mon",
            "allow *",
        )
        every = [word for kind in ("mon", "osd", "mgr") for word in ("--cap", kind, "allow *")]
        self._tool(
            "ceph-authtool",
            "--create-keyring",
            str(admin),
            "--gen-key",
            "-n",
            "client.admin",
            *every,
        )
        self._tool("ceph-authtool", str(both), "--import-keyring", str(admin))
        known = self.directory / "monmap"
        fsid = next(
            line.split(" = ")[1]
            for line in self.conf.read_text("utf-8").splitlines()
            if line.startswith("fsid")
        )
        self._tool(
            "monmaptool",
            "--create",
            "--addv",
            "a",
            f"[v2:127.0.0.1:{self.port}]",
            "--fsid",
            fsid,
            str(known),
        )
        (self.directory / "mon").mkdir()
        self._tool(
            "ceph-mon",
            "--conf",
            str(self.conf),
            "--mkfs",
            "-i",
            "a",
            "--monmap",
            str(known),
            "--keyring",
            str(both),
        )

    def _start_manager(self) -> None:
        (self.directory / "mgr").mkdir()
        self._keyring("mgr.a", "mon", "allow profile mgr", "osd", "allow *", "mds", "allow *")
        self._start("ceph-mgr", "mgr.a", "a")

    def _make_osd(self, number: int) -> None:
        name, data = f"osd.{number}", self.directory / f"osd.{number}"
        data.mkdir()
        identity = str(uuid.uuid4())
        self.ceph("osd", "new", identity, str(number))
        self._keyring(
            name, "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"
        )
        shutil.copy(self.directory / f"{name}.keyring", data / "keyring")
        self._tool(
            "ceph-osd",
            "--conf",
            str(self.conf),
            "-i",
            str(number),
            "--mkfs",
            "--osd-uuid",
            identity,
        )
        self.start_osd(number)

    def _make_user(self) -> None:
        """A user as `docs/configuration.md` says: this pool's images and the cluster's state."""
        self._keyring(
            f"client.{USER}",
            "mon",
            "profile rbd",
            "osd",
            f"profile rbd pool={POOL}",
            "mgr",
            f"profile rbd pool={POOL}",
        )

    def _keyring(self, name: str, *caps: str) -> None:
        command = ["ceph", "--conf", str(self.conf), "auth", "get-or-create", name, *caps]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        path = self.directory / f"{name}.keyring"
        path.touch(0o600)
        path.write_text(done.stdout, "utf-8")

    def _start(self, program: str, name: str, identity: str) -> None:
        log = (self.directory / f"{name}.out").open("ab")
        with log:
            self._daemons[name] = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "nice",
                    program,
                    "--foreground",
                    "--conf",
                    str(self.conf),
                    "--id",
                    identity,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._daemons.pop(name)
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        process.wait(60)

    def close(self) -> None:
        """End every daemon, OSDs first."""
        for name in list(reversed(self._daemons)):
            self._end(name, signal.SIGKILL)


@contextmanager
def running_ceph(directory: Path) -> Iterator[CephCluster]:
    """Yield a healthy cluster in an empty directory; nothing of it runs afterwards.

    Raises:
        CephMissing: the machine lacks what it needs.
    """
    need_ceph()
    cluster = CephCluster(directory, free_port())
    try:
        cluster.make()
        yield cluster
    finally:
        cluster.close()
