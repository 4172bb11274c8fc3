"""Names as Proxmox permits them: labels keep their spelling.

A node is a DNS label of upper and lower case (`pve-node` of PVE/JSONSchema.pm), a storage ID may
have dots (`pve-storage-id`); both are compared with their case. `pve.formats` has the patterns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import from_regex, lists

from pve.cluster import Cluster
from pve.formats import PATTERNS
from pve.server import fingerprint, running_api
from pve.storage import Storage
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.config.settings import load_settings
from pvebench.drivers import driver as drivers
from pvebench.drivers.proxmox.api.connection import TOKEN_VARIABLE, read_token
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings, bare_host, nodes_of, section
from pvebench.drivers.proxmox.setup.survey import StorageInfo, names_of

Setup = Callable[..., int]


def set_up(cluster: Cluster, directory: Path, *options: str) -> int:
    with running_api(cluster) as api:
        given = ["--host", "127.0.0.1", "--port", str(api.port), "--yes", "--node-exporter", ""]
        given += ["--fingerprint", fingerprint(api.certificate), *options]
        return run_cli(["setup", "proxmox", "--config", str(directory / "bench.yaml"), *given])


@pytest.mark.parametrize(
    "nodes", [("PVE1",), ("LAB-A1", "LAB-A2"), ("Pve1", "pve1"), ("1",), ("null",)]
)
def test_nodes_with_any_name_of_proxmox_are_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: tuple[str, ...]
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert set_up(Cluster(tmp_path / "cluster", nodes=nodes), tmp_path) == 0
    assert nodes_of(load_settings(tmp_path / "bench.yaml")) == tuple(sorted(nodes))


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["local-zfs_2.bak"], ["local"]),
        (["Local-LVM", "local"], ["Local-LVM", "local"]),
        (["a.b", "a-b", "a_b", "local"], ["a-b", "a-b-2", "a_b", "local"]),
        (["VM-Store", "vm-store", "local"], ["VM-Store", "local", "vm-store"]),
        (["s.1", "s-1", "s-1-2", "local"], ["local", "s-1", "s-1-2", "s-1-2-2"]),
    ],
)
def test_each_storage_keeps_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[str], names: list[str]
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    cluster = Cluster(tmp_path / "cluster")
    cluster.storages |= {
        name: Storage(name, "lvmthin", tmp_path / name, content="images") for name in ids
    }
    chosen = [option for name in ids for option in ("--storage", name)]
    assert set_up(cluster, tmp_path, *chosen) == 0
    storages = section(load_settings(tmp_path / "bench.yaml")).storages
    assert sorted(storages) == sorted(names)
    assert sorted(entry.id or name for name, entry in storages.items()) == sorted(ids)


STORAGE_ID = from_regex(rf"\A(?:{PATTERNS['pve-storage-id'][0]})\Z").filter(
    lambda name: name.isascii() and name.isprintable() and len(name) <= 60
)
NODE = from_regex(rf"\A(?:{PATTERNS['pve-node'][0]})\Z").filter(
    lambda name: name.isascii() and name.isprintable() and len(name) <= 63
)


@settings(max_examples=60, deadline=None)
@given(lists(STORAGE_ID, min_size=1, max_size=6, unique=True), lists(NODE, min_size=1, unique=True))
def test_what_setup_writes_is_valid_for_all_names_of_proxmox(
    ids: list[str], nodes: list[str]
) -> None:
    found = [StorageInfo(one, "dir", frozenset({"images"}), False) for one in ids]
    names = names_of(found)
    assert [one.id for one in names.values()] == ids
    storages = {name: {"type": "dir", "id": one.id} for name, one in names.items()}
    assert ProxmoxSettings.model_validate(
        {"host": "pve", "nodes": tuple(nodes), "storages": storages}
    )


def test_a_machine_has_the_name_that_proxmox_gives_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers.socket, "gethostname", lambda: "PVE-A1.example.org")
    assert drivers.default_node() == "PVE-A1"


@pytest.mark.parametrize(
    "text",
    [
        "pvebench@pve!bench=SECRET",
        "PVEAPIToken=pvebench@pve!bench=SECRET",
        '"pvebench@pve!bench=SECRET"',
        "'pvebench@pve!bench=SECRET'\n",
        "\ufeffpvebench@pve!bench=SECRET\r\n",
        "\u201cpvebench@pve!bench=SECRET\u201d",
        "Authorization: PVEAPIToken=pvebench@pve!bench=SECRET",
        r"pvebench@pve\!bench=SECRET",
    ],
)
def test_a_token_is_read_as_shells_and_editors_write_it(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Quotes of an env file, the mark of Notepad, `\\!` of bash with history expansion."""
    monkeypatch.setenv(TOKEN_VARIABLE, text)
    token = read_token(None)
    assert (token.user, token.name, token.secret) == ("pvebench@pve", "bench", "SECRET")


@pytest.mark.parametrize(
    "user", ["john.doe@example.org@ldap", "a_b-c+d@My-Realm.2", "ü@pve", "Admin@PAM-2"]
)
def test_a_token_of_any_user_of_proxmox_is_read(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    assert re.fullmatch(PATTERNS["pve-userid"][0], user)
    monkeypatch.setenv(TOKEN_VARIABLE, f"{user}!Bench.1_x-y=SECRET")
    token = read_token(None)
    assert (token.user, token.name) == (user, "Bench.1_x-y")


@pytest.mark.parametrize("host", ["::1", "[::1]", "[fe80::1]", "{node}.example.org", "PVE1"])
def test_an_address_is_accepted_as_in_a_url(host: str) -> None:
    assert bare_host(host) == host.strip("[]")


@pytest.mark.parametrize(
    "host",
    [
        *("[::1]:8006", "[::1", "pve:8006", "https://pve", "root@pve", "", "pve#", "pve?a=b"),
        *("pve\\", "{host}", "pve 1"),
    ],
)
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="remove https:// and the port"):
        bare_host(host)
