"""Real output of fio against numbers that were read from the files by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.run import Unit
from pvebench.model.workload import Direction, Workload
from pvebench.workloads.fio import Fio
from pvebench.workloads.tool import CPU_LOG, Parsed
from testing.packs import tool_workload

GOLDEN = Path(__file__).parents[2] / "golden" / "fio"
READ, WRITE, TRIM = Direction.READ, Direction.WRITE, Direction.TRIM
OPTIONS: dict[str, dict[str, Any]] = {
    "randread": {"rw": "randread", "iodepth": 32},
    "randwrite": {"rw": "randwrite", "iodepth": 32},
    "mixed": {"rw": "randrw", "iodepth": 4, "rwmixread": 75},
    "grouped": {"rw": "randread", "iodepth": 4, "numjobs": 4},
    "ungrouped": {"rw": "randread", "iodepth": 4, "numjobs": 4},
    "fsync": {"rw": "randwrite", "fsync": 1},
    "psync": {"rw": "write", "bs": "64k", "ioengine": "psync"},
    "noted": {"rw": "randread", "ioengine": "psync"},
    "stalls": {"rw": "randread"},
    "trim": {"rw": "randtrim"},
    "missing": {"rw": "randread"},
    "enospc": {"rw": "randwrite", "ioengine": "psync"},
    "interrupted": {"rw": "randread"},
    "search": {
        "rw": "randread",
        "iodepth": 16,
        "latency_target": "20ms",
        "latency_window": "1s",
        "latency_percentile": 95,
    },
    "search_one": {
        "rw": "randread",
        "iodepth": 64,
        "latency_target": "1500us",
        "latency_window": "1s",
        "latency_percentile": 90,
    },
    "search_none": {
        "rw": "randread",
        "iodepth": 4,
        "latency_target": "1us",
        "latency_window": "500ms",
    },
}


def workload_of(name: str) -> Workload:
    runtime = 4 if name == "stalls" else 2
    options = {"bs": "4k", **OPTIONS[name]}
    return tool_workload("fio", options, ramp_seconds=0.5, runtime_seconds=runtime)


def output_of(name: str) -> str:
    return (GOLDEN / f"{name}.json").read_text()


def parse(name: str) -> Parsed:
    log = GOLDEN / f"{name}_iops.log"
    logs = {f"/run/pvebench/fio{log.name[len(name) :]}": log.read_text()} if log.exists() else {}
    return Fio().parse(workload_of(name), output_of(name), logs)


def table(parsed: Parsed) -> dict[tuple[str, Direction | None, str], float]:
    return {(s.metric, s.direction, s.part): s.value for s in parsed.samples}


def damaged(name: str, *, within: str = "jobs", **changes: Any) -> str:
    """Return an output with values of the job, or of one of its objects, replaced."""
    document = json.loads(output_of(name))
    job = document["jobs"][0]
    (job if within == "jobs" else job[within]).update(changes)
    return json.dumps(document)


EXPECTED: dict[str, dict[tuple[str, Direction | None, str], float]] = {
    "randread": {
        ("iops", READ, ""): 106539.730135,
        ("bandwidth", READ, ""): 436450190,
        ("operations", READ, ""): 213186,
        ("bytes", READ, ""): 873336832,
        ("runtime", READ, ""): 2.001,
        ("clat_mean", READ, ""): 0.000295094667461,
        ("clat_min", READ, ""): 0.000149713,
        ("clat_max", READ, ""): 0.002735611,
        ("clat_stddev", READ, ""): 0.000061536120909,
        ("clat_percentile", READ, "50"): 0.000284672,
        ("clat_percentile", READ, "90"): 0.000346112,
        ("clat_percentile", READ, "95"): 0.00037888,
        ("clat_percentile", READ, "99"): 0.000473088,
        ("clat_percentile", READ, "99.9"): 0.000897024,
        ("clat_percentile", READ, "99.99"): 0.00208896,
        ("slat_mean", READ, ""): 0.000004833367557,
        ("lat_mean", READ, ""): 0.000299927935681,
        ("guest_cpu", None, "user"): 0.0715,
        ("guest_cpu", None, "system"): 0.668,
        ("context_switches", None, ""): 6549,
        ("iops_variation", READ, ""): 0.0198060363,
    },
    "mixed": {
        ("iops", READ, ""): 29492.253873,
        ("iops", WRITE, ""): 9805.597201,
        ("bandwidth", READ, ""): 120804365,
        ("bandwidth", WRITE, ""): 40167820,
        ("operations", READ, ""): 59014,
        ("operations", WRITE, ""): 19621,
        ("clat_mean", READ, ""): 0.000087441015488,
        ("clat_mean", WRITE, ""): 0.000110758717474,
        ("clat_percentile", READ, "99.9"): 0.0003584,
        ("clat_percentile", WRITE, "99.9"): 0.000493568,
    },
    "grouped": {
        ("iops", READ, ""): 72692.653673,
        ("bandwidth", READ, ""): 297775720,
        ("operations", READ, ""): 145458,
        ("clat_percentile", READ, "99"): 0.000428032,
        ("guest_cpu", None, "user"): 0.019625,
        ("context_switches", None, ""): 36505,
    },
    "ungrouped": {
        ("iops", READ, ""): 19716.141929 + 19724.637681 + 19757.121439 + 19728.635682,
        ("bandwidth", READ, ""): 80765505 + 80800303 + 80931310 + 80814632,
        ("operations", READ, ""): 39452 + 39469 + 39534 + 39477,
        ("bytes", READ, ""): 161611776 + 161681408 + 161943552 + 161710080,
        ("runtime", READ, ""): 2.001,
        # (39455*196264.386466 + 39472*196136.323951 + 39537*195828.780863
        #  + 39480*196109.203065) / 157944 ns
        ("clat_mean", READ, ""): 0.000196084550176,
        ("clat_percentile", READ, "99"): 0.000354304,
        ("guest_cpu", None, "user"): (2.55 + 2.65 + 2.15 + 3.05) / 400,
        ("context_switches", None, ""): 9908 + 9918 + 9948 + 9923,
    },
    "fsync": {
        ("iops", WRITE, ""): 7353.323338,
        ("clat_mean", WRITE, ""): 0.000055515832405,
        ("sync_operations", None, ""): 14714,
        ("sync_mean", None, ""): 0.000116848470776,
        ("sync_min", None, ""): 0.000040961,
        ("sync_max", None, ""): 0.004218841,
        ("sync_stddev", None, ""): 0.000055989088273,
        ("sync_percentile", None, "99.99"): 0.002277376,
    },
    "stalls": {
        ("operations", READ, ""): 4,
        ("runtime", READ, ""): 4.802,
        # 2 0 2 0 2 0 0 2: mean 1, deviation sqrt(8/7)
        ("iops_variation", READ, ""): 1.0690449676,
    },
    "trim": {
        ("iops", TRIM, ""): 6250610.194903,
        ("operations", TRIM, ""): 12507471,
        ("bandwidth", TRIM, ""): 25602499358,
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_samples_are_the_numbers_in_the_output(name: str) -> None:
    found = table(parse(name))
    assert {key: found.get(key) for key in EXPECTED[name]} == pytest.approx(EXPECTED[name])


def test_every_sample_has_the_unit_of_its_metric() -> None:
    units = {(sample.metric, sample.unit) for name in EXPECTED for sample in parse(name).samples}
    assert len({metric for metric, _ in units}) == len(units)
    assert {
        ("iops", Unit.IOPS),
        ("bandwidth", Unit.BYTES_PER_SECOND),
        ("operations", Unit.OPERATIONS),
        ("bytes", Unit.BYTES),
        ("runtime", Unit.SECONDS),
        ("clat_percentile", Unit.SECONDS),
        ("guest_cpu", Unit.RATIO),
        ("context_switches", Unit.OPERATIONS),
        ("iops_variation", Unit.RATIO),
        ("sync_mean", Unit.SECONDS),
    } <= units


def test_no_sample_appears_twice() -> None:
    for name in EXPECTED:
        parsed = parse(name)
        assert len(table(parsed)) == len(parsed.samples)


def test_direction_that_is_not_of_the_workload_is_ignored() -> None:
    assert {sample.direction for sample in parse("randread").samples} == {READ, None}


def test_clean_output_needs_no_notes() -> None:
    assert [parse(name).notes for name in ("randread", "randwrite", "mixed", "fsync")] == [()] * 4


def test_percentiles_of_jobs_that_were_not_grouped_are_the_worst_and_say_so() -> None:
    assert "read: clat percentiles are the worst of 4 jobs" in parse("ungrouped").notes
    assert parse("grouped").notes == ()


def test_deviation_of_several_jobs_is_pooled() -> None:
    # Two jobs of 2 operations each: 1, 3 and 5, 7 ns; together 1, 3, 5, 7.
    document = json.loads(output_of("randread"))
    first = document["jobs"][0]
    second = json.loads(json.dumps(first))
    first["read"]["clat_ns"] = {"N": 2, "mean": 2.0, "stddev": 2**0.5, "min": 1, "max": 3}
    second["read"]["clat_ns"] = {"N": 2, "mean": 6.0, "stddev": 2**0.5, "min": 5, "max": 7}
    document["jobs"] = [first, second]
    found = table(Fio().parse(workload_of("randread"), json.dumps(document), {}))
    figures = {name: found["clat_" + name, READ, ""] for name in ("mean", "min", "max", "stddev")}
    assert figures == pytest.approx(
        {"mean": 4e-9, "min": 1e-9, "max": 7e-9, "stddev": 2.5819889e-9}
    )


def test_engine_that_submits_and_waits_in_one_call_has_no_submission_latency() -> None:
    assert not [sample for sample in parse("psync").samples if sample.metric.startswith("slat")]
    assert parse("psync").notes == ()


def test_syncs_are_counted_by_their_latencies_because_fio_says_0_for_ungrouped_jobs() -> None:
    document = json.loads(output_of("fsync"))
    document["jobs"][0]["sync"]["total_ios"] = 0
    found = table(Fio().parse(workload_of("fsync"), json.dumps(document), {}))
    assert found["sync_operations", None, ""] == 14714


def test_job_that_should_sync_but_did_not_is_a_failure() -> None:
    output = damaged("fsync", sync={"total_ios": 0, "lat_ns": {"N": 0}})
    with pytest.raises(ToolFailed, match="reports no syncs, but the job requires them"):
        Fio().parse(workload_of("fsync"), output, {})


def test_text_before_the_json_becomes_a_note() -> None:
    (note,) = parse("noted").notes
    assert note.startswith(
        "fio reported: note: both iodepth >= 1 and synchronous I/O engine are sel"
    )
    assert table(parse("noted"))["operations", READ, ""] == 39660


@pytest.mark.parametrize(
    ("name", "what", "said"),
    [
        ("enospc", "fio ended with error 28: No space left on dev", "io_u error on file /dev/full"),
        # fio reports no error.
        ("missing", "not complete a single", "file creation disallowed by allow_file_create=0"),
        # The JSON is complete.
        ("interrupted", r"measured for 0\.8 s instead of 2\.0 s", "terminating on signal 2"),
    ],
)
def test_a_job_without_a_result_fails_with_fios_words(name: str, what: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=what) as caught:
        parse(name)
    assert said in caught.value.evidence
    assert name == "enospc" or caught.value.cause == f"fio: {said}"


def test_error_without_words_is_named_by_the_system() -> None:
    with pytest.raises(ToolFailed, match="fio ended with error 5: Input/output error"):
        Fio().parse(workload_of("randread"), damaged("randread", error=5), {})


def test_direction_without_io_is_a_failure_rather_than_a_zero() -> None:
    with pytest.raises(ToolFailed, match="did not complete a single write"):
        Fio().parse(workload_of("mixed"), output_of("randread"), {})


@pytest.mark.parametrize("key", ["iops", "bw_bytes", "total_ios", "io_bytes"])
@pytest.mark.parametrize("value", [None, "many", -1, float("nan"), 10**400, True])
def test_missing_or_impossible_number_is_unreadable_by_name(key: str, value: Any) -> None:
    output = damaged("randread", within="read", **{key: value})
    with pytest.raises(OutputUnreadable, match=f"no usable number {key} for read"):
        Fio().parse(workload_of("randread"), output, {})


def test_missing_percentiles_are_noted_and_the_rest_is_kept() -> None:
    clat = json.loads(output_of("randread"))["jobs"][0]["read"]["clat_ns"]
    del clat["percentile"]
    parsed = Fio().parse(
        workload_of("randread"), damaged("randread", within="read", clat_ns=clat), {}
    )
    assert "read: fio reported no clat percentiles" in parsed.notes
    assert ("clat_mean", READ, "") in table(parsed)
    assert ("clat_percentile", READ, "99") not in table(parsed)


def test_missing_latency_is_noted() -> None:
    output = damaged("randread", within="read", clat_ns={})
    assert "read: fio measured no clat" in Fio().parse(workload_of("randread"), output, {}).notes


def test_variation_without_a_log_is_fios_own_and_says_so() -> None:
    changes = {"iops_mean": 200.0, "iops_stddev": 50.0, "iops_samples": 4}
    parsed = Fio().parse(workload_of("randread"), damaged("randread", within="read", **changes), {})
    assert table(parsed)["iops_variation", READ, ""] == 0.25
    assert "read: variation computed by fio, which ignores intervals without I/O" in parsed.notes


def test_fewer_than_three_intervals_have_no_variation() -> None:
    output = damaged("randread", within="read", iops_samples=2)
    logs = {"fio_iops.log": "500, 1, 0, 0, 0\n"}
    workload = tool_workload(
        "fio", {"rw": "randread", "bs": "4k"}, ramp_seconds=0.5, runtime_seconds=1
    )
    parsed = Fio().parse(workload, output, logs)
    assert parsed.intervals == {"read": (1.0,)}
    assert ("iops_variation", READ, "") not in table(parsed)


def test_operations_of_another_size_than_asked_for_are_noted() -> None:
    # fio reads bs=4kib as 4000 bytes; the same numbers under the name 4k must not pass silently.
    output = damaged("randread", within="read", io_bytes=213186 * 4000)
    notes = Fio().parse(workload_of("randread"), output, {}).notes
    assert "read: 213186 operations of 4096 bytes transferred 852744000 bytes" in notes


def test_intervals_that_contradict_the_run_are_noted() -> None:
    logs = {"fio_iops.log": "".join(f"{500 * step}, 50000, 0, 0, 0\n" for step in (1, 2, 3, 4))}
    notes = Fio().parse(workload_of("randread"), output_of("randread"), logs).notes
    assert notes == ("read: the intervals average 50000.0 IOPS, the run 106539.7",)


CLAT = json.loads(output_of("randread"))["jobs"][0]["read"]["clat_ns"]
RANKS = CLAT["percentile"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"iops": 200000.0}, "read: fio reports 200000 IOPS but counted 106539.7301"),
        ({"clat_ns": CLAT | {"mean": 3e6}}, "clat_ns: mean 3000000 is above max 2735611"),
        ({"clat_ns": CLAT | {"min": 3e5}}, "clat_ns: min 300000 is above mean 295094.66"),
        ({"clat_ns": CLAT | {"mean": -1}}, "clat_ns: mean is -1"),
        (
            {"clat_ns": CLAT | dict.fromkeys(("min", "mean", "max", "stddev"), 0)},
            "clat_ns: [0-9]+ operations took no time at all",
        ),
        ({"clat_ns": CLAT | {"max": None}}, "clat_ns: max is None"),
        ({"clat_ns": CLAT | {"stddev": 1e7}}, "stddev 10000000 is too large for min and max"),
        ({"clat_ns": CLAT | {"percentile": [1]}}, r"percentile is \[1\]"),
        ({"clat_ns": CLAT | {"mean": 3e5 + 1}}, "mean 300001 is above lat_ns mean 299927.9357"),
    ],
)
def test_numbers_that_cannot_be_true_are_unreadable(change: dict[str, Any], what: str) -> None:
    output = damaged("randread", within="read", **change)
    with pytest.raises(OutputUnreadable, match=what):
        Fio().parse(workload_of("randread"), output, {})


@pytest.mark.parametrize(
    ("ranks", "what"),
    [
        ({"150.000000": 500000}, "clat_ns: percentile 150 does not exist"),
        ({"99.0": 405504}, "duplicate percentile"),
        ({"0.000000": 150000}, "clat_ns: percentile 0 does not exist"),
        ({"half": 150000}, "percentile 'half' is 150000"),
        ({"99.000000": -1}, "percentile '99.000000' is -1"),
        ({"99.000000": 0}, "percentile 95 of 378880 is above 99 of 0"),
        (dict.fromkeys(RANKS, 0), "percentile 50 of 0 is below min 149713"),
        ({"99.990000": 2757000}, "percentile 99.99 of 2757000 is above max 2735611"),
    ],
)
def test_percentiles_that_cannot_be_true_are_unreadable(ranks: dict[str, Any], what: str) -> None:
    clat = CLAT | {"percentile": RANKS | ranks}
    output = damaged("randread", within="read", clat_ns=clat)
    with pytest.raises(OutputUnreadable, match=what):
        Fio().parse(workload_of("randread"), output, {})


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"read" : {', '"read" : {"iops": 5}, "read" : {', "duplicate key read"),
        ('"iops" : ', '"iops" : 1e9, "iops" : ', "duplicate key iops"),
        ('"clat_ns" : {', '"clat_ns" : {"mean" : 1, ', "duplicate key mean"),
    ],
)
def test_of_a_number_that_is_there_twice_it_is_not_known_which_one_counts(
    old: str, new: str, what: str
) -> None:
    """RFC 8259, section 4: what a reader makes of that is unpredictable."""
    output = (GOLDEN / "randread.json").read_text("utf-8")
    assert old in output
    with pytest.raises(OutputUnreadable, match=what):
        Fio().parse(workload_of("randread"), output.replace(old, new, 1), {})


def test_an_option_that_was_given_twice_is_no_matter() -> None:
    output = (GOLDEN / "randread.json").read_text("utf-8")
    twice = output.replace('"rw" : ', '"rw" : "read", "rw" : ', 1)
    assert twice != output
    assert Fio().parse(workload_of("randread"), twice, {}).samples


def test_percentiles_are_middles_of_bins_and_may_be_beyond_min_and_max() -> None:
    # stat.c, plat_idx_to_val: a latency of 2,735,611 ns is in the bin from 2,719,744 to 2,752,512.
    # Of several seconds all are in the last bin, which begins near 17 s (FIO_IO_U_PLAT_GROUP_NR).
    of_bins = CLAT | {"percentile": RANKS | {"99.990000": 2736128}}
    seconds = {"min": 3 * 10**10, "mean": 4e10, "max": 5 * 10**10, "stddev": 1e9, "N": 100}
    stalled = seconds | {"percentile": {"50.000000": 17112760320, "99.000000": 17112760320}}
    for clat in (of_bins, stalled):
        output = damaged("randread", within="read", clat_ns=clat, lat_ns={})
        found = table(Fio().parse(workload_of("randread"), output, {}))
        assert found["clat_max", READ, ""] == clat["max"] / 1e9


def test_truncated_output_is_unreadable_with_position_and_its_end_as_evidence() -> None:
    text = output_of("randread")[:5000]
    with pytest.raises(OutputUnreadable, match=r"at character \d+ of 5000") as caught:
        Fio().parse(workload_of("randread"), text, {})
    assert caught.value.evidence == text[-200:]


@pytest.mark.parametrize(
    ("output", "happened", "cause"),
    [
        ("", "fio wrote no output", "fio was stopped or could not start"),
        (
            "Bad option <frob=1>\nfio: job a dropped\n",
            "no JSON report of fio",
            "fio: job a dropped",
        ),
        ('{"jobs": []}', "lists no jobs", ""),
        ('{"jobs": [1]}', "lists no jobs", ""),
        ('{"jobs": [{"error": "5"}]}', "error number is not a number: '5'", ""),
        ('{"fio version": "fio-3.33"}', "no JSON report of fio", ""),
        ("[" * 100_000 + '{"jobs"', "invalid fio JSON at character", "fio was stopped"),
        ('{"a":' * 3000, "JSON", ""),
        ('{"jobs": [' + "9" * 5000 + "]}", "JSON", ""),
    ],
)
def test_output_that_is_not_fios_is_unreadable(output: str, happened: str, cause: str) -> None:
    with pytest.raises(OutputUnreadable, match=happened) as caught:
        Fio().parse(workload_of("randread"), output, {})
    assert cause in caught.value.cause


def test_golden_files_are_small_and_name_no_machine() -> None:
    for path in GOLDEN.iterdir():
        assert path.stat().st_size < 30_000
        text = "" if path.suffix == ".md" else path.read_text()
        assert not [place for place in ("/tmp", "/work", "/home", "/root", "/run") if place in text]


@pytest.mark.parametrize(
    ("name", "depth", "rate"), [("search", 16, 13516.966068), ("search_one", 1, 2382.697947)]
)
def test_a_search_reports_the_depth_and_the_rate_of_its_last_window(
    name: str, depth: int, rate: float
) -> None:
    """The figures are fio's: it resets them before that window (`lat_target_success`, io_u.c)."""
    parsed = parse(name)
    found = table(parsed)
    assert found["latency_depth", None, ""] == depth
    assert found["iops", READ, ""] == rate
    assert found["runtime", READ, ""] == pytest.approx(
        1.0, abs=0.5
    )  # the last operation may be slow
    more = "the highest allowed depth meets the latency; more may be possible"
    assert (more in parsed.notes) is (name == "search")


def test_a_search_that_found_nothing_is_no_result() -> None:
    with pytest.raises(ToolFailed, match=r"no depth meets 99% of operations within 0\.001 ms"):
        parse("search_none")


@pytest.mark.parametrize("depth", [None, "16", -1])
def test_a_search_without_its_depth_is_refused(depth: object) -> None:
    text = damaged("search", latency_depth=depth)
    with pytest.raises(OutputUnreadable, match="depth"):
        Fio().parse(workload_of("search"), text, {})


def test_a_window_that_did_not_keep_its_latency_is_refused() -> None:
    strict = tool_workload(
        "fio",
        {"bs": "4k", **OPTIONS["search"], "latency_target": "1ms"},
        ramp_seconds=0,
        runtime_seconds=2,
    )
    with pytest.raises(ToolFailed, match="did not meet 95% of operations within 1 ms"):
        Fio().parse(strict, output_of("search"), {})


def without_switches(log: str, jobs: int) -> Parsed:
    """Parse a report of a system on which fio counts neither CPU nor context switches."""
    report = json.loads((GOLDEN / "grouped.json").read_text("utf-8"))
    for job in report["jobs"]:
        job |= {"ctx": 0, "usr_cpu": 0.0, "sys_cpu": 0.0}
    workload = tool_workload(
        "fio",
        {"bs": "4k", "rw": "randread", "iodepth": 4, "numjobs": jobs},
        ramp_seconds=0.5,
        runtime_seconds=2,
    )
    logs = {"fio_iops.log": (GOLDEN / "grouped_iops.log").read_text("utf-8"), CPU_LOG: log}
    return Fio().parse(workload, json.dumps(report), logs)


def cpu_of(parsed: Parsed) -> dict[str, float]:
    return {s.part: s.value for s in parsed.samples if s.metric == "guest_cpu"}


@pytest.mark.parametrize(("jobs", "share"), [(1, 0.5), (4, 0.125)])
def test_the_counters_of_a_guest_are_its_cpu_per_job_where_fio_counts_none(
    jobs: int, share: float
) -> None:
    log = (
        '{"user": 100.0, "system": 50.0, "at": 1000.0}\n{"user": 105.0, "system": 70, "at": 1010}\n'
    )
    parsed = without_switches(log, jobs)
    assert cpu_of(parsed) == pytest.approx({"user": share, "system": 4 * share})
    assert not [note for note in parsed.notes if "CPU" in note]


@pytest.mark.parametrize(
    "log",
    [
        "",
        "{}",
        '{"user": 1, "system": 1, "at": 1}\n',
        '{"user": 1, "system": 1, "at": 1}\n{"user": 1, "system": 1, "at": 1}\n',
        '{"user": 9, "system": 1, "at": 1}\n{"user": 1, "system": 1, "at": 2}\n',
        '{"user": "x", "system": 1, "at": 1}\n{"user": 1, "system": 1, "at": 2}\n',
        '{"user": 1e400, "system": 1, "at": 1}\n{"user": 1e400, "system": 1, "at": 2}\n',
        "[1]\n[2]\n",
        "{" * 100_000 + "\n{}",
        "no JSON\nno JSON\n",
    ],
)
def test_counters_that_cannot_be_true_leave_the_guest_cpu_unknown(log: str) -> None:
    parsed = without_switches(log, 1)
    assert cpu_of(parsed) == {}
    assert "guest CPU unknown: the guest's counters could not be read" in parsed.notes
