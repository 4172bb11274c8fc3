"""What a node tells by ssh: `node.sh` behind a forced command of OpenSSH's own server.

No node of Proxmox is here. Its `pvesm path`, the pid file and QEMU's command line are stood in for;
their form is that of recordings (`-id 9000 … -pidfile /var/run/qemu-server/9000.pid` in what
`qm showcmd` prints). The script is the one that is installed, with only those places changed.
`zfs` is stood in for too; `make e2e-host ARGS=options` runs the script with OpenZFS itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from pve.site import Site, scenario
from pvebench.cli.main import cli
from pvebench.drivers.linux.block_devices import show_devices
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh, check_node, script_of_node
from pvebench.drivers.proxmox.node.storage_options import effective
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import (
    AccessDenied,
    HypervisorGone,
    OutputUnreadable,
    PvebenchError,
    ServerGone,
    VolumeError,
)
from pvebench.metrics import state_metrics
from pvebench.metrics.exposition import Families
from pvebench.metrics.result_collectors import _add_switches
from pvebench.model.disk import Cache, HostCache
from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB
from testing.btrfs import btrfs
from testing.families import families_of
from testing.real_outcomes import cached_bytes
from testing.sshd import SshServer, ssh_server

NAME = "vm-9500-pvebench-0123456789ab-raw-0.raw"
VOLUME = f"local:9500/{NAME}"
PVESM = """\
#!/bin/sh
[ "$1" = path ] || exit 1
echo "{folder}/${{2##*/}}"
"""
EXITS = 12345
MARK = "0123456789abcdef0123456789abcdef"
CONFIGURATION = f"""\
#Benchmark VM, changed and removed automatically by pvebench%3A do not store data here.
#
#pvebench-mark%3A {MARK}
cores: 1
tags: pvebench
[PENDING]
cores: 2
"""
"""As `write_vm_config` of qemu-server's PVE/QemuServer.pm writes it."""


class Node:
    """A machine that looks like a node with VM 9500."""

    def __init__(self, folder: Path, server: SshServer) -> None:
        self.folder = folder
        self.server = server
        self.volume = folder / NAME
        self.volume.write_bytes(os.urandom(1 << 20))
        self.qemu = subprocess.Popen(
            ["python3", "-c", "import time; time.sleep(600)", "-id", "9500", "-name", "x"]
        )
        (folder / "pids").mkdir()
        (folder / "pids" / "9500.pid").write_text(f"{self.qemu.pid}\n")
        (folder / "vms").mkdir()
        self.configuration = folder / "vms" / "9500.conf"
        self.configuration.write_text(CONFIGURATION)
        kvm = folder / "kvm" / f"{self.qemu.pid}-12"
        kvm.mkdir(parents=True)
        (kvm / "exits").write_text(f"{EXITS}\n")
        (folder / "bin").mkdir()
        pvesm = folder / "bin" / "pvesm"
        pvesm.write_text(PVESM.format(folder=folder))
        pvesm.chmod(0o755)
        self.script = folder / "pvebench-node"
        self.install(script_of_node())

    def install(self, script: str) -> None:
        back = (
            f"s|^{self.folder}/pids|/run/qemu-server|;s|^{self.folder}/kvm|/sys/kernel/debug/kvm|;"
            f"s|^{self.folder}/mdstat|/proc/mdstat|"
        )
        places = {
            "grep -saHZ '' -- \"$@\" || :": f"grep -saHZ '' -- \"$@\" | sed '{back}'",
            '/proc/mdstat "$GROUPS_OF': f'"{self.folder}/mdstat" "$GROUPS_OF',
            "PIDS=/run/qemu-server": f"PIDS={self.folder}/pids",
            "STORAGES=/etc/pve/storage.cfg": f"STORAGES={self.folder}/storage.cfg",
            "MACHINES=/etc/pve/qemu-server": f"MACHINES={self.folder}/vms",
            "PATH=/usr/sbin": f"PATH={self.folder}/bin:/usr/sbin",
            '"/sys/kernel/debug/kvm/$pid-"*/exits': f'"{self.folder}/kvm/$pid-"*/exits',
        }
        self.server.allow_script(self.script, script, places)

    def ask(self) -> NodeSsh:
        return NodeSsh(SshConnection(self.server.settings()))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "node").mkdir()
    with ssh_server(tmp_path / "sshd") as server:
        made = Node(tmp_path / "node", server)
        yield made
        made.qemu.kill()
        made.qemu.wait()


@pytest.fixture
def asked(node: Node) -> Iterator[NodeSsh]:
    made = node.ask()
    yield made
    made.close()


def test_the_page_cache_of_a_volume_is_dropped_for_certain(node: Node, asked: NodeSsh) -> None:
    before = node.volume.read_bytes()
    assert cached_bytes(node.volume) > 0
    assert asked.drop(VOLUME) == 0
    assert cached_bytes(node.volume) == 0
    assert node.volume.read_bytes() == before


def test_counters_are_those_of_the_vm_and_of_the_volumes_own_device(
    node: Node, asked: NodeSsh
) -> None:
    devices = asked.devices(VOLUME)
    assert devices == (node.volume.stat().st_dev,)
    shot = asked.snapshot(9500, devices)
    assert {"total", "qemu", "vcpu", "iothread", "other"} <= set(shot.cpu_seconds)
    assert {"process_read", "process_write"} <= set(shot.bytes)
    assert shot.vm_exits == EXITS
    stat = Path(f"/sys/dev/block/{show_devices(devices)}/stat")
    assert ("device_read" in shot.bytes) is stat.exists()
    assert shot.cpus == os.cpu_count()
    assert asked.snapshot(9501).cpu_seconds.keys() == {"total"}


def test_a_volume_on_btrfs_is_counted_on_all_its_devices(
    node: Node, asked: NodeSsh, tmp_path: Path
) -> None:
    """As a storage of that type has it: a file alone in a subvolume (test_btrfs.py)."""
    with btrfs(tmp_path, "raid1") as there:
        volume = there.subvolume("vm-9500-disk") / "disk.raw"
        volume.write_bytes(os.urandom(1 << 20))
        pvesm = node.folder / "bin" / "pvesm"
        pvesm.write_text(f"#!/bin/sh\necho '{volume}'\n")
        devices = asked.devices(VOLUME)
        assert {*devices} == there.members()
        before = asked.snapshot(9500, devices).bytes
        os.sync()
        after = asked.snapshot(9500, devices).bytes
        assert 2 << 20 <= after["device_write"] - before["device_write"] < 8 << 20
        # As long as all of them are there; and of one alone it is half.
        assert "device_write" not in asked.snapshot(9500, (*devices, os.makedev(4095, 7))).bytes
        assert asked.snapshot(9500, devices[:1]).bytes["device_write"] < after["device_write"]


def test_a_raid_that_is_checked_is_seen_while_it_lasts(node: Node, asked: NodeSsh) -> None:
    """As md.c of Linux writes it; node_exporter is held against it in test_procfs_conditions.py."""
    assert "md_sync" not in asked.snapshot(9500).conditions
    arrays = "md0 : active raid1 sda3[0] sdb3[1]\n      1993728 blocks [2/2] [UU]\n"
    (node.folder / "mdstat").write_text(arrays)
    assert asked.snapshot(9500).conditions["md_sync"] == 0.0
    progress = "      [=>....]  check =  5.7% (114176/1993728) finish=0.2min speed=114176K/sec\n"
    (node.folder / "mdstat").write_text(arrays + progress)
    assert asked.snapshot(9500).conditions["md_sync"] == 1.0


def test_a_number_that_is_another_process_by_now_is_no_vm(node: Node, asked: NodeSsh) -> None:
    (node.folder / "pids" / "9500.pid").write_text(f"{os.getpid()}\n")
    assert "qemu" not in asked.snapshot(9500).cpu_seconds


def test_the_qemu_of_the_own_vm_is_killed_and_has_ended(node: Node, asked: NodeSsh) -> None:
    started = asked.start_time(9500)
    stat = Path(f"/proc/{node.qemu.pid}/stat").read_text("ascii")
    assert started == int(stat.rpartition(")")[2].split()[19])
    asked.kill_vm(9500, MARK, started)
    assert node.qemu.poll() == -signal.SIGKILL
    with pytest.raises(HypervisorGone, match="VM 9500 does not run"):
        asked.start_time(9500)


FOREIGN = {
    "another marker": CONFIGURATION.replace("0123", "9999"),
    "no tag": CONFIGURATION.replace("tags: pvebench", "tags: web"),
    "a pending marker": CONFIGURATION.replace("#pvebench", "#").replace(
        "cores: 2", f"#pvebench-mark%3A {MARK}\ncores: 2"
    ),
    "a marker in other text": CONFIGURATION.replace("#pvebench-mark", "#was pvebench-mark"),
    "no configuration": "",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_vm_without_the_marker_is_not_killed(node: Node, asked: NodeSsh, text: str) -> None:
    node.configuration.write_text(text)
    with pytest.raises(VolumeError, match="VM 9500 not changed") as error:
        asked.kill_vm(9500, MARK, asked.start_time(9500))
    assert error.value.next_step == "inspect it; pvebench changes only what it created"
    assert node.qemu.poll() is None


def test_a_process_that_is_not_the_one_that_wrote_is_not_killed(node: Node, asked: NodeSsh) -> None:
    started = asked.start_time(9500)
    with pytest.raises(VolumeError, match="VM 9500 was restarted"):
        asked.kill_vm(9500, MARK, started - 1)
    with subprocess.Popen(["sleep", "600"]) as other:
        (node.folder / "pids" / "9500.pid").write_text(f"{other.pid}\n")  # its ID was reused
        with pytest.raises(VolumeError, match="VM 9500 does not run"):
            asked.kill_vm(9500, MARK, started)
        (node.folder / "vms" / "9501.conf").write_text(CONFIGURATION)  # a clone with the marker
        (node.folder / "pids" / "9501.pid").write_text(f"{node.qemu.pid}\n")
        with pytest.raises(VolumeError, match="VM 9501 does not run"):
            asked.kill_vm(9501, MARK, started)
        assert (other.poll(), node.qemu.poll()) == (None, None)
        other.kill()


def test_a_qcow2_file_is_checked_and_nothing_else_is_opened(node: Node, asked: NodeSsh) -> None:
    name = NAME.replace("raw", "qcow2")
    image, volid = node.folder / name, f"local:9500/{name}"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "4M"], check=True)
    assert asked.is_damaged(volid) is False
    tables = int.from_bytes(image.read_bytes()[40:48], "big")
    with image.open("r+b") as file:  # an entry that leads beyond the end of the file
        file.seek(tables)
        file.write((1 << 63 | 1 << 40).to_bytes(8, "big"))
    assert asked.is_damaged(volid) is True
    image.write_bytes(b"no image")
    with pytest.raises(OutputUnreadable, match=r"qemu-img check of .* failed"):
        asked.is_damaged(volid)
    node.volume.write_bytes(b"QFI\xfb" + bytes(4096))  # a guest can write that to a raw volume
    with pytest.raises(VolumeError, match="not a qcow2 file"):
        asked.is_damaged(VOLUME)
    image.unlink()
    image.symlink_to(node.volume)
    with pytest.raises(VolumeError, match="is not a file or device of this node"):
        asked.is_damaged(volid)


STORAGE_CFG = """\
dir: local
\tpath {folder}
\tcontent images

zfspool: local-zfs
\tpool rpool/data
\tblocksize 16k
\tsparse 1

lvmthin: local-lvm
\tthinpool data
\tvgname pve

rbd: data
\tpool rpool
"""
"""As `write_config` of pve-common's PVE/SectionConfig.pm writes it."""
ZFS = """\
#!/bin/sh
[ "$1 $2 $3 $4 $5" = "get -H -o property,value --" ] && [ "$7" = rpool/data ] || exit 1
printf 'sync\tdisabled\nprimarycache\tmetadata\n'
"""
LVS = """\
#!/bin/sh
[ "$*" = "--noheadings --units k -o chunk_size,zero,discards -- pve/data" ] || exit 1
echo '    64.00k   zero passdown '
"""


def test_options_of_a_storage_are_those_of_zfs_lvm_and_the_mount(
    node: Node, asked: NodeSsh
) -> None:
    (node.folder / "storage.cfg").write_text(STORAGE_CFG.format(folder=node.folder))
    for name, text in {"zfs": ZFS, "lvs": LVS}.items():
        (node.folder / "bin" / name).write_text(text)
        (node.folder / "bin" / name).chmod(0o755)
    read = {name: effective(asked.ask("options", name).decode()) for name in STORAGES}
    command = ["stat", "--file-system", "--format=%T", str(node.folder)]
    kind = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    mounted = read.pop("local")
    assert [name.split("/")[0][:3] for name in mounted] == [kind[:3]]
    assert {"rw"} <= set(next(iter(mounted.values())).split(","))
    assert read == {
        "local-zfs": {"sync": "disabled", "primarycache": "metadata"},
        "local-lvm": {"chunk_size": "64.00k", "zero": "zero", "discards": "passdown"},
        "data": {},
        "nosuch": {},
    }


BROKEN = {
    "zfs": "#!/bin/sh\necho \"cannot open 'rpool/data': I/O is suspended\" >&2\nexit 1\n",
    "lvs": "#!/bin/sh\necho '  Failed to find physical volume' >&2\nexit 5\n",
    "findmnt": "#!/bin/sh\nexit 1\n",
}
"""Program -> failure as of zfs(8), lvs(8) (ECMD_FAILED) and findmnt(8)."""


def test_options_that_cannot_be_read_are_not_reported_as_none(node: Node, asked: NodeSsh) -> None:
    configuration = node.folder / "storage.cfg"
    nfs = f"\nnfs: share\n\tpath {node.folder}\n\texport /x\n\tserver 192.0.2.1\n"
    configuration.write_text(STORAGE_CFG.format(folder=node.folder) + nfs)
    with pytest.raises(VolumeError, match="options of storage share: reading failed"):
        asked.ask("options", "share")  # not mounted: the directory's own mount is another storage
    for name, text in BROKEN.items():
        (node.folder / "bin" / name).write_text(text)
        (node.folder / "bin" / name).chmod(0o755)
    for storage in ("local-zfs", "local-lvm", "local"):
        with pytest.raises(VolumeError, match=f"options of storage {storage}: reading failed") as e:
            asked.ask("options", storage)
        assert e.value.next_step == "check the storage on the node; pvebench retries"
    (node.folder / "bin" / "zfs").write_text("#!/bin/sh\nexit 127\n")  # as timeout(1) without it
    assert asked.ask("options", "local-zfs").strip() == b""
    configuration.unlink()  # /etc/pve is empty until the cluster file system runs
    with pytest.raises(VolumeError, match="options of storage nosuch: reading failed"):
        asked.ask("options", "nosuch")


STORAGES = ("local", "local-zfs", "local-lvm", "data", "nosuch")
QUESTIONS = (
    ["kill", "9500", MARK],
    ["kill", "9500", "x", "1"],
    ["kill", "9500 9501", MARK, "1"],
    ["kill", "-1", MARK, "1"],
    ["kill", "9500", MARK, "1 -1"],
    ["kill", "../9500", MARK, "1"],
    ["check", "/etc/passwd"],
    ["check", f"local:9500/{NAME}"],
    ["drop", "local:9500/vm-9500-disk-0.raw"],
    ["drop", f"local:9500/{NAME};touch /tmp/x"],
    ["drop", f"local:../{NAME}"],
    ["drop", "/etc/passwd"],
    ["drop", f"-x:9500/{NAME}"],
    ["drop", "x" * 5000],
    ["drop"],
    ["find", f"$(id):{NAME}"],
    ["look", "9500; id", "0:0", "0"],
    ["look", "9500", "../../../etc:1", "0"],
    ["look", "9500", "0:0,../../../etc:1", "0"],
    ["look", "9500", "*", "0"],
    ["look", "9500", "0:0", "../9501"],
    ["look", "9500", "8:0/../..", "0"],
    ["options", "../../etc/passwd"],
    ["options", "-x"],
    ["options", "a b"],
    ["options", 'a" || 1'],
    ["sh"],
    ["refuse"],
    [""],
)


def remote_commands() -> str:
    """Return the script of `pvebench_lab` for other machines, of which this module is not."""
    return str(import_module("pvebench_lab.remote_tools").REMOTE_COMMANDS)


@pytest.mark.parametrize(
    "make", [script_of_node, pytest.param(remote_commands, marks=pytest.mark.lab)]
)
def test_what_is_sent_is_clean_for_a_small_shell(make: Callable[[], str]) -> None:
    script = make()
    command = ["shellcheck", "--shell=dash", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert script.count("describe_path() {") == 1


def test_nothing_else_is_answered(node: Node, asked: NodeSsh) -> None:
    for words in QUESTIONS:
        with pytest.raises(VolumeError, match="pvebench-node: "):
            asked.ask(*words)
    plain = SshConnection(node.server.settings())
    done = plain.run(["touch", str(node.folder / "gotcha")], stdin=b"hello\n")
    assert done.stdout.startswith(b"pvebench-node 4\n")  # whatever the client wants to run
    assert not (node.folder / "gotcha").exists()
    plain.close()


def test_a_volume_that_is_gone_is_reported(node: Node, asked: NodeSsh) -> None:
    node.volume.unlink()
    with pytest.raises(VolumeError, match="is not a file or device of this node") as error:
        asked.drop(VOLUME)
    assert error.value.cause == "it was removed, or its storage is not active on the node"


def test_a_missing_program_is_named_with_its_package(node: Node, asked: NodeSsh) -> None:
    """Witnesses: the texts of timeout(1) and of this machine's shell."""
    for path in Path("/usr/bin").iterdir():
        if path.name != "fincore" and not (node.folder / "bin" / path.name).exists():
            (node.folder / "bin" / path.name).symlink_to(path)
    text = node.script.read_text("utf-8")
    sbin = ":/usr/sbin:/usr/bin:/sbin:/bin"
    assert sbin in text
    node.script.write_text(text.replace(sbin, ""), "utf-8")
    with pytest.raises(VolumeError, match="fincore is not installed on") as error:
        asked.drop(VOLUME)
    assert error.value.next_step == "run `apt-get install util-linux-extra` there"
    node.script.write_text(f"#!/bin/sh\nPATH={node.folder}/bin\nfincore x\n", "utf-8")
    with pytest.raises(VolumeError, match="fincore is not installed on"):
        asked.ask("run")
    node.script.unlink()  # then the program of pvebench itself is missing
    with pytest.raises(AccessDenied, match="does not run pvebench-node"):
        asked.ask("hello")


def put(kind: str, place: Path, other: Path) -> None:
    """Put something in place of a volume: a link to a file or a device, or a pipe."""
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to({"link": other, "device": "/dev/zero", "block device": BLOCK}[kind])


BLOCK = next(path for path in map(Path, ("/dev/loop0", "/dev/vda", "/dev/sda")) if path.exists())
IN_PLACE = pytest.mark.parametrize("kind", ["link", "pipe", "device", "block device"])


@IN_PLACE
def test_what_stands_in_place_of_a_volume_is_neither_opened_nor_followed(
    node: Node, asked: NodeSsh, kind: str
) -> None:
    other = node.folder / "other"
    other.write_bytes(os.urandom(1 << 20))
    assert cached_bytes(other) > 0
    put(kind, node.volume, other)
    for question in (lambda: asked.drop(VOLUME), lambda: asked.devices(VOLUME)):
        with pytest.raises(VolumeError, match="is not a file or device of this node"):
            question()
    assert cached_bytes(other) > 0


@pytest.mark.parametrize("change", ["second name", "another user"])
def test_a_file_that_proxmox_did_not_create_alone_is_no_volume(
    node: Node, asked: NodeSsh, change: str
) -> None:
    """Witness: `mkpath` and `qemu-img create` of PVE/Storage/Plugin.pm run as one user."""
    assert asked.drop(VOLUME) == 0
    node.volume.read_bytes()
    if change == "second name":
        (node.folder / "other").hardlink_to(node.volume)
    else:
        os.chown(node.volume, 65534, -1)
    for question in (lambda: asked.drop(VOLUME), lambda: asked.devices(VOLUME)):
        with pytest.raises(VolumeError, match="file of another user, or with a second name") as no:
            question()
    assert no.value.next_step == "inspect it; pvebench changes only what it created"
    assert cached_bytes(node.volume) > 0
    os.chown(node.folder, node.volume.stat().st_uid, -1)  # as on NFS, without rights of root
    (node.folder / "other").unlink(missing_ok=True)
    assert asked.drop(VOLUME) == 0


def test_a_line_without_an_end_does_not_fill_the_nodes_memory() -> None:
    """Only a holder of the key can send it, who may be an attacker in pvebench's container."""
    sent, piece = 0, b"x" * 65536
    assert "ulimit -v 8192 " in script_of_node()
    command = [
        "sh",
        "-c",
        script_of_node().replace("ulimit -v 8192 ", "ulimit -v 5000 "),
    ]  # quicker
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            while sent < 12 * MIB:
                sent += process.stdin.write(piece)
            process.stdin.close()
        assert b"pvebench-node: missing word" in process.stderr.read(4096)
    assert process.returncode == 96
    assert sent < 8 * MIB


@pytest.mark.lab
@IN_PLACE
@pytest.mark.parametrize("verb", ["drop", "write"])
def test_what_stands_in_place_of_a_file_on_a_host_is_left_alone(
    tmp_path: Path, kind: str, verb: str
) -> None:
    (tmp_path / "pvebench-test-x").mkdir()
    place, other = tmp_path / "pvebench-test-x" / "file", tmp_path / "other"
    for path in (place, other):
        path.write_bytes(b"before")
    command = ["/bin/sh", "-c", remote_commands(), "pvebench", verb, str(place)]
    assert subprocess.run(command, input=b"after", check=False, timeout=20).returncode == 0
    put(kind, place, other)
    done = subprocess.run(command, input=b"after", capture_output=True, check=False, timeout=20)
    assert (done.returncode, b"not a file of this user" in done.stderr) == (96, True)
    assert other.read_bytes() == b"before"


def test_every_refusal_of_the_script_has_its_own_cause() -> None:
    calls = re.findall(r'refuse ".*', script_of_node())
    assert len(calls) > 15
    assert [call for call in calls if not re.search(r'" "\$[A-Z_]+"', call)] == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["drop", "local:9500/vm-9500-disk-0.raw"],
            "not a volume of pvebench: local:9500/vm-9500-disk-0.raw\n"
            "  likely cause: it was created or changed outside pvebench\n"
            "  next step: inspect it; pvebench changes only what it created",
        ),
        (
            ["sh"],
            "no such question\n"
            "  likely cause: pvebench-node there belongs to another version of pvebench\n"
            "  next step: install the output of `pvebench proxmox node-script`",
        ),
    ],
)
def test_a_refusal_has_its_cause_and_next_step(asked: NodeSsh, words: list[str], text: str) -> None:
    with pytest.raises(VolumeError) as error:
        asked.ask(*words)
    assert str(error.value).partition("pvebench-node: ")[2] == text


def test_check_reports_what_each_piece_gives(node: Node) -> None:
    found = {name: (good, text) for name, good, text in check_node(node.ask())}
    assert found["ssh"][0]
    assert found["ssh fincore"] == (
        True,
        "verifies that a volume's page cache is empty before each run",
    )
    assert found["ssh zpool"] == (True, "missing: ZFS pools, scrub and cache in the evidence")
    node.install(script_of_node().replace("for program in fincore", "for program in"))
    found = {name: (good, text) for name, good, text in check_node(node.ask())}
    assert not found["ssh fincore"][0]


def test_a_sudo_that_needs_a_password_is_reported(node: Node) -> None:
    """The words are sudo's own, to a user who may nothing."""
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    node.server.allow(f'restrict,command="{nobody} sudo -n /usr/local/sbin/pvebench-node"')
    (found,) = check_node(node.ask())
    assert found[1] is False
    assert "sudo" in found[2]
    assert "a password is required" in found[2]


def test_the_script_of_another_version_is_reported(node: Node) -> None:
    node.install(script_of_node().replace("VERSION=4", "VERSION=2"))
    asked = node.ask()
    with pytest.raises(OutputUnreadable, match="belongs to another version of pvebench"):
        asked.hello()
    asked.close()


@pytest.mark.parametrize("said", ["", "\\0", "x" * 100, "9" * 5000, "block special file|z|z|z|z"])
def test_a_node_may_answer_anything(node: Node, said: str) -> None:
    node.script.write_text(f"#!/bin/sh\nprintf '%b\\n' '{said}'\n")
    asked = node.ask()
    for question in (asked.hello, lambda: asked.devices(VOLUME), lambda: asked.drop(VOLUME)):
        with pytest.raises(PvebenchError):
            question()
    assert asked.snapshot(9500, (1,)).cpu_seconds == {}
    asked.close()


def test_a_plain_login_is_no_node(node: Node) -> None:
    node.server.allow()
    asked = node.ask()
    with pytest.raises(AccessDenied, match="does not run pvebench-node"):
        asked.hello()
    asked.close()


class Stand:
    """Stands in for `NodeSsh` where only what the driver does with it matters."""

    def __init__(self) -> None:
        self.away = False

    def _there(self) -> None:
        if self.away:
            raise ServerGone("away")

    def devices(self, volid: str) -> tuple[int, ...]:
        self._there()
        return (77, 78)

    def drop(self, volid: str) -> int:
        self._there()
        return 0

    def state(self) -> str:
        return "== md\nPersonalities"

    def ask(self, request: str, storage: str) -> bytes:
        self._there()
        return b""

    def close(self) -> None:
        pass


def test_the_driver_drops_and_counts_the_volume_that_is_plugged_in(site: Site) -> None:
    stand = Stand()
    site.node.use_ssh(cast(NodeSsh, stand))
    wanted = scenario(cache=Cache.WRITEBACK)
    volume, _ = site.node.volume(wanted)
    site.node.boot(wanted.machine)
    assert "Personalities" in site.node.attach(volume, wanted.disk).raw
    assert site.node.devices == (77, 78)
    assert site.node.drop_caches(volume) == 0
    stand.away = True
    with pytest.raises(ServerGone):  # it would read from memory, and be told as cold
        site.node.drop_caches(volume)
    site.node.attach(volume, scenario().disk)
    assert site.node.drop_caches(volume) is None  # cache=none reads past it
    assert site.node.devices == ()


def test_exits_are_reported_for_each_operation() -> None:
    found = Families()
    samples = (
        Sample("vm_exits", None, 300.0, Unit.OPERATIONS),
        Sample("qemu_operations", None, 90.0, Unit.OPERATIONS, "read"),
        Sample("qemu_operations", None, 10.0, Unit.OPERATIONS, "flush"),
    )
    _add_switches(found, dict.fromkeys(state_metrics.CASE, "x"), samples)
    (family,) = families_of(found)
    assert [one.value for one in family.samples] == [3.0]


def test_with_ssh_caches_are_dropped_where_the_page_cache_is_what_is_read() -> None:
    """Why not of ZFS and of what QEMU itself speaks to is in `STORAGE_TYPES`."""
    given = {"host": "pve1", "key_file": "key"}
    for kind, cache in (("lvmthin", HostCache.REOPENED), ("dir", HostCache.REWRITTEN)):
        settings = ProxmoxSettings.model_validate(
            {"host": "pve1", "ssh": given, "storages": {"one": {"type": kind}}}
        )
        entry = settings.storages["one"]
        assert entry.kind(9).host_cache is cache
        assert entry.kind(9, ssh=True).host_cache is HostCache.DROPPED
    for kind in ("zfspool", "rbd"):
        entry = ProxmoxSettings.model_validate(
            {"host": "pve1", "storages": {"one": {"type": kind}}}
        ).storages["one"]
        assert entry.kind(9, ssh=True).host_cache is entry.kind(9).host_cache


def test_the_script_is_handed_out_as_it_is() -> None:
    assert CliRunner().invoke(cli, ["proxmox", "node-script"]).output == script_of_node()
