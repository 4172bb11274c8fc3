"""What measuring writes, and the intervals that keep it within the budget of a storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import load_pack
from pvebench.config.settings import Settings
from pvebench.drivers import driver_of
from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.proxmox.proxmox_settings import ClusterSettings, ClusterStorageSettings
from pvebench.drivers.storages.directory import size_at
from pvebench.model.ports import Guard, StorageFunctions
from pvebench.model.run import Outcome
from pvebench.model.storage_use import cost_lines, default_budget
from pvebench.model.units import GIB, MIB
from pvebench.scheduler.guards import BudgetGuard
from pvebench.scheduler.pacing import WriteBudgets, pace
from pvebench.scheduler.plan import Assignment, expand, make_plan
from pvebench.service.startup import budgets_of
from pvebench.store.store import Store
from pvebench_lab.simulated.simulated_hypervisor import simulated_site
from testing import simulations
from testing.packs import QUICK, SMALL, STORAGES, write_pack

HERE = ("lab", "local")


def quick_on(node: str = "lab") -> Assignment:
    pack = load_pack(QUICK)
    return Assignment(pack, expand(pack, node=node, storages=STORAGES))


def test_without_a_budget_the_packs_keep_their_intervals() -> None:
    paced = pace([quick_on()], WriteBudgets(limits={}))
    assert paced.assignments == [quick_on()]
    (cost,) = paced.costs
    plan = make_plan(quick_on().matrix, seed=1)
    assert cost.cycle_bytes == plan.bytes_written
    # The pack takes less than its five minutes, so it runs 288 times a day.
    assert cost.day_bytes == pytest.approx(288 * plan.bytes_written)
    assert cost.year_bytes == 365 * cost.day_bytes
    assert cost_lines(paced.costs)[0].startswith("writes to local: with a fast NVMe drive at most ")
    assert cost_lines(paced.costs)[0].endswith("; no write budget; drive wear unknown")


def test_the_interval_grows_until_the_day_fits_the_budget() -> None:
    paced = pace([quick_on()], WriteBudgets(limits={HERE: 20 * GIB}), {HERE: 50 * MIB})
    (cost,) = paced.costs
    every = paced.assignments[0].pack.every_seconds
    assert cost.cycle_bytes == 12 * 50 * MIB
    assert every == 45 * 60
    assert 0.9 * 20 * GIB < cost.day_bytes <= 20 * GIB
    assert cost.measured
    assert cost.text == (
        "writes to local: about 600.0 MiB per cycle, 18.8 GiB per day, 6.7 TiB per year; "
        "quick every 45 min instead of 5 min to stay within 20.0 GiB a day (write_budget); "
        "drive wear unknown"
    )
    assert cost_lines(paced.costs, once=True) == ("writes to local: about 600.0 MiB per cycle",)


@pytest.mark.parametrize("budget", [1, GIB, 10 * GIB, 100 * GIB, 10**15])
@pytest.mark.parametrize("written", [0, 1, 10**6, 10**9, 10**11])
def test_no_day_exceeds_its_budget(budget: int, written: float) -> None:
    """Nor is an interval ever shorter than the pack's."""
    paced = pace([quick_on()], WriteBudgets(limits={HERE: budget}), {HERE: written})
    assert paced.costs[0].day_bytes <= budget * 1.000001
    assert paced.assignments[0].pack.every_seconds >= quick_on().pack.every_seconds


def test_a_shared_storage_has_one_budget_for_all_nodes() -> None:
    both = [quick_on("a"), quick_on("b")]
    limits = dict.fromkeys([("a", "local"), ("b", "local")], 20 * GIB)
    means = dict.fromkeys(limits, 49.0 * MIB)
    own = pace(both, WriteBudgets(limits=limits), means).costs
    shared = pace(both, WriteBudgets(limits=limits, shared=frozenset({"local"})), means).costs
    assert sum(cost.day_bytes for cost in own) > 36 * GIB
    assert 17 * GIB < sum(cost.day_bytes for cost in shared) <= 20 * GIB
    assert [line.partition(":")[0] for line in cost_lines(shared)] == ["a", "b"]


def test_a_pack_that_writes_nothing_is_never_slowed() -> None:
    pack = quick_on()
    reads = tuple(c for c in pack.matrix.cases if c.workload.slug.startswith("randread"))
    reading = replace(pack, matrix=replace(pack.matrix, cases=reads))
    paced = pace([reading], WriteBudgets(limits={HERE: 1}), {HERE: 0.0})
    assert paced.assignments == [reading]


def test_copies_are_written_to_their_targets_not_to_the_volumes_storage(tmp_path: Path) -> None:
    def written(during: str) -> dict[str, float]:
        text = SMALL.replace("runtime: 2s", "runtime: 9s")
        text = text.replace("iodepth: 8}", f"iodepth: 8, during: {during}}}")
        pack = load_pack(write_pack(tmp_path, text))
        entry = Assignment(pack, expand(pack, node="lab", storages=STORAGES))
        targets = {HERE: {"backup-fleecing": ("pbs1", "fast"), "move": ("fast",)}}
        costs = pace([entry], WriteBudgets(limits={}, targets=targets), {HERE: MIB}).costs
        return {cost.storage: cost.cycle_bytes / MIB for cost in costs}

    assert written("backup") == {"local": 2 + 2 * 64}
    assert written("backup-fleecing") == {"local": 2, "pbs1": 128, "fast": 128}
    assert written("move") == {"local": 2, "fast": 128}


def test_the_budget_counts_the_copies_that_the_intervals_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SMALL.replace("runtime: 2s", "runtime: 9s")
    text = text.replace("iodepth: 8}", "iodepth: 8, during: move}")
    path = write_pack(tmp_path, text)
    pack = load_pack(path)
    budgets = WriteBudgets(limits={}, targets={HERE: {"move": ("fast",)}})
    storages = StorageFunctions(copies=budgets.copies)
    monkeypatch.setattr(
        simulations,
        "simulated_site",
        lambda world: replace(simulated_site(world), storages=storages),
    )

    def guards(clock: SimulatedClock, store: Store) -> Sequence[Guard]:
        def written(name: str) -> int:
            return store.written_bytes(name, clock.now())

        return [BudgetGuard({"fast": 64 * MIB}, written, budgets.copies)]

    simulation = simulations.simulate(tmp_path, pack=path, guards=guards)
    simulation.worker.run()
    first, second = simulation.recorder.runs
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.SKIPPED)
    assert second.reason.startswith("write budget of fast used up: 64.0 MiB of 64.0 MiB")
    entry = Assignment(pack, expand(pack, node="lab", storages=STORAGES))
    per_run = simulation.store.writes()[0]
    costs = {cost.storage: cost.cycle_bytes for cost in pace([entry], budgets, per_run).costs}
    now = simulation.world.clock.now()
    counted = {name: 2 * simulation.store.written_bytes(name, now) for name in ("local", "fast")}
    assert counted == costs  # of both cases, of which one has run


def test_the_targets_on_proxmox_are_those_of_the_settings() -> None:
    operations = {"backup_storage": "pbs1", "move_storage": "thin"}
    cluster = {"host": "h", "operations": operations} | {
        "storages": {"local": {"type": "dir"}, "fast": {"type": "lvmthin", "id": "thin"}}
    }
    settings = ClusterSettings.model_validate({"node": "pve1", "proxmox": cluster})
    targets = driver_of("proxmox").storages(settings, "pve1")["local"].holds.operations.targets
    assert (targets["backup"], targets["move"]) == (("pbs1",), ("fast",))


def test_every_driver_has_a_budget_unless_its_writes_are_invented(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    size = size_at(tmp_path)
    assert size is not None
    for driver in ("qemu", "host"):
        settings = Settings(driver=driver, state=tmp_path, node="lab")
        assert budgets_of(settings).limits == {HERE: default_budget(size)}
    assert budgets_of(Settings(driver="simulated", state=tmp_path)).limits == {}
    changed = {"local": {"kind": "dir", "path": tmp_path, "write_budget": "3G"}}
    for driver in ("qemu", "host", "simulated"):
        settings = Settings(driver=driver, state=tmp_path, node="lab", storages=changed)
        assert budgets_of(settings).limits == {HERE: 3 * GIB}
    changed["local"]["write_budget"] = "off"
    assert budgets_of(Settings(state=tmp_path, node="lab", storages=changed)).limits == {}


def test_a_machine_reached_by_ssh_has_no_size_of_a_path_here() -> None:
    settings = Settings.model_validate(
        {
            "driver": "host",
            "node": "far",
            "ssh": {"host": "far", "user": "x", "key_file": "/k", "known_hosts": "/h"},
            "storages": {"local": {"kind": "dir", "path": "/"}},
        }
    )
    storage = driver_of("host").storages(settings, None)["local"]
    assert storage.budget_bytes == 10 * GIB


def test_a_cluster_storage_has_one_too() -> None:
    sizes = (None, 199 * GIB, 1000 * GIB)
    assert [default_budget(size) for size in sizes] == [10 * GIB, 10 * GIB, 50 * GIB]
    assert ClusterStorageSettings.model_validate({"type": "dir", "write_budget": "off"}) == (
        ClusterStorageSettings(type="dir", write_budget=0)
    )


def test_commands_and_a_run_say_what_they_write_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run exceeds the budget with a warning; a service keeps it and says how."""
    path = tmp_path / "pvebench.yaml"
    storage = f"storages: {{local: {{kind: dir, path: {tmp_path}, write_budget: 1M}}}}"
    path.write_text(f"driver: simulated\nnode: lab\nstate: {tmp_path}/state\n{storage}\n", "utf-8")
    options = ["--config", str(path), "--scale", "0.2"]
    for before in (True, False):
        assert run_cli(["plan", *options]) == 0
        planned = capsys.readouterr().out
        limit = "with a fast NVMe drive at most" if before else "about"
        until = " until a cycle has measured it," if before else ""
        assert f"writes to local: {limit} " in planned
        assert f" days instead of 5 min{until} to stay within 1.0 MiB a day" in planned
        assert run_cli(["check", "--config", str(path)]) in (0, 3)
        assert f"writes to local: {limit} " in " ".join(capsys.readouterr().out.split())
        assert run_cli(["run", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown = [i for i, line in enumerate(lines) if line.startswith(f"writes to local: {limit}")]
        warned = [i for i, line in enumerate(lines) if "warning: this may exceed the" in line]
        first = next(i for i, line in enumerate(lines) if line.startswith("[1/12]"))
        assert len(shown) == len(warned) == 1
        assert max(*shown, *warned) < first
        assert lines[shown[0]].endswith(" per cycle")  # intervals are of a service
        assert "12 of 12" in lines[-2]
