"""Effects of upgrades across sites: who is blamed, for which cases, and who is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pvebench.model.environment import Affected, KnownIssue, storage_fact
from pvebench_fleet.across_sites import _conjunction, fleet_effects
from pvebench_fleet.hub.fleet_view import sentence, unfixed, upgrades
from pvebench_fleet.hub.store.overview import FleetView
from pvebench_fleet.node_effects import EVERY_SECONDS, NodeEffect
from testing.hub_fleets import effects_of_fleet
from testing.site_effects import KERNEL, QEMU, SCSI, WEEK, node_with, sites_with


def test_a_loss_at_a_third_of_the_sites_is_blamed_on_the_upgrade() -> None:
    (found,) = fleet_effects(sites_with(4))
    assert (found.difference, found.worse, found.others) == (KERNEL, True, 4)
    assert [one.site for one in found.moved] == ["site00", "site01", "site02", "site03"]
    assert found.low < found.mean < found.high
    assert found.between > 0.01


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_fewer_than_a_quarter_of_the_sites_are_no_fault_of_the_upgrade(slow: int) -> None:
    assert fleet_effects(sites_with(slow, effect=-0.3)) == []


def test_a_loss_at_a_third_of_the_sites_is_found_although_the_others_got_faster() -> None:
    """The rank test: what the others show counts against Fisher's statistic."""
    fleet = sites_with(4, effect=-0.04)
    for number in range(4, 12):
        fleet[f"site{number:02}"] = [node_with(number, KERNEL, effect=0.02)]
    (found,) = fleet_effects(fleet)
    assert (found.worse, len(found.moved)) == (True, 4)


def test_a_small_loss_at_all_sites_is_found() -> None:
    """Fisher's statistic: no site is certain alone."""
    (found,) = fleet_effects(sites_with(12, effect=-0.017))
    assert (found.worse, len(found.sites)) == (True, 12)


@pytest.mark.parametrize("certain", [0.0, 0.5])
def test_the_chance_of_two_sites_is_right_if_one_of_them_moved(certain: float) -> None:
    """Partial conjunction (Benjamini and Heller 2008): one site that moved proves nothing."""
    rng = np.random.default_rng(1)
    drawn = rng.uniform(size=(4000, 12))
    drawn[:, 0] *= certain
    chances = np.array([_conjunction([*map(float, row)]) for row in drawn])
    for level in (0.05, 0.01, 0.002):
        assert np.mean(chances <= level) <= level + 3 * np.sqrt(level / len(chances))


def test_an_effect_counts_only_beyond_the_error_of_the_comparison() -> None:
    """The fewer sites are compared, the more their noise could be the effect."""
    assert fleet_effects(sites_with(4, others=4, effect=-0.034)) == []
    (found,) = fleet_effects(sites_with(4, others=32, effect=-0.034))
    assert (found.worse, len(found.moved)) == (True, 4)


def test_a_disturbance_between_two_weeks_is_subtracted_in_proportion() -> None:
    fleet = sites_with(0, count=0, others=6, shared=-0.06)
    later = {"effect": 0.036, "shared": -0.06, "at": WEEK + 0.6 * EVERY_SECONDS}  # in sum 40% of it
    for number in range(6):
        fleet[f"site{number}"] = [node_with(number, KERNEL, **later)]
    assert fleet_effects(fleet) == []


def test_what_sites_without_the_upgrade_show_too_is_no_effect() -> None:
    assert fleet_effects(sites_with(0, shared=-0.06)) == []
    assert fleet_effects(sites_with(0, others=0, shared=-0.06)) != []  # nothing to compare with


def test_sites_that_upgraded_in_other_weeks_are_compared_too() -> None:
    fleet = sites_with(0, others=0, shared=-0.06)
    for number in range(6):
        later = {"effect": 0.06, "shared": -0.06, "at": WEEK + EVERY_SECONDS}  # in sum nothing
        fleet[f"later{number}"] = [node_with(60 + number, KERNEL, **later)]
    assert fleet_effects(fleet) == []


def test_a_load_that_changes_at_one_compared_site_is_not_taken_for_that_of_all() -> None:
    fleet = sites_with(4)
    fleet["other0"] = [node_with(50, shared=-0.2)]
    (found,) = fleet_effects(fleet)
    assert (len(found.moved), found.others) == (4, 4)
    assert abs(found.shift) < 0.01


def test_a_few_sites_are_not_compared_with_many() -> None:
    """The noise of three would be taken for an effect at all sixteen."""
    (found,) = fleet_effects(sites_with(4, count=16, others=3))
    assert (found.others, found.shift) == (0, 0.0)


def test_nodes_of_one_site_count_once() -> None:
    one_site = {"a": [node_with(n, KERNEL, effect=-0.05) for n in range(12)], "b": [node_with(20)]}
    assert fleet_effects(one_site) == []
    twelve = sites_with(4)
    twice = {site: [*nodes, *nodes] for site, nodes in twelve.items()}
    (once,), (again,) = fleet_effects(twelve), fleet_effects(twice)
    assert once.p_value == pytest.approx(again.p_value)


def test_a_noisy_site_needs_a_larger_effect() -> None:
    loud = sites_with(4)
    for name in loud:
        loud[name] = [
            [
                NodeEffect(
                    e.time, e.differences, e.figure, e.group, 8 * e.effect, e.error, e.own, 8
                )
                if not e.differences
                else e
                for e in nodes
            ]
            for nodes in loud[name]
        ]
    assert fleet_effects(loud) == []


def test_the_most_certain_group_is_named_and_only_that() -> None:
    fleet = sites_with(4, effect=-0.015)
    for number in range(12):
        effect = -0.05 if number < 4 else 0.0
        fleet[f"site{number:02}"][0] += node_with(100 + number, KERNEL, effect=effect, group=SCSI)
    (found,) = fleet_effects(fleet)
    assert found.group == SCSI


def test_a_group_that_did_not_move_itself_is_not_blamed() -> None:
    fleet = {
        f"site{number:02}": [node_with(number, KERNEL, effect=-0.05, group=SCSI, own=0.0)]
        for number in range(12)
    }
    assert fleet_effects(fleet) == []


def test_versions_that_always_came_together_are_named_together() -> None:
    fleet = {
        f"site{number:02}": [node_with(number, KERNEL, QEMU, effect=-0.05)] for number in range(6)
    }
    (found,) = fleet_effects(fleet)
    assert {found.difference, *found.also} == {KERNEL, QEMU}


def test_the_sentence_names_sites_comparison_and_those_still_to_come() -> None:
    facts = {"graz": [{"kernel": "6.14.5"}], "linz": [{"kernel": "6.14.8"}]}
    (found,) = upgrades(FleetView(effects=sites_with(4), facts=facts))
    assert found.behind == ("graz",)
    assert found.text == (
        "Everything is 5.0% slower at 4 of 12 sites since kernel 6.14.8 (mean of all sites -2.3%; "
        "95% CI -3.7% to -0.9%; spread between sites 1.8%; site00, site01, site02 and site03; "
        "4 sites without it: unchanged at that time). Still to come: graz"
    )
    assert "sites 50.0%" in sentence(replace(found.effect, between=np.log(1.5)))  # a ratio


def test_known_issues_name_the_sites_with_an_affected_version() -> None:
    affected = Affected(fact="kernel", since="6.14.5", before="6.14.8")
    issue = KnownIssue(
        id="R1", title="slow", kind="slower", affected=(affected,), moves=("iops",), options={}
    )
    facts = {"graz": [{"kernel": "6.14.6"}], "linz": [{"kernel": "6.14.8"}]}
    assert unfixed(FleetView(facts=facts), [issue]) == [(issue, ["graz"])]
    of_nfs = replace(issue, options={"plugin": ("nfs",)})
    assert unfixed(FleetView(facts=facts), [of_nfs]) == []
    for kind, sites in (("nfs", [(of_nfs, ["graz"])]), ("dir", [])):
        facts["graz"][0][storage_fact("local", "type")] = kind
        assert unfixed(FleetView(facts=facts), [of_nfs]) == sites


def test_a_simulated_fleet_that_is_slower_in_all_cases_blames_the_upgrade() -> None:
    """Seed 12: the load of a compared site changes in a week of upgrades."""
    (found,) = effects_of_fleet(12, slow_sites=4, ratio=0.95, members={})
    assert (found.difference.fact, found.worse) == ("kernel", True)


def test_a_simulated_fleet_with_a_slow_bus_blames_the_upgrade() -> None:
    (found,) = effects_of_fleet(1, slow_sites=4, ratio=0.95, members={"bus": "scsi"})
    assert (found.difference.fact, dict(found.group)["bus"]) == ("kernel", "scsi")
