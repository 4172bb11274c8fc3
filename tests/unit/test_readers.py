"""Everything that reads foreign bytes has a bound, named here.

A new reader fails here. Use a bounded one (`BOUNDED`), or add its place with the reason why its
input has an end. The check reads the AST; a review sees the line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from testing.packs import ROOT

EXPORTER: Final = ROOT / "exporter"
METHODS: Final = frozenset(
    {
        *("read_text", "read_bytes", "readline", "readlines", "read1", "communicate", "recv"),
        *("recv_into", "getresponse", "urlopen", "check_output", "Popen", "iter_content"),
    }
)
"""Functions and methods; `read` counts only without a number of bytes."""
NAMED: Final = frozenset({"json.load", "subprocess.run", "subprocess.Popen", "yaml.load"})
BOUNDED: Final = {
    "pvebench_fleet/run_files.py": "bytes of a line and of a file",
    "http_responses.py": "bytes and seconds of an HTTP response, from its first byte",
    "drivers/ssh/connection.py": "64 MiB of stdout, 64 KiB of stderr, seconds",
    "drivers/linux/host_tools.py": "64 MiB, 4 MiB for `run_program`, seconds: programs, also in "
    "containers",
    "drivers/proxmox/api/bounds.py": "bytes and seconds of an API response",
    "drivers/qemu/qmp.py": "slices of the guest agent's files; qemu.qmp bounds a line",
    "web/connection_limits.py": "request head, connections, seconds",
    "web/request_filter.py": "request body",
}
"""Reader of the outside -> what it bounds; `files.read_text` bounds files of users (1 MiB)."""

KERNEL: Final = "the kernel limits it"
SHIPPED: Final = "installed with pvebench, or built by it"
OWN: Final = "pvebench wrote it"
PROGRAM: Final = "its output goes to a file or nowhere, or Git wrote it"
BUILD: Final = "Debian packages, verified by apt, while a guest image is built"
WRAPPED: Final = "calls a bounded reader"
PLACES: Final = {
    KERNEL: """
        pvebench_lab/host/device_tuning.py:_read pvebench_lab/host/device_tuning.py:_text
        drivers/linux/block_devices.py:_btrfs_devices drivers/linux/block_devices.py:mount_of
        drivers/linux/block_devices.py:_backing_file
        pvebench_lab/lxc/container.py:_read_group pvebench_lab/lxc/container.py:version_of
        drivers/linux/procfs.py:cpu_seconds drivers/linux/procfs.py:group_seconds
        drivers/linux/io_counters.py:_text drivers/linux/io_counters.py:device_counters
        drivers/linux/procfs.py:_host_cpu drivers/linux/procfs.py:_margins
        drivers/linux/procfs.py:_name drivers/linux/procfs.py:_number
        drivers/linux/procfs.py:_process_bytes drivers/linux/procfs.py:_read
        drivers/linux/procfs.py:_stat_seconds drivers/linux/procfs.py:_vcpu_wait
        drivers/linux/procfs.py:of_files drivers/linux/procfs.py:pressures
        drivers/linux/procfs.py:vm_exits pvebench_lab/lxc/container.py:_allows_user_namespaces
        pvebench_lab/lxc/container_disk.py:ContainerDisk.attach
        pvebench_lab/lxc/container_disk.py:ContainerTools._check_mount
        drivers/qemu/accelerator.py:_boot
        drivers/qemu/disk_readback.py:opened_direct drivers/qemu/disk_readback.py:used_aio
        drivers/qemu/machine.py:_has_uuid
        drivers/storages/contract.py:machine_token drivers/storages/directory.py:size_at
        files.py:mounts store/state_directory.py:holds_lock web/server.py:socket_owner
    """,
    SHIPPED: """
        cli/main.py:summary
        cli/packs.py:_copy pvebench_lab/remote_tools.py: drivers/linux/block_devices.py:
        pvebench_lab/lxc/container.py:Container._unpack pvebench_lab/lxc/proxmox_backend.py:
        pvebench_lab/lxc/proxmox_backend.py:NodeContainers._send_archive
        pvebench_lab/lxc/proxmox_container.py:container_archive
        drivers/proxmox/node/node_ssh.py:script_of_node drivers/proxmox/vm/vm_create.py:_upload
        guest/archives.py:make_iso guest/build.py:_build guest/image.py:_read_manifest
        guest/recipe.py:script provision/grafana.py:shipped_dashboards
        provision/scrape.py:prometheus_files version.py:commit
        pvebench_lab/references/library.py:published
        pvebench_lab/references/library.py:Library.get web/responses.py:
        web/server.py:sections
    """,
    OWN: """
        cli/questions.py:write_settings
        service/housekeeping.py:_digest notify/delivery.py:send notify/delivery.py:main
    """,
    PROGRAM: """
        drivers/qemu/machine.py:QemuMachine._launch pvebench_lab/lxc/container.py:Container._launch
        drivers/storages/storage_settings.py:FaultCommand.begin version.py:_git
    """,
    BUILD: """
        guest/archives.py:make_iso guest/build.py:_apt
        guest/build.py:_unpack guest/content.py:_builtin guest/content.py:_busybox
        guest/content.py:_file guest/content.py:_problem guest/content.py:library_closure
        guest/content.py:unpacked_module
    """,
    WRAPPED: """
        pvebench_lab/cli/judge.py:read_history config/document.py:read_document cli/packs.py:packs
        web/tls_and_users.py:_context cli/proxmox.py:_holds_another cli/upgrade.py:_text
        pvebench_lab/references/library.py:read_file
        pvebench_fleet/push.py:HubAddress._exchange
        pvebench_fleet/run_files.py:RunsFile._read_lines
        files.py:read_secret http_responses.py:read_body
        drivers/linux/host_tools.py:_content drivers/linux/host_tools.py:_launch
        drivers/linux/host_tools.py:_Started.wait
        drivers/linux/procfs.py:Fetched.open
        drivers/linux/procfs.py:Fetched.read_text drivers/proxmox/api/bounds.py:_Socket.recv_into
        pvebench_lab/cli/demo.py:show pvebench_lab/lxc/container.py:_has_ids
        drivers/proxmox/node/node_ssh.py:NodeSsh.start_time
        drivers/proxmox/node/node_ssh.py:_pid drivers/proxmox/vm/bench_vm.py:BenchVm._await_change
        drivers/proxmox/vm/bench_vm.py:BenchVm.verify_owner
        drivers/proxmox/vm/leftover_vms.py:_is_born
        drivers/proxmox/vm/leftover_vms.py:_refuse_unseen
        drivers/proxmox/vm/leftover_vms.py:_wait_for_lock drivers/proxmox/vm/vm_create.py:mark_again
        verdicts/verdict_updates.py:VerdictService.judge
    """,
}
"""Why the input has an end -> places, `file:function`."""


def readers(source: str) -> Iterator[tuple[str, int]]:
    """Yield function (`Class.method`) and line of each call that may read without a bound."""
    yield from _calls(ast.parse(source), ())


def place(path: Path) -> str:
    """Return a module's place, without the folder of the core."""
    return str(path.relative_to(EXPORTER)).removeprefix("pvebench/")


def _calls(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    if isinstance(node, ast.Call) and _reads(node):
        yield ".".join(scope), node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, scope)


def _reads(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    return (
        name in METHODS
        or ast.unparse(function) in NAMED
        or (name == "read" and not call.args and isinstance(function, ast.Attribute))
    )


def test_each_reader_has_a_bound_or_the_reason_why_its_input_has_an_end() -> None:
    found = {
        f"{place(path)}:{function}": line
        for path in sorted(EXPORTER.glob("pvebench*/**/*.py"))
        for function, line in readers(path.read_text("utf-8"))
    }
    known = {name for names in PLACES.values() for name in names.split()}
    assert [f"{name} (line {line})" for name, line in found.items() if name not in known] == []
    assert known - found.keys() == set()
    assert BOUNDED.keys() <= {place(path) for path in EXPORTER.glob("pvebench*/**/*.py")}


@pytest.mark.parametrize(
    "source",
    [
        "def f(path):\n    return path.read_text()",
        "def f(file):\n    return file.read()",
        "def f(file):\n    return json.load(file)",
        "def f(argv):\n    return subprocess.run(argv, capture_output=True)",
        "def f(url):\n    return urlopen(url)",
    ],
)
def test_a_reader_without_a_bound_is_found(source: str) -> None:
    assert list(readers(source)) == [("f", 2)]


def test_a_number_of_bytes_is_a_bound() -> None:
    assert list(readers("def f(file):\n    return file.read(100)")) == []


def test_digits_of_others_become_numbers_in_one_place() -> None:
    """`isdigit` accepts `²`, `int` refuses 4,301 digits: `units.whole_number` does neither."""
    found = [
        f"{place(path)}:{node.lineno}"
        for path in sorted(EXPORTER.glob("pvebench*/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"isdigit", "isdecimal", "isnumeric"}
    ]
    assert found == []
