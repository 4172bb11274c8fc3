"""Advice: the best durable configuration, ties, doubts, and the values of the ranking."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pvebench.advice.next_measurements import proposals
from pvebench.advice.recommendation import (
    Doubt,
    Purpose,
    Recommendation,
    Standing,
    compare,
    purpose_of,
    recommendations,
)
from pvebench.advice.recommendation_text import (
    PURPOSES,
    advice_data,
    advice_lines,
    first_sentence,
    ids_text,
)
from pvebench.analysis.change import Change, Move
from pvebench.cli.advise import _without_aio
from pvebench.cli.main import run_cli
from pvebench.config import Settings, load_pack
from pvebench.drivers.clocks import START
from pvebench.metrics.exposition import Families
from pvebench.metrics.result_collectors import Snapshot, collect_settings
from pvebench.model.definition import Definition, configuration_text
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run_metrics import JUDGED
from pvebench.scheduler.plan import expand
from pvebench.store.live_results import Trend, View
from pvebench.verdicts.fastest_text import after_cycles, ranking_text
from pvebench.verdicts.overall_state import summary
from pvebench.verdicts.ranking import Exclusion, answers, rankings
from pvebench.web.views.tables import tables_view
from testing.durabilities import DURABLE
from testing.families import families_of
from testing.http_client import get
from testing.packs import STORAGES
from testing.simulated_results import case, trend, view_of
from testing.simulated_site import app_of, served
from testing.simulations import simulate

Captured = pytest.CaptureFixture[str]
QCOW2 = "scsi.qcow2.none.preallocation-off"
DEFAULT, THREAD, VIRTIO = "scsi.raw.none", "scsi.raw.none.iothread-1", "virtio.raw.none"


def results(
    levels: dict[str, float],
    *,
    seed: int = 1,
    runs: int = 10,
    sd: float = 0.03,
    ok: bool = True,
    **load: int | str,
) -> list[tuple[Definition, Trend]]:
    noise = random.Random(seed)
    return [
        (case(slug, **load), trend(level, noise, runs=runs, sd=sd, ok=ok))
        for slug, level in levels.items()
    ]


def advice(view: View) -> Recommendation:
    (found,) = recommendations(view)
    return found


def text_of(one: Recommendation) -> str:
    return "\n".join(advice_lines(one, lambda _: ()))


def test_a_faster_configuration_is_recommended_with_its_gain() -> None:
    one = advice(view_of(results({DEFAULT: 1000, THREAD: 1300, VIRTIO: 900}, fsync=1)))
    assert (one.purpose, one.standing) == (Purpose.DATABASE, Standing.FASTER)
    assert one.chosen.scenario == f"local.{THREAD}"
    assert one.gain is not None
    assert one.gain.low < 0.3 < one.gain.high
    assert re.search(r"Use scsi, raw, cache none, iothread 1: \d+% faster \(95% CI", text_of(one))


def test_the_values_are_those_of_the_ranking() -> None:
    view = view_of(results({DEFAULT: 1000, THREAD: 1300}))
    one = advice(view)
    (ranking,) = rankings(view)
    assert one.chosen.places[0].level == ranking.places[0].level
    assert one.gain is not None
    assert one.gain.ratio == pytest.approx(ranking.places[0].level / ranking.places[1].level - 1)
    assert f"{ranking.places[0].level:,.0f} IOPS" in text_of(one)


def test_a_tie_is_a_tie_and_keeps_the_default() -> None:
    one = advice(view_of(results({DEFAULT: 1000, THREAD: 1010, VIRTIO: 700})))
    assert one.standing is Standing.DEFAULT
    assert one.chosen.scenario == f"local.{DEFAULT}"
    assert "Within noise of it: scsi, raw, cache none, iothread 1." in text_of(one)


def test_unsafe_is_never_recommended_and_its_value_is_explained() -> None:
    one = advice(view_of(results({DEFAULT: 1000, THREAD: 1300, "scsi.raw.unsafe": 9000})))
    assert one.chosen.definition.cache == "none"
    assert "cache unsafe reaches" in text_of(one)
    assert "a host crash loses data" in text_of(one)


def test_writeback_is_not_recommended_for_writes_that_are_not_flushed() -> None:
    levels = {DEFAULT: 1000, THREAD: 1300, "scsi.raw.writeback": 4000}
    unsynced, synced = advice(view_of(results(levels))), advice(view_of(results(levels, fsync=1)))
    assert unsynced.chosen.definition.cache == "none"
    assert "excluded: its writes stay in host memory until the guest flushes" in text_of(unsynced)
    assert synced.chosen.definition.cache == "writeback"
    assert "Writeback needs a guest that flushes" in text_of(synced)
    assert "(qcow2 without preallocation, and Ceph without krbd: flushed data)" in text_of(synced)


def test_the_gain_over_the_present_choice_leads_to_its_runs() -> None:
    view = view_of(results({DEFAULT: 1000, THREAD: 1300}, fsync=1))
    one = advice(view)
    assert one.default is not None
    gain = compare(one.default, one.chosen, view.trends)
    lines = "\n".join(advice_lines(one, lambda _: (), one.default.scenario, gain))
    assert f"Its run IDs: {ids_text(one.default.runs)}." in lines


def test_results_in_host_memory_alone_give_no_advice() -> None:
    levels = {"scsi.raw.writeback": 4000, "scsi.raw.writeback.iothread-1": 3000}
    assert recommendations(view_of(results(levels))) == ()


@pytest.mark.parametrize("load", [{"rw": "randwrite"}, {"rw": "randread"}, {"fsync": 1}])
def test_every_answer_names_the_same_fastest_configuration(load: dict[str, int | str]) -> None:
    """Terminal, table and metrics lead with the configuration that `advise` names."""
    levels = {DEFAULT: 1000, "virtio.raw.writeback": 4000, THREAD: 1300}
    view = replace(view_of(results(levels, runs=2, **load)), simulated=False)
    one, (shown,) = advice(view), answers(view)
    text = ranking_text(shown, after_cycles)
    assert one.standing is Standing.MEASURE
    name = configuration_text(one.chosen.definition)
    assert f"The highest durable result so far is {name}." in first_sentence(one)
    assert text.startswith(f"{name} has the highest result of the durable configurations")
    cases = {key: planned.definition for key, planned in view.planned.items()}
    (table,) = tables_view(view, cases, START, {}, [shown], after_cycles)
    assert table.found == text
    families = Families()
    records: list[Any] = [
        SimpleNamespace(key=key, good=True, last=SimpleNamespace(definition=one, finished=START))
        for key, one in cases.items()
    ]
    collect_settings(Snapshot(now=START, records=records, view=view), families)
    (info,) = [
        sample.labels
        for family in families_of(families)
        for sample in family.samples
        if sample.labels.get("rank") == "fastest" and not sample.labels["excluded"]
    ]
    assert info["scenario"] == one.chosen.scenario


def test_measure_first_names_the_highest_result_however_many_options_it_has() -> None:
    """Within noise, the simplest is only recommended where a recommendation is possible."""
    levels = {"scsi.qcow2.none.ssd-1": 1000, "scsi.qcow2.none.ssd-1.iothread-1": 1010}
    one = advice(view_of(results(levels)))
    assert one.standing is Standing.MEASURE
    assert one.chosen is one.choices[0]


def test_advice_names_the_open_regression_in_the_words_of_the_verdict() -> None:
    view = view_of(results({DEFAULT: 1000, THREAD: 1300}, rw="randread"))
    chosen, other = advice(view).chosen.places[0], advice(view).default
    assert other is not None
    (one,) = recommendations(view, regressions=[regression_of(chosen.key)])
    expected = f"It has an open regression: {summary(regression_of(chosen.key))}."
    assert first_sentence(one).startswith("Use scsi, raw, cache none, iothread 1: ")
    assert first_sentence(one).endswith(expected)
    assert advice_data(one, lambda _: ())["open_regression"] == "c1"
    (one,) = recommendations(view, regressions=[regression_of(other.places[0].key)])
    assert "open regression" not in text_of(one)


def regression_of(key: str) -> Change:
    """Return an open regression of a case."""
    move = Move(
        figure=JUDGED["throughput"], effect=-0.5, low=-0.6, high=-0.4, cases=1, runs=9, p_value=0.0
    )
    return Change(
        id="c1",
        begin=START.timestamp(),
        nodes=("lab",),
        known=False,
        group=None,
        all_but=False,
        cases=(key,),
        names=(key,),
        of=1,
        moves=(move,),
    )


def test_a_difference_that_noise_explains_has_no_numbers() -> None:
    one = advice(view_of(results({DEFAULT: 1000, THREAD: 1300}, runs=4, sd=0.25)))
    assert "(not yet known to be faster or slower than the default)" in first_sentence(one)
    assert "95% CI" not in first_sentence(one)
    assert "Noise" not in text_of(one)  # the first sentence says it


@pytest.mark.parametrize(
    ("view", "doubt"),
    [
        (view_of(results({DEFAULT: 1000, THREAD: 1300}), {"accel": "tcg"}), Doubt.EMULATED),
        (view_of(results({DEFAULT: 1000, THREAD: 1300}, runs=2)), Doubt.FEW_RUNS),
        (view_of(results({DEFAULT: 1000})), Doubt.ONLY_ONE),
        (view_of(results({DEFAULT: 1000, THREAD: 1300}, runs=4, sd=0.25)), Doubt.NOISE),
        (view_of(results({"scsi.qcow2.none.ssd-1": 1000, VIRTIO: 1300})), Doubt.NO_DEFAULT),
    ],
)
def test_weak_results_lead_to_measure_first(view: View, doubt: Doubt) -> None:
    one = advice(view)
    assert doubt in one.doubts
    assert one.standing is Standing.MEASURE
    assert text_of(one).startswith("Measure first.")


def test_noisy_runs_give_no_advice() -> None:
    assert recommendations(view_of(results({DEFAULT: 1000, THREAD: 1300}, ok=False))) == ()


def test_several_workloads_of_a_purpose_count_together() -> None:
    shallow = results({DEFAULT: 1000, THREAD: 1500, VIRTIO: 1000}, iodepth=1)
    deep = results({DEFAULT: 9000, THREAD: 7000, VIRTIO: 9900}, seed=2, iodepth=32)
    one = advice(view_of([*shallow, *deep]))
    assert len(one.rankings) == 2
    assert one.chosen.scenario == f"local.{THREAD}"
    assert one.default is not None
    ratio = compare(one.default, one.chosen, view_of([*shallow, *deep]).trends).ratio
    assert ratio == pytest.approx((1.5 * 7 / 9) ** 0.5 - 1, abs=0.03)


@pytest.mark.parametrize(
    ("load", "purpose"),
    [
        ({"rw": "randwrite", "fsync": 1}, Purpose.DATABASE),
        ({"rw": "randwrite"}, Purpose.GENERAL),
        ({"rw": "randread"}, Purpose.READS),
        ({"rw": "write", "bs": 1 << 20}, Purpose.FILES),
    ],
)
def test_a_workload_stands_for_a_purpose(load: dict[str, int | str], purpose: Purpose) -> None:
    assert purpose_of(case(DEFAULT, **load)) is purpose


def durable_view(**changes: object) -> View:
    """Return results of the default and a faster qcow2, whose durability was measured."""
    view = view_of(results({DEFAULT: 1000, QCOW2: 1300}))
    node = next(iter(view.planned.values())).definition.node
    known = replace(DURABLE, node=node, **changes)  # type: ignore[arg-type] # by name
    return replace(view, measured={(node, "local", known.configuration): known})


@pytest.mark.parametrize(
    ("fact", "value", "left"),
    [
        ("storage local flushes", "ignored by mount option nobarrier of /x", 0),
        ("storage local sync", "disabled", 0),
        ("storage local ext4", "rw,relatime,nobarrier", 0),
        ("storage local xfs", "rw,relatime,barrier=1", 2),
        ("storage local sync", "standard", 2),
        ("storage other sync", "disabled", 2),
    ],
)
def test_a_storage_that_ignores_flushes_has_no_durable_configuration(
    fact: str, value: str, left: int
) -> None:
    view = view_of(results({DEFAULT: 1000, QCOW2: 1300}))
    old, new = ({"kernel": "6.8"}, {"kernel": "6.8", fact: value})
    period = EnvironmentPeriod(
        node=next(iter(view.planned.values())).definition.node,
        environment="a",
        slug="a",
        facts=old,
        started=START,
        finished=START,
    )
    changed = replace(view, periods=(period, replace(period, environment="b", facts=new)))
    (ranking,) = rankings(changed)
    assert (len(ranking.places), len(ranking.excluded)) == (left, 2 - left)
    assert {place.exclusion for place in ranking.excluded} <= {Exclusion.NOT_DURABLE}
    repaired = replace(changed, periods=(*changed.periods, period))
    assert len(rankings(repaired)[0].places) == 2


def test_measured_durability_takes_the_place_of_the_design() -> None:
    one = advice(durable_view())
    assert one.chosen.scenario == f"local.{QCOW2}"
    assert (
        "Measured 2026-11-25 with QEMU 7.2.22: if QEMU is killed, 64 of 64 flushed writes and "
        "16 of 32 other completed writes survive; if the host loses power, 32 of 32 flushed"
    ) in text_of(one)
    assert "by design" not in text_of(one)
    assert advice_data(one, lambda _: ())["durable"] == "measured"
    unmeasured = advice(view_of(results({DEFAULT: 1000, QCOW2: 1300})))
    assert "This is by design" in text_of(unmeasured)
    assert advice_data(unmeasured, lambda _: ())["durable"] == "by design"


def test_a_killed_qemu_alone_leaves_the_loss_of_power_to_the_design() -> None:
    one = advice(durable_view(power=()))
    assert "16 of 32 other completed writes survive. If the host loses power: flush" in text_of(one)
    assert "This is by design." in text_of(one)
    assert advice_data(one, lambda _: ())["durable"] == "by design"


def test_a_configuration_that_lost_flushed_writes_is_not_recommended() -> None:
    one = advice(durable_view(torn=1))
    assert one.chosen.scenario == f"local.{DEFAULT}"
    excluded = r"scsi, qcow2, .* reaches 1,\d+ IOPS; excluded: flushed writes are lost, by meas"
    assert re.search(excluded, text_of(one))


def test_run_ids_have_ranges() -> None:
    assert ids_text([3, 4, 5, 9]) == "3-5, 9"


def test_every_sentence_of_the_page_leads_to_cases(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=3)
    simulation.worker.run()
    with served(app_of(simulation)) as address:
        page, overview = get(f"{address}/advice").text, get(address).text
        for one in recommendations(simulation.results.now):
            row = f"For {PURPOSES[one.purpose]}: {first_sentence(one)}"
            assert row.replace("'", "&#39;") in overview
            assert first_sentence(one).replace("'", "&#39;") in page
        links = re.findall(r'href="(/cases/[^"]+)"', page)
        assert "Measure first." in page or "Keep the default" in page or "Use " in page
        assert links
        assert get(address + links[0]).status_code == 200
    simulation.store.close()


def test_aio_is_no_proposal_for_a_storage_that_qemu_accesses_over_the_network() -> None:
    """As `aio applies to local files and devices` of model/rules.py excludes it from each plan."""
    one = advice(view_of(results({DEFAULT: 1000, THREAD: 1300}, fsync=1)))
    place = (one.node, one.storage)
    assert "aio" in {proposal.option for proposal in proposals([one])}
    assert "aio" not in {proposal.option for proposal in proposals([one], {place})}
    cluster = {"host": "pve1", "storages": {"local": {"type": "dir"}, "ceph": {"type": "rbd"}}}
    settings = Settings.model_validate({"driver": "proxmox", "node": "pve1", "proxmox": cluster})
    assert _without_aio(settings) == {("pve1", "ceph")}
    assert _without_aio(Settings.model_validate({"driver": "proxmox"})) == set()


def test_the_written_pack_measures_unmeasured_configurations_under_equal_conditions(
    tmp_path: Path, capsys: Captured
) -> None:
    simulation = simulate(tmp_path, cycles=3)
    simulation.worker.run()
    measured = {key: record.definition for key, record in simulation.results.now.cases.items()}
    simulation.store.close()
    state, plans = ["--state", str(tmp_path)], tmp_path / "plans"
    assert run_cli(["advise", *state, "--driver", "simulated", "--plan", str(plans)]) == 0
    (path,) = plans.glob("*.yaml")
    assert f"wrote {path}" in capsys.readouterr().out
    matrix = expand(load_pack(path), node="lab", storages=STORAGES)
    planned = [Definition.of(one) for one in matrix.cases]
    conditions = {one.conditions for one in measured.values()}
    assert {one.conditions for one in planned} <= conditions
    assert {one.scenario for one in planned} - {one.scenario for one in measured.values()}
    assert not [one for one in planned if one.cache == "unsafe"]
    assert not matrix.excluded
