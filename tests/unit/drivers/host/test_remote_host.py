"""A machine reached by ssh may answer anything: it is understood or refused by one error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pvebench.config import Settings
from pvebench.drivers.linux.block_devices import (
    MAX_DEVICES,
    parse_device,
    parse_devices,
    show_devices,
)
from pvebench.drivers.linux.procfs import Fetched, read_snapshot
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh, check_node
from pvebench.drivers.ssh import SshSettings
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import OutputUnreadable, PvebenchError
from pvebench.model.units import MIB
from pvebench_lab.host.remote_host import RemoteDirectory, RemoteMachine, flushes_ignored, wear_at
from pvebench_lab.lxc.proxmox_backend import check_limits, devices_of, mount_of, why_no_containers
from pvebench_lab.lxc.proxmox_container import (
    KIND,
    BenchContainer,
    find_containers,
    undo_containers,
)
from pvebench_lab.remote_tools import RemoteCommands, RemoteTools
from testing.fixed_ssh_answers import SSH, Saying
from testing.null_journal import NullJournal
from testing.storages import host_row, storage_context

TOLD = (
    b"memory: 1\ncores: 1\nmp0: x:y,mp=/mnt/test\ncpus: 0\npid: 7\nsectors: 9\ndirect: 1\n"
    b"mount: 5 4 %s / /mnt/test rw - ext4 /dev/loop0 rw\nbelow: regular file|0|0|1|0\n"
)
"""Of a container, with a line of /proc/PID/mountinfo (proc(5))."""
HOSTILE = (
    b"",
    b"\n\n\n",
    b"\0\0\0",
    b"-1\n5\nabc",
    b"9" * 5000,
    b"1\n" + b"9" * 5000 + b"\n",
    b"0\n99999999999999999999\nshort",
    b"\xff\xfe\xfd" * 100,
    b"running\nrunning",
    b"block special file|ffffffffff|0|0|0",
    b"block special file|ffffffff|ffffffff|1|1",
    b"regular file|1|2|-5",
    b"regular file|0|0|41|5|8:1,8:1",
    b"regular file|0|0|41|5|" + b"8:1," * 240 + b"8:2",
    b"regular file|0|0|41|5|4096:1",
    b"/proc/stat\0cpu  x y z\n",
    b"/proc/stat\0cpu  1 2\n/proc/stat\0cpu0\n/proc/stat\0ctxt\n",
    b"/sys/dev/block/0:0/stat\0 1 2 3\n",
    b"no NUL at all\n",
    b"1e309\n",
    "٣".encode(),
    b"pvebench-node 4\nhas \x1b[2J\nhas pct\n",
    b"\x1b]0;title\x07 and \xe2\x80\xae backwards",
    b"ours\n" + TOLD % b"8:1",
    b"ours\n" + TOLD % b"99999999999999999999:99999999999999999999",
    b"ours\n" + TOLD % b"-1:x",
    b"ours\nmount: \npid: x\n",
    b"gone\nours",
    b"123456789 " + b"a" * 32 + b" running\n" * 1000,
)
ROW = host_row(8 * MIB, "faraway", "far")


def _poll(ssh: SshConnection) -> None:
    tools = RemoteTools(RemoteCommands(ssh), "/tmp/pvebench-test-x", NullJournal())
    tools.poll(tools.start(["fio"]))


def _machine(ssh: SshConnection) -> RemoteMachine:
    paths = {"far": "/srv/bench"}
    return RemoteMachine(RemoteCommands(ssh), owner="me", journal=NullJournal(), paths=paths)


def _create(ssh: SshConnection) -> None:
    options = storage_context(name="far", kind="dir", owner="me", path="/far")
    storage = RemoteDirectory(options, NullJournal(), RemoteCommands(ssh))
    storage.drop_caches(storage.create(ROW))


def _container(ssh: SshConnection) -> BenchContainer:
    return BenchContainer(NodeSsh(ssh), 9500, "a" * 32)


def _look_at(container: BenchContainer) -> None:
    told = container.tell()
    check_limits(told, ROW.machine)
    mount_of(told)
    devices_of(told, "x:y")


def _undo(ssh: SshConnection) -> None:
    journal = NullJournal()
    details = {"node": "n", "vmid": "9500", "mark": "a" * 32}
    journal.pending = lambda *_: [(1, KIND, details)]  # type: ignore[method-assign] # one is left
    for line in undo_containers(NodeSsh(ssh), "n", journal):
        assert_shown(line)


def _check(ssh: SshConnection) -> None:
    for _, _, text in check_node(NodeSsh(ssh)):
        assert_shown(text)


def assert_shown(text: str) -> None:
    """Nothing in it is obeyed by a terminal (ECMA-48: what is no graphic character)."""
    assert text.replace("\n", "").isprintable(), text


QUESTIONS: tuple[Callable[[SshConnection], Any], ...] = (
    _poll,
    _create,
    lambda ssh: _machine(ssh).counters("/dev/sdz"),
    lambda ssh: _machine(ssh).snapshot("/dev/sdz"),
    lambda ssh: _machine(ssh).facts(),
    lambda ssh: assert_shown(str(wear_at(RemoteCommands(ssh), "/far"))),
    _check,
    _undo,
    lambda ssh: NodeSsh(ssh).devices("x:y"),
    lambda ssh: NodeSsh(ssh).drop("x:y"),
    lambda ssh: NodeSsh(ssh).counters(os.makedev(8, 1)),
    lambda ssh: NodeSsh(ssh).snapshot(9500, (os.makedev(8, 1), os.makedev(8, 2)), 9501),
    lambda ssh: why_no_containers(NodeSsh(ssh)),
    lambda ssh: _look_at(_container(ssh)),
    lambda ssh: _container(ssh).run(["true"]),
    lambda ssh: [
        assert_shown(stray.text) for stray in find_containers(NodeSsh(ssh), "n", NullJournal())
    ],
)


@pytest.mark.parametrize("code", [0, 1, 96, 97, 127])
@pytest.mark.parametrize("said", HOSTILE)
def test_any_answer_is_understood_or_refused_by_one_error(said: bytes, code: int) -> None:
    for question in QUESTIONS:
        try:
            question(Saying(said, code))
        except PvebenchError as error:  # anything else is a fault
            assert_shown(str(error))


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ("rw,nobarrier,data=ordered", "ignored by mount option nobarrier of /srv"),
        ("rw,barrier=0", "ignored by mount option barrier=0 of /srv"),
        ("rw,barrier=1", None),
    ],
)
def test_mount_options_of_the_other_machine_that_ignore_flushes_are_a_fact(
    options: str, ignored: str | None
) -> None:
    lines = ("1 0 8:1 / / rw - ext4 /dev/a rw,nobarrier", f"2 1 8:2 / /srv rw - ext4 /b {options}")
    fetched = "".join(f"/proc/self/mountinfo\0{line}\n" for line in lines)
    facts = flushes_ignored(RemoteCommands(Saying(fetched.encode())), {"far": "/srv/bench"})
    assert facts.get("storage far flushes") == ignored


@pytest.mark.parametrize("members", ["8:1", "8:1,259:1048575", "4095:0", ""])
def test_devices_of_one_file_system_are_read_as_they_are_reported(members: str) -> None:
    """Numbers as wide as Linux' `MINORBITS` (include/linux/kdev_t.h) lets them be."""
    _, found = parse_device(f"regular file|0|0|41|5|{members}".encode(), "x:y")
    assert found == (parse_devices(members) or (41,))
    assert show_devices(found) == (members or "0:41")


IMPOSSIBLE = ["8:1,8:1", "4096:1", "8:1048576", "0:45", "8:1,", ",8:1", "8", "8:1:2", "8:-1"]


@pytest.mark.parametrize(
    "members", [*IMPOSSIBLE, ",".join(f"8:{number}" for number in range(MAX_DEVICES + 1))]
)
def test_devices_that_cannot_be_are_refused(members: str) -> None:
    with pytest.raises(OutputUnreadable):
        parse_device(f"regular file|0|0|41|5|{members}".encode(), "x:y")


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_files_are_read_from_any_bytes(said: bytes) -> None:
    found = Fetched.read(said)
    assert sum(map(len, found.files.values())) <= len(said) + len(found.files)


def test_files_are_reported_as_grep_reports_them() -> None:
    """The form is that of `grep -aHZ ''` (GNU grep's manual, --null): a NUL ends the name."""
    said = b"/proc/stat\0cpu  10 0 20 70 0 0 0 0 0 0\n/proc/stat\0cpu0 1\n/proc/stat\0ctxt 7\n"
    found = Fetched.read(said)
    assert (found / "proc/stat").read_text("ascii").startswith("cpu  10 0 20 70")
    assert [entry.name for entry in (found / "proc").iterdir()] == ["stat"]
    shot = read_snapshot(found, pid=None, devices=(), at=1.0)
    assert (shot.cpu_seconds["total"], shot.cpus, shot.context_switches) == (0.3, 1, 7)
    with pytest.raises(FileNotFoundError):
        (found / "proc/other").read_bytes()


FAULTS = {
    "a user in the host": ({"host": "root@pve1"}, "invalid host"),
    "a port in the host": ({"host": "pve1:22"}, "invalid host"),
    "an option as host": ({"host": "-oProxyCommand=x"}, "invalid host"),
    "an odd user": ({"user": "a b"}, "invalid user name"),
    "a fingerprint of another kind": ({"fingerprint": "MD5:aa"}, "ssh-keygen -lf"),
    "two ways to know it": (
        {"fingerprint": f"SHA256:{'A' * 43}", "known_hosts": "known_hosts"},
        "either known_hosts or fingerprint",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_meant_is_refused(fault: str) -> None:
    changes, said = FAULTS[fault]
    with pytest.raises(ValidationError, match=said):
        SshSettings.model_validate({"host": "pve1", "key_file": "key", **changes})


OF_ANOTHER = {
    "no name of it": ({"node": None}, "set `node` too"),
    "nothing to measure": ({"storages": {}}, "set `storages` too"),
    "a kind that needs this machine": (
        {"storages": {"x": {"kind": "loop", "path": "/x"}}},
        "kind loop is not supported by ssh",
    ),
    "a fault, which is made here": (
        {"storages": {"x": {"path": "/x", "faults": {"outage": ["/bin/true"]}}}},
        "faults are not supported by ssh",
    ),
    "a path from here": ({"storages": {"x": {"path": "x"}}}, "must begin with /"),
    "a name that ends fio's line": ({"storages": {"x": {"path": "/a;b"}}}, "fio allows no path"),
}


@pytest.mark.parametrize("fault", OF_ANOTHER)
def test_settings_of_another_machine_are_whole(fault: str) -> None:
    changes, said = OF_ANOTHER[fault]
    whole = {"node": "far", "ssh": SSH.model_dump(exclude_unset=True), "storages": {}, **changes}
    with pytest.raises(ValidationError, match=said):
        Settings.model_validate({key: value for key, value in whole.items() if value is not None})


def test_the_node_stands_for_its_name() -> None:
    assert (
        SSH.model_copy(update={"host": "{node}.lan"}).of_node("pve2").where == "pvebench@pve2.lan"
    )
