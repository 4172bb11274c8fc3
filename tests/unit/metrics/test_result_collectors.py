"""What the boards say beside the slugs, and how settings compare, as metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.drivers.clocks import START
from pvebench.metrics.exposition import Families
from pvebench.metrics.result_collectors import Snapshot, collect_info, collect_settings, snapshot_of
from testing.families import families_of
from testing.packs import SMALL, write_pack
from testing.simulated_site import results_of
from testing.simulations import simulate

PACK = SMALL.replace("[virtio, scsi]", "[scsi]").replace("[none]", "[none, writethrough, unsafe]")


def after(directory: Path, cycles: int, pack: str = PACK) -> Snapshot:
    directory.mkdir(exist_ok=True)
    simulation = simulate(directory, pack=write_pack(directory, pack), cycles=cycles)
    simulation.worker.run()
    now = simulation.world.clock.now()
    return snapshot_of(results_of(simulation).now, now=now, max_age_seconds=1e6)


def of(snapshot: Snapshot, name: str) -> dict[str, tuple[dict[str, str], float]]:
    """Cache mode -> labels and value of a metric."""
    families = Families()
    collect_settings(snapshot, families)
    return {
        sample.labels["cache"]: (dict(sample.labels), sample.value)
        for family in families_of(families)
        for sample in family.samples
        if sample.name == name
    }


@pytest.fixture(scope="module")
def four_cycles(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return after(tmp_path_factory.mktemp("store"), 4)


def test_what_ignores_flushes_is_never_the_fastest(four_cycles: Snapshot) -> None:
    found = of(four_cycles, "pvebench_scenario_rank_info")
    assert found["unsafe"][0]["excluded"] == "not_durable"
    standings = {found[mode][0]["rank"] for mode in ("none", "writethrough")}
    assert "fastest" in standings
    assert {found[mode][0]["excluded"] for mode in ("none", "writethrough")} == {""}


def test_the_fastest_is_at_no_distance_and_the_others_below(four_cycles: Snapshot) -> None:
    info, gap = (
        of(four_cycles, f"pvebench_scenario_{name}") for name in ("rank_info", "gap_ratio")
    )
    noise = of(four_cycles, "pvebench_scenario_gap_noise_ratio")
    fastest = next(mode for mode, (labels, _) in info.items() if labels["rank"] == "fastest")
    (other,) = {"none", "writethrough"} - {fastest}
    assert gap[fastest][1] == 0
    assert gap[other][1] <= 0
    assert noise[other][1] > 0
    assert (gap[other][1] < -noise[other][1]) is (info[other][0]["rank"] == "slower")


def test_after_one_run_it_is_not_known_which_differ(tmp_path: Path) -> None:
    found = of(after(tmp_path, 1), "pvebench_scenario_rank_info")
    assert sorted(labels["rank"] for labels, _ in found.values()) == [
        "fastest",
        "unknown",
        "unknown",
    ]
    assert of(after(tmp_path / "again", 1), "pvebench_scenario_gap_noise_ratio") == {}


def test_an_empty_store_has_no_settings() -> None:
    families = Families()
    collect_settings(Snapshot(now=START, records=()), families)
    assert families_of(families) == []


def test_what_is_not_usual_stands_first_in_a_settings_name(tmp_path: Path) -> None:
    pack = SMALL.replace("volume:", "fixed: {iothread: true}\nvolume:")
    families = Families()
    collect_info(after(tmp_path, 1, pack), families)
    samples = [sample for family in families_of(families) for sample in family.samples]
    names = {
        sample.labels["configuration"] for sample in samples if "configuration" in sample.labels
    }
    assert names == {"iothread 1, virtio, raw, none", "iothread 1, scsi, raw, none"}
    disks = {sample.labels["disk"] for sample in samples if "disk" in sample.labels}
    assert disks == {"iothread 1, virtio, raw", "iothread 1, scsi, raw"}
    words = {sample.labels["description"] for sample in samples if "description" in sample.labels}
    assert words == {"4k random read, depth 8"}
