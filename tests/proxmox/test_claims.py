"""Two instances of pvebench with different state directories, on one node of one cluster."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pve.site import MACHINE, POOL, QuickClock, Site, scenario
from pvebench.drivers.proxmox.hypervisor import ProxmoxHypervisor
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard
from pvebench.drivers.proxmox.vm.description import CLAIM_SECONDS, claim_of, filled_of
from pvebench.model.ports import HoldKind
from pvebench.model.workload import Case
from testing.packs import tool_workload
from testing.stores import TemporaryStore

CASE = Case(
    scenario=scenario(),
    workload=tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=1, runtime_seconds=1),
)


class Instance:
    """One pvebench: its VM and its guard, and a journal of its own."""

    def __init__(self, site: Site, directory: Path, name: str) -> None:
        site.store = TemporaryStore(directory / f"{name}.db", simulated=False)
        self.store = site.store
        self.node: ProxmoxHypervisor = site.driver("pve1")
        self.guard = NodeGuard(
            site.connect(),
            "pve1",
            storages=self.node._storages,
            claims=Claims(site.connect(), "pve1", lambda: self.node.vm, site.clock),
        )

    def waits_for(self) -> str:
        hold = self.guard.enter(CASE)
        if hold is None:
            return ""
        assert (hold.kind, hold.skip) == (HoldKind.BUSY, False)
        return hold.reason


@pytest.fixture
def pair(site: Site, tmp_path: Path) -> tuple[Instance, Instance]:
    return Instance(site, tmp_path, "one"), Instance(site, tmp_path, "two")


def later(site: Site, vmid: int, seconds: float) -> None:
    """Have the claim of a VM be that much older, and what was seen of it forgotten.

    A claim is a whole second, which may be half a second after the moment that was meant.
    """
    site.clock.skip(6)
    config = site.cluster.vms[vmid].config
    until = claim_of(config)
    config["description"] = config["description"].replace(
        f"{until:.0f}", f"{until - seconds - 1:.0f}"
    )


def test_the_second_waits_and_says_for_whom(site: Site, pair: tuple[Instance, Instance]) -> None:
    one, two = pair
    assert one.waits_for() == ""
    one.node.boot(MACHINE)
    assert two.waits_for().startswith("another pvebench measures on pve1, with VM 9000 (its claim")
    assert one.waits_for() == ""


def test_a_claim_ends_by_itself(site: Site, pair: tuple[Instance, Instance]) -> None:
    one, two = pair
    one.node.boot(MACHINE)
    later(site, 9000, CLAIM_SECONDS)
    assert two.waits_for() == ""


class Wrong(QuickClock):
    """The clock of a machine that nobody sets."""

    def __init__(self, hours: int) -> None:
        self._ahead = timedelta(hours=hours)

    def now(self) -> datetime:
        return super().now() + self._ahead


@pytest.mark.parametrize("hours", [-1, 1, 24])
def test_a_claim_holds_however_wrong_the_clock_of_either_machine_is(
    site: Site, tmp_path: Path, hours: int
) -> None:
    site.clock = Wrong(hours)
    one = Instance(site, tmp_path, "one")
    site.clock = QuickClock()
    two = Instance(site, tmp_path, "two")
    assert one.waits_for() == ""
    one.node.boot(MACHINE)
    assert "with VM 9000" in two.waits_for()
    later(site, 9000, CLAIM_SECONDS - 60)
    assert one.waits_for() == ""  # renewed
    assert "with VM 9000" in two.waits_for()
    one.node.power_off()
    two.node.boot(MACHINE)
    one.node.boot(MACHINE)
    assert "with VM 9001" in one.waits_for()


def test_a_token_that_may_not_ask_a_node_for_its_time_takes_its_own(
    site: Site, tmp_path: Path
) -> None:
    site.cluster.access.acl = [entry for entry in site.cluster.access.acl if entry[0] != "/nodes"]
    one, two = Instance(site, tmp_path, "one"), Instance(site, tmp_path, "two")
    one.node.boot(MACHINE)
    assert "with VM 9000" in two.waits_for()


def test_a_vm_that_is_off_claims_nothing(site: Site, pair: tuple[Instance, Instance]) -> None:
    one, two = pair
    one.node.boot(MACHINE)
    one.node.power_off()
    assert two.waits_for() == ""


def test_who_measures_on_renews_its_claim_now_and_then(
    site: Site, pair: tuple[Instance, Instance]
) -> None:
    one, two = pair
    one.node.boot(MACHINE)
    assert one.waits_for() == ""
    before = len([call for call in site.api.calls if call.startswith("POST")])
    assert one.waits_for() == ""
    assert len([call for call in site.api.calls if call.startswith("POST")]) == before
    later(site, 9000, CLAIM_SECONDS - 60)
    assert one.waits_for() == ""
    later(site, 9000, 120)
    assert two.waits_for() != ""


def test_of_two_that_begin_at_once_one_goes_on_and_both_say_that_they_were_disturbed(
    site: Site, pair: tuple[Instance, Instance]
) -> None:
    one, two = pair
    assert one.waits_for() == two.waits_for() == ""
    one.node.boot(MACHINE)
    two.node.boot(MACHINE)
    assert "VM 9001" in one.guard.leave(CASE)
    assert "VM 9000" in two.guard.leave(CASE)
    later(site, 9000, CLAIM_SECONDS)
    later(site, 9001, CLAIM_SECONDS)
    assert one.waits_for() == ""
    assert "VM 9000" in two.waits_for()


def test_alone_a_run_was_not_disturbed(pair: tuple[Instance, Instance]) -> None:
    one, _ = pair
    assert one.waits_for() == ""
    one.node.boot(MACHINE)
    assert one.guard.leave(CASE) == ""


def test_a_note_of_what_is_filled_and_a_claim_stand_beside_each_other(
    site: Site, pair: tuple[Instance, Instance]
) -> None:
    one, _ = pair
    one.node.boot(MACHINE)
    volume, _ = one.node.volume(scenario())
    one.node.note(volume, "data")
    config = site.cluster.vms[9000].config
    assert claim_of(config) > 0
    later(site, 9000, CLAIM_SECONDS)
    assert one.waits_for() == ""
    assert [entry.volid for entry in filled_of(config)] == [volume.volid]
    assert site.cluster.pools[POOL] == {9000}
