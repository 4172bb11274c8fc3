"""Whose a volume is: the random id of an instance, in the names of its volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import DriverContext
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages.contract import instance_id
from pvebench.drivers.storages.directory import DirectoryStorage, DirSettings
from pvebench.drivers.storages.storage_settings import LocalSettings, make_storages
from pvebench.errors import NotWritable, VolumeError
from pvebench.model.units import MIB
from pvebench.store.store import Store
from pvebench_lab.host.host_engine import KIND as SCRATCH
from pvebench_lab.host.host_engine import undo_scratch
from testing.storages import host_row

ROW = host_row(2 * MIB)
PRECIOUS = b"somebody's accounts of ten years\n" * 100


def host_with(state: Path, shared: Path, store: Store) -> DirectoryStorage:
    """Return what a host makes of its settings; its state directory has the path /var/lib/…."""
    state.mkdir(exist_ok=True)
    settings = LocalSettings(state=state, storages={"local": DirSettings(kind="dir", path=shared)})
    place = DriverContext(
        runtime=Path("/var/lib/pvebench/run"),  # the same words on both hosts
        journal=store.journal,
        clock=SystemClock(),
        say=print,
    )
    shared.mkdir(exist_ok=True)
    made = make_storages(settings, place)["local"]
    assert isinstance(made, DirectoryStorage)
    return made


def test_two_hosts_with_equal_paths_never_take_each_others_volumes(
    tmp_path: Path, store: Store
) -> None:
    shared = tmp_path / "share"
    one, other = (host_with(tmp_path / name, shared, store) for name in ("one", "other"))
    first = one.create(ROW)
    Path(first.volid).write_bytes(PRECIOUS)
    second = other.create(ROW)
    assert Path(first.volid).read_bytes() == PRECIOUS
    assert first.volid != second.volid
    other.remove(second)
    assert [path.name for path in shared.iterdir()] == [Path(first.volid).name]


def test_an_instance_keeps_its_id_and_finds_what_it_left(tmp_path: Path, store: Store) -> None:
    shared, state = tmp_path / "share", tmp_path / "state"
    left = host_with(state, shared, store).create(ROW)
    again = host_with(state, shared, store).create(ROW)  # after a crash
    assert again.volid == left.volid
    assert [path.name for path in shared.iterdir()] == [Path(left.volid).name]


def test_a_file_of_another_program_with_the_name_of_a_volume_stays(
    tmp_path: Path, store: Store
) -> None:
    shared, state = tmp_path / "share", tmp_path / "state"
    storage = host_with(state, shared, store)
    volume = storage.create(ROW)
    storage.remove(volume)
    Path(volume.volid).write_bytes(b"precious")
    with pytest.raises(VolumeError, match="File exists"):
        storage.create(ROW)
    assert Path(volume.volid).read_bytes() == b"precious"


def test_ids_are_random_and_kept_in_the_state_directory(tmp_path: Path) -> None:
    ids = set()
    for number in range(20):
        state = tmp_path / str(number)
        state.mkdir()
        ids |= {instance_id(state), instance_id(state)}
    assert len(ids) == 20
    assert {len(one) for one in ids} == {16}
    assert sorted(path.name for path in state.iterdir()) == ["instance"]


@pytest.mark.parametrize("content", [b"", b"../../x\n", b"0123", b"\xff" * 16, b"0" * 10_000])
def test_a_damaged_id_stops_it_before_anything_is_touched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "instance").write_bytes(content)
    with pytest.raises(NotWritable, match="does not contain a valid instance id") as caught:
        instance_id(tmp_path)
    assert caught.value.next_step.startswith("remove it; pvebench creates a new id")


def test_an_id_that_cannot_be_kept_is_reported(tmp_path: Path) -> None:
    (tmp_path / "instance").mkdir()
    with pytest.raises(
        NotWritable, match=r"cannot read or create the instance id in .*: Is a directory"
    ):
        instance_id(tmp_path)


@pytest.mark.parametrize(
    ("maker", "stays"),
    [("0123456789abcdef", False), ("fedcba9876543210", True), ("01234567", True)],
    ids=["own", "another instance's", "no id"],
)
def test_a_journal_that_came_from_elsewhere_removes_nothing_of_its_first_owner(
    tmp_path: Path, store: Store, maker: str, stays: bool
) -> None:
    volume = tmp_path / f"pvebench-test-{maker}-vol"
    scratch = tmp_path / f"pvebench-test-{maker}-vol-scratch"
    volume.write_bytes(PRECIOUS)
    scratch.mkdir()
    store.journal.open("volume", {"path": str(volume)})
    store.journal.open(SCRATCH, {"path": str(scratch)})
    instance = "0123456789abcdef"
    undo = {SCRATCH: undo_scratch}
    lines = undo_local(store.journal, undo, instance=instance, runtime=tmp_path)
    assert (volume.exists(), scratch.exists()) == (stays, stays)
    assert all(("not changed: another instance created it" in line) == stays for line in lines)
    assert store.journal.pending() == []  # said once
