"""The driver against the API of tests/pve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pve.cluster import Cluster
from pve.instance import write_settings
from pve.server import running_api
from pve.site import Site, small_image
from pvebench.drivers.proxmox.api.privileges import OPERATION_PRIVILEGES
from pvebench.drivers.proxmox.vm.drive import OperationTargets
from pvebench.guest.image import MANIFEST, describe_files
from pvebench.guest.recipe import FORMAT, recipe_digest
from testing.packs import write_pack


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of caches with a tiny guest image: to verify the real one takes half a second."""
    home = tmp_path_factory.mktemp("cache")
    directory = home / "pvebench/guest"
    directory.mkdir(parents=True)
    manifest = {
        **small_image(directory).manifest,
        "format": FORMAT,
        "recipe": recipe_digest(),
        "files": describe_files(directory),
    }
    (directory / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    return home


@pytest.fixture(autouse=True)
def _no_image_of_this_machine(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))


@pytest.fixture(params=[8, 9], ids=["pve8", "pve9"])
def major(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[[int], Site]]:
    """Make a site of a given version; ended after the test."""
    open_sites = []
    managers = []

    def make(version: int = 9) -> Site:
        manager = running_api(Cluster(tmp_path / "cluster", major=version))
        api = manager.__enter__()
        managers.append(manager)
        site = Site(api, tmp_path, version)
        open_sites.append(site)
        return site

    yield make
    for site in open_sites:
        site.close()
    for manager in managers:
        manager.__exit__(None, None, None)


@pytest.fixture
def site(make_site: Callable[[int], Site]) -> Site:
    return make_site(9)


@pytest.fixture
def both(make_site: Callable[[int], Site], major: int) -> Site:
    """A site of version 8, then one of version 9."""
    return make_site(major)


@pytest.fixture
def config(site: Site, tmp_path: Path) -> Path:
    path = write_settings(tmp_path, site.api, packs=[write_pack(tmp_path)])
    site.keep_token(tmp_path)
    return path


@pytest.fixture
def allowed(site: Site) -> Site:
    """A site whose token has the rights and whose storages can be targets of operations."""
    site.cluster.access.roles["StorageBenchVM"] |= OPERATION_PRIVILEGES
    site.cluster.storages["local"].content = "images,iso,backup"
    site.cluster.storages["share"].volume_chain = True
    site.node.targets = OperationTargets(
        backup_storage="local", fleecing_storage="thin", move_storage="thin"
    )
    return site
