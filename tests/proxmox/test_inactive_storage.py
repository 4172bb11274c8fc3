"""A storage that is disabled or not mounted: Proxmox reports it with 0 bytes, and it is not full.

Seen on the real code of 9.2.11: `{"active":0,"avail":0,"total":0,"enabled":0}`, with `enabled` 1
where only the mount is missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pve.server import RunningApi
from pve.site import MACHINE, Site, scenario
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import NodeChecks
from pvebench.drivers.proxmox.setup.survey import survey
from pvebench.drivers.proxmox.vm.drive import OperationTargets
from pvebench.errors import DriverError, VolumeError
from pvebench.model.disk import Format
from pvebench.model.ports import HoldKind
from pvebench.model.units import GIB
from testing.node_guards import case, guard
from testing.prepared_cluster import api, config, findings, granted

__all__ = ["api", "config", "granted"]
OFF = [
    ("enabled", "storage {} on pve1 is disabled", "run `pvesm set {} --disable 0`"),
    ("mounted", "storage {} on pve1 is not active", "run `pvesm status --storage {}` on pve1"),
]


@pytest.mark.parametrize(("how", "fact", "action"), OFF)
def test_a_case_on_it_is_skipped_with_its_state_and_the_command(
    site: Site, how: str, fact: str, action: str
) -> None:
    one = guard(site, local=1 * GIB)
    assert one.enter(case()) is None
    setattr(site.cluster.storages["local"], how, False)
    hold = one.enter(case())
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.AWAY, True)
    assert hold.reason.startswith(fact.format("local"))
    assert action.format("local") in hold.reason
    assert "local" not in one.free  # unknown, not 0
    assert "storage_used" not in one.seen["local"]
    setattr(site.cluster.storages["local"], how, True)
    assert one.enter(case()) is None
    assert one.free["local"] == 100 * GIB


@pytest.mark.parametrize(("how", "fact", "action"), OFF)
def test_a_volume_on_it_is_refused_with_its_state_and_the_command(
    site: Site, how: str, fact: str, action: str
) -> None:
    site.node.boot(MACHINE)
    setattr(site.cluster.storages["thin"], how, False)
    with pytest.raises(VolumeError) as refused:
        site.node.volume(scenario(storage="thin"))
    assert refused.value.happened.startswith(fact.format("thin"))
    assert action.format("thin") in refused.value.next_step


@pytest.mark.parametrize(("how", "fact", "action"), OFF)
def test_an_operation_with_it_is_refused_with_its_state_and_the_command(
    allowed: Site, how: str, fact: str, action: str
) -> None:
    allowed.plug(scenario(kind=Format.QCOW2))
    setattr(allowed.cluster.storages["thin"], how, False)
    with pytest.raises(VolumeError) as refused:
        allowed.node.operate("move", 0).prepare()
    assert refused.value.happened.startswith(fact.format("thin"))
    assert action.format("thin") in refused.value.next_step


def test_an_operation_with_a_storage_that_is_not_there_does_not_call_it_inactive(
    site: Site,
) -> None:
    site.plug(scenario(kind=Format.QCOW2))
    site.node.targets = OperationTargets(move_storage="nowhere")
    with pytest.raises(VolumeError, match="nowhere is not on pve1, or not in the pool"):
        site.node.operate("move", 0).prepare()


def test_volumes_that_proxmox_cannot_free_with_their_vm_are_named(site: Site) -> None:
    """DELETE of the VM ends well: such a volume is only a warning (`destroy_vm`)."""
    volume = site.plug(scenario(storage="thin"))
    site.cluster.storages["thin"].mounted = False
    site.node.shutdown()
    assert site.cluster.vms == {}
    (text,) = [details["text"] for _, _, details in site.store.journal.pending()]
    assert text.startswith(f"{volume.volid} on pve1, on a storage that is not active")
    assert "pvesm free" in text


@pytest.mark.parametrize(("how", "fact", "action"), OFF)
def test_check_names_its_state_wherever_it_is_used(
    api: RunningApi,
    granted: Path,
    capsys: pytest.CaptureFixture[str],
    how: str,
    fact: str,
    action: str,
) -> None:
    api.cluster.storages["local"].content += ",backup"
    text = granted.read_text("utf-8")
    granted.write_text(f"{text}  operations: {{backup_storage: local}}\n", "utf-8")
    setattr(api.cluster.storages["local"], how, False)
    found = findings(granted, capsys)
    for name in ("storage local", "image storage", "operations on local"):
        good, said = found[name]
        assert not good
        assert said.startswith(fact.format("local"))
        assert action.format("local") in said
    good, said = found["storage fast"]
    assert good
    assert said.startswith("lvmthin, 100.0 GiB free")


def test_its_space_is_unknown_and_that_of_others_is_known(site: Site) -> None:
    site.cluster.storages["local"].enabled = False
    entries = {name: {"type": "dir"} for name in ("local", "thin")}
    cluster = ProxmoxSettings.model_validate({"host": "h", "pool": "bench", "storages": entries})
    spaces = NodeChecks(site.connect(), cluster, "pve1").spaces
    assert "local" not in spaces
    assert spaces["thin"].free == 100 * GIB


def test_the_survey_takes_the_size_from_a_node_that_has_it(site: Site) -> None:
    """A directory that pve1 has not mounted, but pve2 has."""
    rows = {row["storage"]: row for row in site.connect().get("/nodes/pve1/storage")}
    off = {**rows["thin"], "active": 0, "avail": 0, "total": 0, "used": 0}

    class Mixed:
        """The API, with `thin` off on pve1."""

        def get(self, path: str, **params: object) -> object:
            answer = site.connect().get(path, **params)
            if path != "/nodes/pve1/storage":
                return answer
            return [off if row["storage"] == "thin" else row for row in answer]

    found = {one.id: one for one in survey(Mixed()).storages}  # type: ignore[arg-type] # reads only
    assert found["thin"].nodes == ["pve2"]
    assert (found["thin"].free_bytes, found["thin"].total_bytes) == (100 * GIB, 200 * GIB)


def test_an_upload_to_a_disabled_storage_names_the_command(site: Site) -> None:
    site.cluster.storages["local"].enabled = False
    with pytest.raises(DriverError) as refused:
        site.node.boot(MACHINE)
    assert "storage 'local' is disabled" in refused.value.happened
    assert refused.value.cause == "the storage is disabled"
    assert refused.value.next_step == "run `pvesm status` on the node"
