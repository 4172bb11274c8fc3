"""`pvebench proxmox init`, once and again: on an empty cluster, after an upgrade, after half a try.

What the server refuses is what the recordings in tests/pve/recordings-admin-*.jsonl have it refuse;
`tests/pve/pveum.py` gives the printed commands the same server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pve
from pve.access import ROOT
from pve.access import Token as ServerToken
from pve.cluster import Cluster
from pve.schema import Schema
from pve.server import RunningApi, fingerprint
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.drivers.proxmox.api.privileges import (
    MAX_POOL,
    NODE_PRIVILEGES,
    RequiredGrants,
    token_of,
    user_of,
    vm_privileges,
)
from pvebench.drivers.proxmox.setup.permissions import shell_script
from testing.prepared_cluster import api

__all__ = ["api"]

POOL = "bench"
USER, FULL_TOKEN = user_of(POOL), token_of(POOL)


def write_settings(api: RunningApi, directory: Path, *storages: str) -> Path:
    path = directory / "pvebench.yaml"
    lines = "".join(
        f"    {name}: {{type: {api.cluster.storages[name].type}}}\n" for name in storages
    )
    path.write_text(
        f"""\
node: pve1
driver: proxmox
proxmox:
  host: 127.0.0.1
  port: {api.port}
  token_file: token
  tls: {{fingerprint: "{fingerprint(api.certificate)}"}}
  pool: {POOL}
  version: {api.cluster.major}
  storages:
{lines}""",
        "utf-8",
    )
    return path


Init = Callable[..., int]


@pytest.fixture
def init(api: RunningApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Init:
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    config = write_settings(api, tmp_path, "local", "thin")

    def run(*options: str) -> int:
        return run_cli(["proxmox", "init", "--config", str(config), "--apply", *options])

    return run


def keep_token(directory: Path, token: str) -> None:
    (directory / "token").write_text(f"{token}\n", "ascii")
    (directory / "token").chmod(0o600)


def changes(api: RunningApi) -> list[str]:
    """Return the calls that changed something, the login left out."""
    return [call for call in api.calls if call[:3] != "GET" and not call.endswith("/ticket")]


def granted(cluster: Cluster) -> dict[str, Any]:
    """Return everything that `init` is to make."""
    access = cluster.access
    return {
        "roles": {name: set(access.roles[name]) for name in ("StorageBenchVM", "StorageBenchNode")},
        "members": set(cluster.pool_storages[POOL]),
        "acls": sorted(access.acl),
        "separated": access.users[USER].tokens["bench"].privsep,
    }


def test_storages_that_are_in_another_pool_already_are_shared_with_it(
    api: RunningApi, init: Init, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlike a VM a storage may be in several pools (`update_pool` in PVE/API2/Pool.pm)."""
    api.cluster.pools["another"] = set()
    api.cluster.pool_storages["another"] = {"local", "thin"}
    assert init() == 0
    run_cli(["check", "--config", str(tmp_path / "pvebench.yaml"), "--driver", "proxmox"])
    out = capsys.readouterr().out
    assert "ok    storage thin: lvmthin" in out
    assert "ok    image storage: local" in out
    assert api.cluster.pool_storages["another"] == {"local", "thin"}


def test_a_second_run_changes_nothing(
    api: RunningApi, init: Init, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init() == 0
    assert len(changes(api)) == 13
    before = granted(api.cluster)
    api.calls.clear()
    assert init() == 0
    assert changes(api) == []
    assert "nothing changed" in capsys.readouterr().out
    assert granted(api.cluster) == before


def test_no_role_has_a_name_that_the_server_keeps_for_itself(api: RunningApi, init: Init) -> None:
    assert init() == 0
    own = set(api.cluster.access.roles) - set(api.cluster.schema.data["roles"])
    assert own == {"StorageBenchVM", "StorageBenchNode"}


def test_the_rights_for_operations_stay_when_another_instance_is_set_up(
    api: RunningApi, init: Init
) -> None:
    assert init("--with-operations") == 0
    before = api.cluster.access.rights(FULL_TOKEN, f"/pool/{POOL}")
    assert before >= {"VM.Backup", "VM.Snapshot"}
    for options in ([], ["--with-advice"]):
        assert init(*options) == 0
        assert api.cluster.access.rights(FULL_TOKEN, f"/pool/{POOL}") == before


def test_after_an_upgrade_only_the_role_is_repaired(
    api: RunningApi, init: Init, major: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init() == 0
    other = {8: 9, 9: 8}[major]
    api.cluster.access.roles["StorageBenchVM"] = vm_privileges(other)
    api.calls.clear()
    assert init() == 0
    assert changes(api) == ["PUT /access/roles/StorageBenchVM"]
    assert api.cluster.access.roles["StorageBenchVM"] == vm_privileges(major)
    assert f"{FULL_TOKEN} has all required rights" in capsys.readouterr().out


def test_a_storage_that_is_new_in_the_settings_is_the_only_one_added(
    api: RunningApi, init: Init, tmp_path: Path
) -> None:
    assert init() == 0
    write_settings(api, tmp_path, "local", "share", "thin")
    api.calls.clear()
    assert init() == 0
    assert changes(api) == ["PUT /pools"]
    assert api.cluster.pool_storages[POOL] == {"local", "share", "thin"}


def test_a_try_that_broke_off_anywhere_is_finished_by_the_next(
    api: RunningApi, init: Init, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = 0
    for method, path in (
        ("POST", "/access/roles"),
        ("PUT", "/access/roles/StorageBenchNode"),
        ("POST", "/pools"),
        ("PUT", "/pools"),
        ("POST", "/access/users"),
        ("POST", f"/access/users/{USER}/token/bench"),
        ("PUT", "/access/acl"),
    ):
        api.faults.add("status", method, path, text="cluster not ready - no quorum?")
        assert init() == 6
        tried += 1
        assert "no quorum" in capsys.readouterr().err
    assert tried == len(api.faults.hits)
    assert init() == 0
    assert granted(api.cluster)["roles"]["StorageBenchVM"] == vm_privileges(api.cluster.major)
    assert len(granted(api.cluster)["acls"]) == 4


def test_a_token_whose_secret_was_lost_is_made_again_when_asked(
    api: RunningApi, init: Init, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.faults.add("drop_after", "POST", "/token/bench")  # made, but nobody heard its secret
    assert init() == 6
    assert init() == 6
    err = capsys.readouterr().err
    config = tmp_path / "pvebench.yaml"
    assert f"pvebench proxmox init --config {config} --apply --new-token" in err
    assert "cause: the server shows the secret only once; an instance with pool bench may" in err
    assert "next step: copy the token_file of that instance; if there is none, create a new" in err
    assert len(api.cluster.access.acl) == 4
    assert init("--new-token") == 0
    assert "Other instances with pool bench need the new secret" in capsys.readouterr().out
    assert (tmp_path / "token").read_text("ascii").startswith(f"{FULL_TOKEN}=")
    assert len(api.cluster.access.acl) == 4


def test_two_pools_share_no_user_and_a_new_token_of_one_leaves_the_other_valid(
    api: RunningApi, init: Init, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token's removal ends every ACL of its user, so a shared user would end both."""
    assert init() == 0
    first = (tmp_path / "token").read_text("ascii")
    config = write_settings(api, tmp_path, "local", "thin")
    config.write_text(config.read_text("utf-8").replace("pool: bench", "pool: other"), "utf-8")
    (tmp_path / "token").unlink()
    assert init() == 0
    assert init("--new-token") == 0
    out, err = capsys.readouterr()
    assert f"pveum user token delete {user_of('other')} bench" in out
    assert user_of("other") != USER
    assert (tmp_path / "token").read_text("ascii").startswith(f"{token_of('other')}=")
    name, _, secret = first.strip().partition("=")
    assert name == FULL_TOKEN
    assert api.cluster.access.users[USER].tokens["bench"].secret == secret
    assert {path for path, who, _ in api.cluster.access.acl if who == FULL_TOKEN} == {
        "/nodes",
        f"/pool/{POOL}",
    }
    assert err == ""


def test_the_longest_pool_has_a_user_that_the_server_accepts_and_a_longer_one_is_rejected(
    api: RunningApi, init: Init, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Witness: `maxLength` of `userid` and the pattern in the schema of a real server."""
    schema = Schema(api.cluster.major).data["endpoints"]
    longest = schema["POST /access/users"]["parameters"]["userid"]["maxLength"]
    pattern = schema["GET /access/permissions"]["parameters"]["userid"]["pattern"]
    config = tmp_path / "pvebench.yaml"
    text = config.read_text("utf-8")
    pool = "A.b-c_9" * 10
    config.write_text(text.replace("pool: bench", f"pool: {pool[:MAX_POOL]}"), "utf-8")
    assert init() == 0
    assert len(user_of(pool[:MAX_POOL])) == longest
    for name in (user_of("pvebench"), token_of(pool[:MAX_POOL])):
        assert re.fullmatch(pattern.replace("(?^:", "(?:"), name)
    config.write_text(text.replace("pool: bench", f"pool: {pool[: MAX_POOL + 1]}"), "utf-8")
    assert init() == 2
    assert f"at most {MAX_POOL} characters" in capsys.readouterr().err


def test_a_secret_that_is_not_the_tokens_any_more_is_reported(
    api: RunningApi, init: Init, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init() == 0
    keep_token(tmp_path, f"{FULL_TOKEN}=00000000-dead")
    assert init() == 6
    err = capsys.readouterr().err
    assert "wrong secret of" in err
    assert "00000000-dead" not in err


def test_a_token_of_someone_else_in_the_file_is_left_there(
    api: RunningApi, init: Init, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_token(tmp_path, "me@pam!own=0123")
    assert init() == 6
    assert (tmp_path / "token").read_text("ascii") == "me@pam!own=0123\n"
    assert f"{FULL_TOKEN}=" in capsys.readouterr().out


def test_a_token_without_separation_gets_it(api: RunningApi, init: Init) -> None:
    assert init() == 0
    api.cluster.access.users[USER].tokens["bench"].privsep = False
    api.calls.clear()
    assert init() == 0
    assert changes(api) == [f"PUT /access/users/{USER}/token/bench"]
    assert granted(api.cluster)["separated"]


def test_rights_on_another_pool_are_shown_and_stay(
    api: RunningApi, init: Init, capsys: pytest.CaptureFixture[str]
) -> None:
    access = api.cluster.access
    assert init() == 0
    access.acl.append(("/pool/other", USER, "StorageBenchVM"))
    assert init() == 0
    out = capsys.readouterr().out
    assert "unless another pvebench needs it: pveum acl delete /pool/other" in out
    assert any(path == "/pool/other" for path, _, _ in access.acl)


def test_rights_that_something_takes_away_again_are_reported(
    api: RunningApi, init: Init, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init() == 0
    api.cluster.access.acl.append(("/nodes", USER, "NoAccess"))
    assert init() == 6
    err = capsys.readouterr().err
    assert "still lacks /nodes: Sys.Audit" in err
    assert f"pveum user token permissions {USER} bench" in err


def test_every_privilege_is_one_that_its_version_knows(major: int) -> None:
    known = Schema(major).privileges
    assert vm_privileges(major) <= known
    assert known >= NODE_PRIVILEGES
    other = vm_privileges({8: 9, 9: 8}[major]) - vm_privileges(major)
    assert len(other) == 1
    assert not other & known


# --- the printed commands ----------------------------------------------------------------------


@pytest.fixture
def node(api: RunningApi, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run a script as root on a node of the cluster: `pveum` and `pvesh` talk to the test API."""
    api.cluster.access.users[ROOT].tokens["node"] = ServerToken("node" * 4, privsep=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("pveum", "pvesh", "pveversion"):
        program = programs / name
        stand_in = Path(pve.__file__).with_name("pveum.py")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in} {name} "$@"\n', "utf-8")
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PVE_API": f"https://127.0.0.1:{api.port}/api2/json",
        "PVE_TOKEN": f"{ROOT}!node={'node' * 4}",
        "PVE_VERSION": api.cluster.get_version("")["version"],
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash"], input=script, env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture
def script(api: RunningApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    config = write_settings(api, tmp_path, "local", "thin")
    assert run_cli(["proxmox", "init", "--config", str(config)]) == 0
    assert api.calls == []
    return capsys.readouterr().out


Node = Callable[[str], subprocess.CompletedProcess[str]]


def test_the_printed_commands_make_what_apply_makes(
    api: RunningApi, node: Node, script: str, init: Init, tmp_path: Path
) -> None:
    done = node(script)
    assert (done.returncode, done.stderr) == (0, "")
    secret = re.search(r"[0-9a-f]{32}", done.stdout)
    assert secret
    keep_token(tmp_path, f"{FULL_TOKEN}={secret[0]}")
    api.calls.clear()
    assert init() == 0
    assert changes(api) == []


def test_the_printed_commands_can_be_run_twice_and_after_half_a_try(
    api: RunningApi, node: Node, script: str
) -> None:
    lines = script.splitlines()
    half = next(at for at, line in enumerate(lines) if "pool add" in line)
    assert node("\n".join([*lines[:half], "exit 3", ")"])).returncode == 3
    assert node(script).returncode == 0
    before = granted(api.cluster)
    done = node(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert granted(api.cluster) == before


def test_the_printed_commands_stop_at_the_first_error(
    api: RunningApi, node: Node, script: str
) -> None:
    api.faults.add("status", "POST", "/pools", text="cluster not ready - no quorum?")
    done = node(script)
    assert done.returncode != 0
    assert "no quorum" in done.stderr
    assert api.cluster.access.acl == []
    assert USER not in api.cluster.access.users


def test_a_name_with_a_dot_is_not_taken_for_another_that_is_there() -> None:
    (line,) = [
        line
        for line in shell_script(RequiredGrants(major=9, pool="a.b", storages=("local",)))
        if "pool add" in line
    ]
    found = '[{"poolid":"axb"}]'
    command = line.replace("pveum pool list --output-format json", f"echo '{found}'")
    command = command.replace("pveum pool add", "echo made")
    done = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
    assert done.stdout == "made a.b\n"


def test_the_printed_commands_of_another_version_do_nothing(
    api: RunningApi, node: Node, script: str, major: int
) -> None:
    other = script.replace(f"pve-manager/{major}.", "pve-manager/7.")
    done = node(other)
    assert done.returncode == 1
    assert "set version in settings" in done.stderr
    assert changes(api) == []
