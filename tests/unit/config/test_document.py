"""Whatever is in a file, reading it ends soon with a pack or with one complaint about the file.

The witness is YAML itself: aliases, tags, dates and nesting are things that its specification
allows; ruamel.yaml, which reads it, raises errors of six kinds over them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pvebench.cli.main import run_cli
from pvebench.config import Settings, load_pack, load_settings
from pvebench.config.document import read_document
from pvebench.errors import ConfigError, StoreError
from pvebench.service.housekeeping import Configuration, Reloader
from testing.packs import ROOT, SMALL

QUICK = (ROOT / "scenarios" / "quick.yaml").read_text("utf-8")
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)
AXES = "\n".join(
    f"  {name}: [{', '.join(str(number) for number in range(1, 1000))}]"
    for name in ("iops", "mbps")
)
TWICE = ", ".join(str(number % 2000 + 1) for number in range(4000))
HOSTILE = {
    "an axis of 2,000 values, each twice": QUICK.replace("axes:", f"axes:\n  iops: [{TWICE}]"),
    "aliases of aliases": BOMB,
    "a date": QUICK.replace("every: ", "every: 2020-01-01\nx: "),
    "a date as key": f"2020-01-01: 1\n{QUICK}",
    "a list as key": f"? [1, 2]\n: 1\n{QUICK}",
    "nothing as key": f"null: 1\n{QUICK}",
    "deep nesting": "a: " + "[" * 5000 + "]" * 5000,
    "nested maps": "a: " + "{a: " * 3000 + "1" + "}" * 3000,
    "a bool that is none": "pack: !!bool maybe\n",
    "an int that is none": "pack: !!int maybe\n",
    "a tag of Python": "pack: !!python/object/apply:os.system [true]\n",
    "a number of 5,000 digits": f"seed: {'9' * 5000}\n{QUICK}",
    "a number without digits": f"seed: 0x_\n{QUICK}",
    "an octal that is none": f"seed: 0o9\n{QUICK}",
    "a float beyond floats": f"measure: {{scale: 1e999}}\n{QUICK}",
    "not a number": f"measure: {{scale: .nan}}\n{QUICK}",
    "a size beyond counting": QUICK.replace("size: ", f"size: {'9' * 400}G\nx: "),
    "a negative memory": QUICK + "\nguest: {memory: -1}\n",
    "no time between runs": QUICK.replace("every: ", "every: 0s #"),
    "NUL": "pack: a\0b\n",
    "a merge of nothing": "<<: 1\n",
    "two documents": f"{QUICK}\n---\n{QUICK}",
    "an anchor that holds itself": "a: &a [*a]\n",
    "a directive": "%YAML 9.9\n---\na: 1\n",
    "a very long key": f"{'k' * 500_000}: 1\n{QUICK}",
    "a very long value": f"tier: {'v' * 500_000}\n{QUICK}",
}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return tmp_path / "pack.yaml"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_pack_is_one_complaint_of_readable_length(pack: Path, text: str) -> None:
    pack.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_pack(pack)
    assert str(pack) in str(caught.value)
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    "nested",
    [
        lambda depth: "a: " + "[" * (depth - 1) + "]" * (depth - 1),
        lambda depth: "{a: " * depth + "x" + "}" * depth,
        lambda depth: "\n".join(f"{' ' * level}a:" for level in range(depth)),
        lambda depth: "a:\n " + "- " * (depth - 1) + "x",
    ],
    ids=["brackets", "braces", "keys", "hyphens"],
)
def test_fifty_levels_are_read_and_one_more_is_not(
    pack: Path, nested: Callable[[int], str]
) -> None:
    pack.write_text(nested(50), "utf-8")
    assert read_document(pack).root
    pack.write_text(nested(51), "utf-8")
    with pytest.raises(ConfigError, match=r"pack.yaml:\d+:\d+: nested too deeply"):
        read_document(pack)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_edit_leaves_a_running_service_with_what_it_had(pack: Path, text: str) -> None:
    pack.write_text(QUICK, "utf-8")
    first = Configuration(Settings(packs=(pack,)), [])

    def load() -> Configuration:
        load_pack(pack)
        return Configuration(load_settings(None), [])

    reloader = Reloader(None, first, load=load)
    pack.write_text(text, "utf-8")
    assert reloader.check() is None
    assert reloader.current is first
    assert not reloader.state.successful


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda t: t.encode())))
def test_any_bytes_at_all_are_a_complaint(pack: Path, content: bytes) -> None:
    pack.write_bytes(content)
    with pytest.raises(ConfigError):
        load_pack(pack)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(QUICK) - 1), st.text(max_size=8), st.integers(0, 20))
def test_a_pack_with_anything_in_the_middle_is_a_pack_or_a_complaint(
    pack: Path, place: int, put: str, cut: int
) -> None:
    pack.write_text(QUICK[:place] + put + QUICK[place + cut :], "utf-8", errors="replace")
    said = ""
    try:
        load_pack(pack)
    except ConfigError as error:
        said = str(error)
    assert len(said) < 20_000


def test_millions_of_combinations_are_refused_before_they_are_made(pack: Path) -> None:
    text = QUICK.replace("axes:\n", f"axes:\n{AXES}\n", 1)
    pack.write_text(text, "utf-8")
    begun = time.process_time()
    with pytest.raises(ConfigError, match=r"cases; use at most 20000$"):
        load_pack(pack)
    sweep = ", ".join(f"'{number}k'" for number in range(1, 500))
    one = f"  - fio: {{rw: randread, bs: [{sweep}], iodepth: [{sweep.replace('k', '')}]}}\n"
    pack.write_text(QUICK + one.replace("'", ""), "utf-8")
    with pytest.raises(ConfigError, match=r"249001 combinations in one entry; use at most 10000$"):
        load_pack(pack)
    assert time.process_time() - begun < 30  # made, they would take hours


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "large", "absent", "nul"])
def test_what_is_no_file_of_bounded_size_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pack.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.write_bytes(b"# comment\n" * 5_000_000)
    elif kind == "nul":
        path = Path("a\0b")
    words = "file not found" if kind == "absent" else "cannot be read"
    with pytest.raises(ConfigError, match=words):
        load_pack(path)


@pytest.mark.parametrize("file", ["mine.yaml", "mine"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("pipe", "cannot be read: not a regular file"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("dangling", "link to the missing file nowhere"),
    ],
)
def test_a_pack_by_name_that_is_no_file_is_reported_as_what_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    kind: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "pipe":
        os.mkfifo(file)
    else:
        Path(file).symlink_to(file if kind == "loop" else "nowhere")
    Path("mine2").mkdir()  # a directory of that name is none of our business
    assert run_cli(["plan", "--pack", "mine"]) == 2
    assert f"{file}: {said}" in capsys.readouterr().err
    assert run_cli(["plan", "--pack", "mine2"]) == 2
    assert "no mine2.yaml in" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["state: null", "state: ~nosuchuser/x", "state: 'a\\0b'", 'state: "a\\0b"', "state: [1]"],
)
def test_a_path_that_is_none_is_a_complaint_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pvebench.yaml"
    path.write_text(f"{line}\n", "utf-8")
    if line == "state: 'a\\0b'":  # in single quotes it is a backslash and a nought
        assert "\0" not in str(load_settings(path).state)
        return
    with pytest.raises(ConfigError, match=r"pvebench.yaml:1:8: state: .*(path|nobody)"):
        load_settings(path)


@pytest.mark.parametrize("name", ["../../x", "a/b", ".", "..", "-x", "a\0b", "n" * 200])
def test_a_series_is_never_written_outside_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("rw,bs,iops\nread,4k,1000\n")
    state = tmp_path / "deep" / "down" / "state"
    columns = ["--column", "rw=rw", "--column", "bs=bs", "--column", "iops=iops"]
    command = ["import", str(table), "--name", name, "--state", str(state), *columns]
    assert run_cli(command) == StoreError.exit_code
    assert "is not a valid name of a series" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*.json")] == []


def test_a_field_too_long_for_csv_is_a_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"rw,bs,iops\nread,4k,{'1' * 200_000}\n")
    columns = ["--column", "rw=rw", "--column", "bs=bs", "--column", "iops=iops"]
    assert run_cli(["import", str(table), "--state", str(tmp_path), *columns]) == 2
    said = capsys.readouterr().err
    assert str(table) in said
    assert len(said) < 2000


def test_brackets_in_a_title_are_printed_as_they_are(
    pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack.write_text(QUICK.replace("title: ", "title: '[/x] [bold]' #", 1), "utf-8")
    assert run_cli(["plan", "--pack", str(pack), "--driver", "simulated"]) == 0
    assert "[/x] [bold]" in capsys.readouterr().out


def test_an_unknown_home_directory_is_reported_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["plan", "--pack", "~nosuchuser/x.yaml"]) == 2
    assert "unknown user in path '~nosuchuser/x.yaml'" in (said := capsys.readouterr().err)
    assert "PosixPath" not in said


@pytest.mark.parametrize("command", ["judge", "import"])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "large", "rows", "long"])
def test_a_table_without_bound_is_one_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
) -> None:
    table = tmp_path / "table.csv"
    if kind == "pipe":
        os.mkfifo(table)
    elif kind == "device":
        table = Path("/dev/zero")
    elif kind == "directory":
        table.mkdir()
    elif kind == "large":
        with table.open("wb") as file:
            file.truncate(1 << 40)  # a hole: reading it whole would end the machine
    elif kind == "rows":
        table.write_text("time,value\n" + "1,2\n" * 200_000)
    else:
        table.write_text(f"time,value\n1,{'1' * 200_000}\n")
    columns = ["--state", str(tmp_path), "--column", "read_iops=value"]
    assert run_cli([command, str(table), *(columns if command == "import" else [])]) == 2
    said = capsys.readouterr().err
    assert re.search(r"cannot be read|no such file|more than|larger|is no(t)? CSV", said), said
    assert len(said) < 2000


@pytest.mark.parametrize(
    ("column", "most"), [("case", "500 cases"), ("environment", "300 environments")]
)
def test_a_history_of_too_many_things_is_refused_before_it_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, most: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"time,value,{column}\n" + "".join(f"{n},2,{n}\n" for n in range(2000)))
    assert run_cli(["judge", str(table)]) == 2
    assert f"more than {most}" in capsys.readouterr().err


def test_a_file_that_is_wrong_in_every_line_is_reported_briefly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("time,value\n" + f"{'x' * 1000},{'9' * 400}\n" * 40_000)
    assert run_cli(["judge", str(table)]) == 2
    assert len(capsys.readouterr().err) < 20_000


def test_of_many_complaints_that_are_alike_ten_are_reported_and_the_others_counted(
    pack: Path,
) -> None:
    text = SMALL + "".join(f"unknown{number}: 1\n" for number in range(42))
    pack.write_text(text.replace("runtime: 2s", "runtime: soon"), "utf-8")
    with pytest.raises(ConfigError) as refused:
        load_pack(pack)
    lines = str(refused.value).splitlines()
    assert len(lines) == 12
    assert "invalid duration 'soon'" in lines[0]
    assert ["unknown key 'unknown" in line for line in lines[1:11]] == [True] * 10
    assert lines[11].endswith("32 more similar problems from here on")
    assert f":{len(SMALL.splitlines()) + 11}:1: " in lines[11]


@pytest.mark.parametrize("time", ["99999999999999", "0001-01-01T00:00:00+10:00", "9" * 5000])
def test_a_time_beyond_the_calendar_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"time,value\n{time},1\n")
    assert run_cli(["judge", str(table)]) == 2
    assert "table.csv:2:1: " in (said := capsys.readouterr().err)
    assert "is not a time" in said


def test_settings_with_packs_without_end_are_one_complaint(tmp_path: Path) -> None:
    config = tmp_path / "pvebench.yaml"
    names = ", ".join(f"p{number}.yaml" for number in range(2000))
    config.write_text(f"driver: simulated\nnode: lab\nstate: state\npacks: [{names}]\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(config)
    assert len(str(caught.value)) < 1000
