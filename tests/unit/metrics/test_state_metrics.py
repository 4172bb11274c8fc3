"""The catalog of metrics has everything that a scenario means."""

from __future__ import annotations

from dataclasses import replace

from pvebench.metrics.state_metrics import SCENARIO_INFO
from pvebench.model.disk import POOL_OPTIONS, Cache, HostCache
from testing.packs import quick


def test_everything_that_a_scenario_means_is_a_label_of_its_info() -> None:
    found = quick()[1].cases[0].scenario
    cached = replace(found.disk, cache=Cache.WRITEBACK)
    scenario = replace(found, disk=cached, host_cache=HostCache.WARM)
    told = {**scenario.meaning(), **scenario.labels()}
    # Of the volume's content, which is the same for all scenarios of a pack.
    unlabelled = {"file_name", "file_bytes", "fill_passes", "fill_compress"}
    # In the slug. VictoriaMetrics stores 30 labels of a series by default (test_scaling).
    unlabelled |= {"overlay_cluster", *POOL_OPTIONS}
    # The same once more, in words for screens.
    worded = {"configuration", "disk"}
    assert set(SCENARIO_INFO.labels) - worded == set(told) - unlabelled
