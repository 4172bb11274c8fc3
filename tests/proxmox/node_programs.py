"""The programs of a node, as far as proxmox-lxc.sh calls them.

`pveum`, `pvesh` and `pveversion` are those of `pve.pveum`. Of the others nothing was recorded.
Which options `pct create` takes, and of which form, is the recorded schema of
`POST /nodes/{node}/lxc`. The rest was read in the public sources of 2026 (Proxmox VE 9), each
function says where; those of Proxmox VE 8 were not looked at. A container is a directory; `exec`
does what the script runs in it. "hostile" in the node's state has what an attacker in the container
answers instead: words that a command begins with -> output, or FLOOD, ENDLESS or HOLDING (silent,
with a program that outlives `pct` and holds its output). `terminal` is made where a program in the
container gets the administrator's terminal.

Read in pve-common (RESTEnvironment.pm, CLIHandler.pm): a task's error goes to stderr, and the
program ends with 0 all the same, unless the command's table asks for the task's end. pct's does for
create, start, stop and destroy, not for push; pveam's does not for download. "lost tasks" in the
node's state names those that end so.

Assumed, and checked by nobody: that a refusal's exit code is 255 (it is some other than 0); that
`pct exec` ends as its command did, which is lxc-attach's doing, and may take what stands on stdin;
that templates for other processors are named as here; what `ip` and a container's programs print.

They answer in the test's own process: what the script finds in its PATH hands the call on, since a
Python a call, a hundred a test, took most of the time. A directory holds the node's state:
`node.json` has storages and containers, `calls` each call; a call that begins as `break` says
fails, before or after it was done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socketserver
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pve.pveum import main as pveum
from pve.refusals import Refused
from pve.schema import Schema

PROGRAMS = ("pct", "pveam", "pvesm", "pveum", "pvesh", "pveversion", "hostname", "ip")
HANDING_ON = """\
#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/PORT
printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@" >&3
# It may take what stands on stdin.
[[ "${0##*/} $1" != "pct exec" ]] || while read -r; do :; done
for name in code out err; do IFS= read -r -d '' -u 3 "$name"; done
if [[ "${0##*/} $1" == "pct exec" ]]; then
    if { : >/dev/tty; } 2>/dev/null; then : >"${0%/*}/../terminal"; fi
    case "$out" in
        FLOOD) exec head -c 10000000 /dev/zero ;;
        ENDLESS) exec yes ;;
        HOLDING) setsid sleep 25 & exec sleep 25 ;;
    esac
fi
printf %s "$out"
printf %s "$err" >&2
exit "$code"
"""
AVAILABLE = "debian-13-standard_13.1-2_amd64.tar.zst"
FOREIGN = "debian-13-standard_13.1-2_arm64.tar.zst"


class Refusal(Exception):
    """What a program says on stderr, with exit code 255."""


@contextmanager
def programs(place: Path, *, of: Path) -> Iterator[None]:
    """Put the programs into a directory; while inside they answer for the node with state `of`."""

    class Call(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            words = [self._word() for _ in range(int(self._word()))]
            out, err = StringIO(), StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    code = main(of, words[0], words[1:])
                except Exception:  # noqa: BLE001 # a program that breaks says so and fails
                    traceback.print_exc()
                    code = 1
            answer = (str(code), out.getvalue(), err.getvalue(), "")
            self.wfile.write("\0".join(answer).encode())

        def _word(self) -> str:
            return b"".join(iter(lambda: self.rfile.read(1), b"\0")).decode()

    with socketserver.TCPServer(("127.0.0.1", 0), Call) as server:
        place.mkdir()
        for name in PROGRAMS:
            text = HANDING_ON.replace("PORT", str(server.server_address[1]))
            (place / name).write_text(text, "utf-8")
            (place / name).chmod(0o755)
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield
        finally:
            server.shutdown()


class Node:
    """The node's state, kept between two calls."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state: dict[str, Any] = json.loads((place / "node.json").read_text("utf-8"))

    def keep(self) -> None:
        (self.place / "node.json").write_text(json.dumps(self.state), "utf-8")

    def loses(self, task: str) -> bool:
        """Return whether this task is to fail in the way that the program's end does not tell."""
        if task not in self.state.get("lost tasks", ()):
            return False
        print("No space left on device", file=sys.stderr)
        return True

    def container(self, vmid: str) -> dict[str, Any]:
        """Raise as load_config of PVE/AbstractConfig.pm (pve-guest-common) does."""
        if vmid not in self.state["containers"]:
            raise Refusal(f"Configuration file 'nodes/pve1/lxc/{vmid}.conf' does not exist")
        found: dict[str, Any] = self.state["containers"][vmid]
        return found

    def running(self, vmid: str) -> Path:
        if not self.container(vmid)["running"]:
            raise Refusal(f"container '{vmid}' not running!")
        return self.root(vmid)

    def root(self, vmid: str) -> Path:
        return self.place / "ct" / vmid

    def need_storage(self, name: str, content: str, complaint: str) -> None:
        """Raise as PVE/Storage.pm (pve-storage) does; `complaint` is the caller's own."""
        found = self.state["storages"].get(name)
        if found is None:
            raise Refusal(f"storage '{name}' does not exist")
        if content not in found["content"]:
            raise Refusal(complaint)


def options(words: list[str]) -> dict[str, str]:
    return dict(zip((word.lstrip("-") for word in words[::2]), words[1::2], strict=True))


def pct(node: Node, command: str, vmid: str, words: list[str]) -> int:  # noqa: C901, PLR0912 # a case a command
    """PVE/CLI/pct.pm, PVE/API2/LXC.pm and PVE/API2/LXC/Status.pm of pve-container; an exit code."""
    match command:
        case "create":
            create(node, vmid, words[0], options(words[1:]))
        case "config":
            for key, value in sorted(node.container(vmid)["config"].items()):
                shown = urllib.parse.quote(value) if key == "description" else value
                print(f"{key}: {shown}")
        case "status":
            print(f"status: {'running' if node.container(vmid)['running'] else 'stopped'}")
        case "start":
            if node.container(vmid)["running"]:
                raise Refusal(f"CT {vmid} already running")
            node.container(vmid)["running"] = True
        case "stop":
            if not node.container(vmid)["running"]:
                raise Refusal(f"CT {vmid} not running")
            node.container(vmid)["running"] = False
        case "destroy":
            if node.container(vmid)["running"]:
                raise Refusal(f"unable to destroy CT {vmid} - container is running")
            del node.state["containers"][vmid]
            shutil.rmtree(node.root(vmid))
        case "push":
            push(node, vmid, *words[:2], options(words[2:]))
        case "exec":
            return run(node, vmid, words[words.index("--") + 1 :])
        case _:
            raise Refusal(f"nobody read what 'pct {command}' does")
    return 0


def push(node: Node, vmid: str, source: str, inside: str, given: dict[str, str]) -> None:
    """PVE/CLI/pct.pm: the file is made, then gets rights and owner, then what stands in it."""
    if not node.container(vmid)["running"]:
        raise Refusal("can only push files to a running CT")
    target = node.root(vmid) / inside.lstrip("/")
    if not target.parent.is_dir():
        print(f"failed to create file: {inside}: No such file or directory", file=sys.stderr)
        return
    target.write_bytes(b"")
    target.chmod(int(given.get("perms", "0644"), 8))
    if not node.loses("pct push"):
        shutil.copyfile(source, target)


def create(node: Node, vmid: str, template: str, given: dict[str, str]) -> None:
    """PVE/API2/LXC.pm; whether the number is free is asked in PVE/Cluster.pm of pve-cluster."""
    asked = {**given, "vmid": vmid, "ostemplate": template, "node": "pve1"}
    try:
        Schema(node.state["major"]).check("POST /nodes/{node}/lxc", asked)
    except Refused as refused:
        raise Refusal(f"400 Parameter verification failed.\n{refused.errors}") from refused
    if vmid in node.state["containers"]:
        raise Refusal(f"CT {vmid} already exists on node 'pve1'")
    name = given["rootfs"].partition(":")[0]
    complaint = f"storage: storage '{name}' does not support container directories"
    node.need_storage(name, "rootdir", f"400 Parameter verification failed.\n{complaint}")
    if template not in node.state["templates"]:
        raise Refusal(f"unable to create CT {vmid} - failed to open '{template}'")
    node.state["containers"][vmid] = {"running": False, "config": given}
    (node.root(vmid) / "etc").mkdir(parents=True)
    (node.root(vmid) / "root").mkdir()


def run(node: Node, vmid: str, words: list[str]) -> int:  # noqa: C901, PLR0912 # a case a command
    """What the script runs inside; settings lie below the container's directory."""
    root = node.running(vmid)
    settings = root / "etc/pvebench"
    for question, said in node.state.get("hostile", {}).items():
        if " ".join(words).startswith(question):
            print(said, end="")
            return 0
    match words:
        case ["sh", "-c", script] if "hostname -I" in script:
            pass
        case ["apt-get", "-qq", "update"]:
            pass
        case ["env", *_, package] if package.endswith(".deb"):
            if not (root / package.lstrip("/")).exists():
                raise Refusal(f"E: Unsupported file {package} given on commandline")
            settings.mkdir(exist_ok=True)
        case ["sha256sum", path]:
            file = root / path.lstrip("/")
            if not file.exists():
                raise Refusal(f"sha256sum: {path}: No such file or directory")
            print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path}")
        case ["rm", path]:
            (root / path.lstrip("/")).unlink()
        case ["getent", "group", "pvebench"]:
            print("pvebench:x:998:")
        case ["id", "-u", "pvebench"]:
            print("999")
        case ["test", "-s", path]:
            file = root / path.lstrip("/")
            return 0 if file.exists() and file.stat().st_size else 1
        case ["systemctl", *rest]:
            node.container(vmid)["systemctl"] = rest
        case ["hostname", "-I"]:
            print("192.0.2.77 2001:db8::77 ")
        case _:
            raise Refusal(f"nobody said what {words} does")
    return 0


def pveam(node: Node, command: str, words: list[str]) -> None:
    """PVE/CLI/pveam.pm of pve-manager, which names processors since 2026; PVE/API2/Nodes.pm."""
    templates: list[str] = node.state["templates"]
    match command, words:
        case "update", []:
            print("update successful")
        case "available", ["--section", "system"]:
            for name, processor in ((AVAILABLE, "amd64"), (FOREIGN, "arm64")):
                third = f" {processor}" if node.state["major"] == 9 else ""
                print(f"{'system':15} {name:60}{third}")
        case "list", [storage]:
            node.need_storage(storage, "vztmpl", "Storage does not support templates!")
            print(f"{'NAME':60} {'SIZE':6}")
            table(f"{one:60} 120.29MB" for one in templates if one.startswith(f"{storage}:"))
        case "download", [storage, name]:
            if name not in (AVAILABLE, FOREIGN):
                raise Refusal("400 Parameter verification failed.\ntemplate: no such template")
            complaint = f"storage '{storage}' does not support templates"
            node.need_storage(storage, "vztmpl", complaint)
            if not node.loses("pveam download"):
                templates.append(f"{storage}:vztmpl/{name}")
        case "remove", [template]:
            # One that is not there is removed as well.
            templates[:] = [one for one in templates if one != template]
        case _:
            raise Refusal(f"nobody read what 'pveam {command}' does")


def pvesm(node: Node, words: list[str]) -> None:
    """The table of `status`: PVE/CLI/pvesm.pm of pve-storage, PVE/API2/Storage/Status.pm."""
    given = options(words)
    if given.get("storage", "local") not in node.state["storages"]:
        raise Refusal("400 Parameter verification failed.\nstorage: No such storage.")
    head = ("Total (KiB)", "Used (KiB)", "Available (KiB)")
    print(
        f"{'Name':9} {'Type':>10} {'Status':>10} {head[0]:>15} {head[1]:>15} {head[2]:>15} {'%':>8}"
    )
    table(
        f"{name:9} {one['type']:>10} {one.get('status', 'active'):>10}"
        f" {98497780:15} {1024:15} {98496756:15}    0.00%"
        for name, one in sorted(node.state["storages"].items())
        if given.get("content", next(iter(one["content"]))) in one["content"]
        and given.get("storage", name) == name
    )


def table(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def broken_off(place: Path, words: list[str], *, done: bool) -> bool:
    """Return whether a call is to fail at this moment."""
    if not (place / "break").exists():
        return False
    call, when = json.loads((place / "break").read_text("utf-8"))
    return when is done and " ".join(words).startswith(call)


def main(place: Path, program: str, words: list[str]) -> int:
    with (place / "calls").open("a", encoding="utf-8") as calls:
        calls.write(json.dumps([program, *words]) + "\n")
    if broken_off(place, [program, *words], done=False):
        return 255
    if program in ("pveum", "pvesh", "pveversion"):
        code = pveum(program, words)
    else:
        code = answer(Node(place), program, words)
    return 255 if broken_off(place, [program, *words], done=True) else code


def answer(node: Node, program: str, words: list[str]) -> int:
    try:
        match program:
            case "pct":
                return pct(node, words[0], words[1], words[2:])
            case "pveam":
                pveam(node, words[0], words[1:])
            case "pvesm":
                pvesm(node, words[1:])
            case "hostname":
                print("pve1.example.net")  # with its domain, as a node may have been given
            case "ip":
                print('[{"ifname":"vmbr0","addr_info":[{"family":"inet","local": "127.0.0.1"}]}]')
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 255
    finally:
        node.keep()
    return 0
