"""Targets that are shell: what a container prints to the node's script, and requests to `node.sh`.

A shell of its own reads each input, with the real functions and stand-ins of the programs around
them; so an input takes some 20 ms, and coverage does not guide them.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pvebench.drivers.proxmox.node.node_ssh import NodeSsh, script_of_node
from pvebench.errors import ToolFailed
from pvebench.model.guest import Completed
from pvebench.model.units import MIB
from testing.fixed_ssh_answers import Saying

_LXC: Final = Path(__file__).resolve().parents[2] / "packaging/proxmox/proxmox-lxc.sh"
_MARK: Final = "0123456789abcdef" * 2
_VOLUME: Final = "vm-9500-pvebench-0123456789ab-raw-0.raw"
_MOST_SHOWN: Final = 65536 * len("container: \n")
"""Bytes: 64 KiB of empty lines, each with its prefix."""


@functools.cache
def _directory(name: str) -> Path:
    kept = tempfile.TemporaryDirectory(prefix=f"pvebench-fuzz-{name}-")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []

# --- what a container prints to proxmox-lxc.sh

_ASK: Final = """
ctid=100 hostname=pvebench work=$PWD
attach() {
    case $2 in hostname) cat said-0 ;; id) cat said-1 ;; getent) cat said-2 ;; *) cat said-3 ;; esac
}
[ ! -s said-3 ] || in_container 5 show 2>shown || exit 9
find_address
find_owner
printf '%s\\n' "$reached" "$owner" "$group"
"""
"""All that the script keeps of a container's output."""
_KEPT_FORM: Final = re.compile(r"([0-9a-f.:]+|pvebench)\n[1-9][0-9]{0,4}\n[1-9][0-9]{0,4}\n")


@functools.cache
def _lxc_functions() -> str:
    functions, end, _ = _LXC.read_text("utf-8").partition("\nyes='' remove='' ")
    assert end, "the commands at the end of the script begin otherwise"
    return f"{functions}\nlongest=5\n{_ASK}"


def container(content: bytes) -> None:
    """Read a container's answers: its addresses, user, group and what it shows, by empty lines."""
    here = _directory("container")
    (here / "shown").write_bytes(b"")
    for number, said in enumerate((*content.split(b"\n\n", 3), b"", b"", b"")[:4]):
        (here / f"said-{number}").write_bytes(said)
    done = subprocess.run(
        ["bash", "-c", _lxc_functions()], cwd=here, capture_output=True, check=False, timeout=60
    )
    known = {"answer", "shown", *(f"said-{number}" for number in range(4))}
    assert {path.name for path in here.iterdir()} <= known, "a command ran"
    shown = (here / "shown").read_bytes()
    assert len(shown) <= _MOST_SHOWN
    assert all(line.startswith(b"container: ") for line in shown.splitlines())
    printed = shown + done.stderr
    assert printed.isascii(), "a terminal obeys it"
    assert printed.decode().replace("\n", "").isprintable(), "a terminal obeys it"
    if done.returncode:
        assert done.returncode == 1
        raise ToolFailed(done.stderr.decode())
    assert _KEPT_FORM.fullmatch(done.stdout.decode()), "an answer of another form is used"
    assert all(word in content or word == b"pvebench" for word in done.stdout.split())


def container_seeds() -> list[bytes]:
    """Return what Debian's `hostname`, `id` and `getent` print, and what an attacker would."""
    good = b"192.0.2.7 2001:db8::7 \n\n999\n\npvebench:x:998:\n\nreading lists\ndone\n"
    added = (b"$(touch owned)", b"`touch owned`", b";touch owned", b" -perms=0777", b"\x1b]0;x\x07")
    return [good, *(good.replace(b"99", b"99" + one) for one in added), b"\n" * 70_000]


# --- requests to the node's program, whose sender may be an attacker in pvebench's container

_PLACES: Final = {
    "PIDS=/run/qemu-server": "PIDS=$PWD/pids",
    "MACHINES=/etc/pve/qemu-server": "MACHINES=$PWD/vms",
    "CONFIGURATIONS=/etc/pve/lxc": "CONFIGURATIONS=$PWD/conf",
    "NODES=/etc/pve/nodes": "NODES=$PWD/nodes",
    "ARCHIVES=/var/cache/pvebench-node": "ARCHIVES=$PWD/archives",
    "TURNS=/run/pvebench-node": "TURNS=$PWD/turns",
    "PATH=/usr/sbin": "PATH=$PWD/bin:/usr/sbin",
}
_STANDINS: Final = {
    "pct": 'echo "$*" >>"$CALLS"',
    "pvesm": 'case $2 in local:*) echo "${CALLS%/*}/volumes/${2##*/}" ;; *) exit 1 ;; esac',
    "lxc-info": "exit 1",
    "lxc-attach": 'echo "attach $*" >>"$CALLS"',
}
_OURS: Final = f"#pvebench-mark%3A {_MARK}\ntags: pvebench\nunprivileged: 1\n"


@functools.cache
def _node_script() -> str:
    script = script_of_node()
    for here, there in _PLACES.items():
        assert here in script
        script = script.replace(here, there)
    here = _directory("node")
    for name in ("bin", "conf", "volumes", "turns", "pids", "vms"):
        (here / name).mkdir()
    for name, text in _STANDINS.items():
        (here / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (here / "bin" / name).chmod(0o755)
    (here / "conf/9500.conf").write_text(_OURS)
    (here / "conf/9501.conf").write_text("tags: web\nunprivileged: 1\n")
    (here / "vms/9500.conf").write_text(_OURS)  # its process is not of VM 9500
    (here / "vms/9501.conf").write_text("tags: web\n")
    for vmid in (9500, 9501):
        (here / f"pids/{vmid}.pid").write_text(f"{_foreign().pid}\n")
    (here / "volumes" / _VOLUME).write_bytes(b"x" * 4096)
    (here / "volumes" / "vm-9501-disk-0.raw").write_bytes(b"x" * 4096)
    return script


@functools.cache
def _foreign() -> subprocess.Popen[bytes]:
    """Return a process that looks like QEMU of VM 9501, which is not pvebench's."""
    process = subprocess.Popen(["sh", "-c", "read -r _", "sh", "-id", "9501"], stdin=-1)
    atexit.register(process.kill)
    return process


def _kills() -> list[tuple[str, str]]:
    """Return VM and start time of requests that only the missing proof of ownership stops."""
    stat = Path(f"/proc/{_foreign().pid}/stat").read_text("ascii")
    return [(vmid, stat.rpartition(")")[2].split()[19]) for vmid in ("9500", "9501")]


class _Here(Saying):
    """Runs the program on this machine with given bytes on stdin."""

    def run(self, argv: object, *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        here = _directory("node")
        (here / "calls").write_text("")
        script, given = _node_script(), self._done.stdout
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=here,
            input=given,
            capture_output=True,
            check=False,
            timeout=60,
            env={"CALLS": str(here / "calls")},
        )
        return Completed(done.returncode, done.stdout, done.stderr)


def node_request(content: bytes) -> None:
    """Send a request; nothing but what is pvebench's may change."""
    _node_script()
    here = _directory("node")
    before = _state(here)
    said = NodeSsh(_Here(content)).do("x")
    assert len(said) < MIB
    assert _state(here) == before, "something of others changed"
    assert _foreign().poll() is None, "a process of others was killed"
    for call in (here / "calls").read_text("utf-8", "replace").splitlines():
        words = call.split()
        assert "9501" not in words[:3], f"a container of others: {call[:200]}"


def _state(here: Path) -> dict[str, bytes]:
    """Return all files but those of archives, turns and calls."""
    own = {"archives", "turns", "calls"}
    paths = {str(path.relative_to(here)): path for path in sorted(here.rglob("*"))}
    return {
        name: path.read_bytes()
        for name, path in paths.items()
        if path.is_file() and name.partition("/")[0] not in own
    }


def node_request_seeds() -> list[bytes]:
    """Return a request of each kind, in the form that `NodeSsh` sends."""
    digest = hashlib.sha256(b"hello").hexdigest()
    requests = (
        ("hello",),
        ("look", "9500", "7:0,8:0", "9500"),
        ("find", f"local:9500/{_VOLUME}"),
        ("drop", f"local:9500/{_VOLUME}"),
        ("check", f"local:9500/{_VOLUME}"),
        *(("kill", vmid, _MARK, started) for vmid, started in _kills()),
        ("archive", digest),
        ("send", digest, "5\nhello"),
        ("make", "9502", _MARK, digest, "512", "1", "local", "1", "local", "bench"),
        *((verb, "9500", _MARK) for verb in ("start", "stop", "container", "forget")),
        ("run", "9500", _MARK, "10", "8\necho 250"),
        ("remove", "9500", _MARK),
        ("remove", "9501", _MARK),
        ("containers",),
    )
    return [("\n".join(words) + "\n").encode() for words in requests]
