"""`pct`, `pveam`, `pvesm`, `hostname` and `ip` of a node, as far as proxmox-lxc.sh calls them.

Nothing of them was recorded. Which options `pct create` takes, and of which form, is the recorded
schema of `POST /nodes/{node}/lxc`; what else is refused, and how it is said, is read in
pve-container (PVE/CLI/pct.pm, PVE/LXC.pm, PVE/API2/LXC.pm) and pve-manager (PVE/CLI/pveam.pm). A
container is a directory; `exec` runs what the script runs in it, pvebench itself for real.

Run by its path: `node_programs.py PROGRAM WORDS…`. $NODE_STATE is a directory: `node.json` has
storages and containers, `calls` each call; a call that begins as `break` says fails, before or
after it was done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from pve.pveum import main as pveum  # noqa: E402 # its place is known only now

AVAILABLE = "debian-13-standard_13.1-2_amd64.tar.zst"


class Refusal(Exception):
    """What a program says on stderr, with exit code 255 as Proxmox's have."""


class Node:
    """The node's state, kept between two calls."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state: dict[str, Any] = json.loads((place / "node.json").read_text("utf-8"))

    def keep(self) -> None:
        (self.place / "node.json").write_text(json.dumps(self.state), "utf-8")

    def container(self, vmid: str) -> dict[str, Any]:
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

    def storage(self, name: str, content: str) -> dict[str, Any]:
        found: dict[str, Any] = self.state["storages"].get(name)
        if found is None:
            raise Refusal(f"storage '{name}' does not exist")
        if content not in found["content"]:
            raise Refusal(f"storage '{name}' does not support content-type '{content}'")
        return found


def options(words: list[str]) -> dict[str, str]:
    return dict(zip((word.lstrip("-") for word in words[::2]), words[1::2], strict=True))


def pct(node: Node, command: str, vmid: str, words: list[str]) -> None:  # noqa: C901, PLR0912 # a case a command
    match command:
        case "create":
            create(node, vmid, words[0], options(words[1:]))
        case "config":
            for key, value in node.container(vmid)["config"].items():
                print(f"{key}: {value}")
        case "status":
            print(f"status: {'running' if node.container(vmid)['running'] else 'stopped'}")
        case "start":
            if node.container(vmid)["running"]:
                raise Refusal(f"CT {vmid} already running")
            node.container(vmid)["running"] = True
        case "stop":
            node.running(vmid)
            node.container(vmid)["running"] = False
        case "destroy":
            if node.container(vmid)["running"]:
                raise Refusal(f"unable to destroy CT {vmid} - container is running")
            del node.state["containers"][vmid]
            shutil.rmtree(node.root(vmid))
        case "push":
            target = node.running(vmid) / words[1].lstrip("/")
            if not target.parent.is_dir():
                raise Refusal(f"failed to create file: {words[1]}: No such file or directory")
            shutil.copyfile(words[0], target)
            given = options(words[2:])
            target.chmod(int(given.get("perms", "0644"), 8))
        case "exec":
            run(node, vmid, words[words.index("--") + 1 :])
        case _:
            raise Refusal(f"ERROR: unknown command 'pct {command}'")


def create(node: Node, vmid: str, template: str, given: dict[str, str]) -> None:
    from pve.refusals import Refused
    from pve.schema import Schema

    asked = {**given, "vmid": vmid, "ostemplate": template, "node": "pve1"}
    try:
        Schema(node.state["major"]).check("POST /nodes/{node}/lxc", asked)
    except Refused as refused:
        raise Refusal(f"400 Parameter verification failed.\n{refused.errors}") from refused
    if vmid in node.state["containers"]:
        raise Refusal(f"CT {vmid} already exists on node 'pve1'")
    if template not in node.state["templates"]:
        raise Refusal(f"volume '{template}' does not exist")
    node.storage(given["rootfs"].partition(":")[0], "rootdir")
    node.state["containers"][vmid] = {"running": False, "config": given}
    (node.root(vmid) / "etc").mkdir(parents=True)
    (node.root(vmid) / "root").mkdir()


def run(node: Node, vmid: str, words: list[str]) -> None:  # noqa: C901 # a case a command
    """What the script runs inside; the settings of the container lie below its directory."""
    root = node.running(vmid)
    settings = root / "etc/pvebench"
    match words:
        case ["sh", "-c", script] if "hostname -I" in script:
            pass
        case ["apt-get", "-qq", "update"]:
            pass
        case ["env", *_, package] if package.endswith(".deb"):
            if not (root / package.lstrip("/")).exists():
                raise Refusal(f"E: Unsupported file {package} given on commandline")
            settings.mkdir(exist_ok=True)
        case ["rm", path]:
            (root / path.lstrip("/")).unlink()
        case ["getent", "group", "pvebench"]:
            print("pvebench:x:998:")
        case ["id", "-u", "pvebench"]:
            print("999")
        case ["test", "-s", path]:
            file = root / path.lstrip("/")
            raise SystemExit(0 if file.exists() and file.stat().st_size else 1)
        case ["pvebench", *arguments]:
            inside = [word.replace("/etc/pvebench", str(settings)) for word in arguments]
            done = subprocess.run([sys.executable, "-m", "pvebench", *inside], check=False)
            raise SystemExit(done.returncode)
        case ["systemctl", *rest]:
            node.container(vmid)["systemctl"] = rest
        case ["hostname", "-I"]:
            print("192.0.2.77 2001:db8::77 ")
        case _:
            raise Refusal(f"nobody said what {words} does")


def pveam(node: Node, command: str, words: list[str]) -> None:
    templates: list[str] = node.state["templates"]
    match command, words:
        case "update", []:
            print("update successful")
        case "available", ["--section", "system"]:
            print(f"system          {AVAILABLE}")
        case "list", [storage]:
            node.storage(storage, "vztmpl")
            print("NAME                                                         SIZE  ")
            table(f"{one}  120.29MB" for one in templates if one.startswith(f"{storage}:"))
        case "download", [storage, name] if name == AVAILABLE:
            node.storage(storage, "vztmpl")
            templates.append(f"{storage}:vztmpl/{name}")
        case "remove", [template]:
            if template not in templates:
                raise Refusal(f"volume '{template}' does not exist")
            templates.remove(template)
        case _:
            raise Refusal(f"ERROR: unknown command 'pveam {command}'")


def pvesm(node: Node, words: list[str]) -> None:
    given = options(words)
    print(
        "Name             Type     Status           Total            Used       Available        %"
    )
    table(
        f"{name:16} {one['type']:8} {one.get('status', 'active'):8} 98497780 1024 98496756 0.00%"
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


def main(program: str, words: list[str]) -> int:
    place = Path(os.environ["NODE_STATE"])
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
                pct(node, words[0], words[1], words[2:])
            case "pveam":
                pveam(node, words[0], words[1:])
            case "pvesm":
                pvesm(node, words[1:])
            case "hostname":
                print("pve1")
            case "ip":
                print('[{"ifname":"vmbr0","addr_info":[{"family":"inet","local": "127.0.0.1"}]}]')
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 255
    finally:
        node.keep()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
