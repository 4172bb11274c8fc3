"""Keys of storages: the model of each kind, also of a kind of another package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import StrictInt

from pvebench.config.settings import Settings, load_settings, schema_text
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages import storage_settings as storages
from pvebench.drivers.storages.contract import StorageContext
from pvebench.drivers.storages.directory import DirectorySettings, DirSettings
from pvebench.drivers.storages.storage_settings import (
    LocalSettings,
    cached_storages,
    require_paths,
    spaces_of,
    storage_contexts,
)
from pvebench.errors import ConfigError, VolumeError
from pvebench.fields import FilePath, Strict
from pvebench.files import Mount
from pvebench.model.disk import HostCache


class QueueSettings(Strict):
    depth: StrictInt = 1


class MountedSettings(DirectorySettings):
    mount: FilePath
    queue: QueueSettings = QueueSettings()


def identify(context: StorageContext[Any]) -> dict[str, str]:
    return {"mount": str(context.settings.mount)}


@pytest.fixture(autouse=True)
def _mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind `mounted` of a plug-in, with an identity of its own."""
    Settings()  # builds the schema, which stays, with the real kinds only
    kind = replace(
        KINDS["dir"],
        holds=replace(KINDS["dir"].holds, name="mounted"),
        settings=MountedSettings,
        identify=identify,
    )
    monkeypatch.setitem(KINDS._objects, "mounted", kind)


def message(path: Path, storage: str, name: str = "a") -> str:
    path.write_text(f"storages:\n  {name}: {storage}\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    return str(caught.value).replace(f"{path}:", "")


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ("{kind: mounted, path: p, mount: m, mnt: x}", "2:41: unknown key 'mnt'; did you mean"),
        ("{kind: mounted, path: p}", "2:6: missing key 'mount'"),
        ("{kind: mounted, path: p, mount: 5}", "2:38: storages.a.mount: invalid path 5"),
        (
            "{kind: mounted, path: p, mount: m, queue: {depth: x}}",
            "2:56: storages.a.queue.depth: expected a whole number, found 'x'",
        ),
        (
            "{kind: mounted, path: p, mount: m, queue: {deep: 1}}",
            "2:49: unknown key 'deep'; did you mean 'depth'?",
        ),
        ("{kind: mount, path: p}", "2:13: storages.a.kind: 'mount' is not one of 'dir', 'block'"),
        ("{kind: [dir], path: p}", "2:13: storages.a.kind: ['dir'] is not one of 'dir', 'block'"),
        ("5", "2:6: storages.a: expected a mapping of keys to values, found 5"),
    ],
)
def test_a_key_of_any_kind_is_refused_with_its_position(
    tmp_path: Path, storage: str, expected: str
) -> None:
    assert expected in message(tmp_path / "pvebench.yaml", storage)


def test_a_storage_may_have_the_name_of_a_key(tmp_path: Path) -> None:
    refused = message(tmp_path / "pvebench.yaml", "{path: p, servr: x}", name="faults")
    assert "2:21: unknown key 'servr'; did you mean 'server'?" in refused


def test_the_settings_of_a_kind_get_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pvebench.yaml").write_text("storages: {a: {kind: mounted, path: p, mount: m}}\n", "utf-8")
    _, context = storage_contexts(load_settings(Path("pvebench.yaml")))["a"]
    assert (context.settings.path, context.settings.mount) == (tmp_path / "p", tmp_path / "m")


def test_each_kind_in_a_directory_is_checked_before_a_run(tmp_path: Path) -> None:
    storage = {"kind": "mounted", "path": tmp_path, "mount": tmp_path}
    settings = LocalSettings.model_validate({"state": tmp_path / "s", "storages": {"a": storage}})
    assert [*spaces_of(settings)] == [(settings.node, "a")]
    missing = {"storages": {"a": storage | {"path": tmp_path / "missing"}}}
    with pytest.raises(VolumeError, match="does not exist"):
        require_paths(LocalSettings.model_validate(missing))


def test_the_schema_has_the_keys_of_each_kind() -> None:
    schema = json.loads(schema_text("settings"))
    kinds = {
        name: rules["properties"]["kind"]["enum"]
        for name, rules in schema["$defs"].items()
        if "faults" in rules["properties"]
    }
    assert kinds["DirSettings"] == ["dir"]
    assert {name for names in kinds.values() for name in names} == {*KINDS} - {"mounted"}


@pytest.mark.parametrize(("kind", "treated"), [("zfs", HostCache.ARC), ("ext4", HostCache.DROPPED)])
def test_a_directory_on_zfs_has_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, treated: HostCache
) -> None:
    monkeypatch.setattr(
        storages, "mount_of", lambda _: Mount("1", "0:1", "/", kind, "tank/bench", "rw")
    )
    settings = LocalSettings(storages={"local": DirSettings(kind="dir", path=tmp_path / "new")})
    assert cached_storages(settings, None)["local"].holds.host_cache is treated
