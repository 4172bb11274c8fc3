"""Tables of others: read as they were printed, judged by the same rules, never mixed in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pvebench.cli.main import run_cli
from pvebench.errors import ConfigError, StoreError
from pvebench.workloads.fio import FioOptions
from pvebench_lab.references.library import PUBLISHED, Library, published, read_file

GOLDEN = Path(__file__).parents[2] / "golden" / "fio"
Captured = pytest.CaptureFixture[str]
HEADER = "case,rw,bs,size [B],bus,format,cache,iops,bandwidth (B/s)"

COMPARABLE = {
    "bus-format-2012": 12,
    "cache-bus-format-2017": 216,
    "lvmcache-2019": 18,
    "media-2018": 5,
    "raid-2017": 19,
    "shared-storage-2021": 32,
}


def test_every_shipped_table_is_read_in_full() -> None:
    counts = {name: len(published(name).rows) for name in PUBLISHED}
    assert counts == {
        "bus-format-2012": 12,
        "cache-bus-format-2017": 216,
        "lvmcache-2019": 18,
        "media-2018": 20,
        "raid-2017": 19,
        "shared-storage-2021": 72,
    }


def test_the_rows_of_2017_that_cannot_be_true_are_found() -> None:
    found = published("cache-bus-format-2017").contradictions()
    others = [
        (row["table"], row["bus"], row["format"], row["cache"], row["rules"])
        for row in found
        if row["table"] != "1.1"
    ]
    assert others == [
        ("1.2", "virtio", "qcow2", "directsync", ["cpu"]),
        ("2.2", "virtio", "raw", "none", ["rate"]),
        ("4.2", "virtio", "raw", "none", ["rate"]),
        ("4.2", "virtio", "raw", "writethrough", ["rate"]),
        ("4.2", "virtio", "raw", "unsafe", ["rate", "size"]),
        ("7.1", "scsi", "qcow2", "directsync", ["size"]),
    ]
    first = [row for row in found if row["table"] == "1.1"]
    assert len(first) == 12  # the decimal points of a whole CPU column are lost
    assert all(row["rules"] == ["cpu"] for row in first)
    assert first[2]["reasons"] == ["CPU system is 1798% of 1 CPU"]


def test_a_row_is_found_beside_our_own_configuration() -> None:
    series = published("cache-bus-format-2017")
    known = {
        "bus": "virtio",
        "format": "qcow2",
        "cache": "none",
        "filesystem": "ext4",
        "iothread": "0",
        "tool": "fio",
        "rw": "randwrite",
        "bs": 4096,
    }
    row = series.matching(known)
    assert row is not None
    assert row.values["iops", "write"] == 13963
    assert series.matching(known | {"iothread": "1"}) is None
    host = series.matching({"bus": "host", "tool": "fio", "rw": "randwrite", "bs": 4096})
    assert host is not None
    assert host.place["host_disk"] == "Host OCZ"


def test_the_hosts_own_row_is_not_put_beside_what_guests_reached() -> None:
    known = {
        "storage": "lvm-off",
        "bus": "scsi",
        "format": "raw",
        "cache": "none",
        "tool": "fio",
        "bs": 4096,
        "iodepth": 32,
    }
    assert published("lvmcache-2019").matching(known) is not None
    assert published("lvmcache-2019").matching(known | {"bus": "host"}) is None
    share = {"storage": "cifs", "bus": "host", "tool": "fio", "rw": "write", "bs": 1 << 20}
    row = published("shared-storage-2021").matching(share)
    assert row is not None
    assert row.place["system"] == "CIFS, remote native"
    container = {"storage": "local", "bus": "lxc", "tool": "fio", "rw": "write", "bs": 1 << 20}
    row = published("shared-storage-2021").matching(container)
    assert row is not None
    assert row.place["system"] == "Local HDD. LXC"


def test_import_prints_what_contradicts_itself_as_data(tmp_path: Path, capsys: Captured) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        f"{HEADER}\n"
        "1,randread,4096,,scsi,raw,none,1000,4096000\n"
        "1,randread,4096,,scsi,raw,writeback,1000,409600\n",
        "utf-8",
    )
    state = ["--state", str(tmp_path / "s")]
    assert run_cli(["import", str(table), "--name", "mine", "--format=json", *state]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert {key: row[key] for key in ("series", "table", "bus", "format", "cache", "rw")} == {
        "series": "mine",
        "table": "1",
        "bus": "scsi",
        "format": "raw",
        "cache": "writeback",
        "rw": "randread",
    }
    assert row["reasons"] == ["read: 1000 IOPS x 4096 bytes = 4096000 bytes/s, not 409600"]
    kept = Library().get(tmp_path / "s" / "references", "mine")
    assert len(kept.rows) == 2
    assert kept.contradictions()[0]["line"] == 3


def test_import_without_a_name_takes_the_published_tables(tmp_path: Path, capsys: Captured) -> None:
    assert run_cli(["import", "--state", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "cache-bus-format-2017 (2017): 216 rows, 18 contradict themselves" in said
    assert not (tmp_path / "references").exists()


def test_json_of_fio_is_a_series_of_its_jobs(tmp_path: Path) -> None:
    series = read_file(GOLDEN / "randread.json", name="x", date="2026-11-21")
    assert series.rows[0].values["iops", "read"] > 0
    assert series.contradictions() == []
    library = Library()
    library.keep(tmp_path, series)
    assert library.get(tmp_path, "x") == series
    assert "x" in library.names(tmp_path)


def _job(**changed: Any) -> dict[str, Any]:
    """Return a job of 1000 random reads of 4k a second."""
    options = {"rw": "randread", "bs": "4k", "iodepth": "32", "ioengine": "libaio", "direct": "1"}
    side = {"iops": 1000.0, "bw_bytes": 4096000, "runtime": 10000, "total_ios": 10000}
    side |= {"clat_ns": {"mean": 900.0}}
    return {"jobname": "a", "groupid": 0, "job options": options, "read": side} | changed


def _report(*jobs: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {"fio version": "fio-3.33", "timestamp": 1.7e9, "jobs": list(jobs)} | changed


_OLD = {"iops": 1000.0, "bw": 4000, "runtime": 10000, "io_bytes": 40000, "clat": {"mean": 900.0}}
_UNUSED = json.dumps(_report(_job())).replace(
    '"mean"', '"percentile": {"0.00": 0, "0.00": 0}, "mean"'
)
_RUN = [_report(_job(elapsed=each), timestamp=1.7e9 + each) for each in (1, 2, 3)]
_LATER = _report(_job(elapsed=1, jobname="b"), timestamp=1.7e9 + 90)


@pytest.mark.parametrize(
    ("document", "iops", "direction", "latency"),
    [
        (_report(_job(read=_OLD)), [1000], "read", 900e-6),
        (_report(_job(read={"iops": 0}, trim=_job()["read"])), [1000], "trim", 900e-9),
        (_report(_job(read={"iops": 0}, mixed=_job()["read"])), [1000], "mixed", 900e-9),
        (_report(_job(read=_job()["read"] | {"clat_ns": {"mean": 0.0}})), [1000], "read", None),
        (_report(_job(), _job()), [2000], "read", 900e-9),
        (_report(client_stats=[_job(), _job(jobname="All clients")]), [1000], "read", 9e-7),
        (_UNUSED, [1000], "read", 9e-7),
        ("hostname=a\nfio: a note {\n" + json.dumps(_report(_job())), [1000], "read", 9e-7),
        ("\n".join(map(json.dumps, _RUN)), [1000], "read", 9e-7),
        ([*_RUN, _LATER], [1000, 1000], "read", 9e-7),
    ],
)  # fmt: skip
def test_every_report_of_fio_is_read_with_all_its_jobs(
    document: Any, iops: list[float], direction: str, latency: float | None, tmp_path: Path
) -> None:
    """As fio 2 to 3, --client, --status-interval, gtod_reduce and unified_rw_reporting write."""
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "mine.txt").write_text(text.replace('"jobs": [], ', ""), "utf-8")
    series = read_file(tmp_path / "mine.txt", name="x")
    assert [row.values["iops", direction] for row in series.rows] == iops
    assert series.rows[0].values["bandwidth", direction] == iops[0] * 4096
    assert series.rows[0].values.get(("clat_mean", direction)) == pytest.approx(latency)
    assert series.contradictions() == []


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        ([_job()], ""),
        ([_job(**{"job options": {"rw": "randread", "iodepth": "32"}})], "direct: must be 1"),
        ([_job(**{"job options": {"rw": "randread", "bssplit": "4k/50"}})], "one block size"),
        ([_job(), _job(jobname="b")], "at the same time"),
    ],
)
def test_a_job_of_the_same_workload_is_shown_beside_results_and_others_say_why_not(
    jobs: list[dict[str, Any]], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(_report(*jobs)), "utf-8")
    series = read_file(tmp_path / "mine.json", name="x")
    options = FioOptions(rw="randread", bs="4k", iodepth=32)  # type: ignore[arg-type] # as in a pack
    known = {"tool": "fio", **options.workload(ramp_seconds=0, runtime_seconds=9).parameters}
    assert (series.matching(known) is None) is bool(reason)
    assert series.matching(known | {"during": "backup"}) is None
    assert reason in series.rows[0].unmatched


def test_fios_json_is_dated_by_itself_and_not_by_its_file(tmp_path: Path, capsys: Captured) -> None:
    copied = tmp_path / "copied.json"
    copied.write_text((GOLDEN / "randread.json").read_text("utf-8"), "utf-8")
    os.utime(copied, (0, 0))
    assert run_cli(["import", str(copied), "--state", str(tmp_path)]) == 0
    assert Library().get(tmp_path / "references", "copied").date == "2026-11-21"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "stamp", ['"timestamp": 1e99,', '"timestamp": 0,', "", '"timestamp": "x",']
)
def test_what_does_not_say_its_time_is_dated_by_its_file_and_that_is_said(
    tmp_path: Path, capsys: Captured, stamp: str
) -> None:
    made = tmp_path / "made.json"
    made.write_text(f'{{{stamp} "jobs": [{{"read": {{"iops": 1, "bw_bytes": 9}}}}]}}', "utf-8")
    os.utime(made, (1_500_000_000, 1_500_000_000))
    assert run_cli(["import", str(made), "--state", str(tmp_path)]) == 0
    assert Library().get(tmp_path / "references", "made").date == "2017-07-14"
    said = "contains no date; using its modification date 2017-07-14"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "colour,taste\nred,sweet\n", r"a.csv:1:1: unknown table format"),
        (
            "a.csv",
            f"{HEADER}\n1,read,4096,lots,scsi,raw,none,1,1\n",
            r"a.csv:2:13: 'lots' is not a number",
        ),
        ("a.json", "{", r"a.json:1:1: invalid fio JSON"),
        (
            "a.txt",
            "a: (groupid=0, jobs=1): err= 0: pid=9\n  read: IOPS=9\n",
            "1:1: this is fio's text output",
        ),
        ("a.txt", "3;fio-3.33;a;0;0;1\n", "1:1: this is fio's terse output"),
        ("a.json", '[{"jmhVersion": "1.36"}]', "1:1: this is output of JMH"),
        ("a.json", '{"jobs":[{"read":{"iops":0}}]}', "1:1: no job of fio completed an operation"),
        ("a.csv", HEADER + "\n1,read,4k,,usb,raw,none,1,1\n", "'usb' is not one of virtio, scsi"),
        ("a.csv", f"{HEADER}\n1,read,4096,,scsi,raw,none,-5,1\n", "2:28: '-5' is below 0"),
        (
            "a.csv",
            f"{HEADER}\n1,read,4096,,scsi,raw,none,1,1e999\n",
            "2:30: '1e999' is not a number",
        ),
        ("a.json", '{"jobs":[{"read":{"iops":9,"total_ios":1,"runtime":1000}}]}', "counted 1"),
    ],
)
def test_a_file_of_no_known_form_is_reported_with_its_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=message):
        read_file(tmp_path / name, name="x", date="")


def test_a_published_name_cannot_be_taken_and_an_unknown_one_is_reported(tmp_path: Path) -> None:
    library = Library()
    with pytest.raises(StoreError, match="is shipped with pvebench"):
        library.keep(tmp_path, published("raid-2017"))
    with pytest.raises(StoreError, match="no reference series nobody; available: bus-format-2012"):
        library.get(tmp_path, "nobody")


def test_every_shipped_table_has_as_many_rows_to_compare_with_as_it_had() -> None:
    """Rows without options are systems that pvebench cannot measure, such as a hard disk."""
    comparable = {name: sum(bool(row.match) for row in published(name).rows) for name in PUBLISHED}
    assert comparable == COMPARABLE
    (row,) = (row for row in published("raid-2017").rows if row.line == 2)
    assert row.match == {"storage": "local", "bus": "host", "tool": "ioping"}
