"""Containers of a node without LXC: who may be touched, what is journalled, what is done but once.

`node.sh` runs behind a forced command of OpenSSH's own server; `pct` is a stand-in that makes
configurations as the public source of pve-container writes them and refuses what the recorded
schema of `POST /nodes/{node}/lxc` refuses (`testing/standin_pct.py`). No node of Proxmox is here.
What runs in a container is in tests/integration/test_proxmox_backend.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies

from pve.instance import write_settings
from pve.site import Site
from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import HypervisorGone, NotOwned, OutcomeUnknown, VolumeError
from pvebench.guest.archives import DIRECTORY, FILE, LINK, Entry, archive
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench_lab.lxc.proxmox_container import (
    KIND,
    BenchContainer,
    ContainerOptions,
    container_archive,
    find_containers,
    gibibytes,
    make_container,
    remove_container,
    undo_containers,
)
from testing import standin_pct
from testing.captured_logs import captured_logs
from testing.container_node import ContainerNode, container_node
from testing.containers import text
from testing.packs import SMALL, write_pack
from testing.real_outcomes import until
from testing.stores import TemporaryStore

MARK = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
DIGEST = "ab" * 32
OPTIONS = ContainerOptions(
    archive=DIGEST,
    machine=Machine(memory_bytes=512 * MIB, cpus=2),
    storage="fast",
    size_bytes=64 * MIB,
    root="slow",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ContainerNode]:
    with container_node(tmp_path) as made:
        (made.folder / "archives" / f"{DIGEST}.tar.gz").touch()
        yield made


@pytest.fixture
def asked(node: ContainerNode) -> Iterator[NodeSsh]:
    made = node.ask()
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    yield made
    made.close()


def make(asked: NodeSsh, store: Store, **changes: Any) -> BenchContainer:
    api: Any = SimpleNamespace(get=lambda *_, **_params: {})  # every number is free
    options = replace(OPTIONS, **changes)
    place = {"node": "pve1", "pool": "bench", "vmids": (9500, 9501)}
    access: Any = SimpleNamespace(api=api, journal=store.journal, **place)
    return make_container(asked, access, options)


def undo(asked: NodeSsh, store: Store) -> list[str]:
    return undo_containers(asked, "pve1", store.journal)


def waits_for_a_lock(node: ContainerNode) -> bool:
    """Whether some `flock` has a file of the node's turns open, as /proc tells."""
    turns = str(node.folder / "turns")
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text() == "flock\n":
                return str((path / "fd/9").readlink()).startswith(turns)
    return False


def test_a_container_is_made_with_mark_and_limits_and_removed_with_its_journal_entry(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    made = make(asked, store)
    told = made.tell()
    assert told["mp0"] == "fast:vm-9500-disk-1,mp=/mnt/test,backup=0,size=64M"
    assert told["rootfs"] == "slow:vm-9500-disk-0,size=1G"
    assert (told["memory"], told["cores"]) == ("512", "2")
    text = node.configuration(9500).read_text()
    assert f"#pvebench-mark%3A {made.mark}\n" in text
    assert "unprivileged: 1\n" in text
    assert "ostype: unmanaged\n" in text
    assert (node.folder / "pools").read_text() == "bench 9500\n"
    ((_, kind, details),) = store.journal.pending()
    assert (kind, details["mark"]) == (KIND, made.mark)
    assert undo(asked, store) == ["container 9500 on pve1 removed with its volumes"]
    assert not node.configuration(9500).exists()
    assert not list((node.folder / "volumes").iterdir())
    assert store.journal.pending() == []


QUESTIONS = (
    ["make", "9500", MARK, "../../etc/passwd", "512", "1", "fast", "1", "fast", "bench"],
    ["make", "9500", MARK, DIGEST, "512 --force", "1", "fast", "1", "fast", "bench"],
    ["make", "9500", MARK, DIGEST, "512", "1", "fast:9/x", "1", "fast", "bench"],
    ["make", "9500", MARK, DIGEST, "512", "1", "fast", "1,mp=/", "fast", "bench"],
    ["make", "9500", MARK, DIGEST, "512", "1", "fast", "1", "--rootfs", "bench"],
    ["make", "9500", MARK, DIGEST, "512", "1", "fast", "1", "fast", "$(id)"],
    ["make", "9500", MARK, "cd" * 32, "512", "1", "fast", "1", "fast", "bench"],
    ["make", "9500; id", MARK, DIGEST, "512", "1", "fast", "1", "fast", "bench"],
    ["remove", "../../x", MARK],
    ["remove", "9500"],
    ["stop", "9500", f"{MARK[:-1]}."],
    ["run", "9500", MARK, "10", "-1"],
    ["archive", "../x"],
    ["send", DIGEST, "many"],
    ["start_container", "9500", MARK],
    ["pct", "list"],
)


def test_what_does_not_look_like_what_it_is_is_refused_and_pct_never_asked(
    node: ContainerNode, asked: NodeSsh
) -> None:
    for words in QUESTIONS:
        with pytest.raises(VolumeError, match="pvebench-node: "):
            asked.ask(*words)
    assert node.calls() == []


OURS = f"#pvebench-mark%3A {MARK}\ntags: pvebench\nunprivileged: 1\n"
CONFIGURATIONS = {
    "another's mark": OURS.replace(MARK, OTHER),
    "no tag": OURS.replace("tags: pvebench\n", ""),
    "a tag that only begins so": OURS.replace("tags: pvebench\n", "tags: pvebench2;x\n"),
    "a mark in words": OURS.replace("#", "#was "),
    "a mark in a snapshot": f"tags: pvebench\nunprivileged: 1\n\n[before]\n{OURS}",
    "a template": f"{OURS}template: 1\n",
    "a privileged copy": OURS.replace("unprivileged: 1\n", ""),
}


@pytest.mark.parametrize("why", CONFIGURATIONS)
def test_a_container_that_is_not_ours_is_neither_used_nor_removed(
    node: ContainerNode, asked: NodeSsh, why: str
) -> None:
    node.configuration(9500).write_text(CONFIGURATIONS[why])
    stranger = BenchContainer(asked, 9500, MARK)
    for attempt in (stranger.start, stranger.stop, stranger.remove, stranger.drop_caches):
        with pytest.raises(VolumeError, match="container 9500 not changed"):
            attempt()
    with pytest.raises(HypervisorGone, match="is stranger"):
        stranger.run(["true"])
    assert node.configuration(9500).read_text() == CONFIGURATIONS[why]
    assert node.calls() == []


@pytest.mark.parametrize("seconds", ["0", "00000"])
def test_a_program_without_an_end_is_refused(
    node: ContainerNode, asked: NodeSsh, seconds: str
) -> None:
    """To timeout(1) of coreutils 0 is no limit."""
    node.configuration(9500).write_text(OURS)
    with pytest.raises(VolumeError, match="not a time limit in seconds"):
        asked.ask("run", "9500", MARK, seconds, "4")


def test_somebodys_is_said_once_and_forgotten(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    node.configuration(9500).write_text(CONFIGURATIONS["another's mark"])
    store.journal.open(KIND, {"node": "pve1", "vmid": "9500", "mark": MARK})
    (line,) = undo(asked, store)
    assert line == ("container 9500 on pve1 not changed: no ownership marker of this pvebench")
    assert store.journal.pending() == []


@pytest.mark.parametrize("key", ["mp1", "mp12", "unused0", "\n[pve:pending]\nmp1"])
def test_one_that_someone_gave_a_volume_stays_until_that_is_taken_out(
    node: ContainerNode, asked: NodeSsh, store: Store, key: str
) -> None:
    made = make(asked, store)
    path = node.configuration(9500)
    text = path.read_text()
    path.write_text(f"{text}{key}: fast:vm-100-disk-7,mp=/data\n")
    (line,) = undo(asked, store)
    assert "could not remove container 9500 on pve1 yet" in line
    assert f"not changed: foreign volume {key.splitlines()[-1]}: fast:vm-100-disk-7" in line
    with pytest.raises(VolumeError, match="not changed: foreign volume"):
        made.start()  # programs in it would reach that volume
    assert "destroy 9500" not in node.calls()
    path.write_text(text)
    assert undo(asked, store) == ["container 9500 on pve1 removed with its volumes"]


def test_what_pct_says_is_reported_and_tried_again_later(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    make(asked, store)
    path = node.configuration(9500)
    text = path.read_text()
    path.write_text(f"{text}lock: backup\n")
    (line,) = undo(asked, store)
    assert "pct destroy 9500: CT is locked (backup)" in line
    assert len(store.journal.pending()) == 1
    path.write_text(text)
    undo(asked, store)
    assert store.journal.pending() == []


def test_only_the_end_of_what_pct_says_is_kept(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """The root file system is an archive of pvebench's; tar names its files in every error."""
    mark = make(asked, store).mark
    script = node.folder / "pvebench-node"
    script.write_text(script.read_text().replace("set -eu", "set -eu; ulimit -v 40000", 1))
    says = "yes 'tar: x: cannot open' | head -c 60000000; echo no space; exit 255"
    with node.program("pct", says), pytest.raises(VolumeError, match="pct start 9500: no space"):
        asked.do("start", "9500", mark)
    with node.program("pct", "echo 255; echo good"):
        asked.do("start", "9500", mark)


def test_one_that_someone_moved_to_another_node_is_said_until_it_is_gone(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """Witness: pmxcfs(8), by which /etc/pve/lxc is the node's own part of /etc/pve/nodes."""
    made = make(asked, store)
    (node.folder / "nodes/pve2/lxc").mkdir(parents=True)
    there = node.folder / "nodes/pve2/lxc/9500.conf"
    text = node.configuration(9500).read_text()
    node.configuration(9500).unlink()
    there.write_text(text)
    (line,) = undo(asked, store)
    assert "could not remove container 9500 on pve1 yet" in line
    assert str(there) in line
    there.write_text(text.replace(made.mark, OTHER))
    assert undo(asked, store) == ["container 9500 on pve1 already gone"]
    assert store.journal.pending() == []


def test_a_refused_one_leaves_nothing_open(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    with pytest.raises(VolumeError, match="storage 'iso' does not support container directories"):
        make(asked, store, storage="iso")
    assert store.journal.pending() == []
    assert not list(node.folder.glob("conf/*"))


def test_a_number_that_someone_took_meanwhile_is_passed_over(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    node.configuration(9500).write_text("memory: 512\n")
    assert make(asked, store).vmid == 9501
    with pytest.raises(NotOwned, match="no free VM ID from 9500 to 9501"):
        make(asked, store)
    assert node.configuration(9500).read_text() == "memory: 512\n"
    undo(asked, store)
    assert store.journal.pending() == []


def test_a_lost_answer_is_no_second_container_and_undo_waits_for_the_first(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    (node.folder / "wait").touch()

    def cut() -> None:
        until((node.folder / "creating").exists)
        node.server.cut()

    threading.Thread(target=cut).start()
    with pytest.raises(OutcomeUnknown):
        make(asked, store)
    assert node.calls() == ["create 9500"]

    def go_on() -> None:
        with contextlib.suppress(AssertionError):  # then nobody waits, and the undo is told apart
            until(lambda: waits_for_a_lock(node), seconds=20.0)
        (node.folder / "wait").unlink()

    threading.Thread(target=go_on).start()
    assert undo(asked, store) == ["container 9500 on pve1 removed with its volumes"]
    assert node.calls() == ["create 9500", "destroy 9500"]
    assert not node.configuration(9500).exists()


MAKING = """\
import sys
from pathlib import Path
sys.path[:0] = {path}
from test_proxmox_container import *
from pvebench.drivers.ssh import SshSettings
store = Store(Path({database!r}), simulated=False)
settings = SshSettings.model_validate({settings!r})
make(NodeSsh(SshConnection(settings)), store)
"""


def test_a_pvebench_that_is_killed_while_pct_makes_one_has_it_in_its_journal(
    node: ContainerNode, asked: NodeSsh, tmp_path: Path
) -> None:
    (node.folder / "wait").touch()
    program = MAKING.format(
        path=[str(Path(__file__).parent), *sys.path],
        database=str(tmp_path / "killed.db"),
        settings=node.server.settings().model_dump(mode="json"),
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until((node.folder / "creating").exists)
    finally:
        process.kill()
        process.wait()
    (node.folder / "wait").unlink()
    store = TemporaryStore(tmp_path / "killed.db", simulated=False)
    assert undo(asked, store) == ["container 9500 on pve1 removed with its volumes"]
    assert store.journal.pending() == []
    assert not node.configuration(9500).exists()
    store.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("word", ["create", "destroy"])
def test_a_program_of_the_node_that_is_killed_beside_pct_leaves_nothing(
    node: ContainerNode, asked: NodeSsh, store: Store, word: str, when: str
) -> None:
    """As for want of memory. What it called goes on, as a task of Proxmox does."""
    with node.killed("pct", word, when=when), contextlib.suppress(OutcomeUnknown):
        make(asked, store).remove()  # which is asked again, of what the first time left
    assert len(store.journal.pending()) == 1
    undo(asked, store)
    assert store.journal.pending() == []
    assert list(node.left()) == []
    assert [call.partition(" ")[0] for call in node.calls()] == ["create", "destroy"]


def dies_at(step: str, node: ContainerNode, asked: NodeSsh, store: Store) -> None:
    """Make a container on a node that goes down after a step of it: what is in memory is gone."""
    (node.folder / "dies").write_text(step)
    with node.killed("pct", "create"), pytest.raises(OutcomeUnknown):
        make(asked, store)
    standin = f"{standin_pct.__file__}\0{node.folder}\0"
    until(node.calls)  # it goes on without who called it
    told = Path("/proc").glob
    until(lambda: not any(standin in text(path) for path in told("[0-9]*/cmdline")))
    shutil.rmtree(node.folder / "turns")


@pytest.mark.parametrize("power", ["on", "cut"])
@pytest.mark.parametrize("step", ["locked", "unpacked"])
def test_one_whose_making_broke_off_is_unknown_and_is_named_until_it_is_gone(
    node: ContainerNode, asked: NodeSsh, store: Store, step: str, power: str
) -> None:
    """The lock says not whose it is; the node's own notes are in memory, and gone after a cut."""
    if power == "cut":
        dies_at(step, node, asked, store)
    else:
        (node.folder / "dies").write_text(step)
        with captured_logs() as said, pytest.raises(VolumeError, match="pct create 9500"):
            make(asked, store)
        assert "owner unknown" in said[0]["result"]
    assert node.configuration(9500).read_text() == "lock: create\n"
    for _ in range(2):
        (line,) = undo(asked, store)
        assert line.startswith("could not remove container 9500 on pve1 yet")
        assert node.configuration(9500).exists()
    *advice, by_number = line.partition("(not after a restart); ")[2].split("; ")
    assert [command.split() for command in advice] == [
        ["pct", *x, "9500"] for x in (["unlock"], ["destroy"])
    ]
    for command in advice:  # as a person follows it
        subprocess.run([node.folder / "bin/pct", *command.split()[1:]], check=True)
    assert "pvesm list STORAGE --vmid 9500, and pvesm free for each volume" in by_number
    for volume in node.folder.glob("volumes/vm-9500-*"):  # what those find by their names
        volume.unlink()
    assert list(node.left()) == []
    assert undo(asked, store) == ["container 9500 on pve1 already gone"]
    assert store.journal.pending() == []


@pytest.mark.parametrize("power", ["on", "cut"])
def test_one_whose_making_broke_off_when_it_carried_the_mark_goes_and_nothing_else_does(
    node: ContainerNode, asked: NodeSsh, store: Store, power: str
) -> None:
    others = {"9501": "lock: create\n", "950": "memory: 512\n"}
    for vmid, written in others.items():
        node.configuration(int(vmid)).write_text(written)
        (node.folder / "volumes" / f"vm-{vmid}-disk-0").write_text("somebody's")
    before = sorted(node.left())
    if power == "cut":
        dies_at("written", node, asked, store)
        assert undo(asked, store) == ["container 9500 on pve1 removed with its volumes"]
    else:
        (node.folder / "dies").write_text("written")
        with pytest.raises(VolumeError, match="pct create 9500"):
            make(asked, store)
    assert sorted(node.left()) == before
    assert store.journal.pending() == []


def test_a_number_that_someone_makes_a_container_of_meanwhile_is_none_of_ours(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """`check_vmid_unused` in PVE/Cluster.pm tells that of one that is just being made, too."""
    taken = (
        f"echo 'lock: create' >{node.configuration(9500)}; echo 'CT 9500 already exists'; exit 255"
    )
    whole = node.folder / "bin" / "pct"
    does = whole.read_text().partition("\n")[2]
    with node.program("pct", f'case "$2" in 9500) {taken} ;; *) {does} ;; esac'):
        assert make(asked, store).vmid == 9501
    assert [details["vmid"] for _, _, details in store.journal.pending()] == ["9501"]
    assert node.configuration(9500).read_text() == "lock: create\n"


def test_what_is_left_of_a_root_file_system_that_did_not_come_whole_goes(
    node: ContainerNode, asked: NodeSsh
) -> None:
    """Witness: find(1) itself, by the file's time."""
    content = os.urandom(100_000)
    words = ("send", hashlib.sha256(content).hexdigest(), str(len(content)))
    with node.killed("head", when="after"), pytest.raises(OutcomeUnknown):
        asked.do(*words, content=content)
    (left,) = node.folder.glob("archives/coming-*")
    asked.do(*words, content=content)
    assert left.exists()  # it may be another's that is coming
    os.utime(left, (time.time() - 3600,) * 2)
    asked.do(*words, content=content)
    assert not left.exists()


def test_what_was_called_off_before_it_came_is_never_made(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """Killed behind the journal; the question itself may be on its way still."""
    store.journal.open(KIND, {"node": "pve1", "vmid": "9500", "mark": MARK})
    assert undo(asked, store) == ["container 9500 on pve1 already gone"]
    with pytest.raises(VolumeError, match="was created or cancelled before"):
        BenchContainer(asked, 9500, MARK).make("bench", OPTIONS)
    assert node.calls() == []


def test_notes_of_who_was_made_are_kept_a_day_and_are_not_without_number(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    turns = node.folder / "turns"
    turns.rmdir()
    BenchContainer(asked, 9500, MARK).remove()
    assert turns.stat().st_mode & 0o777 == 0o700  # who can open a file can lock it
    os.utime(turns / MARK, (0, 0))
    BenchContainer(asked, 9500, OTHER).remove()
    assert [path.name for path in turns.iterdir()] == [OTHER]
    for number in range(2000):
        (turns / f"{number:032x}").touch()
    with pytest.raises(VolumeError, match="limit of 2000 containers"):
        make(asked, store)
    assert node.calls() == []


def test_who_fills_the_nodes_memory_of_containers_keeps_none_of_them_from_its_removal(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """The key may be another's too, or the node's clock far off: what is there can always go."""
    made = make(asked, store)
    turns = node.folder / "turns"
    for number in range(2000):
        (turns / f"{number:032x}").touch()
    (turns / made.mark).unlink()  # it is older than a day
    assert undo(asked, store) == ["container 9500 on pve1 removed with its volumes"]
    assert not node.configuration(9500).exists()


def test_notes_of_frozen_containers_do_not_count_as_containers_of_today(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    for number in range(2000):
        (node.folder / "turns" / f"{number:032x}.frozen").touch()
    made = make(asked, store)
    assert made.state() == "ours"


def test_one_whose_making_broke_off_says_not_whose_it_is_and_is_left_with_advice(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """`create_and_lock_config` in PVE/AbstractConfig.pm writes this; the mark comes later."""
    node.configuration(9500).write_text("lock: create\n")
    store.journal.open(KIND, {"node": "pve1", "vmid": "9500", "mark": MARK})
    (line,) = undo(asked, store)
    assert "creation running or interrupted" in line
    assert "pct unlock" in line
    assert node.configuration(9500).exists()
    node.configuration(9500).write_text("memory: 512\n")  # whose it was has made it
    assert undo(asked, store) == [
        "container 9500 on pve1 not changed: no ownership marker of this pvebench"
    ]
    assert store.journal.pending() == []


def test_sweep_lists_what_carries_a_mark_and_removes_that_alone(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    made = make(asked, store)
    node.configuration(100).write_text("tags: pvebench\nmemory: 512\n")
    node.configuration(101).write_text(CONFIGURATIONS["a mark in a snapshot"])
    (found,) = find_containers(asked, "pve1", store.journal)
    assert (found.vmid, found.mark, found.status) == (9500, made.mark, "stopped")
    assert "left by a crash" in found.text
    line = remove_container(asked, found, store.journal)
    assert line == "container 9500 on pve1 removed with its volumes"
    assert store.journal.pending() == []
    assert sorted(path.stem for path in node.folder.glob("conf/*")) == ["100", "101"]
    assert find_containers(asked, "pve1", store.journal) == []


def test_without_ssh_in_the_settings_it_stays_open_and_says_so(store: Store) -> None:
    store.journal.open(KIND, {"node": "pve1", "vmid": "9500", "mark": MARK})
    (line,) = undo_containers(None, "pve1", store.journal)
    assert "yet: proxmox.ssh is missing in the settings\n  next step: set it" in line
    assert len(store.journal.pending()) == 1


ARCHIVE = bytes(range(256)) * 1200
ARCHIVE_DIGEST = hashlib.sha256(ARCHIVE).hexdigest()


def send(asked: NodeSsh, content: bytes = ARCHIVE, *, size: int | None = None) -> None:
    asked.do("send", ARCHIVE_DIGEST, str(len(content) if size is None else size), content=content)


@pytest.fixture
def folder(node: ContainerNode) -> Path:
    """Where the node keeps archives, without the one of the other tests."""
    found = node.folder / "archives"
    for path in found.iterdir():
        path.unlink()
    return found


def archives(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_archive_that_was_sent_is_there_as_it_was(folder: Path, asked: NodeSsh) -> None:
    assert asked.ask("archive", ARCHIVE_DIGEST).strip() == b"absent"
    send(asked)
    assert asked.ask("archive", ARCHIVE_DIGEST).strip() == b"there"
    assert archives(folder) == {f"{ARCHIVE_DIGEST}.tar.gz": ARCHIVE}


@pytest.mark.parametrize(
    ("content", "size", "why"),
    [
        (ARCHIVE, 300_000_001, "archive too large: 300000001 bytes"),
        (ARCHIVE, 200_000, f"digest of the archive differs from {ARCHIVE_DIGEST}"),
        (ARCHIVE[:-1], None, f"digest of the archive differs from {ARCHIVE_DIGEST}"),
        (ARCHIVE[:-1] + b"x", None, f"digest of the archive differs from {ARCHIVE_DIGEST}"),
    ],
    ids=["too large", "size of a part", "broken off", "another byte"],
)
def test_an_archive_that_is_not_what_its_name_says_is_refused_and_not_kept(
    folder: Path, asked: NodeSsh, content: bytes, size: int | None, why: str
) -> None:
    with pytest.raises(VolumeError, match=why):
        send(asked, content, size=size)
    assert asked.ask("archive", ARCHIVE_DIGEST).strip() == b"absent"
    assert archives(folder) == {}


@pytest.mark.parametrize(
    ("there", "minutes", "kept"),
    [
        (4, 0, 5),
        (4, 1430, 5),
        (5, 1450, 1),  # older than a day
    ],
)
def test_there_are_five_archives_at_most_of_the_last_day(
    folder: Path, asked: NodeSsh, there: int, minutes: int, kept: int
) -> None:
    for number in range(there):
        aged(folder / f"{number}.tar.gz", minutes)
    send(asked)
    found = archives(folder)
    assert len(found) == kept
    assert found[f"{ARCHIVE_DIGEST}.tar.gz"] == ARCHIVE


@pytest.mark.parametrize("minutes", [0, 1430])
def test_a_sixth_archive_is_refused_and_takes_no_other_away(
    folder: Path, asked: NodeSsh, minutes: int
) -> None:
    for number in range(5):
        aged(folder / f"{number}.tar.gz", minutes)
    before = archives(folder)
    with pytest.raises(VolumeError, match="five archives already"):
        send(asked)
    assert archives(folder) == before


@pytest.mark.parametrize(("minutes", "there"), [(10, True), (20, False)])
def test_what_was_broken_off_goes_after_a_quarter_of_an_hour(
    folder: Path, asked: NodeSsh, minutes: int, *, there: bool
) -> None:
    aged(folder / "coming-abcdefgh", minutes)
    send(asked)
    assert ("coming-abcdefgh" in archives(folder)) is there


def aged(path: Path, minutes: float) -> None:
    """Make a file that was changed so long ago."""
    path.touch()
    moment = time.time() - 60 * minutes
    os.utime(path, (moment, moment))


def instance(site: Site, node: ContainerNode, folder: Path) -> Path:
    """Write settings of an instance that measures in containers of `node`; return their path."""
    ssh = node.server.settings().model_dump(mode="json", exclude={"fingerprint"})
    given = "{" + ", ".join(f"{key}: {value}" for key, value in ssh.items()) + "}"
    pack = write_pack(folder, SMALL.replace("axes:", "lxc: true\naxes:"))
    storages = {"local": "{type: lvmthin, id: thin}"}
    site.keep_token(folder)
    return write_settings(folder, site.api, packs=[pack], storages=storages, ssh=given)


def test_check_sweep_and_undo_know_containers_as_an_admin_uses_them(
    site: Site,
    node: ContainerNode,
    asked: NodeSsh,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = instance(site, node, tmp_path)

    def said(*words: str) -> str:
        capsys.readouterr()
        run_cli([words[0], "--config", str(config), *words[1:]])
        return " ".join(capsys.readouterr().out.split())

    site.faults.add("status", "GET", "/nodes/pve1/storage", times=99, text="no quorum")
    assert re.search("server: .* VM IDs: .* containers: .*no quorum", said("check"))
    site.faults.active.clear()
    assert "thin does not allow containers; run pvesm set thin --content images,rootdir" in said(
        "check"
    )
    site.cluster.storages["thin"].content = "images,rootdir"
    assert "containers on thin: allows containers" in said("check")
    assert "local.lxc.raw.none.filesystem-ext4" in said("plan")
    StateDirectory(tmp_path / "state", exclusive=False)
    store = TemporaryStore(tmp_path / "state" / "pvebench.db", simulated=False)
    for command in (["cleanup"], ["cleanup", "--orphans", "--remove", "9500"]):
        make(asked, store)
        assert "container 9500 on pve1, stopped, left by a crash" in said("cleanup", "--orphans")
        assert "container 9500 on pve1 removed with its volumes" in said(*command)
        assert store.journal.pending() == []
        assert not node.configuration(9500).exists()
    store.close()


def test_a_node_with_an_older_program_keeps_no_one_from_sweeping(
    site: Site, node: ContainerNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = instance(site, node, tmp_path)
    older = tmp_path / "older"
    older.write_text("#!/bin/sh\necho 'pvebench-node: no such question' >&2\nexit 96\n")
    older.chmod(0o755)
    node.server.allow(f'restrict,command="{older}"')
    run_cli(["cleanup", "--orphans", "--config", str(config)])
    said = capsys.readouterr()
    assert "no orphans" in said.out
    assert "listing containers failed" in said.err


@pytest.mark.parametrize(
    ("there", "taken", "reason"),
    [
        ("make) make_container ;;\n", "", "pvebench-node there does not support containers"),
        ("VERSION=4", "VERSION=2", "responds with 'pvebench-node 2', expected 'pvebench-node 4'"),
    ],
    ids=["taken out", "older"],
)
def test_a_node_whose_program_makes_no_containers_has_those_rows_skipped_and_nothing_made(
    site: Site,
    node: ContainerNode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    there: str,
    taken: str,
    reason: str,
) -> None:
    """As an administrator is told to take it out of the script, or has not installed it anew."""
    config = instance(site, node, tmp_path)
    site.cluster.storages["thin"].content = "images,rootdir"
    program = node.folder / "pvebench-node"
    text = program.read_text()
    program.write_text(text.replace(there, taken))
    assert run_cli(["run", "--config", str(config), "--only", "*.lxc.*"]) == 9
    said = " ".join(capsys.readouterr().out.split())
    assert "skipped" in said
    assert reason in said
    assert "pvebench proxmox node-script" in said
    assert {call.partition(" ")[0] for call in site.api.calls} == {"GET"}
    run_cli(["check", "--config", str(config)])
    assert reason in capsys.readouterr().out
    assert node.calls() == []
    program.write_text(text)
    run_cli(["check", "--config", str(config)])
    assert reason not in capsys.readouterr().out


def test_a_key_that_cannot_be_read_leaves_what_is_open_and_says_so(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    make(asked, store)
    asked.close()
    settings = node.server.settings()
    away = settings.model_copy(update={"key_file": settings.key_file.with_name("away")})
    (line,) = undo(NodeSsh(SshConnection(away)), store)
    assert "could not remove container 9500 on pve1 yet" in line
    assert len(store.journal.pending()) == 1


@given(strategies.integers(1, 2**26))
def test_a_size_in_gib_is_what_pct_makes_of_it(mebibytes: int) -> None:
    """`create_disks` in PVE/LXC.pm: int(${size_gb} * 1024) * 1024 KiB; the form: NEW_DISK_RE."""
    text = gibibytes(mebibytes * MIB)
    assert re.fullmatch(r"\d+(\.\d+)?", text)
    assert int(float(text) * 1024) * 1024 * 1024 == mebibytes * MIB


def test_the_guests_files_are_a_tar_that_tar_itself_unpacks(tmp_path: Path) -> None:
    initramfs = archive(
        {
            "sbin": Entry(LINK | 0o777, b"usr/sbin"),
            "usr/bin/busybox": Entry(FILE | 0o755, b"x" * 1000),
            "usr/bin/sh": Entry(LINK | 0o777, b"busybox"),
            "usr/lib/modules/ext4.ko": Entry(FILE | 0o644, b"module"),
            "run": Entry(DIRECTORY | 0o755),
            "dev/console": Entry(0o020600, device=(5, 1)),
        }
    )
    packed = container_archive(initramfs)
    assert container_archive(initramfs) == packed
    (tmp_path / "root.tar.gz").write_bytes(packed)
    (tmp_path / "root").mkdir()
    command = ["tar", "xpf", str(tmp_path / "root.tar.gz"), "-z", "-C", str(tmp_path / "root")]
    subprocess.run(command, check=True)
    found = {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*")}
    assert {"usr/bin/busybox", "usr/bin/sh", "run", "sbin", "mnt/test", "dev"} <= found
    assert not {"usr/lib/modules/ext4.ko", "dev/console"} & found
    assert (tmp_path / "root/usr/bin/sh").readlink() == Path("busybox")
    assert os.access(tmp_path / "root/sbin/init", os.X_OK)
    with tarfile.open(tmp_path / "root.tar.gz") as tar:
        assert {member.uid for member in tar} == {0}


def test_a_turn_that_someone_holds_is_not_forgotten_however_old_it_is(
    node: ContainerNode, asked: NodeSsh, store: Store
) -> None:
    """Else the next one takes another file's lock, and both have the turn. Witness: flock(2)."""
    held, old = (node.folder / "turns" / mark for mark in (MARK, OTHER))
    for path in (held, old):
        path.write_text("made\n")
        os.utime(path, (0, 0))
    with held.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        make(asked, store)
        assert held.exists()
        assert not old.exists()
    undo(asked, store)
