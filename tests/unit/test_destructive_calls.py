"""Everything that signals, removes, unmounts or overwrites is in a function that proves ownership.

A new place fails here. Use a listed function, or add the place to `PROOFS` with its proof; a review
sees the line. Python is checked over its AST, with shell commands in its strings; shell by text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from testing.packs import ROOT

FOLDERS: Final = ("exporter", "scripts", "packaging")
METHODS: Final = frozenset(
    {
        *("kill", "killpg", "pidfd_send_signal", "send_signal", "terminate"),
        *("rmtree", "unlink", "removedirs", "rmdir", "destroy"),
    }
)
"""Functions and methods; `remove` counts only as that of `os`, since lists have one too."""
COMMAND: Final = re.compile(
    r"(?<![`\w/-])(?:rm\s+(?:\"?\$\w+\"?|-\w+)|rmdir\s|kill\s+-|pkill|killall|umount\s|blkdiscard|wipefs\s"
    r"|mkfs\S*\s|(?:\w+\s)*destroy\s|(?:/bin/)?dd\s+of=(?!/dev/null))"
)
"""Shell commands; in Python those of string constants, except in a code span for the user."""
OWN_CHILD: Final = "a process that this one started and has not waited for"
OWN_FOLDER: Final = "a fixed or temporary path of the same program"
DRIVERS: Final = "exporter/pvebench/drivers"
LAB: Final = "exporter/pvebench_lab"
NO_WRITE: Final = "`count=0`, `nocreat`: it only drops the cache of a volume with the marker"
PROOFS: Final = {
    # what runs next to data of others
    "exporter/pvebench/files.py:remove_tree": "no link, no mount; callers prove the name",
    "exporter/pvebench/files.py:write_own": "a file's name with `.new`",
    "exporter/pvebench/store/state_directory.py:stop_holder": "`holds_lock`, through a pidfd",
    f"{LAB}/durability/qemu.py:QemuDurability._batch": "`QemuMachine.kill`, own volumes",
    f"{LAB}/durability/qemu.py:QemuDurability._use": "`QemuMachine.kill`",
    f"{DRIVERS}/qemu/machine.py:_end_process": "UUID and directory, by pidfd",
    f"{DRIVERS}/qemu/machine.py:QemuMachine.kill": OWN_CHILD,
    f"{DRIVERS}/qemu/machine.py:QemuMachine._killed_by_error": "`QemuMachine.kill`",
    f"{DRIVERS}/qemu/machine.py:QemuMachine.quit": "`QemuMachine.kill`",
    f"{DRIVERS}/qemu/machine.py:prove_kvm.prove": "`QemuMachine.kill`",
    f"{DRIVERS}/qemu/qemu_hypervisor.py:QemuHypervisor._end": "`QemuMachine.kill`",
    f"{DRIVERS}/linux/host_tools.py:_Started.end": OWN_CHILD,
    f"{LAB}/lxc/container.py:end_groups": "cgroup of a container with the id",
    f"{LAB}/lxc/container.py:_remove_group": "an empty cgroup of `end_groups`",
    f"{LAB}/lxc/container.py:Container.end": OWN_CHILD,
    f"{LAB}/lxc/container.py:undo_root": "marker and id in the name",
    f"{LAB}/host/host_engine.py:remove_scratch": "marker in the name",
    f"{DRIVERS}/storages/own_files.py:remove_marked": "marker in the name",
    f"{LAB}/storages/network.py:NfsStorage.create": "`unlink`: marker",
    f"{LAB}/storages/network.py:NfsStorage.remove": "`unlink`: marker",
    f"{LAB}/storages/network.py:undo_nfs": "`unlink`: marker",
    f"{DRIVERS}/proxmox/orphans.py:remove_orphan": "`BenchVm.destroy`: marker, pool",
    f"{DRIVERS}/proxmox/vm/leftover_vms.py:undo_vms.undo": "`BenchVm.destroy`: marker, pool",
    f"{DRIVERS}/proxmox/vm/leftover_vms.py:_refuse_unseen": "text for the user",
    f"{DRIVERS}/proxmox/vm/vm_create.py:RestoredVm.remove": "`BenchVm.destroy`: marker, pool",
    f"{DRIVERS}/proxmox/vm/vm_create.py:_tag": "`BenchVm.destroy`: marker, pool",
    "exporter/pvebench/guest/build.py:_install": "the guest image's own folder",
    "exporter/pvebench/store/backups.py:back_up": "a backup's name in the folder of backups",
    "exporter/pvebench/store/backups.py:copy_database": "a copy's name with `.part`",
    "exporter/pvebench/store/engine.py:_remove": "a copy's name next to the locked database",
    "exporter/pvebench/store/state_directory.py:StateDirectory.resume": "its pause file",
    f"{LAB}/remote_commands.sh:drop": NO_WRITE,
    f"{LAB}/remote_commands.sh:end": "`ours`: marker, owner, no link; one file system",
    f"{DRIVERS}/proxmox/node/node.sh:kill_vm": "marker, tag, command line, start time",
    f"{DRIVERS}/proxmox/node/node.sh:drop_path": NO_WRITE,
    f"{LAB}/lxc/proxmox_container.sh:drop_inside": NO_WRITE,
    f"{LAB}/lxc/proxmox_container.sh:take_archive": OWN_FOLDER,
    f"{LAB}/lxc/proxmox_container.sh:take_turn": OWN_FOLDER,
    f"{LAB}/lxc/proxmox_container.sh:end_freeze": OWN_FOLDER,
    f"{LAB}/lxc/proxmox_container.sh:remove_container": "marker, no foreign volume, under a lock",
    f"{LAB}/lxc/proxmox_container.sh:unmount_left": "called for a container with the marker",
    f"{LAB}/lxc/proxmox_container.py:CreationInterrupted.__init__": "text for the user",
    # in a guest or container of pvebench
    f"{LAB}/lxc/proxmox_container.py:": "the test volume's mount point there",
    f"{DRIVERS}/proxmox/vm/agent.py:": "a job's directory in the guest",
    "exporter/pvebench/model/guest.py:Guest.prepare_job": "a job's directory in the guest",
    "exporter/pvebench/guest/pvebench-filesystem.sh:": "the guest's test disk",
    # on a node or host, by its administrator
    "packaging/deb/postrm:remove_known": "known names, no mount below",
    "packaging/deb/postrm:": "fixed files of the package",
    "packaging/deb/hub/postrm:": "fixed links of the package",
    "packaging/proxmox/proxmox-lxc.sh:remove_all": OWN_FOLDER,
    "packaging/proxmox/proxmox-lxc.sh:undo": "the container that this run of the script created",
    "packaging/proxmox/proxmox-lxc.sh:": OWN_FOLDER,
    # in a checkout
    "packaging/deb/build.py:environment": OWN_FOLDER,
    "scripts/clean:": "known names, one file system, a lock on the state directory",
    "scripts/debian13:main": OWN_FOLDER,
    "scripts/debian13:bootstrap": OWN_FOLDER,
    "scripts/debian13:inside": "mounts of its own namespace",
    "scripts/lock:": OWN_FOLDER,
    "scripts/packages:remove_policy": OWN_FOLDER,
    "scripts/release:main": OWN_FOLDER,
    "scripts/release:image_context": OWN_FOLDER,
    "scripts/venv:main": OWN_FOLDER,
    "scripts/venv:create": OWN_FOLDER,
    "scripts/stack/demo.py:Progress.forget": OWN_FOLDER,
    "scripts/stack/demo_fleet.py:ended": OWN_CHILD,
    "scripts/stack/demo_fleet.py:kill_one": OWN_CHILD,
    "scripts/stack/demo_fleet.py:restore_one": OWN_FOLDER,
    "scripts/stack/demo_fleet.py:play": OWN_FOLDER,
    "scripts/stack/demo.py:Filling.import_files": OWN_FOLDER,
    "scripts/stack/demo.py:filled": f"{OWN_FOLDER}; {OWN_CHILD}",
    "scripts/stack/demo.py:simulate": OWN_FOLDER,
    "scripts/stack/demo.py:showing": OWN_CHILD,
    "scripts/stack/measure.py:measure": OWN_CHILD,
    "scripts/stack/measure.py:kill": OWN_CHILD,
    "scripts/stack/processes.py:end_marked": "the marker in the process's environment",
    "scripts/stack/services.py:write_prometheus_config": OWN_FOLDER,
}
"""Place -> its proof."""

Found = Iterator[tuple[str, int]]
"""Function (`Class.method`), and line."""


def python_calls(source: str) -> Found:
    """Yield destructive calls, and strings with a destructive command."""
    yield from _calls(ast.parse(source), ())


def _calls(node: ast.AST, scope: tuple[str, ...]) -> Found:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    if isinstance(node, ast.Call) and _is_destructive(node.func):
        yield ".".join(scope), node.lineno
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        text = child.value if isinstance(child, ast.Constant) else None
        if isinstance(text, str) and COMMAND.search(text):
            yield ".".join(scope), getattr(child, "lineno", 0)
        yield from _calls(child, scope)


def _is_destructive(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in METHODS
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr in METHODS or ast.unparse(function) == "os.remove"


FUNCTION: Final = re.compile(r"^(\w+)\(\) *[{(]")


def shell_commands(source: str) -> Found:
    """Yield destructive commands outside of comments; their function is empty at the top level."""
    function = ""
    for number, line in enumerate(source.splitlines(), 1):
        if start := FUNCTION.match(line):
            function = start[1]
        if COMMAND.search(re.sub(r"(^|\s)#.*", "", line)):
            yield function, number
        if line.startswith(("}", ")")) or (FUNCTION.match(line) and line.rstrip().endswith("}")):
            function = ""


def kind_of(path: Path) -> str:
    """Return `python`, `sh` or nothing, by the name or the first line."""
    first = path.read_bytes()[:80].split(b"\n", 1)[0]
    if path.suffix == ".py" or re.match(rb"#!.*python", first):
        return "python"
    return "sh" if path.suffix == ".sh" or re.match(rb"#!.*\b(ba|da)?sh\b", first) else ""


def places() -> Iterator[tuple[str, int]]:
    """Yield `file:function` and line of every destructive call of the product."""
    for path in (path for name in FOLDERS for path in sorted((ROOT / name).rglob("*"))):
        if not path.is_file() or not (kind := kind_of(path)):
            continue
        find = python_calls if kind == "python" else shell_commands
        for function, line in find(path.read_text("utf-8")):
            yield f"{path.relative_to(ROOT)}:{function}", line


def test_each_destructive_call_is_in_a_function_that_proves_ownership() -> None:
    found = list(places())
    assert [f"{place} (line {line})" for place, line in found if place not in PROOFS] == []
    assert PROOFS.keys() - {place for place, _ in found} == set()


@pytest.mark.parametrize(
    "source",
    [
        "def f(pid):\n    os.kill(pid, 15)",
        "def f(fd):\n    pidfd_send_signal(fd, 9)",
        "def f(path):\n    return shutil.rmtree(path)",
        "def f(path):\n    os.remove(path)",
        "def f(vm):\n    call = lambda: vm.destroy()",
        'def f(run, path):\n    run(f"umount {path}")',
        'def f(run):\n    run("cd /x && rm -rf -- .")',
        'def f(run, disk):\n    run(f"dd of={disk} bs=1M")',
        'def f(run, disk):\n    run(f"blkdiscard {disk}")',
    ],
)
def test_a_destructive_call_is_found_in_python(source: str) -> None:
    assert list(python_calls(source)) == [("f", 2)]
    assert list(python_calls(f"class C:\n    {source.replace(chr(10), chr(10) + '    ')}")) == [
        ("C.f", 3)
    ]


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Run rm -rf / here."""',
        "def f(names):\n    names.remove(1)",
        'def f(path):\n    raise E(next_step=f"run `umount {path}`")',
    ],
)
def test_texts_and_lists_destroy_nothing(source: str) -> None:
    assert list(python_calls(source)) == []


@pytest.mark.parametrize(
    "command",
    [
        'rm -rf -- "$1"',
        'rm "$only" -- "$1"',
        "kill -KILL $found",
        'pct destroy "$vmid" --purge 1',
        'umount "$place"',
        "dd of=/dev/sda",
        "find . -exec /bin/dd of={} ;",
        "blkdiscard /dev/sda",
        "mkfs.ext4 /dev/sda",
    ],
)
def test_a_destructive_command_is_found_in_shell(command: str) -> None:
    assert list(shell_commands(f"f() {{\n    {command} # x\n}}\n# {command}\n")) == [("f", 2)]
    assert list(shell_commands(f"f() {{\n    :\n}}\n{command}\n")) == [("", 4)]
