"""Zvols and datasets of the kind `zfs`; thin pools are in tests/integration/test_thin_pools.py.

`zfs` is stood in for. Witnesses of its options, its output and its errors: zfs-create(8),
zfs-get(8) with -H (fields apart by one tab) and -p, zfs-destroy(8) of OpenZFS 2.2, which refuses a
dataset with children without -r; `zfs_create_zvol` and `zfs_delete_zvol` of pve-storage
(src/PVE/Storage/ZFSPoolPlugin.pm), which know `dataset is busy` and `dataset does not exist`.
tests/e2e/host-vm runs the same with OpenZFS itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import Storage, pool_options
from pvebench.errors import NoSpace, VolumeError
from pvebench.model.disk import Compression, PrimaryCache, Sync
from pvebench.model.scenario import Scenario
from pvebench.model.units import GIB, KIB, MIB
from pvebench.store.store import Store
from pvebench_lab.storages import pools
from testing.storages import host_row, storage_context

OWNER: Final = "0123456789abcdef"
NAME: Final = f"tank/bench/pvebench-test-{OWNER}-zfs.raw"
ZFS: Final = """\
#!{python} -S
import json, os, sys
place = {place!r}
state = json.load(open(place + "/state"))
known, words = state["known"], sys.argv[1:]
state["calls"].append(" ".join(words))
name, code, error = words[-1], 0, ""
options = [words[at + 1] for at, word in enumerate(words) if word == "-o"]
if words[0] == "create":
    known[name] = dict(guid=str(100 + len(state["calls"])), available="0")
    known[name] |= dict(option.split("=", 1) for option in options)
    if "-V" in words:
        path = place + "/zvol/" + name
    else:
        known[name]["mountpoint"] = place + "/mounted"
        path = place + "/mounted/here"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").close()
elif name not in known:
    code, error = 1, "cannot open '%s': dataset does not exist" % name
elif words[0] == "get":
    for key in words[-2].split(","):
        print(key, known[name].get(key, "-"), sep="\\t")
elif state["busy"]:
    state["busy"] -= 1
    code, error = 1, "cannot destroy '%s': dataset is busy" % name
elif any(other.startswith(name + "@") for other in known):
    code, error = 1, "cannot destroy '%s': volume has children" % name
else:
    del known[name]
json.dump(state, open(place + "/state", "w"))
print(error, file=sys.stderr)
sys.exit(code)
"""


class Node:
    """A machine with a pool `tank` and a stand-in for its `zfs`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        known = {"tank/bench": {"guid": "7", "available": str(GIB)}}
        self.state: dict[str, Any] = {"known": known, "calls": [], "busy": 0}
        program = folder / "bin" / "zfs"
        program.parent.mkdir()
        program.write_text(ZFS.format(python=sys.executable, place=str(folder)))
        program.chmod(0o755)
        self.save()

    def save(self) -> None:
        (self.folder / "state").write_text(json.dumps(self.state))

    def load(self) -> dict[str, Any]:
        self.state = json.loads((self.folder / "state").read_text())
        return self.state

    def names(self) -> set[str]:
        return {*self.load()["known"]} - {"tank/bench"}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(pools, "_ZVOLS", tmp_path / "zvol")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "mounted")
    return Node(tmp_path)


OPTIONS: Final = storage_context(name="zfs", kind="zfs", owner=OWNER, dataset="tank/bench")


def storage(store: Store) -> Storage:
    return KINDS["zfs"].make(OPTIONS, store.journal)


def scenario(**options: Any) -> Scenario:
    return host_row(64 * MIB, "here", "zfs", **options)


def created(node: Node) -> dict[str, str]:
    (call,) = (call for call in node.load()["calls"] if call.startswith("create"))
    words = call.split()
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "-o")


def test_a_zvol_has_the_options_of_the_pack_and_others_at_a_fixed_value(
    node: Node, store: Store
) -> None:
    volume = storage(store).create(scenario(volblocksize=64 * KIB, sync=Sync.DISABLED))
    assert created(node) == {
        "pvebench:instance": OWNER,
        "volblocksize": "65536",
        "sync": "disabled",
        "primarycache": "all",
        "compression": "lz4",
    }
    name = f"{NAME}.volblocksize-64k.sync-disabled"
    assert volume.volid == str(node.folder / "zvol" / name)
    assert f"-V {64 * MIB} {name}" in " ".join(node.load()["calls"])


def test_effective_options_are_those_that_zfs_reports(node: Node, store: Store) -> None:
    zfs = storage(store)
    volume = zfs.create(scenario(primarycache=PrimaryCache.NONE))
    (name,) = node.names()
    node.state["known"][name]["primarycache"] = "all"  # someone ran `zfs set`
    node.save()
    assert pool_options(zfs, volume) == {
        "volblocksize": "16384",
        "sync": "standard",
        "primarycache": "all",
        "compression": "lz4",
    }


def test_with_a_recordsize_the_volume_is_a_file_in_a_dataset(node: Node, store: Store) -> None:
    zfs = storage(store)
    disk = scenario(recordsize=128 * KIB, compression=Compression.ZSTD)
    volume = zfs.create(disk)
    path = Path(volume.volid)
    assert path.parent == node.folder / "mounted"
    assert path.stat().st_size == 64 * MIB
    assert (created(node)["recordsize"], created(node)["compression"]) == ("131072", "zstd")
    assert "volblocksize" not in created(node)
    assert zfs.node(volume, disk.disk)["driver"] == "file"


def test_nothing_stays_after_the_end_even_if_udev_is_late(node: Node, store: Store) -> None:
    zfs = storage(store)
    volume = zfs.create(scenario())
    node.load()["busy"] = 2
    node.save()
    zfs.remove(volume)
    assert (node.names(), list(store.journal.pending())) == (set(), [])
    assert "destroy -r" not in " ".join(node.load()["calls"])


def test_a_killed_run_is_undone_by_the_next_start(node: Node, store: Store) -> None:
    storage(store).create(scenario())
    lines = undo_local(store.journal, instance=OWNER, runtime=node.folder)
    assert lines == [f"removed dataset {NAME}"]
    assert node.names() == set()
    again = undo_local(store.journal, instance=OWNER, runtime=node.folder)
    assert again == []


def test_a_dataset_of_a_pool_that_is_not_imported_stays_in_the_journal(
    node: Node, store: Store
) -> None:
    """Of a missing pool, zfs says the same (ENOENT in `zfs_standard_error_fmt` of libzfs)."""
    storage(store).create(scenario())
    known = dict(node.load()["known"])
    node.state["known"] = {}
    node.save()
    (line,) = undo_local(store.journal, instance=OWNER, runtime=node.folder)
    assert "ZFS has no dataset tank/bench" in line
    node.load()["known"] = known
    node.save()
    lines = undo_local(store.journal, instance=OWNER, runtime=node.folder)
    assert (lines, node.names()) == ([f"removed dataset {NAME}"], set())


def test_a_dataset_that_gets_another_owner_while_it_is_busy_is_left_alone(
    node: Node, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    zfs = storage(store)
    volume = zfs.create(scenario())
    node.load()["busy"] = 1
    node.save()

    run = pools._run

    def replaced(*command: str, **options: Any) -> str:
        said = run(*command, **options)
        if command[1] == "destroy":
            _other_owner(node)
            node.save()
        return said

    monkeypatch.setattr(pools, "_run", replaced)
    with pytest.raises(VolumeError, match="no ownership marker"):
        zfs.remove(volume)
    assert NAME in node.names()


def _other_owner(node: Node) -> None:
    node.load()["known"][NAME]["pvebench:instance"] = "fedcba9876543210"


def _no_owner(node: Node) -> None:
    del node.load()["known"][NAME]["pvebench:instance"]


def _snapshot(node: Node) -> None:
    node.load()["known"][f"{NAME}@autosnap"] = {"guid": "9"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_owner, "no ownership marker"),
        (_no_owner, "no ownership marker"),
        (_snapshot, "volume has children"),
    ],
)
def test_what_others_own_or_use_is_left_alone(
    node: Node, store: Store, change: Any, reason: str
) -> None:
    zfs = storage(store)
    volume = zfs.create(scenario())
    change(node)
    node.save()
    with pytest.raises(VolumeError, match=reason):
        zfs.remove(volume)
    (line,) = undo_local(store.journal, instance=OWNER, runtime=node.folder)
    assert "will be retried" in line
    with pytest.raises(VolumeError, match=reason):
        zfs.create(scenario())
    assert NAME in node.names()


def test_a_zvol_that_was_replaced_is_not_used(node: Node, store: Store) -> None:
    zfs = storage(store)
    volume = zfs.create(scenario())
    zfs.check(volume)
    node.load()["known"][NAME]["guid"] = "1"
    node.save()
    with pytest.raises(VolumeError, match="was replaced; not changed"):
        zfs.check(volume)


def test_too_little_space_is_said_before_anything_is_created(node: Node, store: Store) -> None:
    node.state["known"]["tank/bench"]["available"] = str(128 * MIB)
    node.save()
    with pytest.raises(NoSpace, match="in tank/bench"):
        storage(store).create(scenario())
    assert (node.names(), list(store.journal.pending())) == (set(), [])


def test_a_missing_dataset_is_named(node: Node) -> None:
    assert KINDS["zfs"].identify(OPTIONS) == {"type": "zfs", "uuid": "7"}
    del node.state["known"]["tank/bench"]
    node.save()
    with pytest.raises(VolumeError, match="ZFS has no dataset tank/bench"):
        KINDS["zfs"].identify(OPTIONS)
