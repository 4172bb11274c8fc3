"""Cases that do not fit into the free space: `plan` excludes them, with the sentence of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import load_pack
from pvebench.drivers import DRIVERS
from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.qemu.block_graph import Names
from pvebench.drivers.qemu.operations_under_load import DiskOperation
from pvebench.drivers.qemu.qmp import Channel
from pvebench.drivers.storages.contract import MARK
from pvebench.drivers.storages.directory import DirectoryStorage, check_space
from pvebench.drivers.storages.storage_settings import spaces_of
from pvebench.errors import NoSpace
from pvebench.model.rules import Operations, StorageKind
from pvebench.model.storage_use import RESERVE_BYTES, Space, SpaceNeed, unfit
from pvebench.model.units import GIB, MIB, show_bytes
from pvebench.model.volume import Plug, Volume
from pvebench.model.workload import Case
from pvebench.scheduler.plan import expand
from pvebench_lab import simulated
from testing.null_journal import NullJournal
from testing.packs import SMALL, STORAGES, write_pack
from testing.storages import storage_context

JOURNAL = NullJournal()  # of all plans: each leaves its volumes, as a crash would
LONG = SMALL.replace("runtime: 2s", "runtime: 9s")
QCOW2 = SMALL.replace("[raw]", "[raw, qcow2]").replace("[virtio, scsi]", "[virtio]")
CHAINS = QCOW2.replace("[raw, qcow2]", "[qcow2]") + "fixed: {chain: 3}\n"
LIMIT = 64 * MIB + RESERVE_BYTES
THICK = replace(STORAGES["local"], thick=True)
BACKED_UP_ELSEWHERE = replace(
    STORAGES["local"], operations=Operations(targets={"backup": ("pbs1",)})
)


def cases(directory: Path, text: str = QCOW2) -> tuple[Case, ...]:
    pack = load_pack(write_pack(directory, text))
    return expand(pack, node="lab", storages=STORAGES).cases


def fit(directory: Path, text: str, free: int, storage: StorageKind = STORAGES["local"]) -> int:
    """Return how many of the pack's cases fit."""
    own = cases(directory, text)
    space = Space(free=free, where="in /srv")
    return len(own) - len(unfit(own, {"local": space}, {"local": storage}))


def test_a_volume_stays_so_later_ones_need_their_own_space(tmp_path: Path) -> None:
    assert fit(tmp_path, QCOW2, LIMIT - 1) == 0
    assert fit(tmp_path, QCOW2, LIMIT) == 1
    assert fit(tmp_path, QCOW2, LIMIT + 64 * MIB) == 2


def test_a_volume_counts_once_for_all_its_cases(tmp_path: Path) -> None:
    assert fit(tmp_path, SMALL, LIMIT) == 2  # virtio and scsi use one volume


def test_a_chain_needs_one_level_but_on_thick_storage_all(tmp_path: Path) -> None:
    assert fit(tmp_path, CHAINS, RESERVE_BYTES + 2 * 64 * MIB) == 1
    assert fit(tmp_path, CHAINS, RESERVE_BYTES + 4 * 64 * MIB - 1, THICK) == 0
    assert fit(tmp_path, CHAINS, RESERVE_BYTES + 4 * 64 * MIB, THICK) == 1


def test_the_target_of_an_operation_needs_space_where_it_is(tmp_path: Path) -> None:
    backup = LONG.replace("iodepth: 8}", "iodepth: 8, during: backup}")
    assert fit(tmp_path, backup, LIMIT) == 0
    assert fit(tmp_path, backup, LIMIT, BACKED_UP_ELSEWHERE) == 2
    assert fit(tmp_path, backup, LIMIT + 64 * MIB) == 2  # the target is removed after each run


def test_a_storage_of_unknown_space_excludes_nothing(tmp_path: Path) -> None:
    assert unfit(cases(tmp_path), {}, STORAGES) == {}


# --- what plan prints is what runs require


MANY = (
    LONG.replace("bus: [virtio, scsi]", "bus: [scsi]")
    .replace("format: [raw]", "format: [qcow2]")
    .replace("size: 64M", "size: 16M")
)
VARIANTS = """\
variants:
  - {chain: 3}
  - {chain: 3, preallocation: falloc}
  - {chain: 2, chain_kind: internal}
  - {backing: true}
  - {backing: true, cluster_size: 128k}
"""


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept a storage in memory, where `make mutate` runs these tests."""
    monkeypatch.setattr("pvebench.drivers.storages.directory.memory_below", lambda _: "")


class Monitor:
    """A QMP that accepts everything."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes

    def execute(self, command: str, arguments: object = None) -> None:
        pass

    def ask(self, command: str, *, shape: object) -> dict[str, int]:
        return {"base-memory": self._memory_bytes}


class Demand:
    """What runs require of a directory, with all volumes full and present until the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = self.last = self.peak = 0
        monkeypatch.setattr(DirectoryStorage, "require_space", lambda _, size: self.require(size))
        for name in ("write_random", "create_image", "run_qemu_img"):
            monkeypatch.setattr(
                f"pvebench.drivers.storages.directory.{name}", lambda *_, **__: None
            )

    def require(self, size: int) -> None:
        self.last = size
        self.peak = max(self.peak, self.held + size)

    def run(self, directory: Path, own: Sequence[Case]) -> None:
        """Create the volumes of cases in this order, and begin their operations."""
        storages: dict[int, DirectoryStorage] = {}
        volumes: dict[tuple[int, str], Volume] = {}
        for case in own:
            scenario = case.scenario
            for number in range(1, 2 + case.workload.further_vms):
                options = storage_context(
                    name="local", kind="dir", path=str(directory), owner=f"vm{number}"
                )
                storage = storages.setdefault(number, DirectoryStorage(options, JOURNAL))
                if (number, scenario.volume) not in volumes:
                    volumes[number, scenario.volume] = storage.create(scenario)
                    self.held += self.last
            if case.workload.during:
                self.operate(storages[1], volumes[1, scenario.volume], case)

    def operate(self, storage: DirectoryStorage, volume: Volume, case: Case) -> None:
        plug, qmp = (
            Plug(volume, case.scenario.disk),
            cast(Channel, Monitor(case.scenario.machine.memory_bytes)),
        )
        name = case.workload.during
        clock = SimulatedClock()
        DiskOperation(qmp, Names(1), storage, plug, clock, name=name, target_rate=0).prepare()
        storage.remove_files(volume)


@pytest.mark.parametrize(
    "option",
    ["vms: 3", *(f"during: {name}" for name in sorted(STORAGES["local"].operations.names))],
)
def test_plan_prints_what_volumes_chains_bases_vms_and_operations_require_in_the_worst_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    text = f"{MANY}  - fio: {{rw: randwrite, bs: 4k, {option}}}\n{VARIANTS}"
    own = cases(tmp_path, text)
    assert len(own) == 12
    (printed,) = SpaceNeed(STORAGES).add(*own).total().values()
    space = {"local": Space(free=printed + RESERVE_BYTES, where="in /srv")}
    peaks = []
    for order in (own, own[::-1]):
        demand = Demand(monkeypatch)
        demand.run(tmp_path, order)
        peaks.append(demand.peak)
        assert unfit(order, space, STORAGES) == {}
        less = {"local": replace(space["local"], free=space["local"].free - 1)}
        assert unfit(order, less, STORAGES)
    assert max(peaks) == printed


def settings(directory: Path, text: str) -> list[str]:
    config = directory / "pvebench.yaml"
    storage = f"storages: {{local: {{kind: dir, path: {directory}}}}}"
    pack = write_pack(directory, text)
    config.write_text(f"node: lab\nstate: {directory}/state\npacks: [{pack}]\n{storage}\n")
    return ["--config", str(config)]


def have_free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    usage = SimpleNamespace(total=100 * GIB, used=0, free=size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def test_plan_excludes_what_does_not_fit_with_the_sentence_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = settings(tmp_path, QCOW2)
    have_free(monkeypatch, LIMIT)
    assert run_cli(["plan", *options, "--format=json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    (excluded,) = plan["excluded"]
    assert (len(plan["cases"]), plan["space_bytes"]) == (1, {"local": 64 * MIB})
    have_free(monkeypatch, LIMIT - 64 * MIB)
    with pytest.raises(NoSpace) as caught:
        check_space("local", tmp_path, 64 * MIB)
    assert excluded["reason"] == caught.value.happened
    assert caught.value.happened == (
        f"storage local: 64.0 MiB needed, 256.0 MiB free in {tmp_path} (256.0 MiB must stay free)"
    )


def test_plan_fails_if_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = settings(tmp_path, QCOW2)
    have_free(monkeypatch, LIMIT - 1)
    assert run_cli(["plan", *options]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "no case of pack small fits: storage local: 64.0 MiB needed" in said
    assert "free space, or reduce volume.size" in said


def test_own_volumes_are_no_reason_to_exclude_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = settings(tmp_path, SMALL)
    have_free(monkeypatch, LIMIT - 4 * MIB)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "instance").write_text("0123456789abcdef\n")
    (tmp_path / "state" / "instance").chmod(0o600)
    volume = tmp_path / f"{MARK}fedcba9876543210-local.raw"
    volume.write_bytes(b"x" * 4 * MIB)
    assert run_cli(["plan", *options]) != 0  # another instance's
    volume.rename(tmp_path / f"{MARK}0123456789abcdef-local.raw")
    assert run_cli(["plan", *options]) == 0


OPERATED = """\
  - fio: {rw: randwrite, bs: 4k, during: [backup, backup-fleecing]}
  - fio: {rw: randwrite, bs: 4k, during: move}
"""


def test_plan_check_and_run_exclude_the_same_cases_and_name_the_same_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = settings(tmp_path, LONG.replace("[virtio, scsi]", "[virtio]") + OPERATED)
    config = tmp_path / "pvebench.yaml"
    config.write_text(config.read_text("utf-8") + "driver: simulated\n", "utf-8")
    monkeypatch.setitem(DRIVERS._objects, "simulated", replace(simulated.DRIVER, spaces=spaces_of))
    have_free(monkeypatch, 128 * MIB + RESERVE_BYTES)
    assert run_cli(["plan", *options, "--format=json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    ((slug, reason),) = [tuple(one.values()) for one in plan["excluded"]]
    assert plan["space_bytes"] == {"local": 128 * MIB}
    assert slug.endswith("backup-fleecing")
    need = "at most 128.0 MiB on local, 384.0 MiB free in "
    need += f"{tmp_path} (256.0 MiB must stay free)"

    assert run_cli(["plan", *options]) == 0
    shown = capsys.readouterr().out
    assert f"space needed: {need}\n" in shown
    written = f"with a fast NVMe drive at most {show_bytes(plan['bytes_written'])}"
    assert f"{written} written\n" in shown
    assert f"writes to local: {written} per cycle" in shown

    run_cli(["check", *options, "--format=json"])
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["pack small"] == {
        "check": "pack small",
        "ok": None,
        "found": f"3 cases on lab; {need}; 1 case excluded: {reason}",
    }
    assert "storage local" not in found

    assert run_cli(["run", *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"excluded {slug}: {reason}" in said
    assert "3 of 3 cases ok" in said


def test_check_and_run_fail_as_plan_does_if_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = settings(tmp_path, QCOW2)
    have_free(monkeypatch, LIMIT - 1)
    for command in ("plan", "run"):
        assert run_cli([command, *options]) == NoSpace.exit_code
        assert "no case of pack small fits: storage local: 64.0" in capsys.readouterr().err
    run_cli(["check", *options, "--format=json"])
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["space"]["ok"] is False
    assert "no case of pack small fits: storage local: 64.0" in found["space"]["found"]
