"""A journal entry is a hint: a damaged one ends no cleanup and removes nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from pvebench.drivers import driver_of, engine_of
from pvebench.drivers.local_leftovers import UNDO
from pvebench.drivers.local_leftovers import VM_KIND as LOCAL_VM
from pvebench.drivers.proxmox.vm.bench_vm import KIND as PROXMOX_VM
from pvebench.drivers.proxmox.vm.leftover_vms import KEPT, undo_vms
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import MARK, instance_id
from pvebench.errors import SwitchFailed
from pvebench.sanitize import printable
from pvebench.store.engine import writing
from pvebench.store.store import Store
from pvebench_lab.host import device_tuning
from pvebench_lab.host.device_tuning import undo_setting
from pvebench_lab.lxc import container
from pvebench_lab.lxc.proxmox_container import KIND as NODE_CONTAINER
from pvebench_lab.lxc.proxmox_container import undo_containers
from pvebench_lab.remote_tools import KIND as REMOTE
from testing.faulty_node import VM_KIND, VOLUME_KIND, Reality, undo_simulated

OF_STORAGES = {name for kind in KINDS.values() for name in kind.undo}
LOCAL = sorted({*UNDO, *OF_STORAGES, LOCAL_VM, REMOTE})
PROXMOX = [PROXMOX_VM, NODE_CONTAINER, KEPT]
SIMULATED = [VM_KIND, VOLUME_KIND]
KEYS = [
    *("path", "name", "uuid", "device", "setting", "before", "identity", "boot", "volume", "pool"),
    *("conf", "user", "owner", "server", "export", "where", "node", "vmid", "mark"),
]
VALUES: tuple[Any, ...] = (
    "",
    "/",
    "..",
    "\0",
    "\ud800",
    "-1",
    "1e9",
    "9" * 5000,
    "a/../b",
    "\x1b[2J",
    5,
    None,
    [],
    {},
    True,
)
"""Of a key of the entry; among them what JSON allows and no file name does."""
DAMAGED = (
    "",
    "null",
    "[]",
    "{}",
    "5",
    '"x"',
    "{",
    "[" * 100_000,
    '{"path": 5}',
    '{"path": null}',
    "\x00",
    *(json.dumps(dict.fromkeys(KEYS, value)) for value in VALUES),
    *(json.dumps({key: "x" for key in KEYS if key != missing}) for missing in KEYS),
)


def owned(instance: str) -> Iterator[str]:
    """Yield entries whose name is the instance's, with anything in the other keys."""
    for value in VALUES:
        for place in ("/nowhere/", "\0/", "/nowhere/\ud800"):
            name = f"{MARK}{instance}-x"
            yield json.dumps({**dict.fromkeys(KEYS, value), "name": name, "path": place + name})


def add(store: Store, kind: str, details: Any) -> None:
    with writing(store.journal._engine) as connection:
        connection.execute(
            text("INSERT INTO journal (opened, kind, details) VALUES (1, :kind, :details)"),
            {"kind": kind, "details": details},
        )


@pytest.mark.parametrize("kind", LOCAL)
def test_no_damaged_entry_ends_the_cleanup_of_this_machine(
    store: Store, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(subprocess, "Popen", refused)  # no program of the machine is needed
    monkeypatch.setattr("pvebench_lab.storages.network.unlink", refused)
    entries = [*DAMAGED, *owned(instance_id(tmp_path))]
    for details in entries:
        add(store, kind, details)
    settings = driver_of("host").settings(state=tmp_path)
    lines = engine_of("host").undo(settings, store.journal)
    assert len(lines) == len(entries)
    assert lines == [printable(line) for line in lines]


@pytest.mark.parametrize("kind", PROXMOX)
def test_no_damaged_entry_ends_the_cleanup_of_a_cluster(store: Store, kind: str) -> None:
    for details in DAMAGED:
        add(store, kind, details)
    access: Any = SimpleNamespace(journal=store.journal, node="pve1")  # for no request
    lines = undo_vms(access)
    lines += undo_containers(None, "pve1", store.journal)
    assert all("damaged" in line for line in lines)
    assert len(lines) >= len(KEYS) * (kind == PROXMOX_VM)


@pytest.mark.parametrize("kind", SIMULATED)
def test_no_damaged_entry_ends_the_cleanup_of_a_simulation(store: Store, kind: str) -> None:
    reality = Reality()
    reality.make_volume("b.volume")
    for details in DAMAGED:
        add(store, kind, details)
    undo_simulated(store.journal, reality)
    assert reality.volumes == {"b.volume"}


# --- what an entry names is not always what it named


def setting(device: Path) -> Mapping[str, str]:
    return {
        "device": str(device),
        "setting": "drive_cache",
        "before": "0",
        "identity": "serial 1",
        "boot": "",
    }


@pytest.mark.parametrize("claimed", [True, False])
def test_a_drive_that_is_no_longer_claimed_keeps_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    written: list[str] = []
    drive = type(
        "Drive",
        (),
        {
            "lasting": True,
            "read": lambda *_: written[-1] if written else "1",
            "write": lambda _, __, value: written.append(value),
        },
    )

    def check(device: Path) -> None:
        if not claimed:
            raise SwitchFailed(f"device settings: {device} not changed: not claimed by pvebench")

    monkeypatch.setattr(Path, "is_block_device", lambda _: True)
    monkeypatch.setattr(device_tuning, "identity", lambda _: "serial 1")
    monkeypatch.setattr(device_tuning, "check_own", check)
    monkeypatch.setitem(device_tuning.DEVICE_SETTINGS, "drive_cache", drive())
    line = undo_setting(setting(tmp_path / "sda"))
    assert written == (["0"] if claimed else [])
    assert ("not claimed" in line) is not claimed


def test_a_container_of_this_instance_detaches_no_volume_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    detached: list[Path] = []
    monkeypatch.setattr(container, "end_groups", lambda _: 0)
    monkeypatch.setattr(container, "detach_loops", detached.append)
    own, other = (f"{MARK}{letter * 16}-" for letter in "ab")
    for volume in (f"/v/{own}x.img", f"/v/{other}x.img", "/v/x.img", ""):
        container.undo_container({"name": f"{own}lxc", "volume": volume})
    assert detached == [Path(f"/v/{own}x.img")]
