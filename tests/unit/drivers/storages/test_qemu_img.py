"""Snapshots of a volume in a directory, with the real qemu-img: their form, and interruptions.

The form of an overlay is that of Proxmox VE 9 (pve-storage 9.0.4, `qemu_img_create_qcow2_backed`:
`extended_l2=on,cluster_size=128k`); what qemu-img reports is the witness that QEMU agrees.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pvebench.drivers.storages.qemu_img as images
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages import directory, own_files
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.errors import NoSpace, VolumeError
from pvebench.model.disk import Bus, Cache, ChainKind, Disk, Format, Preallocation
from pvebench.model.units import GIB, KIB, MIB
from pvebench.model.volume import Volume
from testing.storages import host_row, storage_context
from testing.stores import TemporaryStore

INSTANCE = "0123456789abcdef"
CHAIN = Disk(bus=Bus.VIRTIO, format=Format.QCOW2, cache=Cache.NONE, chain=3)


class Crash(BaseException):
    """The end of the process."""


class Place:
    def __init__(self, path: Path) -> None:
        self.path = path / "volumes"
        self.path.mkdir()
        self.store = TemporaryStore(path / "pvebench.db", simulated=False)
        options = storage_context(name="local", kind="dir", owner=INSTANCE, path=str(self.path))
        self.storage = DirectoryStorage(options, self.store.journal)

    def create(self, disk: Disk, size: int = 2 * MIB) -> Volume:
        return self.storage.create(replace(host_row(size), disk=disk))

    def chain(self, disk: Disk) -> Volume:
        volume = self.create(disk)
        self.storage.take_snapshots(volume, disk)
        return volume

    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def qemu_img(*words: str) -> Any:
    done = subprocess.run(["qemu-img", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout) if "--output=json" in words else done.stdout


def levels(volume: Volume) -> list[tuple[int, bool]]:
    """Return cluster size and extended L2 of each image, newest first."""
    images = qemu_img("info", "--backing-chain", "--output=json", volume.volid)
    shape = [(one["cluster-size"], one["format-specific"]["data"]) for one in images]
    return [(size, data["extended-l2"]) for size, data in shape]


def write(path: str, text: str = "0x55", where: str = "64k 4k") -> None:
    qemu_img("info", "--output=json", path)
    command = ["qemu-io", "-f", "qcow2", "-c", f"write -P {text} {where}", path]
    subprocess.run(command, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("options", "overlay"), [({}, (128 * KIB, True)), ({"overlay_cluster": 65536}, (65536, False))]
)
def test_each_overlay_has_the_form_that_proxmox_gives_it(
    place: Place, options: dict[str, int], overlay: tuple[int, bool]
) -> None:
    volume = place.chain(replace(CHAIN, **options))  # type: ignore[arg-type] # options by name
    assert levels(volume) == [overlay] * 3 + [(65536, False)]


def test_metadata_of_an_overlay_is_preallocated_unless_it_is_an_old_one(place: Place) -> None:
    def sizes(disk: Disk) -> int:
        return Path(place.chain(disk).volid).stat().st_size

    # 64 MiB would show it better; the L2 tables of 2 MiB are one cluster.
    new, off = sizes(CHAIN), sizes(replace(CHAIN, preallocation=Preallocation.OFF))
    assert new > off


def test_a_second_call_removes_what_was_written_and_keeps_what_lies_below(place: Place) -> None:
    volume = place.create(CHAIN)
    write(volume.volid, "0x11")
    place.storage.take_snapshots(volume, CHAIN)
    write(volume.volid, "0x22")
    before = place.files()
    place.storage.take_snapshots(volume, CHAIN)
    assert place.files() == before
    assert len(levels(volume)) == 4
    command = ["qemu-io", "-f", "qcow2", "-c", "read -P 0x11 64k 4k", volume.volid]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "verification failed" not in shown


def test_internal_snapshots_are_taken_once_and_the_newest_one_restored(place: Place) -> None:
    disk = replace(CHAIN, chain_kind=ChainKind.INTERNAL)
    volume = place.chain(disk)
    write(volume.volid, "0x22")
    place.storage.take_snapshots(volume, disk)
    info = qemu_img("info", "--output=json", volume.volid)
    assert [one["name"] for one in info["snapshots"]] == ["pvebench1", "pvebench2", "pvebench3"]
    command = ["qemu-io", "-f", "qcow2", "-c", "read -P 0 64k 4k", volume.volid]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "verification failed" not in shown
    assert place.files() == [Path(volume.volid).name]


def test_a_removed_volume_leaves_no_level_and_no_entry(place: Place) -> None:
    volume = place.chain(CHAIN)
    assert len(place.files()) == 4
    place.storage.remove(volume)
    assert place.files() == []
    assert not place.store.journal.pending()


def interrupt(
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    error: BaseException,
    *,
    after: bool,
    steps: tuple[str, ...] = ("run_qemu_img", "create_exclusively", "_identify"),
) -> list[str]:
    """Raise before or after the call number `at` of the steps; return the calls so far."""
    calls: list[str] = []

    def counted(name: str, real: Any) -> Any:
        def step(*words: Any) -> Any:
            calls.append(name)
            due = len(calls) == at
            if due and not after:
                raise error
            result = real(*words)
            if due:
                raise error
            return result

        return step

    for name, module in itertools.product(steps, (directory, own_files, images)):
        if real_step := getattr(module, name, None):
            monkeypatch.setattr(module, name, counted(name, real_step))
    real = Path.replace
    monkeypatch.setattr(Path, "replace", counted("replace", real))
    return calls


@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_step_leaves_nothing_once_the_journal_is_undone(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    deaths = 0
    while True:
        volume = place.create(CHAIN)
        with monkeypatch.context() as patch:
            calls = interrupt(patch, deaths + 1, Crash(), after=after)
            try:
                place.storage.take_snapshots(volume, CHAIN)
            except Crash:
                deaths += 1
            else:
                break
        assert len(calls) >= deaths
        assert place.files()
        undo_local(place.store.journal, instance=INSTANCE, runtime=place.path.parent / "run")
        assert place.files() == []
        assert not place.store.journal.pending()
        place.storage._levels.clear()  # as after a start
    # Three snapshots, each with at least a new name, a rename and an overlay.
    assert deaths >= 9


def test_an_error_of_qemu_img_or_a_rename_is_made_good_by_the_next_call(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = 0
    while True:
        volume = place.create(CHAIN)
        write(volume.volid, "0x11")
        with monkeypatch.context() as patch:
            interrupt(patch, errors + 1, OSError("full"), after=False, steps=("run_qemu_img",))
            try:
                place.storage.take_snapshots(volume, CHAIN)
            except OSError:
                errors += 1
            else:
                break
        place.storage.take_snapshots(volume, CHAIN)
        assert len(levels(volume)) == 4
        place.storage.remove(volume)
        assert place.files() == []
    assert errors == 6  # three renames, three overlays


def test_a_level_that_was_replaced_is_not_used(place: Place) -> None:
    volume = place.chain(CHAIN)
    level = next(path for path in place.path.iterdir() if path.name.endswith(".snap2"))
    other = place.path / "other"  # a new inode, as the old one still exists
    other.write_bytes(b"accounts")
    other.replace(level)
    for use in (place.storage.check, lambda one: place.storage.take_snapshots(one, CHAIN)):
        with pytest.raises(VolumeError, match="replaced"):
            use(volume)
    assert level.read_bytes() == b"accounts"


def test_space_is_needed_for_what_the_levels_can_hold(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(path: object) -> Any:
        return type("Usage", (), {"free": 5 * GIB})

    monkeypatch.setattr(directory.shutil, "disk_usage", free)
    place.create(CHAIN, size=2 * GIB)  # the volume and the newest level
    with pytest.raises(NoSpace, match=r"8\.0 GiB needed"):
        place.create(replace(CHAIN, preallocation=Preallocation.FALLOC), size=2 * GIB)
