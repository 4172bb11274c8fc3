"""Tables of the user's own: any columns, either decimal mark, each complaint with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pvebench.cli.main import run_cli
from pvebench.errors import ConfigError
from pvebench.model.reference_series import ReferenceRow
from pvebench_lab.references.columns import ColumnMapping, read_columns
from pvebench_lab.references.delimited import (
    Decimal,
    Unclear,
    decimal_number,
    decimal_of,
    last_digit_step,
)
from pvebench_lab.references.library import Library

Captured = pytest.CaptureFixture[str]
GERMAN = """\
Testfall;Muster;Blockgröße;E/A pro s;Durchsatz (MB/s);Latenz [ms]
Datenbank;randread;4k;15.539,0;63,65;16,4
Sicherung;write;1M;112,5;117,96;–
"Alt; vom Vorjahr";randwrite;4k;1.553;63,65;
"""
COLUMNS = {
    "case": "Testfall",
    "rw": "Muster",
    "bs": "Blockgröße",
    "iops": "E/A pro s",
    "bandwidth": "Durchsatz (MB/s)",
    "latency_mean": "Latenz [ms]",
}


def read(text: str, decimal: Decimal | None = None, **changes: str | None) -> list[ReferenceRow]:
    columns = {key: value for key, value in (COLUMNS | changes).items() if value is not None}
    return list(read_columns("t.csv", text, ColumnMapping(columns, decimal=decimal)))


def complaint(text: str, columns: dict[str, str], units: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_columns("t.csv", text, ColumnMapping(columns, units or {}))
    return str(caught.value)


def test_a_german_table_is_read_with_its_commas_and_semicolons() -> None:
    first, second, third = read(GERMAN)
    assert first.values == {
        ("iops", "read"): 15539.0,
        ("bandwidth", "read"): pytest.approx(63.65e6),
        ("clat_mean", "read"): pytest.approx(0.0164),
    }
    assert first.place["table"] == "Datenbank"
    assert first.match == {"rw": "randread", "bs": 4096, "tool": "fio"}
    assert second.values["iops", "write"] == 112.5
    assert ("clat_mean", "write") not in second.values  # a dash is not a number
    assert third.place["table"] == "Alt; vom Vorjahr"
    assert third.line == 4


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("RANDREAD;VirtIO SCSI;QCOW2;No cache", ("randread", "scsi", "qcow2", "none")),
        ("Random Write;VirtIO Block;Raw;Write back", ("randwrite", "virtio", "raw", "writeback")),
        ("Sequential read;SATA;raw;Default (No cache)", ("read", "sata", "raw", "none")),
        ("rand-read;virtio;RAW;fast", "2:22: 'fast' is not one of none, directsync"),
    ],
)
def test_words_of_others_are_those_of_results_or_an_error(texts: str, words: Any) -> None:
    names = ("rw", "bus", "format", "cache")
    table, columns = f"{';'.join(names)};iops\n{texts};1000\n", dict(zip(names, names, strict=True))
    if isinstance(words, str):
        assert words in complaint(table, columns | {"iops": "iops"})
        return
    (row,) = read_columns("t.csv", table, ColumnMapping(columns | {"iops": "iops"}))
    assert [row.match[name] for name in names] == list(words)


def test_rows_that_contradict_themselves_are_found_within_what_was_printed() -> None:
    good, rounded, lost = read(GERMAN)
    assert good.implausibilities() == []
    assert rounded.implausibilities() == []
    (found,) = lost.implausibilities()  # 1553 where it was ten times that
    assert "1553 IOPS x 4096 bytes" in found.text


def test_the_same_table_with_points_and_commas_swapped_says_the_same() -> None:
    english = """\
Testfall,Muster,Blockgröße,E/A pro s,Durchsatz (MB/s),Latenz [ms]
Datenbank,randread,4k,"15,539.0",63.65,16.4
"""
    assert read(english)[0].values == pytest.approx(read(GERMAN)[0].values)


def test_a_mean_above_the_maximum_is_a_contradiction_within_what_was_printed() -> None:
    text = "rw;mean [ms];max [ms]\nread;5.26;5.3\nread;5.34;5.3\nread;5.5;5.3\n"
    columns = {"rw": "rw", "latency_mean": "mean [ms]", "latency_max": "max [ms]"}
    rows = read_columns("t.csv", text, ColumnMapping(columns))
    assert [row.line for row in rows if row.contradiction()] == [4]
    told = rows[2].contradiction() or {}
    assert told["reasons"] == ["read: latency: mean 0.0055 is above max 0.0053"]
    assert told["rules"] == ["latency"]


@pytest.mark.parametrize("mark", ["\t", "|", ";", ","])
def test_the_delimiter_is_found_out(mark: str) -> None:
    text = f"mode{mark}rate\nread{mark}100\n"
    (row,) = read_columns("t.csv", text, ColumnMapping({"direction": "mode", "iops": "rate"}))
    assert row.values == {("iops", "read"): 100.0}


def test_reads_and_writes_of_one_row_have_columns_of_their_own() -> None:
    text = "Lauf;R IOPS;W IOPS;R MiB/s\n1;100;50;0,390625\n"
    columns = {
        "case": "Lauf",
        "read_iops": "R IOPS",
        "write_iops": "W IOPS",
        "read_bandwidth": "R MiB/s",
    }
    (row,) = read_columns("t.csv", text, ColumnMapping(columns, {"read_bandwidth": "MiB/s"}))
    assert row.values == {
        ("iops", "read"): 100.0,
        ("iops", "write"): 50.0,
        ("bandwidth", "read"): 409600.0,
    }


def test_a_number_that_may_mean_two_things_is_asked_about_and_not_guessed() -> None:
    text = "Muster;IOPS\nread;12\nread;1.234\n"
    columns = {"rw": "Muster", "iops": "IOPS"}
    said = complaint(text, columns)
    assert (
        said == "t.csv:3:6: '1.234' can mean 1.234 or 1234; use --decimal point or --decimal comma"
    )
    for decimal, value in ((Decimal.COMMA, 1234.0), (Decimal.POINT, 1.234)):
        rows = read_columns("t.csv", text, ColumnMapping(columns, decimal=decimal))
        assert rows[1].values["iops", "read"] == value


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        (
            "a;b\nread;1,5\nread;2.5\n",
            {"rw": "a", "iops": "b"},
            "t.csv:3:6: '2.5' has a decimal point, but '1,5' has a decimal comma",
        ),
        ("a;b\nread;many\n", {"rw": "a", "iops": "b"}, "t.csv:2:6: 'many' is not a number"),
        ('a;b\n"re;ad";x1\n', {"rw": "a", "iops": "b"}, "t.csv:2:9: 'x1' is not a number"),
        (
            "a;b\nread;1\n",
            {"rw": "a", "iops": "IOPS"},
            "t.csv:1:1: no column 'IOPS'; the columns are a, b",
        ),
        ("a;b\nread;1;2\n", {"rw": "a", "iops": "b"}, "t.csv:2:1: 3 cells, but the header has 2"),
        (
            "a;b\nrandrw;1\n",
            {"rw": "a", "iops": "b"},
            "t.csv:2:1: 'randrw' is not a direction; use read or write",
        ),
        (
            "a;b\nread;1\n",
            {"rw": "a", "bandwidth": "b"},
            "t.csv:1:3: 'b' has no unit; add it: --unit bandwidth=MB/s",
        ),
        (
            "a;b (KB/s)\nread;1\n",
            {"rw": "a", "bandwidth": "b (KB/s)"},
            "t.csv:1:3: 'KB/s' is not a unit of bandwidth; use one of B/s, kB/s, MB/s",
        ),
        (
            "a;b;c\nread;4 Kilo;1\n",
            {"rw": "a", "bs": "b", "iops": "c"},
            "t.csv:2:6: invalid size '4 Kilo'",
        ),
        ("a;b\nread;-1,5\n", {"rw": "a", "iops": "b"}, "t.csv:2:6: '-1,5' is below 0"),
        ("a;b\nread;1e999\n", {"rw": "a", "iops": "b"}, "t.csv:2:6: '1e999' is not a number"),
        ("", {"rw": "a", "iops": "b"}, "t.csv:1:1: the file is empty"),
        ("a\n1\n", {"colour": "a"}, "unknown field 'colour'; use one of case, storage"),
        (
            "a\n1\n",
            {"iops": "a"},
            "iops has no direction; also map direction or rw, or map read_iops",
        ),
        ("a\nread\n", {"rw": "a"}, "no metric is mapped; map one of iops, bandwidth"),
    ],
)
def test_what_cannot_be_read_is_reported_with_line_and_column(
    text: str, columns: dict[str, str], expected: str
) -> None:
    assert expected in complaint(text, columns)


def test_a_unit_for_a_column_that_is_not_mapped_is_a_slip() -> None:
    said = complaint("a;b\nread;1\n", {"rw": "a", "iops": "b"}, {"bandwidth": "MB/s"})
    assert "--unit bandwidth requires --column bandwidth" in said


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [
        ("1.234,5", Decimal.COMMA, 1234.5),
        ("1,234.5", Decimal.POINT, 1234.5),
        ("15.5k", Decimal.POINT, 15500.0),
        ("1 234,5", Decimal.COMMA, 1234.5),
        ("1'234", Decimal.POINT, 1234.0),
        ("-3,5", Decimal.COMMA, -3.5),
        ("n/a", Decimal.POINT, None),
    ],
)
def test_numbers_as_spreadsheets_write_them(
    text: str, decimal: Decimal, value: float | None
) -> None:
    assert decimal_number(text, decimal) == value


@pytest.mark.parametrize("text", ["12 34", "1 2", "5m", "1,23,4", "0x10", "1.5 GB"])
def test_what_is_no_number_is_not_made_one(text: str) -> None:
    for decimal in Decimal:
        with pytest.raises(ValueError, match="is not a number"):
            decimal_number(text, decimal)


def test_the_last_written_digit_is_known() -> None:
    assert [last_digit_step(text, Decimal.COMMA) for text in ("63,65", "15", "1.234")] == [
        0.01,
        1.0,
        1.0,
    ]
    assert last_digit_step("15.5k", Decimal.POINT) == pytest.approx(100.0)


def test_the_decimal_mark_is_what_all_numbers_agree_on() -> None:
    assert decimal_of([("1.234", 1), ("2,5", 2)]) is Decimal.COMMA
    assert decimal_of([("1", 1), ("", 2)]) is Decimal.POINT
    with pytest.raises(Unclear, match="can mean"):
        decimal_of([("1,234", 1)])


def test_import_takes_a_spreadsheets_file_and_keeps_it(tmp_path: Path, capsys: Captured) -> None:
    table = tmp_path / "meine.csv"
    table.write_bytes(b"\xef\xbb\xbf" + GERMAN.replace("\n", "\r\n").encode())
    mapping = [f"--column={field}={header}" for field, header in COLUMNS.items()]
    state = ["--state", str(tmp_path / "s")]
    assert run_cli(["import", str(table), *mapping, "--format=json", *state]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["line"], row["table"], row["rules"]) == (4, "Alt; vom Vorjahr", ["rate"])
    assert len(Library().get(tmp_path / "s" / "references", "meine").rows) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--decimal", "comma"], "--unit and --decimal require --column"),
        (["--column", "iops"], "write FIELD="),
        (["--column", "iops=a", "--column", "iops=b"], "has iops twice"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: Captured, arguments: list[str], said: str
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a;b\nread;1\n", "utf-8")
    assert run_cli(["import", str(table), *arguments, "--state", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-16-le"])
def test_text_of_a_windows_program_is_read(encoding: str, tmp_path: Path, capsys: Captured) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes("rw;iops\nread;5\n".encode(encoding))
    code = run_cli(["import", str(table), "--date", "2026", "--state", str(tmp_path)])
    said = capsys.readouterr()
    assert code == (2 if encoding == "utf-16-le" else 0)
    assert ("iconv -f UTF-16LE" if code else "1 row, 0 contradict") in str(said)


def test_an_error_about_another_encoding_says_how_to_convert(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes(GERMAN.encode("cp1252"))
    assert run_cli(["import", str(table), "--column", "iops=x", "--state", str(tmp_path)]) == 2
