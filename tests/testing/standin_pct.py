"""`pct`, `pvesm path` and a node's containers, as far as `node.sh` asks for them.

    standin_pct.py FOLDER pct|pvesm WORD…

Read in the public source of pve-container (2026, Proxmox VE 9); where, each function says. Which
options `pct create` takes, and of which form, is the recorded schema of `POST /nodes/{node}/lxc`.
Below it is real: the volumes are devices with ext4 by mkfs.ext4, the root is unpacked by tar, and
the container is LXC's own, with the lines that Proxmox writes for it. So everything that runs *in*
it does so as on a node. A folder with a file `no-lxc` makes configurations only. A file `dies`
names the step of the making after which it is killed, with nothing tidied up.

Not as on a node: a volume is a loop device with direct I/O (there: a logical volume), the root lies
in /var/lib/lxc/VMID/rootfs itself, no AppArmor, no seccomp, no systemd unit around `lxc-start`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from pve.refusals import Refused
from pve.schema import Schema

STORAGES = {"fast": "rootdir", "thin": "rootdir", "slow": "rootdir", "iso": "iso"}
ID = 100_000
LXC = Path("/var/lib/lxc")
VOLUMES = ("rootfs", "mp0")


class Died(Exception):
    """What a program says on stderr before it ends with 255."""


def options(words: list[str]) -> dict[str, str]:
    return dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))


def configuration(folder: Path, vmid: str) -> Path:
    return folder / "conf" / f"{vmid}.conf"


def written(found: dict[str, str]) -> str:
    """`write_pct_config` in PVE/LXC/Config.pm, `encode_text` in PVE/ParseUtils.pm (pve-common)."""
    lines = [
        "#" + re.sub(r"[^\x20-\x24\x26-\x39\x3b-\x7e]", lambda c: f"%{ord(c[0]):02X}", line)
        for line in found.get("description", "").split("\n")
    ]
    lines += [f"{key}: {found[key]}" for key in sorted(found) if key != "description"]
    return "".join(f"{line}\n" for line in lines)


def read(path: Path) -> dict[str, str]:
    pairs = (line.partition(": ") for line in path.read_text().splitlines() if line[:1] != "#")
    return {key: value for key, _, value in pairs}


def dies(folder: Path, step: str) -> None:
    if (folder / "dies").exists() and (folder / "dies").read_text() == step:
        os.kill(os.getpid(), signal.SIGKILL)


def create(folder: Path, vmid: str, archive: str, given: dict[str, str]) -> None:
    """`create_vm` in PVE/API2/LXC.pm, `alloc_disk` and `create_disks` in PVE/LXC.pm.

    Until the root is unpacked the configuration says nothing but that it is locked; then it is
    written whole and without the lock, while the volumes are mounted still (`mount_all`).
    """
    try:
        asked = {**given, "vmid": vmid, "ostemplate": archive, "node": "pve1"}
        Schema(9).check("POST /nodes/{node}/lxc", asked)
    except Refused as refused:
        raise Died(f"400 Parameter verification failed.\n{refused.errors}") from refused
    path = configuration(folder, vmid)
    if path.exists():
        raise Died(f"CT {vmid} already exists on node 'pve1'")
    for key in ("rootfs", "mp0"):
        storage = given[key].partition(":")[0]
        if STORAGES.get(storage) != "rootdir":
            raise Died(f"storage '{storage}' does not support container directories")
    if not Path(archive).is_file():
        raise Died(f"unable to create CT {vmid} - can't find file '{archive}'")
    if not re.search(r"\.tar(\.(gz|bz2|xz|lzo|zst))?$", archive):
        raise Died(f"file does not look like a template archive: {archive}")
    path.write_text("lock: create\n")  # `create_and_lock_config`
    (folder / "creating").write_text(vmid)
    dies(folder, "locked")
    while (folder / "wait").exists():
        time.sleep(0.02)
    found = {key: value for key, value in given.items() if key != "pool"}
    for number, key in enumerate(("rootfs", "mp0")):
        found[key] = volume(folder, vmid, number, given[key])
    filled(folder, vmid, archive, found)
    with (folder / "pools").open("a") as pools:
        pools.write(f"{given['pool']} {vmid}\n")


def filled(folder: Path, vmid: str, archive: str, found: dict[str, str]) -> None:
    lxc = not (folder / "no-lxc").exists()
    if lxc:
        unpack(vmid, archive)
        mount(folder, vmid, found)
    dies(folder, "unpacked")
    configuration(folder, vmid).write_text(written(found | {"arch": "amd64"}))
    dies(folder, "written")
    if lxc:
        run("umount", str(mounted(vmid)))


def volume(folder: Path, vmid: str, number: int, asked: str) -> str:
    """A new volume, `STORAGE:GIB`, as `create_disks` writes it down."""
    storage, _, rest = asked.partition(":")
    gigabytes, _, others = rest.partition(",")
    kib = int(float(gigabytes) * 1024) * 1024
    name = f"vm-{vmid}-disk-{number}"
    others = f",{others}" if others else ""
    size = f"{kib // 1024 // 1024}G" if kib % (1024 * 1024) == 0 else f"{kib // 1024}M"
    file = folder / "volumes" / name
    with file.open("wb") as made:
        made.truncate(kib * 1024)
    if number and not (folder / "no-lxc").exists():
        owner = f"root_owner={ID}:{ID}"
        run("mkfs.ext4", "-q", "-F", "-O", "mmp", "-E", owner, str(file))
        device = run("losetup", "--show", "-f", "--direct-io=on", str(file)).strip()
        file.with_suffix(".device").write_text(device)
    return f"{storage}:{name}{others},size={size}"


def unpack(vmid: str, archive: str) -> None:
    """`restore_tar_archive_command` in PVE/LXC/Create.pm; there in the user namespace."""
    root = LXC / vmid / "rootfs"
    root.mkdir(parents=True)
    os.chmod(root.parent, 0o755)  # noqa: PTH101 # as the mode of the path above it
    flags = ["--skip-old-files", "--anchored", "--exclude", "./dev/*"]
    run("tar", "xpf", archive, "-z", "-C", str(root), *flags)
    run("chown", "-R", f"{ID}:{ID}", str(root))


def mounted(vmid: str) -> Path:
    return LXC / vmid / "rootfs/mnt/test"


def mount(folder: Path, vmid: str, found: dict[str, str]) -> None:
    """`mount_all` in PVE/LXC.pm, of the mount point; the root is no volume here."""
    mounted(vmid).mkdir(parents=True, exist_ok=True)
    run("mount", str(device_of(folder, found["mp0"])), str(mounted(vmid)))


def device_of(folder: Path, volid: str) -> Path:
    file = folder / "volumes" / volid.partition(",")[0].partition(":")[2]
    device = file.with_suffix(".device")
    return Path(device.read_text()) if device.exists() else file


def start(folder: Path, vmid: str) -> None:
    """`vm_start` and `update_lxc_config` in PVE/LXC.pm; the mount is the pre-start hook's."""
    found = read(configuration(folder, vmid))
    place = LXC / vmid
    hook = place / "pre-start"
    device = device_of(folder, found["mp0"])
    hook.write_text(f"#!/bin/sh\nmount {device} {place}/rootfs/mnt/test\n")
    hook.chmod(0o755)
    text = Path("/proc/self/cgroup").read_text()
    group = "cgroup" if ":memory:" in text else "cgroup2"
    limit = "limit_in_bytes" if group == "cgroup" else "max"
    usable = sorted(os.sched_getaffinity(0))[: int(found["cores"])]
    sets = "cgroup" if ":cpuset:" in text else "cgroup2"
    place.joinpath("config").write_text(
        "\n".join(
            [
                f"lxc.cgroup.dir.monitor = lxc.monitor/{vmid}",
                f"lxc.cgroup.dir.container = lxc/{vmid}",
                "lxc.cgroup.dir.container.inner = ns",
                "lxc.monitor.unshare = 1",
                f"lxc.idmap = u 0 {ID} 65536",
                f"lxc.idmap = g 0 {ID} 65536",
                "lxc.mount.auto = proc:mixed sys:mixed",
                f"lxc.hook.pre-start = {hook}",
                "lxc.net.0.type = empty",
                f"lxc.uts.name = {found['hostname']}",
                f"lxc.rootfs.path = {place}/rootfs",
                f"lxc.{sets}.cpuset.cpus = {','.join(map(str, usable))}",
                f"lxc.{group}.memory.{limit} = {int(found['memory']) << 20}",
                "",
            ]
        )
    )
    run("lxc-start", "-n", vmid, "-d", "-l", "ERROR", "-o", str(place / "log"))


def stop(vmid: str) -> None:
    """`vm_stop` in PVE/LXC.pm, for `pct stop`."""
    run("lxc-stop", "-n", vmid, "--kill")


def destroy(folder: Path, vmid: str, given: dict[str, str]) -> None:
    """`destroy_vm` in PVE/API2/LXC.pm, `destroy_lxc_container` in PVE/LXC.pm.

    What the configuration does not name goes with `--destroy-unreferenced-disks` only; a volume
    that is mounted does not go: lvremove(8) refuses one in use.
    """
    path = configuration(folder, vmid)
    found = read(path)
    if "lock" in found:
        raise Died(f"CT is locked ({found['lock']})")
    # Without LXC here a container of that number is another test's.
    lxc = not (folder / "no-lxc").exists()
    if lxc and running(vmid):
        raise Died(f"unable to destroy CT {vmid} - container is running")
    if lxc and f" {mounted(vmid)} " in Path("/proc/self/mountinfo").read_text():
        raise Died(f"Logical volume {found['mp0'].partition(',')[0]} in use.")
    named = {found[key].partition(",")[0].partition(":")[2] for key in found if key in VOLUMES}
    for file in (folder / "volumes").glob(f"vm-{vmid}-disk-?"):
        if file.name not in named and given.get("destroy-unreferenced-disks") != "1":
            continue
        device = file.with_suffix(".device")
        if device.exists():
            # A logical volume is no loop device, which whoever unmounts it may detach with it.
            if run("losetup", "-j", str(file)):
                run("losetup", "-d", device.read_text())
            device.unlink()
        file.unlink()
    if lxc and (LXC / vmid / "rootfs/sbin/init").exists():
        shutil.rmtree(LXC / vmid)
    path.unlink()


def unlock(folder: Path, vmid: str) -> None:
    """`unlock` in PVE/CLI/pct.pm, `remove_lock` in PVE/AbstractConfig.pm (pve-guest-common)."""
    path = configuration(folder, vmid)
    path.write_text("".join(x for x in path.read_text().splitlines(True) if x[:6] != "lock: "))


def running(vmid: str) -> bool:
    """`check_running` in PVE/LXC.pm."""
    return f"@/var/lib/lxc/{vmid}/command" in Path("/proc/net/unix").read_text()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Died(f"command '{' '.join(command)}' failed: {done.stderr.strip()}")
    return done.stdout


def main(folder: Path, program: str, words: list[str]) -> None:
    with (folder / "calls").open("a") as calls:
        calls.write(f"{program} {' '.join(words[:2])}\n")
    if program == "pvesm":
        print(device_of(folder, words[1]))
        return
    command, vmid, *rest = words
    if command != "create" and not configuration(folder, vmid).exists():
        raise Died(f"Configuration file 'nodes/pve1/lxc/{vmid}.conf' does not exist")
    match command:
        case "create":
            create(folder, vmid, rest[0], options(rest[1:]))
        case "start":
            start(folder, vmid)
        case "stop":
            stop(vmid)
        case "destroy":
            destroy(folder, vmid, options(rest))
        case "unlock":
            unlock(folder, vmid)
        case _:
            raise Died(f"nobody read what 'pct {command}' does")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except Died as died:
        print(died, file=sys.stderr)
        sys.exit(255)
