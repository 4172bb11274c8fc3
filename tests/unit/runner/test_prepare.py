"""The host's page cache before a run, where nobody can drop it: what is done, what is said.

That it works is tests/integration/test_proxmox_cold.py, on a real kernel and a real QEMU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.drivers.proxmox.proxmox_settings import ClusterStorageSettings
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, storage_kind
from pvebench.model.definition import WARM, Definition
from pvebench.model.disk import Bus, Cache, Disk, HostCache
from pvebench.model.run import Outcome
from pvebench.model.status import Phase
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, Volume
from pvebench.model.workload import Case, Conduct, Direction
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import expand, make_plan
from pvebench_lab.simulated.simulated_hypervisor import simulated_site
from testing.packs import SMALL, Recorder, write_pack
from testing.recording_hypervisor import RecordingHypervisor

CACHED = SMALL.replace("[virtio, scsi]", "[scsi]").replace("[none]", "[none, writeback]")


class Plugs(RecordingHypervisor):
    """A simulated node that remembers what was plugged in."""

    def __init__(self) -> None:
        super().__init__()
        self.plugs: list[tuple[Bus, Cache]] = []

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        self.plugs.append((disk.bus, disk.cache))
        return super().attach(volume, disk)


def cases(directory: Path, treated: HostCache, *, node: str = "lab") -> Sequence[Case]:
    """Return the cases of cache none, and of writeback."""
    kind = replace(storage_kind("dir"), host_cache=treated)
    pack = load_pack(write_pack(directory, CACHED))
    return expand(pack, node=node, storages={"local": kind}).cases


def writeback(directory: Path, treated: HostCache) -> Case:
    return next(one for one in cases(directory, treated) if not one.scenario.disk.cache.direct)


def runs(case: Case, times: int) -> tuple[Plugs, Recorder]:
    world, recorder = Plugs(), Recorder()
    runner = Runner(simulated_site(world), recorder)
    for _ in range(times):
        assert runner.run(case, cycle="c", conduct=Conduct()).outcome is Outcome.OK
    return world, recorder


def fills(recorder: Recorder) -> int:
    return sum(phase is Phase.FILL for _, phase in recorder.phases)


PAST, REAL = (Bus.VIRTIO, Cache.NONE), (Bus.SCSI, Cache.WRITEBACK)


def test_where_volumes_are_files_each_run_is_preceded_by_writing_past_the_cache(
    tmp_path: Path,
) -> None:
    world, recorder = runs(writeback(tmp_path, HostCache.REWRITTEN), 2)
    assert world.plugs == [PAST, REAL, PAST, REAL]
    assert fills(recorder) == 2


def test_where_volumes_are_devices_each_run_begins_with_a_disk_that_was_plugged_in_for_it(
    tmp_path: Path,
) -> None:
    world, recorder = runs(writeback(tmp_path, HostCache.REOPENED), 2)
    assert world.plugs == [PAST, REAL, REAL]
    assert fills(recorder) == 1


@pytest.mark.parametrize("treated", [HostCache.DROPPED, HostCache.WARM])
def test_elsewhere_a_disk_stays_plugged_in_from_run_to_run(
    tmp_path: Path, treated: HostCache
) -> None:
    world, _ = runs(writeback(tmp_path, treated), 2)
    assert world.plugs == [REAL]


def test_what_is_written_past_the_cache_is_counted(tmp_path: Path) -> None:
    world = Plugs()
    runner = Runner(simulated_site(world), Recorder())
    world.counts = lambda counters: replace(counters, write_bytes=64 * MIB)
    run = runner.run(writeback(tmp_path, HostCache.REWRITTEN), cycle="c", conduct=Conduct())
    assert run.written_bytes == 2 * 64 * MIB  # of the plain disk, and of the disk itself
    assert run.evidence["host_cache"] == "rewritten"


@pytest.mark.parametrize("treated", [one for one in HostCache if one is not HostCache.ARC])
def test_of_a_disk_that_passes_the_cache_by_nothing_is_said_to_have_been_done_to_it(
    tmp_path: Path, treated: HostCache
) -> None:
    direct = next(one for one in cases(tmp_path, treated) if one.scenario.disk.cache.direct)
    run = Runner(simulated_site(Plugs()), Recorder()).run(direct, cycle="c", conduct=Conduct())
    assert run.outcome is Outcome.OK
    assert run.evidence["host_cache"] == "passed by"


def test_the_treatment_is_part_of_the_definition_where_the_cache_is_used(tmp_path: Path) -> None:
    prints = {
        treated: {case.scenario.disk.cache: case.fingerprint for case in cases(tmp_path, treated)}
        for treated in HostCache
    }
    assert len({by_cache[Cache.WRITEBACK] for by_cache in prints.values()}) == len(HostCache)
    zfs = prints.pop(HostCache.ARC)
    (other,) = {by_cache[Cache.NONE] for by_cache in prints.values()}
    assert zfs[Cache.NONE] != other
    definition = Definition.of(writeback(tmp_path, HostCache.REWRITTEN))
    assert definition.options["host_cache"] == "rewritten"
    before = Definition.of(writeback(tmp_path, HostCache.WARM))
    assert definition.differences(before) == [("host_cache", "warm", "rewritten")]


def test_histories_of_the_lab_go_on(tmp_path: Path) -> None:
    """The literal is this case's fingerprint before the treatment was part of it."""
    case = writeback(tmp_path, HostCache.DROPPED)
    assert case.fingerprint == "1d25afd71caf5f4e"
    assert "host_cache" not in Definition.of(case).options


def test_a_warm_run_says_so_wherever_it_is_shown(tmp_path: Path) -> None:
    warm = Definition.of(writeback(tmp_path, HostCache.WARM))
    assert warm.is_warm
    assert warm.all_caveats == (WARM,)
    assert not Definition.of(writeback(tmp_path, HostCache.REWRITTEN)).is_warm


def test_reads_from_zfs_are_warm_in_every_cache_mode_and_writes_are_not(tmp_path: Path) -> None:
    """`zvol_read` of OpenZFS (module/os/linux/zfs/zvol_os.c) reads through the DMU, so from the
    ARC. It never looks at a flag of direct I/O.
    """
    for case in cases(tmp_path, HostCache.ARC):
        assert Definition.of(case).is_warm
        assert Definition.of(case).options["host_cache"] == "arc"
        writes = replace(case, workload=replace(case.workload, directions=(Direction.WRITE,)))
        assert not Definition.of(writes).is_warm
    direct = next(
        one for one in cases(tmp_path, HostCache.ARC) if one.scenario.disk.cache is Cache.NONE
    )
    run = Runner(simulated_site(Plugs()), Recorder()).run(direct, cycle="c", conduct=Conduct())
    assert run.evidence["host_cache"] == "arc"


def test_a_plan_counts_what_is_written_and_plugged_for_the_cache(tmp_path: Path) -> None:
    def plan(treated: HostCache) -> tuple[int, int]:
        matrix = expand(
            load_pack(write_pack(tmp_path, CACHED)),
            node="lab",
            storages={"local": replace(storage_kind("dir"), host_cache=treated)},
        )
        made = make_plan(matrix, seed=1)
        return made.fills, made.switches

    assert plan(HostCache.DROPPED) == (1, 2)
    fills_made, switches = plan(HostCache.REWRITTEN)
    assert fills_made in (1, 2)  # writeback first: its fill is the other's as well
    assert switches == 4


@pytest.mark.parametrize("name", STORAGE_TYPES)
def test_every_type_of_storage_of_a_cluster_says_what_is_done(name: str) -> None:
    files = STORAGE_TYPES[name].extension and not STORAGE_TYPES[name].network
    kind = ClusterStorageSettings(type=name).kind(9)
    assert (kind.host_cache is HostCache.REWRITTEN) is files
    assert ClusterStorageSettings(type=name, cold=False).kind(9).host_cache.warm


def test_what_zfs_and_gluster_keep_in_memory_is_called_warm() -> None:
    warm = {name: one.cache for name, one in STORAGE_TYPES.items() if one.cache.warm}
    assert warm == {"zfspool": HostCache.ARC, "glusterfs": HostCache.WARM}
    kept = ClusterStorageSettings(type="zfspool", cold=False).kind(9, ssh=True)
    assert kept.host_cache is HostCache.ARC
