"""`pvebench proxmox init`, `check` and `plan` for a cluster, as an admin uses them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from pve.cluster import VERSIONS
from pve.server import RunningApi, fingerprint
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.config import load_settings
from pvebench.drivers.proxmox.proxmox_settings import ClusterStorageSettings
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES
from pvebench.store.store import Store
from testing.packs import SMALL, write_pack
from testing.prepared_cluster import api, config, findings, granted, init_of

__all__ = ["api", "config", "granted"]

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_init_prints_commands_and_changes_nothing(
    api: RunningApi, config: Path, capsys: Captured
) -> None:
    assert run_cli(["proxmox", "init", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert (
        "pveum acl modify /pool/bench --tokens 'pvebench-bench@pve!bench' --roles StorageBenchVM"
        in out
    )
    assert "pveum pool modify bench --storage thin" in out
    assert ("VM.Monitor" in out) == (api.cluster.major == 8)
    assert api.calls == []


def test_after_init_check_finds_all_rights(granted: Path, capsys: Captured) -> None:
    found = findings(granted, capsys)
    names = ("server", "rights", "node", "pool", "storage local", "storage fast", "VM IDs")
    assert {name: found[name][0] for name in names} == dict.fromkeys(names, True)
    assert "excess rights" not in found


def test_the_token_is_kept_where_only_its_owner_reads_it(granted: Path, capsys: Captured) -> None:
    path = granted.parent / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text("ascii").strip().partition("=")[2]
    assert len(secret) == 32
    assert secret not in capsys.readouterr().out


def test_a_wrong_password_is_reported(config: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "guessed")
    assert run_cli(["proxmox", "init", "--config", str(config), "--apply"]) == 6
    err = capsys.readouterr().err
    assert "cannot log in" in err
    assert "guessed" not in err


def test_a_password_is_not_sent_to_a_server_with_another_certificate(
    api: RunningApi, config: Path, monkeypatch: Patch
) -> None:
    pin = fingerprint(api.certificate)
    config.write_text(config.read_text("utf-8").replace(pin, "AB:" * 31 + "AB"), "utf-8")
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert run_cli(["proxmox", "init", "--config", str(config), "--apply"]) == 6
    assert api.calls == []


def test_without_a_token_check_says_how_to_make_one(config: Path, capsys: Captured) -> None:
    good, text = findings(config, capsys)["token"]
    assert not good
    assert "pvebench proxmox init" in text


def test_check_names_every_missing_thing_with_its_command(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    cluster = api.cluster
    cluster.access.roles["StorageBenchVM"].remove("VM.PowerMgmt")
    cluster.storages["thin"].content = "rootdir"
    cluster.storages["local"].type = "nfs"
    cluster.storages["local"].content = "images"
    cluster.all_nodes["pve1"].online = True
    found = findings(granted, capsys)
    assert found["rights"] == (
        False,
        "missing: /pool/bench: VM.PowerMgmt; run pvebench proxmox init --config SETTINGS "
        "--apply (user and token both need each right)",
    )
    assert "pvesm set thin --content images,rootdir" in found["storage fast"][1]
    assert "set type: nfs" in found["storage local"][1]
    assert "pvesm set local --content images,iso" in found["image storage"][1]


def test_a_pool_that_is_gone_is_reported_once_with_its_command(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    api.cluster.pools.clear()
    assert run_cli(["check", "--config", str(granted)]) == 3
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "FAIL  pool" in line]
    assert (
        "pool bench missing or not visible; run pvebench proxmox init --config SETTINGS --apply"
        in told
    )


def test_a_server_that_refuses_the_token_is_asked_nothing_else(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    api.cluster.access.users["pvebench-bench@pve"].tokens.clear()
    capsys.readouterr()
    assert run_cli(["check", "--config", str(granted)]) == 3
    out = capsys.readouterr().out
    assert out.count("rejects the credentials") == 1
    assert "pvebench proxmox init --config SETTINGS --apply --new-token" in out


def test_what_only_apply_does_is_not_passed_over_without_it(config: Path, capsys: Captured) -> None:
    assert run_cli(["proxmox", "init", "--config", str(config), "--new-token"]) == 2
    assert "--new-token requires --apply" in capsys.readouterr().err


def test_check_reports_what_space_the_packs_need(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    api.cluster.storages["local"].avail = 300 << 20
    good, text = findings(granted, capsys)["storage local"]
    assert not good
    assert "64.0 MiB needed, 300.0 MiB free on pve1 (256.0 MiB must stay free)" in text
    api.faults.add("status", "GET", "/pools/bench", times=99, status=595, text="timeout")
    assert "/pools/bench" in findings(granted, capsys)["storages"][1]


def test_check_reports_an_lvm_storage_that_holds_raw_only(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    api.cluster.storages["thin"].type = "lvm"
    granted.write_text(granted.read_text("utf-8").replace("lvmthin", "lvm"), "utf-8")
    good, text = findings(granted, capsys)["storage fast"]
    assert good
    assert ("snapshot-as-volume-chain" in text) == (api.cluster.major == 9)


def test_the_scrub_guard_is_asked_for_by_name_and_opens_nothing_below_the_root(
    api: RunningApi, config: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert run_cli(["proxmox", "init", "--config", str(config), "--with-scrub-guard"]) == 0
    out = capsys.readouterr().out
    token = "'pvebench-bench@pve!bench'"
    assert f"pveum acl modify / --tokens {token} --roles StorageBenchNode --propagate 0" in out
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert (
        run_cli(["proxmox", "init", "--config", str(config), "--apply", "--with-scrub-guard"]) == 0
    )
    api.cluster.all_nodes["pve1"].pools["tank"] = "none requested"
    found = findings(config, capsys)
    assert found["rights"][0]
    assert "excess rights" not in found
    assert found["scrub guard"][1] == "runs wait for scrubs of tank"
    assert api.cluster.access.rights("pvebench-bench@pve!bench", "/") == {"Sys.Audit"}
    assert api.cluster.access.rights("pvebench-bench@pve!bench", "/vms/4242") == set()


def test_check_says_how_scrubs_could_be_seen(granted: Path, capsys: Captured) -> None:
    good, text = findings(granted, capsys)["scrub guard"]
    assert good
    assert run_cli(init_of(text, granted)) == 0
    assert "--with-scrub-guard" not in findings(granted, capsys)["scrub guard"][1]


def test_check_says_which_storage_the_api_shows_and_that_its_disks_are_not_known(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    name = "identity of fast"
    good, text = findings(granted, capsys)[name]
    assert good is None
    assert text.startswith("the first run records it: type lvmthin")
    assert text.endswith("; device below it unknown")
    settings = load_settings(granted)
    settings.state.mkdir()
    with closing(Store(settings.state / "pvebench.db", simulated=False)) as store:
        store.identities.record("pve1", "fast", {"type": "zfspool", "pool": "tank"})
    good, text = findings(granted, capsys)[name]
    assert good is False
    assert "storage fast changed (was type zfspool, pool tank, is type" in text
    api.cluster.access.acl.clear()
    granted_nothing = findings(granted, capsys)[name]
    assert granted_nothing[0] is False
    assert "is not known)" in granted_nothing[1]


def test_check_warns_of_more_rights_than_needed(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    for subject in ("pvebench-bench@pve", "pvebench-bench@pve!bench"):
        api.cluster.access.acl.append(("/", subject, "Administrator"))
    good, text = findings(granted, capsys)["excess rights"]
    assert good
    assert "warning" in text


def test_check_reports_that_an_old_server_keeps_maintenance_to_itself(
    granted: Path, capsys: Captured, monkeypatch: Patch, major: int
) -> None:
    assert "maintenance" not in findings(granted, capsys)["server"][1]
    monkeypatch.setitem(VERSIONS, major, "8.1.4")
    assert ("pause pvebench manually" in findings(granted, capsys)["server"][1]) == (major == 8)


def test_an_unknown_node_is_reported_with_those_that_exist(granted: Path, capsys: Captured) -> None:
    granted.write_text(granted.read_text("utf-8").replace("node: pve1", "node: pve7"), "utf-8")
    assert findings(granted, capsys)["node"] == (
        False,
        "the cluster has no node 'pve7'; set node to one of pve1, pve2",
    )


def test_a_plan_needs_no_cluster_and_knows_what_its_storages_hold(
    tmp_path: Path, capsys: Captured
) -> None:
    text = SMALL.replace("axes:", "axes:\n  storage: [local, fast]", 1)
    pack = write_pack(tmp_path, text)
    path = tmp_path / "offline.yaml"
    path.write_text(
        f"driver: proxmox\npacks: [{pack}]\nproxmox:\n  host: nowhere.invalid\n"
        "  storages: {local: {type: dir}, fast: {type: lvmthin}}\n",
        "utf-8",
    )
    assert run_cli(["plan", "--config", str(path), "--format=json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert any(slug.startswith("fast.") for slug in made["cases"])
    assert not any(slug.startswith("fast.") and ".qcow2." in slug for slug in made["cases"])


def test_without_the_section_the_driver_is_refused(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("driver: proxmox\n", "utf-8")
    assert run_cli(["proxmox", "init", "--config", str(path)]) == 2
    assert "docs/proxmox.md" in capsys.readouterr().err


def test_settings_and_driver_know_the_same_storage_types() -> None:
    schema = ClusterStorageSettings.model_json_schema()
    assert set(schema["properties"]["type"]["enum"]) == set(STORAGE_TYPES)


@pytest.mark.parametrize("name", ["9pool", "a/b", "pool x", ""])
def test_a_pool_that_the_server_would_refuse_is_refused_by_the_settings(
    config: Path, capsys: Captured, name: str
) -> None:
    config.write_text(config.read_text("utf-8").replace("pool: bench", f'pool: "{name}"'), "utf-8")
    assert run_cli(["proxmox", "init", "--config", str(config)]) == 2
    assert "is not a pool name" in capsys.readouterr().err
