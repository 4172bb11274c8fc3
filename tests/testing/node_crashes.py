"""Killing pvebench, or the node's program, while a container of a node measures.

A whole `pvebench run` with driver proxmox: the API and the VM beside it are those of the tests,
which cost nothing; the container is real (`testing.container_node`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pve.cluster import Cluster
from pve.instance import write_settings
from pve.server import running_api
from pve.site import POOL
from pvebench.drivers.proxmox.api.privileges import vm_privileges
from testing.container_node import ContainerNode, container_node
from testing.crashes import CrashTest, kill

PACK = """\
pack: crash
title: A container of a node
every: 10m
lxc: true
axes: {storage: [thin], bus: [scsi]}
fixed: {format: raw, cache: none, filesystem: ext4}
volume: {size: 32M, file: 8M}
measure: {ramp: 500ms, runtime: 1s, settle: 0s}
workloads:
  - fio: {rw: randrw, bs: 4k, iodepth: 4}
"""
VICTIMS = ("pvebench", "node")
NUMBERS = range(9600, 9610)
"""Which no other test gives to containers."""


@contextmanager
def node_crashes(
    directory: Path, *, seed: int, victims: Sequence[str] = VICTIMS
) -> Iterator[NodeCrashTest]:
    """Yield the test of a node, and end what it stands on."""
    cluster = Cluster(directory / "cluster", major=9)
    with container_node(directory, vmids=NUMBERS) as node, running_api(cluster) as api:
        cluster.storages["thin"].content = "images,rootdir"
        (directory / "token").write_text(cluster.grant(POOL, vm_privileges(9)))
        (directory / "token").chmod(0o600)
        (directory / "crash.yaml").write_text(PACK)
        ssh = node.server.settings().model_dump(mode="json", exclude={"fingerprint"})
        given = ", ".join(f"{key}: {value}" for key, value in ssh.items())
        config = write_settings(
            directory,
            api,
            packs=[directory / "crash.yaml"],
            storages={"thin": "{type: lvmthin}"},
            ssh="{" + given + "}",
            vmids=f"[{NUMBERS[0]}, {NUMBERS[-1]}]",
        )
        yield NodeCrashTest(directory, config, node, cluster, victims=victims, seed=seed)


class NodeCrashTest(CrashTest):
    """`CrashTest` of a container on a node."""

    def __init__(
        self, directory: Path, config: Path, node: ContainerNode, cluster: Cluster, **options: Any
    ) -> None:
        super().__init__(directory, config, **options)
        self._node = node
        self._cluster = cluster

    def _command(self, name: str) -> list[str]:
        only = ["--only", "*.lxc.*"] if name == "run" else []
        return [*super()._command(name), *only]

    def _strike(self, victim: str, process: subprocess.Popen[bytes]) -> None:
        if victim == "pvebench":
            process.kill()
            return
        kill(self._node.asked())

    def _left(self) -> Iterator[str]:
        """Yield what is left on the node, and of the VM beside the container."""
        yield from (f"VM {vmid}" for vmid in self._cluster.vms)
        yield from self._node.left(NUMBERS)
