"""A machine that looks like a node with containers: `node.sh`, forced by a real sshd.

The script is the one that is installed, with only its places changed; what it calls there is
`standin_pct.py`, LXC's own programs, and the machine's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pvebench.drivers.proxmox.node.node_ssh import NodeSsh, script_of_node
from pvebench.drivers.ssh.connection import SshConnection
from testing import standin_pct
from testing.containers import losetup, processes, text
from testing.sshd import SshServer, ssh_server

GROUPS = "/sys/fs/cgroup/unified" if Path("/sys/fs/cgroup/unified").is_dir() else "/sys/fs/cgroup"


class ContainerNode:
    """Its files are in `folder`: `conf`, `archives`, `volumes`, `calls`."""

    def __init__(self, folder: Path, server: SshServer, *, lxc: bool) -> None:
        self.folder = folder
        self.server = server
        for name in ("conf", "archives", "turns", "volumes", "bin"):
            (folder / name).mkdir(parents=True)
        if not lxc:
            (folder / "no-lxc").touch()
            self._program("lxc-info", "exit 1")
        python = f"PYTHONPATH={':'.join(sys.path)} exec {sys.executable}"
        for name in ("pct", "pvesm"):
            self._program(name, f'{python} {standin_pct.__file__} {folder} {name} "$@"')
        self._install()

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @contextmanager
    def program(self, name: str, text: str) -> Iterator[None]:
        """Have the node run a script of this text in place of a program meanwhile."""
        path = self.folder / "bin" / name
        before = path.read_text() if path.exists() else ""
        self._program(name, text)
        try:
            yield
        finally:
            path.unlink()
            if before:
                self._program(name, before)

    @contextmanager
    def killed(self, name: str, word: str = "", *, when: str = "before") -> Iterator[None]:
        """Have its program killed when that calls another one, `before` that does it or `after`.

        Args:
            word: the other's first; empty: any.
        """
        path = self.folder / "bin" / name
        does = path.read_text().partition("\n")[2] if path.exists() else f'/usr/bin/{name} "$@"'
        kill = 'kill -KILL "$(ps -o sid= -p $$ | tr -d " ")"'
        steps = [kill, f"({does})"] if when == "before" else [f"({does})", kill]
        given = f'case "$1" in {word or "*"}) {"; ".join(steps)} ;; *) {does} ;; esac'
        with self.program(name, given):
            yield

    def _install(self) -> None:
        there = f"s|^{GROUPS}/lxc|/sys/fs/cgroup/lxc|"
        places = {
            "CONFIGURATIONS=/etc/pve/lxc": f"CONFIGURATIONS={self.folder}/conf",
            "NODES=/etc/pve/nodes": f"NODES={self.folder}/nodes",
            "ARCHIVES=/var/cache/pvebench-node": f"ARCHIVES={self.folder}/archives",
            "TURNS=/run/pvebench-node": f"TURNS={self.folder}/turns",
            "GROUPS_OF=/sys/fs/cgroup/lxc": f"GROUPS_OF={GROUPS}/lxc",
            "PATH=/usr/sbin": f"PATH={self.folder}/bin:/usr/sbin",
            "grep -saHZ '' -- \"$@\" || :": f"grep -saHZ '' -- \"$@\" | sed '{there}'",
        }
        self.server.allow_script(self.folder / "pvebench-node", script_of_node(), places)

    def ask(self) -> NodeSsh:
        return NodeSsh(SshConnection(self.server.settings()))

    def calls(self, program: str = "pct") -> list[str]:
        """Return what the node's program was called with: command and number."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{program} ") for line in lines if line.startswith(program)]

    def configuration(self, vmid: int) -> Path:
        return self.folder / "conf" / f"{vmid}.conf"

    def asked(self) -> list[int]:
        """Return the processes of the node's program itself, not of what it has called."""
        program = f"/bin/sh\0{self.folder}/pvebench-node\0"
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if text(path) == program
        ]

    def left(self, vmids: Iterable[int] = ()) -> Iterator[str]:
        """Yield what is left of containers, as the machine itself tells.

        Args:
            vmids: numbers that no other test has meanwhile.
        """
        for place in ("conf/*", "volumes/*", "turns/*.frozen"):
            yield from map(str, self.folder.glob(place))
        told = [*losetup().splitlines(), *processes()]
        mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
        yield from (line for line in told if str(self.folder / "volumes") in line)
        for vmid in vmids:
            yield from (line for line in mounts if f"/var/lib/lxc/{vmid}" in line)
            yield from map(str, Path("/var/lib/lxc").glob(str(vmid)))
            yield from map(str, Path("/sys/fs/cgroup").glob(f"**/lxc*/{vmid}"))

    def close(self) -> None:
        """End and remove what a failed test left."""
        (self.folder / "wait").unlink(missing_ok=True)
        for path in self.folder.glob("conf/*.conf"):
            if not (self.folder / "no-lxc").exists():
                subprocess.run(["lxc-stop", "-n", path.stem, "--kill"], check=False)
            path.write_text("\n".join(path.read_text().replace("lock:", "#").splitlines()) + "\n")
            subprocess.run(["umount", "-q", standin_pct.mounted(path.stem)], check=False)
            command = [self.folder / "bin/pct", "destroy", path.stem]
            command += ["--destroy-unreferenced-disks", "1"]
            subprocess.run(command, check=False, env=dict(os.environ))


@contextmanager
def container_node(folder: Path, *, vmids: range = range(0)) -> Iterator[ContainerNode]:
    """Yield such a node, and end it.

    Args:
        vmids: numbers of containers that can run; empty: there are only configurations.
    """
    with alone(vmids), ssh_server(folder / "sshd") as server:
        node = ContainerNode(folder / "node", server, lxc=bool(vmids))
        try:
            yield node
        finally:
            node.close()
            remove(vmids)


@contextmanager
def alone(vmids: range) -> Iterator[None]:
    """Wait for other runs with these containers, and remove what killed runs left of them."""
    if not vmids:
        yield
        return
    with Path(f"/run/pvebench-test-{vmids[0]}").open("wb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        remove(vmids)
        yield


def remove(vmids: range) -> None:
    """Remove what is left of containers, of whichever run."""
    for vmid in map(str, vmids):
        if standin_pct.running(vmid):
            subprocess.run(["lxc-stop", "-n", vmid, "--kill"], check=True)
        if f" {standin_pct.mounted(vmid)} " in Path("/proc/self/mountinfo").read_text("utf-8"):
            subprocess.run(["umount", standin_pct.mounted(vmid)], check=True)
        for line in losetup().splitlines():
            if f"/node/volumes/vm-{vmid}-disk-" in line:
                subprocess.run(["losetup", "-d", line.split()[0]], check=True)
        if (standin_pct.LXC / vmid).exists():
            shutil.rmtree(standin_pct.LXC / vmid)
