"""Which cases the wall shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.config import load_settings
from pvebench.config.settings import WallSettings
from pvebench.errors import ConfigError
from pvebench.metrics.collector_io import Families, Snapshot, collect_wall
from testing.families import families_of
from testing.simulations import simulate


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    simulation = simulate(tmp_path_factory.mktemp("store"))
    simulation.worker.run()
    store = simulation.store
    records = [store.cases().get(key) for key in store.cases()]
    return Snapshot(
        now=simulation.world.clock.now(),
        records=[record for record in records if record is not None],
    )


def slots(snapshot: Snapshot) -> list[dict[str, str]]:
    families = Families()
    collect_wall(snapshot, families)
    return [dict(sample.labels) for family in families_of(families) for sample in family.samples]


def test_without_a_choice_the_default_configuration_of_proxmox_is_shown(snapshot: Snapshot) -> None:
    found = slots(snapshot)
    assert [(one["slot"], one["workload"]) for one in found] == [
        ("1", "randread-4k-qd32"),
        ("2", "randwrite-4k-qd32"),
        ("3", "randread-4k-qd32"),
        ("4", "randwrite-4k-qd32"),
    ]
    assert {one["scenario"] for one in found[:2]} == {"local.scsi.raw.none"}
    # No sequential workload has a result: other cases take their slots.
    assert "local.scsi.raw.none" not in {one["scenario"] for one in found[2:]}
    assert {one["figure"] for one in found} == {"iops"}


def test_the_settings_choose(snapshot: Snapshot) -> None:
    wish = WallSettings(
        scenario="local.virtio.qcow2.none",
        workload="randwrite-4k-qd32",
        direction="write",
        title="Writes",
    )
    found, *others = slots(replace(snapshot, wall=[wish]))
    assert [one["slot"] for one in others] == ["2", "3", "4"]
    assert (found["slot"], found["title"], found["scenario"]) == (
        "1",
        "Writes",
        "local.virtio.qcow2.none",
    )


def test_a_wished_case_without_results_leaves_its_slot_to_a_measured_one(
    snapshot: Snapshot,
) -> None:
    wish = WallSettings(scenario="nothing", workload="randread-4k-qd32", direction="read")
    assert slots(replace(snapshot, wall=[wish])) == slots(snapshot)
    (only,) = slots(replace(snapshot, wall=[wish], records=snapshot.records[:1]))
    assert only["workload"] == snapshot.records[0].definition.workload
    assert slots(replace(snapshot, wall=[wish], records=[])) == []


def test_a_fifth_case_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.yaml"
    entry = "  - {scenario: a, workload: b, direction: read}\n"
    path.write_text("wall:\n" + 5 * entry, "utf-8")
    with pytest.raises(ConfigError, match=r"pvebench.yaml:\d+:\d+: .*wall.*at most 4"):
        load_settings(path)
