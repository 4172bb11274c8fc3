"""The API's lists have no order: `hash_to_array` of Perl yields another one at each call.

The test API shuffles every list, and the content types of a storage.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pve.cluster import ORDERED
from pve.server import RunningApi, fingerprint
from pve.site import Site
from pve.storage import Storage
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.config.settings import load_settings
from pvebench.drivers.proxmox.api.endpoints import ENDPOINTS, Endpoint
from pvebench.drivers.proxmox.settings import section
from pvebench.drivers.proxmox.setup.survey import survey
from pvebench.drivers.responses import anything
from testing.prepared_cluster import api, config, findings, granted

__all__ = ["api", "config", "granted"]


def has_rows(one: Endpoint) -> bool:
    if one.method != "GET" or one.answer is anything:
        return False
    listed = not one.answer([]) and bool(one.answer({}))
    return listed or (not one.answer({"members": []}) and bool(one.answer({})))


def test_every_list_of_the_api_has_a_key_that_sorts_it() -> None:
    lists = {f"{one.method} {one.path}": one.by for one in ENDPOINTS if has_rows(one)}
    assert len(lists) > 15
    assert {name for name, by in lists.items() if not by} == ORDERED


def test_numbers_in_names_sort_by_their_value() -> None:
    (nodes,) = [one for one in ENDPOINTS if (one.method, one.path) == ("GET", "/nodes")]
    rows = [{"node": name} for name in ("pve10", "PVE1", "pve9", "pve")]
    assert [row["node"] for row in nodes.ordered(rows)] == ["PVE1", "pve", "pve9", "pve10"]


def test_each_call_returns_the_same_lists(site: Site) -> None:
    for number in range(9):
        place = site.cluster.directory / f"s{number}"
        site.cluster.storages[f"s{number}"] = Storage(f"s{number}", "dir", place)
    site.cluster.pool_storages["bench"] = set(site.cluster.storages)
    for path in ("/nodes", "/nodes/pve1/storage", "/storage", "/cluster/resources"):
        answers = [site.connect().get(path) for _ in range(5)]
        names = [[row.get("id") or row.get("storage") for row in rows] for rows in answers]
        assert names.count(names[0]) == 5, path
    members = [site.connect().get("/pools/bench")["members"] for _ in range(5)]
    pools = [[row["id"] for row in rows] for rows in members]
    assert pools.count(pools[0]) == 5
    known = [[one.id for one in survey(site.connect()).storages] for _ in range(5)]
    assert known == [sorted(site.cluster.storages)] * 5


def test_setup_measures_the_storages_in_the_order_of_the_command(
    api: RunningApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a storage `local`, the first one is what packs measure."""
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    cluster = api.cluster
    cluster.storages = {
        name: Storage(name, "lvmthin", tmp_path / name, content="images") for name in "edcba"
    } | {"iso": Storage("iso", "dir", tmp_path / "iso", content="iso")}
    for volumes in cluster.volumes_on.values():
        volumes.storages = cluster.storages
    config = tmp_path / "bench.yaml"
    given = ["setup", "proxmox", "--config", str(config), "--host", "127.0.0.1", "--yes"]
    given += ["--port", str(api.port), "--fingerprint", fingerprint(api.certificate)]
    given += ["--node-exporter", "", "--no-check", "--replace"]
    for options, expected in (
        ([], {"local": "a", "b": "", "c": "", "d": "", "e": ""}),
        (["--storage", "d", "--storage", "b"], {"local": "d", "b": ""}),
    ):
        run_cli([*given, *options])
        storages = section(load_settings(config)).storages
        assert {name: one.id for name, one in storages.items()} == expected


def test_a_command_that_replaces_content_types_lists_them_in_one_order(
    api: RunningApi, granted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.cluster.storages["local"].content = "rootdir,iso,backup,vztmpl,snippets"
    said = {findings(granted, capsys)["storage local"][1] for _ in range(4)}
    command = "pvesm set local --content backup,images,iso,rootdir,snippets,vztmpl"
    assert said == {f"local does not allow disk images; run {command}"}
