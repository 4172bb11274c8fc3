"""The API's lists have no order: `hash_to_array` of Perl yields another one at each call.

The test API shuffles every list, and the content types of a storage.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pve.cluster import ORDERED
from pve.listed import REQUESTS, Request
from pve.server import RunningApi, fingerprint
from pve.site import Site
from pve.storage import Storage
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.config.settings import load_settings
from pvebench.drivers.proxmox.api.bounds import KEYS, ordered
from pvebench.drivers.proxmox.proxmox_settings import section
from pvebench.drivers.proxmox.setup.survey import survey
from pvebench.drivers.responses import anything
from testing.prepared_cluster import api, config, findings, granted

__all__ = ["api", "config", "granted"]


def has_rows(one: Request) -> bool:
    if one.method != "GET" or one.answer is anything:
        return False
    return not one.answer([]) and bool(one.answer({}))


def test_every_list_of_the_api_but_a_log_has_a_key_that_sorts_it() -> None:
    """A row with only the keys is accepted, and without them it is not."""
    lists = {one.name: one.answer for one in REQUESTS if has_rows(one)}
    assert len(lists) > 15
    keyed = dict.fromkeys(KEYS, "1") | {"starttime": 1, "pstart": 1, "type": "x", "t": "x"}
    assert [name for name, answer in lists.items() if answer([keyed])] == []
    bare = {key: value for key, value in keyed.items() if key not in KEYS}
    optional = {"GET /cluster/resources", "GET /nodes/{node}/replication"}  # both have `id`
    assert {name for name, answer in lists.items() if not answer([bare])} == optional | ORDERED


def test_rows_are_sorted_and_lines_of_a_log_are_not() -> None:
    rows = [{"node": name} for name in ("pve2", "PVE1", "pve")]
    assert [row["node"] for row in ordered(rows)] == ["PVE1", "pve", "pve2"]
    lines = [{"n": number, "t": text} for number, text in enumerate("zay")]
    assert ordered(lines) == lines


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
        ([], {"local": "a", "b": "b", "c": "c", "d": "d", "e": "e"}),
        (["--storage", "d", "--storage", "b"], {"local": "d", "b": "b"}),
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
