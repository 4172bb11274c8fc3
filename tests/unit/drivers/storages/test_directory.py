"""Files of volumes: whose they are, and that a path that comes to mean another thing harms none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.drivers.storages.contract import StorageContext
from pvebench.drivers.storages.directory import DirectorySettings, DirectoryStorage
from pvebench.drivers.storages.own_files import make_file
from pvebench.errors import VolumeError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.units import MIB
from pvebench.store.store import Store
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine, remove_scratch
from pvebench_lab.storages.loop import LoopStorage
from testing.storages import host_row, storage_context

ROW = host_row(2 * MIB)
CLONE = replace(ROW, disk=Disk(bus=Bus.SCSI, format=Format.QCOW2, cache=Cache.NONE, backing=True))
PRECIOUS = b"somebody's accounts of ten years\n" * 100


@pytest.fixture
def options(tmp_path: Path) -> StorageContext[DirectorySettings]:
    return storage_context(name="local", kind="dir", owner="me", path=str(tmp_path / "volumes"))


@pytest.fixture
def storage(options: StorageContext[DirectorySettings], store: Store) -> DirectoryStorage:
    options.settings.path.mkdir()
    return DirectoryStorage(options, store.journal)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "accounts"
    path.write_bytes(PRECIOUS)
    return path


def base_of(storage: DirectoryStorage) -> Path:
    return storage._base_path(CLONE)


def test_a_link_where_the_base_image_goes_is_not_written_through(
    storage: DirectoryStorage, precious: Path
) -> None:
    base_of(storage).symlink_to(precious)
    storage.create(CLONE)
    assert precious.read_bytes() == PRECIOUS
    assert not base_of(storage).is_symlink()


def test_a_link_where_a_volume_goes_is_not_written_through(
    storage: DirectoryStorage,
    options: StorageContext[DirectorySettings],
    store: Store,
    precious: Path,
) -> None:
    loops = LoopStorage(options, store.journal)
    folder = options.settings.path
    for name in (f"pvebench-test-me-{ROW.volume}", f"pvebench-test-me-{ROW.volume}.img"):
        (folder / name).symlink_to(precious)
    volume = storage.create(ROW)
    assert not Path(volume.volid).is_symlink()
    if os.geteuid() == 0:
        loops.remove(loops.create(ROW))
    assert precious.read_bytes() == PRECIOUS


def _link(path: Path, precious: Path) -> None:
    path.unlink()
    path.symlink_to(precious)


def _pipe(path: Path, precious: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _another(path: Path, precious: Path) -> None:
    path.rename(path.with_name("aside"))
    path.write_bytes(PRECIOUS)


def _gone(path: Path, precious: Path) -> None:
    path.unlink()


BECOMES: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "link": (_link, "is now a symbolic link; not changed"),
    "pipe": (_pipe, "is no longer a regular file; not changed"),
    "other": (_another, "was replaced by another file; not changed"),
    "gone": (_gone, "cannot be opened: No such file or directory; not changed"),
}


@pytest.mark.parametrize("what", BECOMES)
def test_a_volume_that_became_something_else_is_not_used(
    storage: DirectoryStorage, store: Store, tmp_path: Path, precious: Path, what: str
) -> None:
    become, said = BECOMES[what]
    host = HostDisk(
        node="lab",
        storages={"local": storage},
        machine=ThisMachine(tmp_path / "run", store.journal),
    )
    volume, _ = host.volume(ROW)
    host.attach(volume, ROW.disk)
    become(Path(volume.volid), precious)
    for again in (lambda: host.boot(ROW.machine), lambda: host.attach(volume, ROW.disk)):
        with pytest.raises(VolumeError, match=said) as caught:
            again()
        assert caught.value.cause
        assert caught.value.next_step
    assert precious.read_bytes() == PRECIOUS


@pytest.mark.parametrize("what", BECOMES)
def test_a_base_image_that_became_something_else_is_not_used(
    storage: DirectoryStorage, precious: Path, what: str
) -> None:
    become, said = BECOMES[what]
    volume = storage.create(CLONE)
    become(base_of(storage), precious)
    with pytest.raises(VolumeError, match=said):
        storage.check(volume)
    with pytest.raises(VolumeError, match=said):
        storage.create(CLONE)
    assert precious.read_bytes() == PRECIOUS


def test_a_file_is_made_only_where_nothing_is(tmp_path: Path, store: Store, precious: Path) -> None:
    link = tmp_path / "link"
    for target in (precious, tmp_path / "nothing"):
        link.symlink_to(target)
        for path in (link, target) if target.exists() else (link,):
            with pytest.raises(VolumeError, match=r"cannot create .*: File exists") as caught:
                make_file(path, store.journal, "volume")
            assert "remove it if you don't need it" in caught.value.next_step
        link.unlink()
    with pytest.raises(VolumeError, match=r"cannot create .*: No such file or directory"):
        make_file(tmp_path / "no" / "directory", store.journal, "volume")
    assert precious.read_bytes() == PRECIOUS
    assert not (tmp_path / "nothing").exists()
    assert store.journal.pending() == []  # nothing of it is ours to remove


def test_a_link_with_the_name_of_tools_files_is_removed_and_what_it_leads_to_stays(
    tmp_path: Path, precious: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    precious.rename(folder / "accounts")
    link = tmp_path / "pvebench-test-me-x-scratch"
    link.symlink_to(folder)
    remove_scratch(link)
    assert not link.is_symlink()
    assert (folder / "accounts").read_bytes() == PRECIOUS
