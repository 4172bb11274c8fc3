"""A runner on a simulated node: what it believes of the disk, and what it no longer does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.errors import GuestTimeout, NeverBooted, SwitchFailed
from pvebench.model.disk import Bus, Cache
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import StorageFunctions, Traffic
from pvebench.model.run import Outcome, Run
from pvebench.model.scenario import Machine
from pvebench.model.status import Phase
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench.model.workload import Case, Conduct, Direction
from pvebench.runner.prepare import SAMPLES, SPOT_SAMPLES, is_filled
from pvebench.runner.runner import UNCOUNTED, Runner
from pvebench.scheduler.plan import expand
from pvebench.workloads import TOOLS, Target
from pvebench_lab.simulated.simulated_hypervisor import (
    START_SECONDS,
    SimulatedGuest,
    SimulatedJob,
    simulated_site,
)
from testing.packs import SMALL, STORAGES, Recorder, write_pack
from testing.recording_hypervisor import RecordingHypervisor

ONE_BUS = SMALL.replace("[virtio, scsi]", "[virtio]")
TRIMMING = ONE_BUS.replace("[none]\n", "[none]\n  discard: [true]\n") + (
    "  - fio: {rw: randtrim, bs: 4k, iodepth: 8}\n"
)
IN_A_FILE = ONE_BUS.replace("volume:\n  size: 64M", "volume: {size: 64M, file: 8M}").replace(
    "  cache: [none]\n", "  cache: [none]\nfixed: {filesystem: ext4}\n"
)


class Notes:
    """Notes that remember all that it was told, and what was on the volume then."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def content(self, volume: Volume) -> str:
        return self.told[-1] if self.told else ""

    def note(self, volume: Volume, content: str) -> None:
        self.told.append(content)


class Bench:
    """A runner, its node, and the cases of a pack."""

    def __init__(
        self,
        directory: Path,
        pack: str,
        fill_notes: Notes | None = None,
        world: RecordingHypervisor | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        loaded = load_pack(write_pack(directory, pack))
        self.cases = expand(loaded, node="lab", storages=STORAGES).cases
        self.world = world or RecordingHypervisor()
        self.recorder = Recorder()
        site = replace(simulated_site(self.world), fill_notes=fill_notes, traffic=traffic)
        self.runner = Runner(site, self.recorder)

    def run(self, case: Case) -> Run:
        return self.runner.run(case, cycle="c", conduct=Conduct())

    def fills(self) -> int:
        return sum(phase is Phase.FILL for _, phase in self.recorder.phases)


def bench(directory: Path, pack: str = ONE_BUS, fill_notes: Notes | None = None) -> Bench:
    return Bench(directory, pack, fill_notes)


def without(option: str, *, unverified: bool) -> Callable[[Attachment], Attachment]:
    def read_back(found: Attachment) -> Attachment:
        effective = {key: value for key, value in found.effective.items() if key != option}
        told = (option,) if unverified else ()
        return replace(found, effective=effective, unverified=told)

    return read_back


def once(error: Exception) -> Callable[[BlockCounters], BlockCounters]:
    errors = [error]

    def counts(counters: BlockCounters) -> BlockCounters:
        if errors:
            raise errors.pop()
        return counters

    return counts


@pytest.mark.parametrize("option", ["cache", "bus", "iothread", "size_bytes"])
def test_an_option_that_could_not_be_read_back_makes_the_run_invalid(
    tmp_path: Path, option: str
) -> None:
    here = bench(tmp_path)
    here.world.read_back = without(option, unverified=False)
    run = here.run(here.cases[0])
    assert run.outcome is Outcome.INVALID
    assert f"{option}: requested" in run.reason
    assert run.reason.endswith("found nothing")
    assert run.samples == ()


def test_an_option_that_nothing_outside_can_confirm_is_reported_and_the_run_counts(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path)
    here.world.read_back = without("iothread", unverified=True)
    run = here.run(here.cases[0])
    assert run.outcome is Outcome.OK
    assert run.evidence["unverified"] == "iothread"


def test_a_disk_that_was_found_wrong_is_not_measured_on_by_the_next_run_either(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path)
    here.world.read_back = without("cache", unverified=False)
    assert [here.run(here.cases[0]).outcome for _ in range(2)] == [Outcome.INVALID] * 2


def spoiling(cases: tuple[Case, ...]) -> tuple[Case, Case]:
    """Return the case that reads, and the one that trims."""
    (read,) = [case for case in cases if case.workload.directions == (Direction.READ,)]
    (trim,) = [case for case in cases if case.workload.spoils]
    return read, trim


def test_a_volume_that_a_workload_trimmed_is_filled_again_before_it_is_read(tmp_path: Path) -> None:
    here = bench(tmp_path, TRIMMING)
    read, trim = spoiling(here.cases)
    fills = []
    for case in (read, read, trim, read, read):
        assert here.run(case).outcome is Outcome.OK
        fills.append(here.fills())
    assert fills == [1, 1, 1, 2, 2]


def test_the_note_on_a_kept_volume_is_emptied_before_it_is_trimmed(tmp_path: Path) -> None:
    notes = Notes()
    here = bench(tmp_path, TRIMMING, notes)
    read, trim = spoiling(here.cases)
    here.run(read)
    assert notes.told == ["", "data"]
    # What is trimmed and never told of would be taken for full by the next start.
    here.world.counts = once(GuestTimeout("the guest does not answer"))
    assert here.run(trim).outcome is Outcome.FAILED
    assert notes.told == ["", "data", ""]


def test_the_note_on_a_kept_volume_is_emptied_before_a_fill_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    notes.told = ["data/fill-2"]
    here = bench(tmp_path, ONE_BUS, notes)
    monkeypatch.setattr("pvebench.runner.prepare.fill_job", broken)
    assert here.run(here.cases[0]).outcome is Outcome.FAILED
    assert notes.told[-1] == ""


def test_a_guest_that_never_boots_is_awaited_once_per_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench(tmp_path, SMALL)
    first, second, *_ = here.cases
    other = replace(
        second, scenario=replace(second.scenario, machine=Machine(memory_bytes=MIB, cpus=2))
    )
    boots: list[Machine] = []

    def boot(machine: Machine, cold: Plug | None = None) -> Guest:
        boots.append(machine)
        raise NeverBooted("no response")

    monkeypatch.setattr(here.world, "boot", boot)
    runs = [
        here.runner.run(case, cycle=cycle, conduct=Conduct())
        for case, cycle in ((first, "a"), (second, "a"), (other, "a"), (second, "b"))
    ]
    failed, skipped = Outcome.FAILED, Outcome.SKIPPED
    assert [run.outcome for run in runs] == [failed, skipped, failed, failed]
    assert runs[1].reason == "not run: its guest did not boot in this cycle: no response"
    assert not any(run.retryable for run in runs)
    assert len(boots) == 3


def test_a_failed_boot_skips_neither_other_boots_nor_a_guest_that_has_booted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench(tmp_path, SMALL)
    plugged, other, *_ = here.cases
    disk = replace(plugged.scenario.disk, bus=Bus.SATA)
    cold = replace(plugged, scenario=replace(plugged.scenario, disk=disk))
    boot, failing = here.world.boot, {Bus.SATA, None}

    def tried(machine: Machine, at_start: Plug | None = None) -> Guest:
        if (at_start and at_start.disk.bus) in failing:
            raise NeverBooted("no response")
        return boot(machine, at_start)

    monkeypatch.setattr(here.world, "boot", tried)
    failed, skipped = Outcome.FAILED, Outcome.SKIPPED
    # Without the disk it fails too, so it is not booted again.
    assert [here.run(case).outcome for case in (plugged, cold)] == [failed, skipped]
    here.runner.run(cold, cycle="next", conduct=Conduct())
    failing.remove(None)
    assert [here.run(case).outcome for case in (cold, cold)] == [failed, skipped]
    assert here.run(plugged).outcome is Outcome.OK
    failing.add(None)
    ended = [here.run(case) for case in (plugged, other)]
    assert [(run.outcome, run.retryable) for run in ended] == [(failed, True)] * 2


def broken(*_: object, **__: object) -> None:
    raise GuestTimeout("the guest does not answer")


def kept(here: Bench, monkeypatch: pytest.MonkeyPatch, *, blocks: int, code: int = 0) -> None:
    """Let a volume be there from an earlier start, with so many of 64 blocks not zero."""
    real = here.world.volume
    monkeypatch.setattr(here.world, "volume", lambda scenario: (real(scenario)[0], False))
    answered = here.world.boot

    def boot(*args: object) -> object:
        guest = answered(*args)  # type: ignore[arg-type] # handed through
        run = guest.run

        def says(argv: list[str], **given: object) -> Completed:
            if "iflag=direct" in argv[-1] or any("iflag=direct" in part for part in argv):
                return Completed(code, f"{blocks}\n".encode(), b"")
            return run(argv, **given)  # type: ignore[arg-type] # handed through

        monkeypatch.setattr(guest, "run", says)
        return guest

    monkeypatch.setattr(here.world, "boot", boot)


@pytest.mark.parametrize(
    ("said", "blocks", "code", "fills"),
    [
        ("data", SAMPLES, 0, 0),
        ("data", SAMPLES - 1, 0, 1),  # a thin volume that lost its data
        ("data", SAMPLES, 1, 1),
        ("", SAMPLES, 0, 1),
        ("ext4/test/1", SAMPLES, 0, 1),
    ],
)
def test_a_kept_volume_is_believed_only_where_its_note_and_its_blocks_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, blocks: int, code: int, fills: int
) -> None:
    notes = Notes()
    notes.told = [said]
    here = bench(tmp_path, ONE_BUS, notes)
    kept(here, monkeypatch, blocks=blocks, code=code)
    assert here.run(here.cases[0]).outcome is Outcome.OK
    assert here.fills() == fills


@pytest.mark.parametrize(
    "pack", [IN_A_FILE, ONE_BUS.replace("  size: 64M", "  size: 64M\n  compress: 50")]
)
def test_blocks_prove_nothing_where_zeros_or_free_space_belong_to_what_is_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str
) -> None:
    notes = Notes()
    here = bench(tmp_path, pack, notes)
    notes.told = [here.cases[0].scenario.layout.content]
    kept(here, monkeypatch, blocks=SAMPLES)
    assert here.run(here.cases[0]).outcome is Outcome.OK
    assert here.fills() >= 1
    assert notes.told[-1] == ""  # nor is it noted: the next start could not prove it either


@pytest.mark.parametrize("bus", ["virtio", "sata"])
def test_a_second_run_of_a_scenario_finds_everything_in_place(tmp_path: Path, bus: str) -> None:
    here = bench(tmp_path, ONE_BUS.replace("virtio", bus))
    first, second = (here.run(here.cases[0]) for _ in range(2))
    assert [first.outcome, second.outcome] == [Outcome.OK, Outcome.OK]
    assert here.world.steps == ["attach"]
    boots = [{one.metric for one in run.samples} >= {"boot_time"} for run in (first, second)]
    assert boots == [True, False]


def test_a_run_keeps_what_was_seen_of_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench(tmp_path)
    case = here.cases[0]
    site = replace(
        simulated_site(here.world),
        storages=StorageFunctions(
            seen={case.scenario.storage: {"storage_used": 0.83}, "other": {"storage_used": 0.1}}
        ),
    )
    attach = site.hypervisor.attach
    monkeypatch.setattr(
        site.hypervisor,
        "attach",
        lambda volume, disk: replace(attach(volume, disk), conditions={"zfs_scan": 1.0}),
    )
    run = Runner(site, here.recorder).run(case, cycle="c", conduct=Conduct())
    assert [one.value for one in run.samples if one.metric == "storage_used"] == [0.83]
    assert [one.value for one in run.samples if one.metric == "zfs_scan"] == [1.0]


def test_another_scenario_takes_the_disk_out_before_it_plugs_it_in_its_own_way(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path, SMALL)
    first, second = (here.run(case) for case in here.cases)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert here.world.steps == ["attach", "detach", "attach"]
    # The boot belongs to the case that needed it.
    assert "boot_time" in {one.metric for one in first.samples}
    assert "boot_time" not in {one.metric for one in second.samples}


@pytest.mark.parametrize(
    ("code", "steps"), [(0, ["attach", "detach", "attach"]), (1, ["attach", "power off", "attach"])]
)
def test_a_filesystem_is_unmounted_before_its_disk_is_taken_out_or_goes_with_the_vm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, steps: list[str]
) -> None:
    here = bench(tmp_path, IN_A_FILE.replace("[virtio]", "[virtio, scsi]"))
    first, second = here.cases
    assert here.run(first).outcome is Outcome.OK
    guest = here.world.guest
    assert guest is not None
    unmounted: list[list[str]] = []
    run = guest.run

    def says(argv: list[str], **given: object) -> Completed:
        if argv[-1] != "unmount":
            return run(argv, **given)  # type: ignore[arg-type] # handed through
        unmounted.append(list(here.world.steps))
        return Completed(code, b"", b"busy")

    monkeypatch.setattr(guest, "run", says)
    assert here.run(second).outcome is Outcome.OK
    assert unmounted == [["attach"]]
    assert here.world.steps == steps


def test_only_the_volumes_own_blocks_are_looked_at(tmp_path: Path) -> None:
    class Shell(Guest):
        def run(self, argv: list[str], **_: object) -> Completed:  # type: ignore[override]
            asked.append(argv[-4:])
            return Completed(0, f"{SAMPLES}\n".encode(), b"")

    asked: list[list[str]] = []
    target = Target(device="/dev/sdb", size_bytes=64 * MIB, offset_bytes=MIB)
    assert is_filled(Shell(), target)
    assert asked == [["/dev/sdb", "256", "16384", "64"]]  # of 4 KiB each


@pytest.mark.parametrize("blocks", [SPOT_SAMPLES, SPOT_SAMPLES - 1])
def test_what_was_filled_through_the_hosts_cache_is_read_back_past_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    here = bench(tmp_path, ONE_BUS.replace("cache: [none]", "cache: [writeback, none, directsync]"))
    kept(here, monkeypatch, blocks=blocks)
    cases = {case.scenario.disk.cache: case for case in here.cases}
    first, *later = (here.run(cases[cache]) for cache in (Cache.WRITEBACK, Cache.NONE))
    assert first.outcome is Outcome.OK
    if blocks == SPOT_SAMPLES:
        assert [run.outcome for run in later] == [Outcome.OK]
        assert here.fills() == 1
        kept(here, monkeypatch, blocks=0)  # it is asked once
    else:
        assert [run.outcome for run in later] == [Outcome.FAILED]
        assert later[0].reason.endswith("does not return the data that the fill wrote")
    assert here.run(cases[Cache.DIRECTSYNC]).outcome is Outcome.OK
    assert here.fills() == (1 if blocks == SPOT_SAMPLES else 2)


def test_after_a_failed_run_the_disk_is_taken_out_and_plugged_again(tmp_path: Path) -> None:
    here = bench(tmp_path)
    here.world.counts = once(SwitchFailed("the monitor does not answer"))
    outcomes = [here.run(here.cases[0]).outcome for _ in range(3)]
    assert outcomes == [Outcome.FAILED, Outcome.OK, Outcome.OK]
    # The third run finds everything in place: nothing was wrong any more.
    assert here.world.steps == ["attach", "detach", "attach"]


def test_a_disk_that_the_guest_keeps_after_a_failed_run_goes_with_the_vm(tmp_path: Path) -> None:
    here = bench(tmp_path)
    here.world.counts = once(SwitchFailed("the monitor does not answer"))
    assert here.run(here.cases[0]).outcome is Outcome.FAILED
    here.world.held = True
    run = here.run(here.cases[0])
    assert run.outcome is Outcome.OK
    assert here.world.steps == ["attach", "detach", "power off", "attach"]
    assert "boot_time" in {sample.metric for sample in run.samples}


def test_a_filesystem_on_a_disk_that_failed_is_not_unmounted_but_goes_with_the_vm(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path, IN_A_FILE)
    here.world.counts = once(SwitchFailed("the monitor does not answer"))
    outcomes = [here.run(here.cases[0]).outcome for _ in range(2)]
    assert outcomes == [Outcome.FAILED, Outcome.OK]
    assert here.world.steps == ["attach", "power off", "attach"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyError("iops")])
def test_whatever_ends_a_run_unexpectedly_makes_the_disk_suspect(
    tmp_path: Path, error: Exception
) -> None:
    here = bench(tmp_path)
    here.world.counts = once(error)
    assert here.run(here.cases[0]).outcome is Outcome.FAILED
    assert here.run(here.cases[0]).outcome is Outcome.OK
    assert here.world.steps == ["attach", "detach", "attach"]


def test_a_tool_that_fails_leaves_the_disk_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench(tmp_path)
    here.run(here.cases[0])
    guest = here.world.guest
    assert guest is not None
    monkeypatch.setattr(guest, "poll", lambda _: Completed(1, b"", b"no such engine"))
    run = here.run(here.cases[0])
    assert (run.outcome, run.retryable) == (Outcome.FAILED, False)
    assert "no such engine" in run.reason
    monkeypatch.undo()
    assert here.run(here.cases[0]).outcome is Outcome.OK
    assert here.world.steps == ["attach"]


def test_the_window_of_a_tool_that_ends_by_itself_is_its_whole_run(tmp_path: Path) -> None:
    here = bench(tmp_path, ONE_BUS + "  - dd: {rw: write, direct: true, count: 16}\n")
    (case,) = [case for case in here.cases if case.workload.tool == "dd"]
    run = here.run(case)
    values = {(one.metric, one.part): one.value for one in run.samples}
    assert values["window", ""] >= values["runtime", ""] > 0
    assert ("qemu_operations", "write") in values


def test_a_run_is_of_the_environment_that_its_booted_vm_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench(tmp_path)
    of_host = here.world.host_environment()
    of_vm = replace(of_host, facts={**of_host.facts, "qemu": "99.9"})
    monkeypatch.setattr(here.world, "environment", lambda: of_vm)
    monkeypatch.setattr(here.world, "host_environment", lambda: of_host)
    assert here.run(here.cases[0]).environment == of_vm


def test_the_window_of_a_load_begins_when_its_ramp_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench(tmp_path)
    began: dict[Phase, float] = {}
    now = here.world.clock.monotonic
    monkeypatch.setattr(here.runner, "_report", lambda _, phase, __: began.setdefault(phase, now()))
    case = here.cases[0]
    here.run(case)
    assert case.workload.ramp_seconds > 0
    assert began[Phase.MEASURE] - began[Phase.RAMP] >= case.workload.ramp_seconds


@pytest.mark.parametrize(
    ("cached", "outcome", "told"),
    [
        (None, Outcome.OK, "unknown"),
        (64 * MIB // 100, Outcome.OK, str(64 * MIB // 100)),
        (64 * MIB // 99, Outcome.INVALID, str(64 * MIB // 99)),
    ],
)
def test_a_volume_that_stays_in_the_hosts_memory_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: int | None, outcome: Outcome, told: str
) -> None:
    here = bench(tmp_path)
    monkeypatch.setattr(here.world, "drop_caches", lambda _: cached)
    run = here.run(here.cases[0])
    assert (run.outcome, run.evidence["host_cached_bytes"]) == (outcome, told)


def test_what_a_run_wrote_is_counted_once_and_its_fill_with_it(tmp_path: Path) -> None:
    here = bench(tmp_path, ONE_BUS.replace("randread", "randwrite"))
    total = 0

    def grown(counters: BlockCounters) -> BlockCounters:
        return replace(counters, write_bytes=total)

    here.world.counts = grown
    total = 1000
    assert here.run(here.cases[0]).written_bytes == 1000
    total = 1700
    assert here.run(here.cases[0]).written_bytes == 700
    here.runner.renew()
    total = 300  # another VM counts from nothing
    assert here.run(here.cases[0]).written_bytes == 300


def test_a_disk_whose_counters_are_gone_is_taken_to_be_written_as_much_as_it_could(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path, ONE_BUS.replace("randread", "randwrite"))
    here.run(here.cases[0])

    def gone(_: BlockCounters) -> BlockCounters:
        raise GuestTimeout("the monitor does not answer")

    here.world.counts = gone
    run = here.run(here.cases[0])
    assert run.outcome is Outcome.FAILED
    assert run.written_bytes > 0


def test_where_nothing_counts_io_a_run_says_what_no_one_knows_and_nothing_else_changes(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path)
    here.world.counts = lambda _: None
    run = here.run(here.cases[0])
    metrics = {sample.metric for sample in run.samples}
    assert run.outcome is Outcome.OK
    assert UNCOUNTED in run.evidence["notes"].splitlines()
    assert {"iops", "window", "host_cpu"} <= metrics
    assert not [metric for metric in metrics if metric.startswith("qemu_")]
    assert json.loads(run.evidence["host"])["start"]["block"] is None


def test_where_nothing_counts_io_a_fill_and_a_tool_wrote_all_that_they_could(
    tmp_path: Path,
) -> None:
    here = bench(tmp_path, ONE_BUS.replace("randread", "randwrite"))
    here.world.counts = lambda _: None
    case = here.cases[0]
    most = TOOLS["fio"].estimate(case.workload, case.scenario.volume_bytes).bytes_written
    assert [here.run(case).written_bytes for _ in range(2)] == [64 * MIB + most, most]


def test_where_nothing_counts_io_a_disk_is_used_to_its_limit_and_not_said_to_be_steady(
    tmp_path: Path,
) -> None:
    steady = "  runtime: 2s\n  steady: {interval: 10s, window: 5, limit: 5m}\n"
    here = bench(tmp_path, ONE_BUS.replace("  runtime: 2s\n", steady))
    here.world.counts = lambda _: None
    run = here.run(here.cases[0])
    assert run.outcome is Outcome.NOT_STEADY
    assert run.reason.startswith("unknown whether steady after 300 s")
    assert "iops" in {sample.metric for sample in run.samples}


def test_the_tool_that_brought_a_disk_to_its_steady_state_has_ended_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = "  runtime: 2s\n  steady: {interval: 10s, window: 5, limit: 5m}\n"
    here = bench(tmp_path, ONE_BUS.replace("  runtime: 2s\n", steady))
    seen: list[str] = []
    booted = here.world.boot

    def boot(*args: object) -> object:
        guest = booted(*args)  # type: ignore[arg-type] # handed through
        run, start, poll = guest.run, guest.start, guest.poll

        def runs(argv: list[str], **given: object) -> Completed:
            seen.extend(["kill"] * (argv[0] == "/bin/kill"))
            return run(argv, **given)  # type: ignore[arg-type] # handed through

        def starts(argv: list[str]) -> int:
            seen.append("start")
            return start(argv)

        def polls(pid: int) -> Completed | None:
            ended = poll(pid)
            seen.extend(["ended"] * (ended is not None))
            return ended

        for name, stand_in in (("run", runs), ("start", starts), ("poll", polls)):
            monkeypatch.setattr(guest, name, stand_in)
        return guest

    monkeypatch.setattr(here.world, "boot", boot)
    assert here.run(here.cases[0]).outcome is Outcome.OK
    fill = ["start", "ended"]
    assert seen == [*fill, "start", "kill", "ended", "start", "ended"]


def test_a_clock_that_is_set_back_during_a_run_makes_it_no_shorter(tmp_path: Path) -> None:
    tested = bench(tmp_path)
    clock = tested.world.clock
    before = tested.run(tested.cases[0])
    told = iter([timedelta(0), *[timedelta(hours=-12)] * 1000])
    real = clock.now
    clock.now = lambda: real() + next(told)  # type: ignore[method-assign] # set by NTP
    run = tested.run(tested.cases[0])
    assert timedelta(0) < run.finished - run.started < 10 * (before.finished - before.started)


class EarlyIO(RecordingHypervisor):
    """A node whose disk moves a block as soon as a tool starts, as for the inode of a test file."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = self._with_early_block
        self.polls: list[tuple[float, SimulatedJob]] = []
        self.readings = 0

    def _with_early_block(self, counted: BlockCounters) -> BlockCounters:
        self.readings += 1
        job = self.guest.job if self.guest is not None else None
        early = job is not None and self.clock.monotonic() > job.begun
        return replace(counted, read_operations=counted.read_operations + early)

    def polls_during(self, job: SimulatedJob) -> int:
        first_io = job.begun + START_SECONDS
        return sum(first_io <= at < job.ends for at, polled in self.polls if polled is job)

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        guest = super().boot(machine, cold)
        assert isinstance(guest, SimulatedGuest)
        poll = guest.poll

        def polls(pid: int) -> Completed | None:
            if guest.job is not None:
                self.polls.append((self.clock.monotonic(), guest.job))
            return poll(pid)

        guest.poll = polls  # type: ignore[method-assign] # records
        return guest


def test_guest_is_not_polled_while_a_tool_measures(tmp_path: Path) -> None:
    world = EarlyIO()
    here = Bench(tmp_path, ONE_BUS, world=world)
    assert here.run(here.cases[0]).outcome is Outcome.OK
    fill, measured = world.polls[0][1], world.polls[-1][1]
    assert (fill.played.seconds, measured.played.seconds) == (1.0, 3.0)
    assert world.polls_during(measured) == 0
    # Its length is not known: counters of a host include other users' I/O.
    assert world.polls_during(fill) == 1


def test_counters_that_cost_requests_are_not_read_to_wait_for_the_end(tmp_path: Path) -> None:
    readings = []
    for traffic in (None, Traffic()):
        world = EarlyIO()
        here = Bench(tmp_path, ONE_BUS, world=world, traffic=traffic)
        assert here.run(here.cases[0]).outcome is Outcome.OK
        readings.append(world.readings)
    assert readings[1] <= readings[0] - 10
