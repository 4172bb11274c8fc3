"""What `undo` ends and removes of a VM: what is proved to be its own then, whatever a row says.

The witness is the kernel: real processes, real mounts, `/proc`.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from uuid import uuid4

import pytest

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.local_leftovers import UNDO, undo_local
from pvebench.drivers.qemu import machine
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.machine import CONSOLE, QemuMachine
from pvebench.errors import DriverError, MachineError
from pvebench.files import mounted_below, remove_tree
from pvebench.guest.image import GuestImage
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.store.store import Store
from testing.mounts import bind, with_mounts

OWN = "0123456789abcdef"
Start = Callable[[Path, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process whose command line is a QEMU's, in a directory."""
    started: list[subprocess.Popen[bytes]] = []

    def start_in(directory: Path, uuid: str) -> subprocess.Popen[bytes]:
        directory.mkdir(parents=True)
        code = "print(flush=True); input()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "-uuid", uuid, "-nodefaults"],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        started.append(process)
        return process

    yield start_in
    for process in started:
        process.kill()
        process.communicate()


def undo(store: Store, runtime: Path) -> list[str]:
    return undo_local(store.journal, instance=OWN, runtime=runtime)


def test_a_vm_of_this_state_directory_is_ended_and_its_directory_removed(
    tmp_path: Path, store: Store, start: Start
) -> None:
    uuid = str(uuid4())
    process = start(tmp_path / "run" / uuid[:8], uuid)
    store.journal.open("vm", {"uuid": uuid})
    (line,) = undo(store, tmp_path / "run")
    assert line == f"ended VM {uuid} (leftover processes: 1)"
    assert process.wait(5) == -9
    assert not (tmp_path / "run" / uuid[:8]).exists()


def test_a_copy_of_the_state_ends_no_vm_of_the_original(
    tmp_path: Path, store: Store, start: Start
) -> None:
    """The rows of A's database say what runs in A's directory; B has those rows too."""
    uuid = str(uuid4())
    process = start(tmp_path / "a" / "run" / uuid[:8], uuid)
    store.journal.open("vm", {"uuid": uuid})
    (line,) = undo(store, tmp_path / "b" / "run")
    assert f"process {process.pid} not changed: it runs in another directory" in line
    assert process.poll() is None
    assert (tmp_path / "a" / "run" / uuid[:8]).exists()


def test_a_path_in_a_row_is_never_removed(tmp_path: Path, store: Store) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter").write_text("precious")
    uuid = str(uuid4())
    store.journal.open("vm", {"uuid": uuid, "directory": str(foreign)})
    store.journal.open("vm", {"uuid": "../foreign", "directory": str(foreign)})
    assert len(undo(store, tmp_path / "run")) == 2
    assert (foreign / "letter").read_text() == "precious"


def test_a_process_whose_directory_is_gone_is_known_by_the_kernels_word(
    tmp_path: Path, store: Store, start: Start
) -> None:
    uuid = str(uuid4())
    process = start(tmp_path / "run" / uuid[:8], uuid)
    (tmp_path / "run" / uuid[:8]).rmdir()
    store.journal.open("vm", {"uuid": uuid})
    undo(store, tmp_path / "run")
    assert process.wait(5) == -9


@pytest.mark.parametrize("details", ["{}", "[]", '{"path": 5}', '{"uuid": null}', "nonsense"])
@pytest.mark.parametrize("kind", ["vm", "volume"])
def test_a_damaged_row_is_said_once_and_touches_nothing(
    tmp_path: Path, store: Store, kind: str, details: str
) -> None:
    store.journal.open(kind, {"uuid": str(uuid4())})
    with sqlite3.connect(tmp_path / "pvebench.db") as connection:
        connection.execute("UPDATE journal SET details = ?", (details,))
    connection.close()
    (line,) = undo(store, tmp_path / "run")
    assert "not changed" in line
    assert "damaged" in line
    assert undo(store, tmp_path / "run") == []


def test_a_console_that_the_guest_made_huge_costs_neither_memory_nor_the_disk(
    tmp_path: Path, store: Store
) -> None:
    vm = QemuMachine(tmp_path, journal=store.journal, clock=SystemClock())
    vm.directory.mkdir()
    with (vm.directory / CONSOLE).open("wb") as console:
        console.truncate(1 << 37)
        console.seek(0, os.SEEK_END)
        console.write(b"Kernel panic")
    assert vm.console().endswith("Kernel panic")
    assert len(vm.console()) == 2000
    vm.bound_console()
    assert (vm.directory / CONSOLE).stat().st_size == 0
    (vm.directory / CONSOLE).write_text("boot messages")
    vm.bound_console()
    assert vm.console() == "boot messages"


def test_a_vm_that_no_signal_ends_is_named_and_is_ended_by_the_next_try(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its I/O hangs: tests/hostprocess/quick_faults.py has a real program in that state."""
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(machine, "BINARY", str(program))
    monkeypatch.setattr(machine, "END_SECONDS", 0.1)
    vm = QemuMachine(tmp_path / "run", journal=store.journal, clock=SystemClock())
    image = GuestImage(
        directory=tmp_path,
        kernel=tmp_path / "kernel",
        initramfs=tmp_path / "initramfs",
        iso=tmp_path / "guest.iso",
        digest="",
        manifest={},
    )
    vm.launch(image, Machine(memory_bytes=MIB, cpus=1), Accelerator.TCG)
    pid = vm.pid
    with monkeypatch.context() as patch:
        patch.setattr(machine.signal, "SIGKILL", 0)  # arrives, and ends nothing
        for _ in range(2):
            with pytest.raises(DriverError, match=f"QEMU process {pid} did not end"):
                vm.kill()
    assert len(store.journal.pending()) == 1
    vm.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert not vm.directory.exists()
    assert store.journal.pending() == []


def test_a_tree_in_which_something_is_mounted_is_not_removed(tmp_path: Path) -> None:
    """In a mount namespace of its own; a bind mount of the same device counts as well."""
    foreign, tree = tmp_path / "foreign disk", tmp_path / "tree"
    foreign.mkdir()
    (foreign / "letter").write_text("precious")
    (tree / "b c").mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path\n"
        "from pvebench.files import remove_tree\n"
        f"remove_tree(Path({str(tree)!r}))"
    )
    script = bind(foreign, tree / "b c") + f"exec '{sys.executable}' -c \"$CODE\""
    done = with_mounts(script, env={"CODE": code})
    assert f"{tree}/b c" in done.stderr
    assert "a file system is mounted at" in done.stderr
    assert (foreign / "letter").read_text() == "precious"
    assert mounted_below(tree) == []
    remove_tree(tree)
    assert not tree.exists()


def test_a_mount_with_any_name_does_not_hide_others(tmp_path: Path) -> None:
    tree, code = tmp_path / "tree", "import sys, pathlib; from pvebench import files\n"
    code += "print(*files.mounted_below(pathlib.Path(sys.argv[1])))\n"
    code += "print(files._is_mount(pathlib.Path(sys.argv[1]) / 'm'))"
    script = (
        f"cd '{tmp_path}'; mkdir -p tree/m; mount -t tmpfs tmpfs tree/m\n"
        r"for name in 'a\377b' 'a\302\205b\014c'; do"
        ' name=$(printf "$name"); mkdir "$name"; mount -t tmpfs tmpfs "$name"; done\n'
        f"exec '{sys.executable}' -c \"$CODE\" '{tree}'"
    )
    done = with_mounts(script, env={"CODE": code})
    assert (done.stdout, done.stderr) == (f"{tree}/m\nTrue\n", "")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    foreign, link = tmp_path / "foreign", tmp_path / "link"
    foreign.mkdir()
    link.symlink_to(foreign)
    remove_tree(link)
    assert foreign.exists()


def test_a_mount_at_the_top_is_found() -> None:
    with pytest.raises(MachineError, match="a file system is mounted at /proc"):
        remove_tree(Path("/proc"))


@pytest.mark.parametrize("kind", UNDO)
def test_each_kind_of_entry_is_one_that_the_module_of_its_function_writes(kind: str) -> None:
    """The names are in entry points, so that drivers do not import each other."""
    module = vars(import_module(UNDO[kind].__module__))
    assert kind in {value for key, value in module.items() if key.endswith("KIND")}
