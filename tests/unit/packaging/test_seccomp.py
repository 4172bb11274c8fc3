"""The exporter's seccomp profile, under the real kernel: what it refuses, what goes on."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from testing.packs import ROOT, write_pack
from testing.seccomp import confine, number_of

PROFILE = ROOT / "seccomp.json"
FLAGS = {
    "CLONE_NEWNS": 0x00020000,
    "CLONE_NEWCGROUP": 0x02000000,
    "CLONE_NEWUTS": 0x04000000,
    "CLONE_NEWIPC": 0x08000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
"""Of linux/sched.h."""


def names() -> list[str]:
    entries = json.loads(PROFILE.read_text("utf-8"))["syscalls"]
    return [name for entry in entries if "args" not in entry for name in entry["names"]]


def in_child(ask: Callable[[], dict[str, int]], *, confined: bool) -> dict[str, int]:
    """Return what `ask` returns in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if confined:
                confine(json.loads(PROFILE.read_text("utf-8")))
            os.write(writing, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        found: dict[str, int] = json.load(file)
    return found


def call(name: str, *given: int) -> int:
    """Make a system call; return its errno, 0 if it did what it was asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()
    result = libc.syscall(ctypes.c_long(number_of(name)), *map(ctypes.c_long, given))
    if os.getpid() != parent or (name == "clone" and result == 0):
        os._exit(0)  # the child of a clone
    return ctypes.get_errno() if result == -1 else 0


def test_every_name_is_a_system_call() -> None:
    assert [name for name in names() if number_of(name) == -1] == []
    assert len(set(names())) == len(names()) > 50


def test_what_it_names_is_refused_by_the_kernel() -> None:
    # With arguments that mean nothing, so that it could not happen without the profile either.
    # Numbers below 0 stand for calls that other architectures have; vhangup takes no argument.
    asked = [name for name in names() if number_of(name) >= 0 and name != "vhangup"]
    found = in_child(lambda: {name: call(name, *[-1] * 6) for name in asked}, confined=True)
    assert found == dict.fromkeys(asked, errno.EPERM) | {"clone3": errno.ENOSYS}
    assert len(found) > 50


def test_a_namespace_of_its_own_is_refused_and_a_process_is_not() -> None:
    def ask() -> dict[str, int]:
        plain = {"none": call("clone", signal.SIGCHLD, 0, 0, 0, 0)}
        return plain | {
            name: call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0) for name, flag in FLAGS.items()
        }

    found = in_child(ask, confined=True)
    assert found == {"none": 0} | dict.fromkeys(FLAGS, errno.EPERM)


def test_sockets_to_the_hypervisor_and_to_the_kernels_ciphers_are_refused() -> None:
    def ask() -> dict[str, int]:
        kinds = socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_ALG, socket.AF_VSOCK
        return {one.name: call("socket", one, socket.SOCK_STREAM, 0) for one in kinds}

    found = in_child(ask, confined=True)
    assert {found.pop("AF_ALG"), found.pop("AF_VSOCK")} == {errno.EPERM}
    assert errno.EPERM not in found.values()


def under_it(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, str(ROOT / "tests" / "testing" / "seccomp.py"), str(PROFILE)]
    return subprocess.run(
        [*whole, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | env,
    )


def test_qemu_does_its_io_by_io_uring_under_it(tmp_path: Path) -> None:
    image = tmp_path / "disk.raw"
    subprocess.run(["qemu-img", "create", "-q", "-f", "raw", str(image), "16M"], check=True)
    for way in ("io_uring", "threads", "native"):
        bench = ["qemu-img", "bench", "-f", "raw", "-c", "200", "-t", "none", "-i", way, str(image)]
        done = under_it(*bench)
        assert (done.returncode, done.stderr) == (0, ""), way
    refused = json.loads(PROFILE.read_text("utf-8"))
    refused["syscalls"].append({"names": ["io_uring_setup"], "action": "SCMP_ACT_ERRNO"})
    (tmp_path / "docker.json").write_text(json.dumps(refused), "utf-8")
    helper = [sys.executable, str(ROOT / "tests" / "testing" / "seccomp.py")]
    bench = ["qemu-img", "bench", "-f", "raw", "-c", "9", "-t", "none", "-i", "io_uring"]
    done = subprocess.run(
        [*helper, str(tmp_path / "docker.json"), *bench, str(image)],
        capture_output=True,
        text=True,
        check=False,
    )
    # As under Docker's default profile, so the question is one. QEMU 10 only prints it.
    assert done.returncode != 0 or "falling back to thread pool" in done.stderr


def test_pvebench_measures_under_it(tmp_path: Path) -> None:
    pack = write_pack(tmp_path)
    command = ["run", "--driver", "simulated", "--cycles", "1", "--pack", str(pack)]
    done = under_it(
        *(sys.executable, "-m", "pvebench", *command, "--state", str(tmp_path / "state")),
        PYTHONPATH=str(ROOT / "exporter"),
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 cases ok" in done.stdout


def test_the_exporter_has_it_and_nothing_is_unconfined() -> None:
    texts = [path.read_text("utf-8") for path in ROOT.glob("compose*.yaml")]
    assert sum(text.count('"seccomp:seccomp.json"') for text in texts) == 1
    assert not any("unconfined" in text for text in texts)
