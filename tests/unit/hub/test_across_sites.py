"""Effects of upgrades across sites: who is blamed, for which cases, and who is not."""

from __future__ import annotations

import numpy as np
import pytest

from pvebench.analysis.across_sites import EVERY_SECONDS, NodeEffect, fleet_effects
from pvebench.analysis.case_history import Group
from pvebench.analysis.change import Difference
from pvebench.hub.fleet_view import FleetView, unfixed, upgrades
from pvebench.model.environment import Affected, KnownIssue
from testing.hub_fleets import effects_of_fleet

KERNEL = Difference("kernel", "6.14.5", "6.14.8")
QEMU = Difference("qemu", "9.2.0-1", "9.2.0-5")
WEEK = 100 * EVERY_SECONDS
SCSI: Group = (("bus", "scsi"),)
ERROR = 0.008


def node(
    seed: int,
    *differences: Difference,
    effect: float = 0.0,
    shared: float = 0.0,
    at: float = WEEK,
    group: Group = (),
    own: float | None = None,
) -> list[NodeEffect]:
    """Return a node's effects: twenty weeks of noise, a shared shift in one of them, an upgrade."""
    rng = np.random.default_rng(seed)
    found = []
    for week in range(-20, 2):
        shift = rng.normal(0.0, ERROR) + (shared if week == 0 else 0.0)
        time = WEEK + week * EVERY_SECONDS
        found.append(NodeEffect(time, (), "throughput", group, shift, ERROR, shift, 8))
    if differences:
        shift = effect + shared + rng.normal(0.0, ERROR)
        shown = shift if own is None else own
        found.append(NodeEffect(at, differences, "throughput", group, shift, ERROR, shown, 8))
    return found


def sites(
    slow: int, count: int = 12, others: int = 4, *, effect: float = -0.05, shared: float = 0.0
) -> dict[str, list[list[NodeEffect]]]:
    found = {
        f"site{number:02}": [
            node(number, KERNEL, effect=effect if number < slow else 0.0, shared=shared)
        ]
        for number in range(count)
    }
    return found | {
        f"other{number}": [node(50 + number, shared=shared)] for number in range(others)
    }


def test_a_loss_at_a_third_of_the_sites_is_blamed_on_the_upgrade() -> None:
    (found,) = fleet_effects(sites(4))
    assert (found.difference, found.worse, found.others) == (KERNEL, True, 4)
    assert [one.site for one in found.moved] == ["site00", "site01", "site02", "site03"]
    assert found.low < found.mean < found.high
    assert found.between > 0.01


@pytest.mark.parametrize("slow", [0, 1])
def test_one_slow_site_is_no_fault_of_the_upgrade(slow: int) -> None:
    assert fleet_effects(sites(slow, effect=-0.3)) == []


def test_what_sites_without_the_upgrade_show_too_is_no_effect() -> None:
    assert fleet_effects(sites(0, shared=-0.06)) == []
    assert fleet_effects(sites(0, others=0, shared=-0.06)) != []  # nothing to compare with


def test_nodes_of_one_site_count_once() -> None:
    one_site = {"a": [node(n, KERNEL, effect=-0.05) for n in range(12)], "b": [node(20)]}
    assert fleet_effects(one_site) == []
    twelve = sites(4)
    twice = {site: [*nodes, *nodes] for site, nodes in twelve.items()}
    (once,), (again,) = fleet_effects(twelve), fleet_effects(twice)
    assert once.p_value == pytest.approx(again.p_value)


def test_a_noisy_site_needs_a_larger_effect() -> None:
    loud = sites(4)
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
    fleet = sites(4, effect=-0.015)
    for number in range(12):
        effect = -0.05 if number < 4 else 0.0
        fleet[f"site{number:02}"][0] += node(100 + number, KERNEL, effect=effect, group=SCSI)
    (found,) = fleet_effects(fleet)
    assert found.group == SCSI


def test_a_group_that_did_not_move_itself_is_not_blamed() -> None:
    fleet = {
        f"site{number:02}": [node(number, KERNEL, effect=-0.05, group=SCSI, own=0.0)]
        for number in range(12)
    }
    assert fleet_effects(fleet) == []


def test_versions_that_always_came_together_are_named_together() -> None:
    fleet = {f"site{number:02}": [node(number, KERNEL, QEMU, effect=-0.05)] for number in range(6)}
    (found,) = fleet_effects(fleet)
    assert {found.difference, *found.also} == {KERNEL, QEMU}


def test_the_sentence_names_sites_comparison_and_those_still_to_come() -> None:
    facts = {"graz": [{"kernel": "6.14.5"}], "linz": [{"kernel": "6.14.8"}]}
    (found,) = upgrades(FleetView(effects=sites(4), facts=facts))
    assert found.behind == ("graz",)
    assert found.text == (
        "Everything is 5.2% slower at 4 of 12 sites since kernel 6.14.8 (mean of all sites -2.4%; "
        "95% CI -3.8% to -1.1%; spread between sites 1.9%; site00, site01, site02 and site03; "
        "4 sites without it: +0.6% at that time). Still to come: graz"
    )


def test_known_issues_name_the_sites_with_an_affected_version() -> None:
    affected = Affected(fact="kernel", since="6.14.5", before="6.14.8")
    issue = KnownIssue(
        id="R1", title="slow", kind="slower", affected=(affected,), moves=("iops",), options={}
    )
    facts = {"graz": [{"kernel": "6.14.6"}], "linz": [{"kernel": "6.14.8"}]}
    assert unfixed(FleetView(facts=facts), [issue]) == [(issue, ["graz"])]


def test_a_simulated_fleet_with_a_slow_bus_blames_the_upgrade() -> None:
    (found,) = effects_of_fleet(1, slow_sites=4, ratio=0.95, members={"bus": "scsi"})
    assert (found.difference.fact, dict(found.group)["bus"]) == ("kernel", "scsi")
