"""What collectors read, and the lines that they return: cases of the wall, samples as text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_opened

from pvebench.config import load_settings
from pvebench.config.settings import WallSettings
from pvebench.errors import ConfigError
from pvebench.metrics import state_metrics
from pvebench.metrics.exposition import Families, text_of
from pvebench.metrics.result_collectors import Snapshot, collect_wall
from pvebench.model import figure as figure_module
from pvebench.model.figure import Kind
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


class Whole:
    """Two families of prometheus_client, and one with buckets."""

    labels = ("a", "b")
    text = 'x\\i"te\n# HELP'

    def collect(self) -> list[Metric]:
        gauge = GaugeMetricFamily("g", self.text, labels=self.labels)
        counter = CounterMetricFamily("c", self.text, labels=self.labels)
        histogram = HistogramMetricFamily("h", self.text, labels=self.labels)
        for value in VALUES:
            gauge.add_metric((self.text, "y"), value)
            counter.add_metric((self.text, "y"), value)
        histogram.add_metric((self.text, "y"), [("0.5", 3.0), ("+Inf", 7.0)], 2.5)
        return [gauge, counter, histogram]


VALUES = (1e9, 0, True, -0.0, 1.5e-9, 123456789.0, math.inf, -math.inf, math.nan, 1e22, 0.1)


@pytest.mark.parametrize("opened", [False, True], ids=["plain", "openmetrics"])
def test_the_text_is_that_of_the_library(opened: bool) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Whole())
    families = Families()
    where = {"b": "y", "a": Whole.text, "unknown": "is ignored"}
    kinds: tuple[tuple[str, Kind], ...] = (("g", "gauge"), ("c", "counter"))
    for name, kind in kinds:
        for value in VALUES:
            families.add(figure_module.Metric(name, kind, Whole.labels, Whole.text), where, value)
    histogram = figure_module.Metric("h", "histogram", Whole.labels, Whole.text)
    families.add_histogram(histogram, where, {"0.5": 3.0, "+Inf": 4.0}, 2.5)
    expected = generate_opened(registry) if opened else generate_latest(registry)
    end = "# EOF\n" if opened else ""
    assert text_of([families], opened=opened) + end == expected.decode()


def test_samples_of_one_family_from_several_parts_follow_one_head() -> None:
    parts = [Families(), Families()]
    for number, part in enumerate(parts):
        for one in (state_metrics.RESULTS, state_metrics.DATABASE_SIZE):
            part.add(one, {}, number)
    lines = text_of(parts).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("# HELP")] == [
        "#",
        "pvebench_results",
        "pvebench_results",
        "#",
        "pvebench_database_size_bytes",
        "pvebench_database_size_bytes",
    ]
