"""The host's own rows of the published packs on storages that this machine's kernel may lack.

A Debian in a VM plays the host (`hostvm.machine`). What lies on a file system is measured from here
by ssh, as docs/ssh.md says; what needs a bare device, or a container, by a pvebench in the VM. That
each storage is what its name says is asked of that Debian's own dmsetup, mdstat, zpool, findmnt and
hdparm.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from e2e.pieces import Piece, measured, must_be_measured, pvebench, run_all, say
from e2e.published_rows import must_have_run
from hostvm.image import HostVmMissing
from hostvm.machine import HOME, HostVm, running_host
from pvebench.drivers.proxmox.node.node_ssh import script_of_node
from pvebench.drivers.proxmox.node.node_state import read_state
from pvebench.drivers.proxmox.node.storage_options import effective
from pvebench.guest.image import FILES, MANIFEST, default_directory
from testing.packs import ROOT
from testing.published import HOST_VM, Row, small, small_rows

PACK_SECONDS: Final = 3600.0
PACKS: Final = "tests/e2e/host-vm"
WORK: Final = "/var/tmp/pvebench"
_REPEATS: Final = re.compile(r"repeats: [0-9]+")
"""A row ran when each case did once; three or five passes tell nothing more here."""
PROOF: Final = {
    "lvm": "linear",
    "lvm-off": "linear",
    "lvm-writethrough": " writethrough ",
    "lvm-writeback": " writeback ",
    "lvm-thin": "thin-pool",
    "raid0": "active raid0",
    "raid1": "active raid1",
    "md-raid10": "active raid10",
    "zvol": "bench/vol",
    "zfs-ssd-cache": "cache",
    "cifs": "cifs //127.0.0.1/bench",
    "nfs": "nfs4 127.0.0.1:/srv/share",
    "iscsi": "ext4 /dev/sd",
    "xfs": "xfs /dev/vd",
    "btrfs": "Data, single",
    "btrfs-raid1": "Data, RAID1",
    "bcache": "ext4 /dev/bcache",
    "sata": "write-caching",
}
"""Storage -> what must stand in what its programs say of it."""
SMALL: Final = ("lvm-thin", "xfs", "btrfs", "btrfs-raid1", "nfs", "iscsi", "bcache")
"""Storages that no published row asks for: one short case each."""
COPIES: Final = {"btrfs-raid1": 2}
"""How often a storage of SMALL writes to its disks what it reads from them once."""

ON_ZFS: Final = "driver: host\nstorages:\n  zfs: {kind: zfs, dataset: bench/pvebench}\n"
OTHERS: Final = """
zfs destroy bench/vol
zfs create bench/pvebench
zfs create -s -V 8M bench/pvebench/vm-100-disk-0
zfs snapshot bench/pvebench/vm-100-disk-0@daily
zfs create -s -V 8M bench/pvebench/pvebench-test-0123456789abcdef-zfs.raw
other=fedcba9876543210
zfs create -o pvebench:instance=$other bench/pvebench/pvebench-test-$other-zfs.raw
"""
"""Makes the dataset of ON_ZFS, with objects of others: no marker, only a name, another owner."""
WATCH: Final = """
columns=name,volblocksize,recordsize,sync,primarycache,compression
while sleep 2; do zfs list -H -p -r -o $columns bench/pvebench || true; done >/tmp/seen 2>&- <&- &
echo $!
"""
"""Notes the properties of all datasets as long as it runs.

The last ones count: OpenZFS sets those of `zfs create -o` one after the other on a dataset that is
already listed (`zfs_ioc_create` in module/zfs/zfs_ioctl.c)."""
OPTIONS: Final = {
    "": "16384 - standard all lz4",
    ".volblocksize-4k": "4096 - standard all lz4",
    ".volblocksize-64k": "65536 - standard all lz4",
    ".recordsize-128k.compression-zstd": "- 131072 standard all zstd",
    ".sync-always": "16384 - always all lz4",
    ".sync-disabled": "16384 - disabled all lz4",
    ".primarycache-metadata": "16384 - standard metadata lz4",
    ".primarycache-none": "16384 - standard none lz4",
    ".compression-off": "16384 - standard all off",
}
"""End of a volume's name -> its columns of WATCH."""
ONE: Final = ("--only", "*.volblocksize-64k/randwrite*")
KILL: Final = f"""
cd {WORK}
export PYTHONPATH={HOME}/exporter:{HOME}/site
python3 -m pvebench run --config pvebench.yaml {shlex.join(ONE)} >log 2>&1 &
until pgrep -x fio; do sleep 0.2; done >&2
kill -9 $!
"""

STORAGE_CFG: Final = """
mkdir -p /etc/pve
cat >/etc/pve/storage.cfg <<'END'
zfspool: local-zfs
\tpool bench/pvebench

dir: data
\tpath /bench/pvebench
END
zfs set sync=disabled primarycache=metadata recordsize=16k logbias=throughput bench/pvebench
zpool scrub -w bench
cat >/tmp/node.sh
"""
"""Makes a node with a storage on ZFS by its type and one by its path; keeps node.sh."""
ON_NODE: Final = {
    "sync": "disabled",
    "primarycache": "metadata",
    "secondarycache": "all",
    "compression": "off",
    "recordsize": "16K",
    "logbias": "throughput",
}


class Host(Protocol):
    """What plays the host: a VM, or a process."""

    def run(self, command: str, *, seconds: float = 300.0, stdin: bytes = b"") -> str:
        """Return what a command of root's says."""

    def storage(self, verb: str, *words: str, seconds: float = 300.0) -> str:
        """Return what `storages.sh` says."""

    def pvebench(self, *words: str, seconds: float = 300.0) -> str:
        """Return what a pvebench there prints."""


@contextmanager
def made(vm: Host, name: str) -> Iterator[str]:
    """Yield the directory or device of a storage, proved to be what its name says."""
    path = vm.storage("make", name)
    try:
        shown = vm.storage("show", name)
        assert PROOF[name] in shown, shown
        yield path
    finally:
        vm.storage("unmake", name)


def by_ssh(vm: HostVm, name: str, path: str, pack: str, words: Sequence[str]) -> list[Any]:
    """Return the runs of a pack on a directory of the VM, measured from here."""
    with tempfile.TemporaryDirectory(prefix="pvebench-host-vm-") as folder:
        config = Path(folder, "pvebench.yaml")
        once = Path(folder, "pack.yaml")
        once.write_text(_REPEATS.sub("repeats: 1", (ROOT / pack).read_text("utf-8")), "utf-8")
        config.write_text(
            f"driver: host\nnode: hostvm\nstate: {folder}/state\npacks: [{once}]\n"
            f"ssh: {{host: 127.0.0.1, port: {vm.port}, key_file: {vm.key_file}, "
            f"known_hosts: {vm.known_hosts}}}\n"
            f"storages:\n  {name}: {{kind: dir, path: {path}}}\n",
            "utf-8",
        )
        return measured(config, Path(folder, "state"), words)


def inside(vm: Host, settings: str, pack: str, words: Sequence[str]) -> list[Any]:
    """Return the runs of a pack, measured by a pvebench on the host."""
    send_pack(vm, settings, pack)
    return run_inside(vm, words)


def send_pack(vm: Host, settings: str, pack: str) -> None:
    """Bring settings and a pack to the host, without any results of an earlier one."""
    once = _REPEATS.sub("repeats: 1", (ROOT / pack).read_text("utf-8"))
    vm.run(f"rm -rf {WORK}; mkdir {WORK}; cat >{WORK}/pack.yaml", stdin=once.encode())
    text = f"node: hostvm\nstate: {WORK}/state\npacks: [{WORK}/pack.yaml]\n{settings}"
    vm.run(f"cat >{WORK}/pvebench.yaml", stdin=text.encode())


def run_inside(vm: Host, words: Sequence[str]) -> list[Any]:
    """Return the runs of the pack on the host so far, after these."""
    config = ["--config", f"{WORK}/pvebench.yaml"]
    print(vm.pvebench("run", *config, *words, seconds=PACK_SECONDS), end="", flush=True)
    listed = vm.pvebench("results", "--state", f"{WORK}/state", "--format=json", "--limit", "1000")
    found: list[Any] = json.loads(listed)
    return found


def on_storage(vm: HostVm, name: str, pack: str, words: Sequence[str]) -> list[Any]:
    """Return the runs of a pack on a storage: by ssh in a directory, in the VM on a device."""
    with made(vm, name) as path:
        if not path.startswith("/dev/"):
            return by_ssh(vm, name, path, pack, words)
        vm.pvebench("storage", "claim", path)
        settings = f"driver: host\nstorages:\n  {name}: {{kind: block, path: {path}}}\n"
        return inside(vm, settings, pack, words)


def in_containers(vm: HostVm, name: str, pack: str, words: Sequence[str]) -> list[Any]:
    """Return the runs of a pack in containers in the VM, on volumes in a directory."""
    send_guest(vm)
    with made(vm, name) as path:
        settings = f"driver: host\nstorages:\n  {name}: {{kind: dir, path: {path}}}\n"
        return inside(vm, settings, pack, words)


def published_row(vm: HostVm, row: Row) -> None:
    where = in_containers if row.side == "container" else on_storage
    must_have_run(row, where(vm, row.storage, f"scenarios/{row.pack}.yaml", small(row)))


def short_case(vm: HostVm, name: str) -> None:
    runs = on_storage(vm, name, f"{PACKS}.yaml", [])
    must_be_measured(runs)
    samples = [sample for run in runs for sample in run["samples"]]
    shares = {
        each["direction"]: each["value"] for each in samples if each["metric"] == "device_share"
    }
    say(f"{name}: bytes at its devices over the tool's {shares}")
    # In a few emulated seconds the counters' window is not the tool's: so it is for both.
    copies = shares["write"] / shares["read"]
    assert copies > 0.7 * COPIES.get(name, 1), shares


def settings_of_a_drive(vm: HostVm) -> None:
    """A SATA drive has a write cache to turn off; afterwards everything is as it was."""
    must_be_measured(on_storage(vm, "sata", f"{PACKS}-drive.yaml", []))
    shown = vm.storage("show", "sata")
    assert "1 (on)" in shown, shown


def zfs_options(vm: HostVm) -> None:
    """Cases on zvols and datasets of the driver's own; afterwards there are none."""
    with zfs_dataset(vm) as others:
        watch = vm.run(WATCH).strip()
        runs = inside(vm, ON_ZFS, f"{PACKS}-zfs.yaml", [])
        vm.run(f"kill {watch}")
        must_be_measured(runs)
        rows = [line.split("\t") for line in vm.run("cat /tmp/seen").splitlines()]
        seen = {row[0].partition("-zfs.raw")[2]: row[1:] for row in rows if row[0] not in others}
        say(f"zfs list: {seen}")
        assert seen == {options: values.split() for options, values in OPTIONS.items()}
        assert {one["scenario"] for one in runs} == {f"zfs.host.raw.none{each}" for each in seen}
        assert datasets(vm) == others


def zfs_ownership(vm: HostVm) -> None:
    """The next start removes what SIGKILL leaves, but not without the property in it."""
    with zfs_dataset(vm) as others:
        send_pack(vm, ON_ZFS, f"{PACKS}-zfs.yaml")
        vm.run(KILL, seconds=900)
        (name,) = {*datasets(vm)} - {*others}
        owner = vm.run(f"zfs get -H -o value pvebench:instance {name}").strip()
        assert f"/pvebench-test-{owner}-zfs.raw" in name
        vm.run(f"zfs inherit pvebench:instance {name}")
        (run,) = run_inside(vm, ONE)
        assert f"{name} not changed: no ownership marker" in run["reason"], run
        assert {*datasets(vm)} == {*others, name}
        vm.run(f"zfs set pvebench:instance={owner} {name}")
        must_be_measured([each for each in run_inside(vm, ONE) if each != run])
        assert datasets(vm) == others


def zfs_on_a_node(vm: HostVm) -> None:
    """The script of a Proxmox VE node reads options of its storages, and the state of the pool."""
    with zfs_dataset(vm):
        vm.run(STORAGE_CFG, stdin=script_of_node().encode())
        for storage in ("local-zfs", "data"):
            said = vm.run("sh /tmp/node.sh", stdin=f"options\n{storage}\n".encode())
            assert effective(said) == ON_NODE, said
        said = vm.run("sh /tmp/node.sh", stdin=b"state\n")
        say(said)
        assert read_state(said, "bench") == {"zfs_fragmentation": 0.0, "zfs_scan": 0.0}


@contextmanager
def zfs_dataset(vm: HostVm) -> Iterator[list[str]]:
    """Make the dataset of ON_ZFS; yield its pool's datasets, some of other owners."""
    with made(vm, "zvol"):
        vm.run(OTHERS)
        yield datasets(vm)
    assert vm.run("zpool list -H; zfs list -H") == ""


def datasets(vm: HostVm) -> list[str]:
    """Return the names of all datasets, volumes and snapshots."""
    return vm.run("zfs list -H -o name -t all").splitlines()


def send_guest(vm: HostVm) -> None:
    """Bring the guest's image there, whose files a container's are too."""
    subprocess.run(pvebench("guest", "build"), check=True)
    known = default_directory()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in (*FILES, MANIFEST):
            archive.add(known / name, name)
    home = "~/.cache/pvebench/guest"
    vm.run(f"mkdir -p {home}; tar -x -C {home}", stdin=packed.getvalue())


def pieces(vm: HostVm, parts: Sequence[str]) -> Iterator[Piece]:
    """Yield what is to be run and its name, of these parts or of all."""
    for row in small_rows(HOST_VM, parts):
        yield f"{row.pack}: {row.storage}, {row.side}", partial(published_row, vm, row)
    for name in SMALL:
        if not parts or {"small", name} & {*parts}:
            yield f"small: {name}", partial(short_case, vm, name)
    if not parts or "drive" in parts:
        yield "drive: settings of a SATA drive", partial(settings_of_a_drive, vm)
    if not parts or {"options", "zfs"} & {*parts}:
        yield "options: zfs", partial(zfs_options, vm)
        yield "options: zfs, ownership", partial(zfs_ownership, vm)
        yield "options: zfs, on a node", partial(zfs_on_a_node, vm)


def run_in_vm(pieces: Callable[[HostVm, Sequence[str]], Iterable[Piece]], parts: list[str]) -> int:
    """Run pieces with a VM that plays the host; return the exit code."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="pvebench-host-vm-") as name,
            running_host(Path(name)) as vm,
        ):
            say(f"a Debian that booted in {vm.boot_seconds:.0f} s: {vm.run('uname -r').strip()}")
            return run_all(pieces(vm, parts), (HostVmMissing,))
    except HostVmMissing as error:
        print(f"pvebench: NOT TRIED: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(run_in_vm(pieces, sys.argv[1:]))
