"""Several VMs on a node: made, started together, never mistaken for the benchmark VM, removed.

Witnesses: the cluster of tests/pve with the rights that `init` grants; memory is that of the
recordings `node.status` (8.4 and 9.2), where `total` without `used` is what 9.2 calls `available`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from pve.server import RunningApi
from pve.site import MACHINE, POOL, Site, scenario
from pve.vms import Vm
from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox.hypervisor import ProxmoxHypervisor
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.vm import vm_create
from pvebench.drivers.proxmox.vm.description import claim_of, mark_of
from pvebench.errors import GuestTimeout, ServerGone
from pvebench.model.ports import HoldKind
from pvebench.model.rules import why_not_run
from pvebench.model.run import Outcome, Run
from pvebench.model.units import GIB, MIB
from pvebench.runner import companions, prepare
from testing.cluster_crashes import ClusterLives, case_of
from testing.packs import ROOT
from testing.prepared_cluster import api, config, findings, granted
from testing.simulated_cluster import BOOT_SECONDS

__all__ = ["api", "config", "granted"]

TWO, FOUR = case_of(vms=2), case_of(vms=4)
NEIGHBOR = case_of(during="neighbor", neighbor_iops=100)


@pytest.fixture
def make_lives(tmp_path: Path) -> Iterator[Callable[..., ClusterLives]]:
    """Make lives of a pvebench in simulated time; ended after the test."""
    made: list[ClusterLives] = []

    def make(**options: bool) -> ClusterLives:
        made.append(ClusterLives(tmp_path / str(len(made)), random.Random(0), **options))
        return made[-1]

    yield make
    for lives in made:
        lives.close()


@pytest.fixture
def lives(make_lives: Callable[..., ClusterLives]) -> ClusterLives:
    return make_lives()


def figures(run: Run) -> dict[str, float]:
    return {sample.metric: sample.value for sample in run.samples}


# --- runs


def test_runs_in_several_vms_and_beside_a_neighbor_have_results(lives: ClusterLives) -> None:
    two, four, near = runs = lives.live([TWO, FOUR, NEIGHBOR])
    assert [run.outcome for run in runs] == [Outcome.OK] * 3, [run.reason for run in runs]
    assert figures(four)["vms_fairness"] > 0.9
    assert figures(four)["iops"] == pytest.approx(2 * figures(two)["iops"], rel=0.2)
    assert figures(near)["operation_bytes"] > 0
    assert "vms_fairness" not in figures(near)
    lives.look("at the end")
    assert (lives.broken.lines, lives.cluster.vms) == ([], {})


def test_all_are_made_before_and_started_before_the_first_is_waited_for(
    lives: ClusterLives,
) -> None:
    """Else their creation, or the boots one after the other, would be in `vms_boot_time`."""
    (run,) = lives.live([FOUR])
    assert BOOT_SECONDS <= figures(run)["vms_boot_time"] < 1.5 * BOOT_SECONDS
    starts = [at for at, one in enumerate(lives.requests) if one.endswith("/status/start")]
    pings = [at for at, one in enumerate(lives.requests) if one.endswith("/agent/ping")]
    second_to_last = starts[2::2]
    assert not [at for at in pings if second_to_last[0] < at < second_to_last[-1]]


def test_the_environment_of_a_run_is_that_of_the_benchmark_vm(lives: ClusterLives) -> None:
    one, two = lives.live([case_of(), TWO])
    assert one.environment == two.environment


def test_volumes_are_filled_once_for_several_runs(lives: ClusterLives) -> None:
    lives.live([TWO, TWO])
    allocated = [one for one in lives.requests[::2] if one.endswith("/storage/local/content")]
    assert len([one for one in allocated if one.startswith("POST")]) == 2


def test_a_vm_that_an_administrator_deletes_between_runs_is_replaced(
    lives: ClusterLives, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = companions.Companions.end

    def deleted(gathered: companions.Companions) -> int:
        written = end(gathered)
        for vmid in [vmid for vmid in lives.cluster.vms if vmid > 9000]:
            lives.cluster.vms.pop(vmid).remove()
            lives.cluster.pools[POOL].discard(vmid)
        return written

    monkeypatch.setattr(companions.Companions, "end", deleted)
    runs = lives.live([TWO, TWO, case_of()])
    assert [run.outcome for run in runs] == [Outcome.OK] * 3, [run.reason for run in runs]
    lives.look("at the end")
    assert lives.broken.lines == []


def test_too_little_memory_skips_the_run_before_any_vm_is_made(lives: ClusterLives) -> None:
    memory = lives.cluster.all_nodes["pve1"].memory
    memory["used"] = memory["total"] - 3 * MACHINE.memory_bytes + MIB
    three, two = lives.live([FOUR, TWO])
    assert (three.outcome, three.reason) == (
        Outcome.SKIPPED,
        "memory: 1.5 GiB needed for 3 more VMs, 1.5 GiB available",
    )
    assert two.outcome is Outcome.OK
    assert len([one for one in lives.requests[::2] if one == "POST /nodes/pve1/qemu"]) == 2


def test_too_few_ids_fail_the_run_and_leave_nothing(lives: ClusterLives) -> None:
    for vmid in range(9002, 9010):
        lives.have_foreign_vm(vmid)
    run, two = lives.live([FOUR, TWO])
    assert (run.outcome, run.reason) == (Outcome.FAILED, "no free VM ID from 9000 to 9009")
    assert two.outcome is Outcome.OK
    lives.look("at the end")
    assert lives.broken.lines == []


# --- what is not pvebench's


@pytest.mark.parametrize("marked", [False, True])
def test_a_vm_of_others_at_the_expected_id_is_not_touched(
    lives: ClusterLives, marked: bool
) -> None:
    """It comes after pvebench saw that the ID is free."""
    free = vm_create.is_free

    def taken(api: object, vmid: int) -> bool:
        found = free(api, vmid)  # type: ignore[arg-type] # as it came
        if vmid == 9001:
            text = f"pvebench-mark: {'f' * 32}" if marked else ""
            lives.have_foreign_vm(vmid, description=text)
        return found

    with mock.patch.object(vm_create, "is_free", taken):
        (run,) = lives.live([TWO])
    assert run.outcome is Outcome.OK, run.reason
    lives.look("at the end")
    assert lives.broken.lines == []
    assert set(lives.cluster.vms) == {9001}


def test_a_further_vm_whose_marker_is_gone_is_left_alone(lives: ClusterLives) -> None:
    gather = companions.Companions.gather

    def changed(*given: object) -> object:
        team = gather(*given)  # type: ignore[arg-type] # as they came
        vm = lives.cluster.vms[9001]
        vm.config["description"] = "mine now"
        return team

    with mock.patch.object(companions.Companions, "gather", changed):
        lives.live([TWO])
    assert set(lives.cluster.vms) == {9001}
    assert lives.cluster.vms[9001].config["description"] == "mine now"
    assert lives.store.journal.pending() == []


# --- kills


def changing(requests: list[str]) -> list[int]:
    """Return the moments of the requests that change something, agents' left out."""
    return [
        at
        for at, request in enumerate(requests, 1)
        if not request.startswith("GET") and "/agent/" not in request
    ]


def killed_at_each_change(lives: ClusterLives) -> int:
    lives.have_foreign_vm(9001)
    lives.live([TWO])
    moments = changing(lives.requests)
    for moment in moments:
        lives.live([TWO], dies_at=moment)
        lives.start(lives.connect())
        lives.start(lives.connect())
        lives.look(f"after moment {moment}, {lives.requests[-1]}")
        if lives.broken.lines:
            break
    return len(moments)


def test_killed_before_or_after_each_change_nothing_is_left_but_the_kept_vm(
    make_lives: Callable[..., ClusterLives],
) -> None:
    lives = make_lives(keep=True)
    assert killed_at_each_change(lives) > 30
    assert lives.deaths > 30
    assert lives.broken.lines == []


def test_a_further_vm_is_never_the_kept_one(make_lives: Callable[..., ClusterLives]) -> None:
    """The test of the test: with the note that the benchmark VM has, it would be kept."""

    def noted(site: prepare.Site) -> prepare.Setup:
        return prepare.Setup(replace(site, fill_notes=site.hypervisor))  # type: ignore[arg-type] # it has notes

    lives = make_lives(keep=True)
    with mock.patch.object(companions, "Setup", noted):
        killed_at_each_change(lives)
    assert "mislabeled" in lives.broken.rules


# --- one VM at a time


def launched(node: ProxmoxHypervisor, number: int = 2) -> ProxmoxHypervisor:
    other = node.further_vm(number)
    other.prepare(MACHINE, count=1)
    other.launch(MACHINE)
    return other


def vm_of(site: Site, node: ProxmoxHypervisor) -> Vm:
    return site.cluster.vms[node.vmid]


def test_the_rights_of_the_benchmark_vm_are_enough_for_others(both: Site) -> None:
    both.node.boot(MACHINE)
    other = launched(both.node)
    guest = other.boot(MACHINE)
    assert guest.run(["/bin/true"]).exit_code == 0
    volumes = [node.volume(scenario())[0] for node in (both.node, other)]
    for node, volume in zip((both.node, other), volumes, strict=True):
        node.attach(volume, scenario().disk)
    vm = vm_of(both, other)
    assert vm.config["name"] == "pvebench-pve1-vm2"
    assert vm.config["tags"] == "pvebench"
    assert vm.vmid in both.cluster.pools[POOL]
    assert mark_of(vm.config)[:12] in volumes[1].volid
    assert len({volume.volid for volume in volumes}) == 2
    other.shutdown()
    assert set(both.cluster.vms) == {both.node.vmid}
    both.node.counters()
    both.node.shutdown()
    assert (both.cluster.vms, both.store.journal.pending()) == ({}, [])


def test_a_start_whose_guest_stays_silent_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvebench.drivers.proxmox.hypervisor.BOOT_SECONDS", 1.0)
    other = launched(site.node)
    site.cluster.idle()
    vm_of(site, other).machine.hung = True  # type: ignore[attr-defined] # a cheap one
    with pytest.raises(GuestTimeout):
        other.boot(MACHINE)
    other.power_off()
    assert not vm_of(site, other).running
    other.boot(MACHINE)
    other.shutdown()


def test_a_vm_that_is_starting_can_be_ended(site: Site) -> None:
    other = launched(site.node)
    other.power_off()
    site.cluster.idle()
    assert not vm_of(site, other).running


def test_the_benchmark_vm_leaves_others_in_use_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node.boot(MACHINE)
    other = launched(site.node)
    monkeypatch.setattr("pvebench.drivers.proxmox.vm.vm_volumes._TIDY_SECONDS", -1.0)
    site.node.boot(MACHINE)
    assert other.boot(MACHINE)
    assert len(site.cluster.vms) == 2


def test_a_further_vm_does_not_take_up_the_kept_one(site: Site) -> None:
    node = site.driver("pve1", keep=True)
    volume, _ = node.volume(scenario())
    node.boot(MACHINE)
    node.note(volume, "data")
    node.shutdown()
    other = launched(site.driver("pve1", keep=True))
    assert (node.vmid, other.vmid) == (0, 9001)
    assert set(site.cluster.vms) == {9000, 9001}
    other.shutdown()
    assert set(site.cluster.vms) == {9000}


def test_the_end_of_the_benchmark_vm_removes_what_another_could_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvebench.drivers.proxmox.vm.leftover_vms._LOCK_SECONDS", 0.0)
    site.node.boot(MACHINE)
    other = launched(site.node)
    other.boot(MACHINE)
    vm_of(site, other).config["lock"] = "backup"
    with pytest.raises(ServerGone, match="could not remove VM 9001 yet"):
        other.shutdown()
    assert set(site.cluster.vms) == {9000, 9001}
    site.cluster.vms[9001].config.pop("lock")
    site.node.shutdown()
    assert (site.cluster.vms, site.store.journal.pending()) == ({}, [])


# --- other instances


def test_a_running_further_vm_is_no_other_instance_but_one_for_others(site: Site) -> None:
    site.node.boot(MACHINE)
    launched(site.node).boot(MACHINE)
    rows = site.connect().get("/cluster/resources")
    own = Claims(site.connect(), "pve1", lambda: site.node.vm, site.clock, site.node.further_vmids)
    assert own.take(rows) == ""
    assert own.disturbed() == ""
    site.node.power_off()
    rows = site.connect().get("/cluster/resources")
    others = Claims(site.connect(), "pve1", lambda: None, site.clock)
    assert "another pvebench measures on pve1, with VM 9001" in others.take(rows)


def test_the_claim_of_a_further_vm_is_renewed_by_each_start(site: Site) -> None:
    """`cleanup --orphans` of another instance must not remove a VM in use."""
    other = launched(site.node)
    other.boot(MACHINE)
    vm = vm_of(site, other)
    until = claim_of(vm.config)
    vm.config["description"] = vm.config["description"].replace(f"{until:.0f}", "1")
    other.prepare(MACHINE, count=1)
    assert claim_of(vm.config) >= until


# --- plan and check

SETTINGS = {"host": "pve1", "storages": {"local": {"type": "dir"}}}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"vmids": (9500, 9503)}, None),
        ({"vmids": (9500, 9502)}, "each VM needs an ID; proxmox.vmids has 3 for each node"),
        (
            {"vmids": (9500, 9506), "nodes": ("pve1", "pve2")},
            "each VM needs an ID; proxmox.vmids has 3 for each node",
        ),
    ],
)
def test_the_plan_refuses_more_vms_than_a_node_has_ids(
    more: dict[str, object], reason: str | None
) -> None:
    cluster = ProxmoxSettings.model_validate({**SETTINGS, **more})
    kind = cluster.kind_of(cluster.storages["local"])
    assert why_not_run(scenario(), FOUR.workload, kind) == reason
    assert why_not_run(scenario(), NEIGHBOR.workload, kind) is None


def test_a_pack_has_at_most_as_many_vms_as_a_cluster_can_have() -> None:
    kind = ProxmoxSettings.model_validate(SETTINGS).kinds()["local"]
    assert why_not_run(scenario(), case_of(vms=kind.vms).workload, kind) is None
    with pytest.raises(ValueError, match=f"less than or equal to {kind.vms}"):
        case_of(vms=kind.vms + 1)


@pytest.mark.parametrize(("pack", "some"), [("many-vms", "-vms8"), ("backup-impact", "-neighbor")])
def test_the_packs_with_several_vms_can_be_planned(
    granted: Path, pack: str, some: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = granted.read_text("utf-8")
    line = next(line for line in text.splitlines() if line.startswith("packs:"))
    granted.write_text(text.replace(line, f"packs: [{ROOT}/scenarios/{pack}.yaml]"), "utf-8")
    assert run_cli(["plan", "--config", str(granted)]) == 0
    assert some in capsys.readouterr().out


def with_vms(granted: Path, more: str = "") -> None:
    """Have the pack of the settings run in four VMs."""
    pack = granted.parent / "pack.yaml"
    text = granted.read_text("utf-8")
    (used,) = [line for line in text.splitlines() if line.startswith("packs:")]
    source = Path(used.partition("[")[2].rstrip("]"))
    pack.write_text(source.read_text("utf-8").replace("iodepth: 8}", "iodepth: 8, vms: 4}"))
    granted.write_text(text.replace(used, f"packs: [{pack}]") + more, "utf-8")


def test_check_requires_ids_and_memory_for_all_vms(
    api: RunningApi, granted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "memory" not in findings(granted, capsys)
    with_vms(granted, "  vmids: [9500, 9503]\n")
    found = findings(granted, capsys)
    assert found["VM IDs"] == (True, "4 needed, 4 from 9500 to 9503 free or of pvebench")
    assert found["memory"] == (True, "3.0 GiB needed for several VMs, 60.0 GiB available")
    memory = api.cluster.all_nodes["pve1"].memory
    memory["used"] = memory["total"] - GIB
    theirs = mock.Mock(config={}, node="pve1", running=False, hastate="")
    api.cluster.vms[9502] = theirs
    found = findings(granted, capsys)
    assert found["VM IDs"] == (
        False,
        "4 needed, 3 from 9500 to 9503 free or of pvebench; set other vmids",
    )
    assert found["memory"] == (
        False,
        "3.0 GiB needed for several VMs, 1.0 GiB available; "
        "reduce vms or guest.memory in the packs",
    )
    del api.cluster.vms[9502]


def test_the_guard_needs_the_volumes_of_all_vms(lives: ClusterLives) -> None:
    lives.cluster.storages["local"].avail = 3 * 64 * MIB + 256 * MIB
    site = lives.site(lives.connect())
    hold = site.guards[0].enter(FOUR)
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.SPACE, True)
    assert "256.0 MiB needed" in hold.reason
    assert site.guards[0].enter(TWO) is None
