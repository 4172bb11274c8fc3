"""A target that asks a Proxmox VE node by ssh, which says anything."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable

from fuzz.numbers_in import NumbersIn
from fuzz.outside import any_of
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh, check_node, script_of_node
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB, SECTOR
from pvebench_lab.lxc.proxmox_backend import check_limits, devices_of, mount_of
from pvebench_lab.lxc.proxmox_container import BenchContainer
from testing.fixed_ssh_answers import Saying

DISK = os.makedev(7, 0)
OTHER = os.makedev(7, 1)
VMID = 9500


def node(content: bytes) -> None:
    """Ask whether it can be used, for counters, and what a container there is."""
    asks: tuple[Callable[[NodeSsh, bytes], object], ...] = (
        lambda ssh, _: ssh.hello(),
        lambda ssh, _: ssh.devices("x:y"),
        _checked,
        _counted,
        _container,
    )
    any_of(functools.partial(ask, NodeSsh(Saying(content)), content) for ask in asks)


def _checked(ssh: NodeSsh, content: bytes) -> None:
    for name, _, text in check_node(ssh):
        assert len(name) + len(text) < 2000, "a finding without bound"
        assert text.replace("\n", "").isprintable(), "a finding that a terminal obeys"


def _counted(ssh: NodeSsh, content: bytes) -> None:
    there = NumbersIn(content.decode("utf-8", "replace"))
    shot = ssh.snapshot(VMID, (DISK,), VMID)
    for moved in shot.bytes.values():
        assert moved in there or moved / SECTOR in there, "bytes that were not told"
    if "device_read" in ssh.snapshot(VMID, (DISK, OTHER)).bytes:
        assert {"device_read", "device_write"} <= {*shot.bytes}, "one device counted for two"
    for counted in (shot.context_switches, *_numbers(ssh)):
        assert not counted or counted in there, "a counter that was not told"


def _numbers(ssh: NodeSsh) -> tuple[float, ...]:
    found = ssh.counters(DISK)
    sectors = found.read_bytes / SECTOR, found.write_bytes / SECTOR
    return (found.read_operations, found.write_operations, found.flush_operations, *sectors)


def _container(ssh: NodeSsh, content: bytes) -> None:
    told = BenchContainer(ssh, VMID, "a" * 32).tell()
    check_limits(told, Machine(memory_bytes=64 * MIB, cpus=2))
    mount_of(told)
    devices_of(told, "x:y")


def node_seeds() -> list[bytes]:
    """Return what the program of a node says on this machine; of a container in its form."""
    asked = (b"hello\n", b"look\n0\n7:0\n0\n")
    real = [
        subprocess.run(["sh", "-c", script_of_node()], input=one, capture_output=True, check=True)
        for one in asked
    ]
    assert all(done.stdout for done in real), "the program says nothing here"
    container = (
        b"ours\nmp0: local:9500/vm-9500-disk-1.raw,mp=/mnt/test,backup=0,size=1G\nmemory: 64\n"
        b"cores: 2\npid: 4711\ncpus: 0-1\nlimit: 67108864\n"
        b"mount: 61 60 7:0 / /mnt/test rw,relatime shared:9 - ext4 /dev/loop0 rw\n"
        b"sectors: 2097152\ndirect: 1\nbelow: regular file|0|0|2049|0\n"
    )
    # In the form of Linux' Documentation/block/stat.rst: a machine may have no such device.
    disk = (
        b"/proc/stat\0cpu  10 0 20 70 0 0 0 0 0 0\n/proc/stat\0cpu0 10 0 20 70 0 0 0 0 0 0\n"
        b"/proc/stat\0ctxt 115487780\n/sys/dev/block/7:0/stat\0 2650585 171 63255545 400617 "
        b"64395110 511673 18496132 267635 0 200508 681426 50 0 3194930 121 5107 13051\n"
    )
    both = disk + disk.rpartition(b"\n/sys")[2].replace(b"dev/block/7:0", b"/sys/dev/block/7:1")
    below = b"regular file|0|0|41|0|7:0,7:1\n"
    told = b"regular file|0|0|2049|1048576\n"
    return [*(done.stdout for done in real), container, disk, both, below, told]
