"""packaging/proxmox/proxmox-lxc.sh on a node, run for real against stand-ins of its programs.

`pveum` and `pvesh` talk to the tests' API, which refuses what the recordings refuse; from which
sources the others are made, and what of them is assumed, is said in node_programs.py. The script
was never run on a node.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxmox.node_programs import programs
from pve.access import ROOT as ADMIN
from pve.access import Token, User
from pve.cluster import Cluster
from pve.server import RunningApi, running_api
from pve.storage import Storage
from pvebench.config import load_settings
from pvebench.drivers.proxmox.api import privileges
from pvebench.drivers.proxmox.api.privileges import (
    NODE_ROLE,
    VM_ROLE,
    RequiredGrants,
    user_of,
    vm_privileges,
)
from pvebench.drivers.proxmox.proxmox_settings import section
from pvebench.drivers.proxmox.setup.permissions import grant_steps
from testing.packs import ROOT

SCRIPT = ROOT / "packaging/proxmox/proxmox-lxc.sh"
STORAGES = {
    "local": {"type": "dir", "content": ["iso", "vztmpl", "rootdir"]},
    "thin": {"type": "lvmthin", "content": ["images", "rootdir"]},
    "share": {"type": "nfs", "content": ["images"]},
    "old": {"type": "nfs", "content": ["images"], "status": "inactive"},
}


class Node:
    """A node with its programs; everything of it is in a directory."""

    def __init__(self, api: RunningApi, place: Path) -> None:
        self.api = api
        self.place = place
        self.journal = place / "made"
        self.seconds = 60
        self.mark = place / "mark"
        self.package = make_package(place)
        state = {"storages": STORAGES, "containers": {}, "templates": []}
        self.change({**state, "major": api.cluster.major})
        (place / "pve/local").mkdir(parents=True)
        (place / "pve/pve-root-ca.pem").write_text("a certificate\n", "utf-8")

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / "node.json").read_text("utf-8"))
        return found

    def change(self, state: dict[str, Any]) -> None:
        (self.place / "node.json").write_text(json.dumps(state), "utf-8")

    def calls(self, program: str) -> list[list[str]]:
        lines = (self.place / "calls").read_text("utf-8").splitlines()
        return [words[1:] for words in map(json.loads, lines) if words[0] == program]

    def command(self, *words: str) -> list[str]:
        return ["bash", str(SCRIPT), *words]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.place}/bin:{os.environ['PATH']}",
            "PVEBENCH_LXC_JOURNAL": str(self.journal),
            "PVEBENCH_LXC_PVE": str(self.place / "pve"),
            "PVEBENCH_LXC_SECONDS": str(self.seconds),
        }

    def run(self, *words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        (self.place / "calls").write_text("", "utf-8")
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            input=answer,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            check=False,
        )

    def let_it_answer(self, answers: dict[str, str]) -> None:
        """Have an attacker in the container answer; {mark} is a file that must never be there."""
        said = {asked: text.replace("{mark}", str(self.mark)) for asked, text in answers.items()}
        self.change({**self.state, "hostile": said})

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("--deb", str(self.package), "--yes", *words)

    def break_at(self, call: str, *, done: bool) -> None:
        """Have a call fail, before anything is done or when it is done and its answer is lost."""
        (self.place / "break").write_text(json.dumps([call, done]), "utf-8")

    def mend(self) -> None:
        (self.place / "break").unlink()

    def everything(self) -> object:
        """What the node and the cluster have, as far as the script could change it."""
        return self.rights(), self.state

    def rights(self) -> object:
        """What the cluster has."""
        cluster = self.api.cluster
        roles = {name: sorted(role) for name, role in cluster.access.roles.items()}
        users = {name: sorted(user.tokens) for name, user in cluster.access.users.items()}
        pools = {name: sorted(cluster.pool_storages.get(name, ())) for name in cluster.pools}
        return roles, users, pools, sorted(cluster.access.acl)


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def make_package(place: Path) -> Path:
    tree = place / "package/DEBIAN"
    tree.mkdir(parents=True)
    tree.parent.chmod(0o755)
    tree.chmod(0o755)
    fields = ("Package: pvebench", "Version: 0.1.0~deb13", "Architecture: amd64")
    fields += ("Maintainer: nobody <nobody@example.org>", "Description: nothing")
    (tree / "control").write_text("\n".join(fields) + "\n", "utf-8")
    path = place / "pvebench_0.1.0_deb13_amd64.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(tree.parent), str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def node(tmp_path: Path, major: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    cluster = Cluster(tmp_path / "cluster", major=major)
    cluster.storages["local"] = Storage("local", "dir", tmp_path / "local", content="iso,vztmpl")
    cluster.access.users[ADMIN].tokens["node"] = Token("node" * 4, privsep=False)
    place = tmp_path / "node"
    place.mkdir()
    with running_api(cluster) as api, programs(place / "bin", of=place):
        monkeypatch.setenv("PVE_API", f"https://127.0.0.1:{api.port}/api2/json")
        monkeypatch.setenv("PVE_TOKEN", f"{ADMIN}!node={'node' * 4}")
        monkeypatch.setenv("PVE_VERSION", cluster.get_version("")["version"])
        yield Node(api, place)


def test_one_command_makes_all_of_it_and_another_takes_it_away(node: Node, major: int) -> None:
    before = node.everything()
    done = node.make()
    assert_done(done)
    assert "results: http://192.0.2.77:10620/" in done.stdout
    readers = "readable by everyone who can reach the container on vmbr0, without login"
    assert done.stdout.count(readers) == 2
    ((number, container),) = node.state["containers"].items()
    assert container["running"]
    assert container["systemctl"] == ["restart", "pvebench.service"]
    config = container["config"]
    assert (config["unprivileged"], config["cores"], config["memory"]) == ("1", "2", "1024")
    assert config["rootfs"] == "local:8"  # the only one that no measured disk can lie on
    found = load_settings(node.place / "ct" / number / "etc/pvebench/pvebench.yaml")
    assert {one.id for one in section(found).storages.values()} == {"thin", "share"}
    assert (section(found).version, section(found).nodes) == (major, ("pve1",))
    (template,) = node.state["templates"]
    assert template.endswith("_amd64.tar.zst")
    token = node.place / "ct" / number / "etc/pvebench/token"
    assert token.stat().st_mode & 0o777 == 0o600
    name, secret = token.read_text("utf-8").strip().split("=")
    assert name == "pvebench@pve!bench"
    assert node.api.cluster.access.users["pvebench@pve"].tokens["bench"].secret == secret
    roles = node.api.cluster.access.roles
    assert (roles[VM_ROLE], NODE_ROLE in roles) == (vm_privileges(major), True)
    assert secret not in done.stdout
    done = node.run("--remove", "--yes")
    assert_done(done)
    assert node.everything() == before
    assert ["exec", number, "--", "systemctl", "stop", "pvebench.service"] in node.calls("pct")


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize(
    ("call", "done"), [("pct create", True), ("pct start", False), ("pveum user token add", True)]
)
def test_after_a_try_that_broke_off_the_same_command_goes_on_and_nothing_is_left(
    node: Node, call: str, done: bool
) -> None:
    before = node.everything()
    node.break_at(call, done=done)
    assert node.make().returncode != 0
    node.mend()
    assert_done(node.make())
    (number,) = node.state["containers"]
    token = (node.place / "ct" / number / "etc/pvebench/token").read_text("utf-8").strip()
    known = node.api.cluster.access.users["pvebench@pve"].tokens["bench"].secret
    assert token == f"pvebench@pve!bench={known}"
    assert_done(node.run("--remove", "--yes"))
    assert node.everything() == before


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("pct push", "copying /root/pvebench.deb to container"),
        ("pveam download", "downloading debian-13-standard_13.1-2_amd64.tar.zst failed"),
    ],
)
def test_a_task_that_failed_is_noticed_though_its_program_ended_well(
    node: Node, task: str, said: str
) -> None:
    node.change({**node.state, "lost tasks": [task]})
    done = node.make()
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize("major", [9], indirect=True)
def test_the_page_can_be_reachable_from_the_container_only(node: Node) -> None:
    done = node.make("--listen", "127.0.0.1:10620")
    assert_done(done)
    assert "results: http://127.0.0.1:10620/" in done.stdout
    assert done.stdout.count("readable by programs in the container only") == 2
    assert "192.0.2.77" not in done.stdout


@pytest.mark.parametrize("major", [9], indirect=True)
def test_who_gives_a_web_configuration_has_users_at_the_page(node: Node) -> None:
    web = node.place / "users.yml"
    web.write_text("basic_auth_users: {me: $2y$04$" + "a" * 53 + "}\n", "utf-8")
    web.chmod(0o600)
    done = node.make("--web-config", str(web))
    assert_done(done)
    assert f"readable by the users in {web}" in done.stdout
    (number,) = node.state["containers"]
    settings = node.place / "ct" / number / "etc/pvebench"
    found = load_settings(settings / "pvebench.yaml").web_config_file
    assert found == settings / "web.yml"
    assert found.read_text("utf-8") == web.read_text("utf-8")
    assert found.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("major", [9], indirect=True)
def test_a_storage_that_is_measured_never_holds_the_container(node: Node) -> None:
    before = node.everything()
    done = node.make("--root-storage", "thin", "--storage", "thin")
    assert done.returncode == 1
    assert "the container's writes would affect every result" in done.stderr
    assert node.everything() == before
    assert not node.journal.exists()


@pytest.mark.parametrize("major", [9], indirect=True)
def test_where_one_storage_has_everything_it_says_what_to_do(node: Node) -> None:
    state = node.state
    state["storages"] = {
        "local": {"type": "dir", "content": ["iso", "vztmpl"]},
        "thin": {"type": "lvmthin", "content": ["images", "rootdir"]},
    }
    node.change(state)
    done = node.make()
    assert done.returncode == 1
    assert "next step: select another storage for the container with --root-storage" in done.stderr
    assert node.make("--storage", "thin").returncode == 1
    assert node.state == state


@pytest.mark.parametrize("major", [9], indirect=True)
def test_a_token_of_another_pvebench_stays_whole(node: Node) -> None:
    users = node.api.cluster.access.users
    users["pvebench@pve"] = User(password="", tokens={"bench": Token("another's", privsep=True)})
    done = node.make()
    assert done.returncode == 1
    assert "next step: set its secret with --token-file FILE" in done.stderr
    given = node.place / "given"
    given.write_text("pvebench@pve!bench=another's\n", "utf-8")
    assert_done(node.make("--token-file", str(given)))
    assert_done(node.run("--remove", "--yes"))
    assert users["pvebench@pve"].tokens["bench"].secret == "another's"
    assert node.state["containers"] == {}


@pytest.mark.parametrize("major", [9], indirect=True)
def test_another_pool_has_its_own_user_and_removal_leaves_roles_in_use(node: Node) -> None:
    access = node.api.cluster.access
    assert_done(node.make("--pool", "other"))
    (number,) = node.state["containers"]
    token = (node.place / "ct" / number / "etc/pvebench/token").read_text("utf-8").strip()
    user = user_of("other")
    assert token == f"{user}!bench={access.users[user].tokens['bench'].secret}"
    assert user_of("pvebench") not in access.users
    entry = ("/pool/third", user_of("third"), VM_ROLE)
    access.acl.append(entry)
    done = node.run("--remove", "--yes")
    assert_done(done)
    assert f"role {VM_ROLE} stays: other ACLs use it" in done.stdout
    assert (VM_ROLE in access.roles, NODE_ROLE in access.roles) == (True, False)
    assert access.acl == [entry]
    assert user not in access.users


@pytest.mark.parametrize("major", [9], indirect=True)
def test_a_container_that_lost_its_mark_is_not_destroyed(node: Node) -> None:
    node.change({**node.state, "containers": {"100": {"running": True, "config": {"tags": "web"}}}})
    node.journal.write_text("container 100\n", "utf-8")
    before = node.everything()
    done = node.run("--remove", "--yes")
    assert done.returncode == 1
    assert "no longer has the tag" in done.stderr
    assert node.everything() == before


@pytest.mark.parametrize("major", [9], indirect=True)
def test_nothing_is_made_that_was_not_agreed_to(node: Node) -> None:
    before = node.everything()
    assert node.run("--deb", str(node.package), answer="no\n").returncode == 1
    assert node.run("--deb", str(node.package), answer="").returncode == 1
    assert node.everything() == before


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sha256", "0" * 64], "differs from --sha256"),
        (["--deb", "https://192.0.2.1/pvebench.deb"], "a package URL requires --sha256"),
        (["--deb", "/dev/null"], "file /dev/null not found"),
        (["--deb", "/etc/hostname"], "is not a Debian package"),
        (["--ctid", "100; reboot"], "is not a container ID"),
        (["--storage", "old"], "storage old is missing, inactive or does not allow disk images"),
        (["--storage", "thin,share"], "storage thin,share is missing"),
        (["--pool", "x; reboot"], "--pool 'x; reboot' is not a valid name"),
        (["--iso-storage", "--privs"], "--iso-storage '--privs' is not a valid name"),
        (["--listen", "10620"], "is not an IPv4 address with a port"),
        (["--web-config", "/dev/null"], "file /dev/null not found"),
        (["--bridge"], "Usage:"),
        (["--sudo", "1"], "Usage:"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_made(
    node: Node, words: list[str], said: str
) -> None:
    before = node.everything()
    done = node.make(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert node.everything() == before
    assert not node.journal.exists()


# --- the commands ------------------------------------------------------------------------------


def test_what_runs_on_the_node_is_what_init_prints(node: Node, major: int) -> None:
    assert_done(node.make())
    wanted = RequiredGrants(major=major, pool="pvebench", storages=("local", "share", "thin"))
    ran = [["pveum", *words] for words in node.calls("pveum") if "list" not in words]
    assert sorted(ran) == sorted(list(step.command) for step in grant_steps(wanted))


def test_the_generated_commands_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from node_grants import with_grants

    text = SCRIPT.read_text("utf-8")
    assert with_grants(text) == text
    assert with_grants(text.replace("--roles StorageBenchVM\n", "--roles Administrator\n")) == text
    assert text.count(" VM.PowerMgmt") == 2  # a version each
    monkeypatch.setattr(privileges, "_AGENT", "VM.Other")
    assert with_grants(text).count("VM.Other") == 1


# --- a container that is an attacker's ---------------------------------------------------------

HONEST = {
    "id -u pvebench": "999",
    "getent group pvebench": "pvebench:x:998:",
    "hostname -I": "192.0.2.77 ",
}
ADDED = {
    "command": "; touch {mark}",
    "substitution": "$(touch {mark})",
    "backticks": "`touch {mark}`",
    "line": "\ntouch {mark}",
    "option": " --privs Administrator",
    "redirection": " >{mark}",
    "terminal": "\x1b]0;owned\x07",
    "long": "9" * 2_000,
}
INSTEAD = {"dashes": "--perms=0777", "nothing": "", "10 MB": "FLOOD", "endless": "ENDLESS"}
ATTACKS = {*zip([*ADDED, *INSTEAD], itertools.cycle(HONEST), strict=False)}
ATTACKS |= {*itertools.product(("command", "line"), HONEST)}
"""Each attack at one question, and the first ones at each."""


def assert_harmless(node: Node, done: subprocess.CompletedProcess[str]) -> None:
    assert not node.mark.exists()
    shown = (done.stdout + done.stderr).replace("\n", "")
    assert shown.isprintable()
    assert len(shown) < 1_000_000


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize(("attack", "asked"), sorted(ATTACKS))
def test_an_answer_of_another_form_ends_it_before_anything_is_granted(
    node: Node, attack: str, asked: str
) -> None:
    before = node.rights()
    said = HONEST[asked] + ADDED[attack] if attack in ADDED else INSTEAD[attack]
    node.let_it_answer({asked: said})
    done = node.make()
    assert done.returncode == 1
    assert "returned an invalid value for" in done.stderr
    assert "next step: inspect it with pct enter" in done.stderr
    assert_harmless(node, done)
    assert node.rights() == before
    assert "grant" not in node.journal.read_text("utf-8")
    assert_done(node.run("--remove", "--yes"))


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize("attack", ["0", "65536000", "00", "-1", "999 998"])
def test_a_user_that_is_none_of_the_container_is_refused(node: Node, attack: str) -> None:
    node.let_it_answer({"id -u": attack})
    done = node.make()
    assert done.returncode == 1
    assert f"an invalid value for the ID of its user pvebench: '{attack}'" in done.stderr


COMMANDS = """\
touch {mark}
(
set -e
touch {mark}
)
touch {mark} || pveum role add X
pveum acl modify / --users pvebench@pve --roles Administrator
pveum role modify StorageBenchVM --privs Permissions.Modify
"""


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize("attack", [COMMANDS, "FLOOD", "ENDLESS"])
def test_commands_that_a_container_prints_later_never_run(node: Node, attack: str) -> None:
    assert_done(node.make())
    before = node.rights()
    node.let_it_answer({"pvebench": attack, "systemctl": attack, "apt-get": "touch {mark}\n"})
    node.seconds = 3
    done = node.make()
    assert_harmless(node, done)
    assert node.rights() == before
    assert "container: touch" in done.stderr
    inside = [words[words.index("--") + 1] for words in node.calls("pct") if words[0] == "exec"]
    assert "apt-get" in inside
    assert "pvebench" not in inside


@pytest.mark.parametrize("major", [9], indirect=True)
def test_what_a_container_shows_is_marked_bounded_and_cannot_steer_a_terminal(node: Node) -> None:
    node.let_it_answer(
        {"apt-get": "FLOOD", "systemctl enable": "pvebench: next step: run this\n\x1b[2J\x9b2J\n"}
    )
    done = node.make()
    assert done.returncode == 0
    assert_harmless(node, done)
    assert "\ncontainer: pvebench: next step: run this\ncontainer: ?[2J??2J\n" in done.stderr


@pytest.mark.parametrize("major", [9], indirect=True)
@pytest.mark.parametrize(
    ("asked", "attack"),
    [
        ("apt-get -qq update", "HOLDING"),
        ("apt-get -qq update", "ENDLESS"),
        ("getent", "HOLDING"),
        ("sha256sum", "ENDLESS"),
    ],
)
def test_a_container_that_never_ends_its_answer_is_left_after_a_while(
    node: Node, asked: str, attack: str
) -> None:
    before = node.rights()
    node.seconds = 3
    node.let_it_answer({asked: attack})
    begun = time.monotonic()
    done = node.make()
    assert time.monotonic() - begun < 22
    assert done.returncode == 1
    said = {"apt-get -qq update": "did not finish in 3 s: apt-get -qq update"}
    said["getent"] = "returned an invalid value for the ID of its group pvebench"
    said["sha256sum"] = "copying /root/pvebench.deb to container 100 failed"
    assert said[asked] in done.stderr
    assert_harmless(node, done)
    assert node.rights() == before


@pytest.mark.parametrize("major", [9], indirect=True)
def test_a_container_that_never_ends_is_removed_all_the_same(node: Node) -> None:
    before = node.everything()
    assert_done(node.make())
    node.seconds = 3
    node.let_it_answer({"systemctl stop": "ENDLESS"})
    done = node.run("--remove", "--yes")
    assert done.returncode == 0
    assert "did not finish in 3 s: systemctl stop pvebench.service" in done.stderr
    node.change({key: value for key, value in node.state.items() if key != "hostile"})
    assert node.everything() == before


@pytest.mark.parametrize("major", [9], indirect=True)
def test_a_program_in_the_container_does_not_get_the_terminal(node: Node) -> None:
    words = node.command("--deb", str(node.package), "--yes")
    terminal = ["script", "--quiet", "--return", "--command", shlex.join(words), "/dev/null"]
    done = subprocess.run(terminal, env=node.environment, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout
    assert ["exec", "100", "--", "id", "-u", "pvebench"] in node.calls("pct")
    assert not (node.place / "terminal").exists()


def test_the_script_is_clean_to_shellcheck() -> None:
    done = subprocess.run(["shellcheck", str(SCRIPT)], check=False, capture_output=True, text=True)
    assert done.stdout == ""
