"""`pvebench export runs` and `import runs`: nothing mixed, nothing overwritten, no name given."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pvebench.analysis.change import INCOMPARABLE
from pvebench.cli.main import run_cli
from pvebench.drivers.linux.procfs import host_facts
from pvebench.drivers.proxmox.node.node_state import _PACKAGES, vm_facts
from pvebench.errors import ConfigError, StoreError, StoreMixed
from pvebench.model.environment import FACT_NAMES, Environment
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.store.store import Store
from pvebench.store.writing import ReplacedRun
from pvebench_fleet import run_files
from testing.packs import ROOT
from testing.run_files import exported, imported, lines_of, store_at
from testing.stored_runs import FIRST, SECOND, run
from testing.stores import TemporaryStore

RUNS = [run(0), run(1, SECOND), run(2, outcome=Outcome.NOISY)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of three runs."""
    store = store_at(tmp_path / "source", RUNS)
    found = exported(store, tmp_path / "runs.ndjson")
    store.close()
    return found


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return TemporaryStore(tmp_path / "here.db")


def changed(path: Path, change: Callable[[dict[str, Any]], None], kind: str) -> Path:
    """Change the first line of a kind."""
    lines = lines_of(path)
    change(next(line for line in lines if line["kind"] == kind))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_line_follows_the_published_schema(path: Path) -> None:
    schema = json.loads((ROOT / "docs/pvebench-runs-1.schema.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    kinds = []
    for line in lines_of(path):
        validator.validate(line)
        kinds.append(line["kind"])
    head, *rest = kinds
    assert head == "runs"
    assert rest == ["environment", "cycle", "definition", "definition", "shape", *["run"] * 3]
    for broken in ({"kind": "run"}, {**lines_of(path)[-1], "outcome": "good"}):
        assert not validator.is_valid(broken)


def test_a_longer_export_adds_the_new_runs_and_changes_no_stored_one(
    tmp_path: Path, here: Store
) -> None:
    source = store_at(tmp_path / "source", RUNS[:2])
    imported(exported(source, tmp_path / "first.ndjson"), here)
    correction = ReplacedRun(number=1, gone=(), put=(), outcome=Outcome.NOISY, reason="noisy")
    source.correct([correction])
    source.add_history([RUNS[2]])
    longer = exported(source, tmp_path / "second.ndjson")
    count = imported(longer, here)
    assert (count.added, count.known) == (1, 2)
    assert [one.outcome for one in here.runs()] == ["noisy", "ok", "ok"]
    revisions = [line["revision"] for line in lines_of(longer) if line["kind"] == "run"]
    fresh = TemporaryStore(tmp_path / "fresh.db")
    imported(longer, fresh)
    again = lines_of(exported(fresh, tmp_path / "again.ndjson"))
    assert [line["revision"] for line in again if line["kind"] == "run"] == revisions == [1, 0, 0]


def test_another_machine_of_the_same_name_is_refused_until_it_is_renamed(
    path: Path, tmp_path: Path, here: Store
) -> None:
    imported(path, here)
    other = store_at(tmp_path / "other", [replace(run(5), uid="other")])
    file = exported(other, tmp_path / "other.ndjson")
    with pytest.raises(StoreError, match="node lab has other runs here"):
        imported(file, here)
    assert len(here.runs()) == 3
    assert imported(file, here, {"lab": "graz"}).nodes == {"graz"}
    assert {one.case_key.partition("/")[0] for one in here.runs()} == {"lab", "graz"}
    assert {one.node for one in here.periods()} == {"lab", "graz"}
    digests = {row["digest"] for row in here.environments()}
    facts = {"kernel": "6.8.12"}
    assert digests == {Environment(node=node, facts=facts).digest for node in ("lab", "graz")}


def test_runs_from_before_the_stored_ones_of_a_node_stay_out(
    path: Path, tmp_path: Path, here: Store
) -> None:
    imported(path, here)
    older = store_at(tmp_path / "older", [replace(run(0.5), uid="older")])
    count = imported(exported(older, tmp_path / "older.ndjson"), here)
    assert (count.added, count.older) == (0, 1)


def test_a_definition_that_is_stored_stays_as_it_is(path: Path, here: Store) -> None:
    imported(path, here)
    before = {key: one.definition for key, one in here.cases().items()}

    def rewrite(line: dict[str, Any]) -> None:
        line["definition"]["workload"]["title"] = "changed"

    file = changed(path, rewrite, "definition")
    extra = lines_of(file)[-1] | {"uid": "extra", "finished": 2e9, "case": FIRST.key}
    file.write_text(f"{file.read_text()}{json.dumps(extra)}\n")
    assert imported(file, here).added == 1
    assert {key: one.definition for key, one in here.cases().items()} == before


@pytest.mark.parametrize("simulated", [True, False])
def test_imported_and_own_runs_have_databases_of_their_own(
    path: Path, tmp_path: Path, here: Store, *, simulated: bool
) -> None:
    own = TemporaryStore(tmp_path / "own.db", simulated=simulated)
    with pytest.raises(StoreMixed, match="accepts no imported ones") as refused:
        imported(path, own)
    assert refused.value.next_step == "use another state directory with --state"
    imported(path, here)
    with pytest.raises(StoreMixed, match="has imported results"):
        TemporaryStore(here.path, simulated=simulated)


def test_a_failed_import_leaves_a_new_database_to_every_use(path: Path, here: Store) -> None:
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError):
        imported(path, here)
    assert here.runs() == []
    TemporaryStore(here.path, simulated=False).close()


def _set(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda line: line.update(fields)


@pytest.mark.parametrize(
    ("kind", "change", "place", "message"),
    [
        ("runs", _set(format="pvebench-runs/2"), "1:18", "pvebench-runs/1"),
        ("runs", _set(kind="run"), "1:1", "Field required"),
        ("environment", _set(facts={"kernel": 6}), "2:92", "valid string"),
        ("environment", _set(node="vienna"), "7:1", "case and environment are of different nodes"),
        ("cycle", _set(started=-1), "3:", "greater than or equal to 0"),
        ("definition", _set(definition={}), "4:", "Field required"),
        ("shape", _set(numbers=[["iops", "read", "", "iops"]] * 2), "6:", "digest"),
        ("run", _set(environment="unknown"), "7:1", "no earlier line has 'unknown'"),
        ("run", _set(values=[]), "7:1", "0 values, but its shape has 1"),
        ("run", _set(values=[float("nan")]), "7:", "finite"),
        ("run", _set(values=[10**400]), "7:", "finite"),
        ("run", _set(values=[-1e300]), "7:", "greater than or equal"),
        ("run", _set(values=[-30_369.0]), "7:1", "iops of -3.04e+04 is impossible"),
        ("run", _set(values=[1e18]), "7:1", "iops of 1e+18 is impossible"),
        ("run", _set(finished=float("nan")), "7:", "than or equal"),
        ("run", _set(number=10**4000), "7:", "less than"),
        ("run", _set(reason="\0"), "7:", "NUL"),
        ("run", _set(reason="\ud800"), "7:", "invalid"),
        ("run", _set(outcome="good"), "7:", "'ok'"),
        ("run", _set(kind="decision"), "7:1", "does not match"),
    ],
)
def test_a_wrong_line_is_refused_with_file_line_and_column(
    kind: str, change: Callable[[dict[str, Any]], None], place: str, message: str,
    path: Path, here: Store,
) -> None:  # fmt: skip
    changed(path, change, kind)
    with pytest.raises(ConfigError) as refused:
        imported(path, here)
    assert str(refused.value).startswith(f"{path}:{place}")
    assert message.lower() in str(refused.value).lower()
    assert here.runs() == []


def _option(part: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(line: dict[str, Any]) -> None:
        place = line["definition"]["workload"] if part == "parameters" else line["definition"]
        place[part][name] = value

    return change


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("scenario", "cache", "fast", "'fast' is not a valid Cache"),
        ("scenario", "host_cache", "x", "'x' is not a valid HostCache"),
        ("scenario", "bus", "", "bus is missing"),
        ("parameters", "bs", -1, "bs out of range"),
        ("parameters", "iodepth", 2**62, "iodepth out of range"),
        ("parameters", "bs", "x", "invalid literal"),
    ],
)
def test_an_option_that_readers_cannot_understand_is_refused(
    part: str, name: str, value: Any, message: str, path: Path, here: Store
) -> None:
    changed(path, _option(part, name, value), "definition")
    with pytest.raises(ConfigError, match=f"{path}:4:1: definition: {message}"):
        imported(path, here)


def test_a_value_too_small_for_ratios_is_0(path: Path, here: Store) -> None:
    imported(changed(path, _set(values=[5e-324]), "run"), here)
    assert [one.samples[0].value for one in here.runs()] == [1000.0, 1000.0, 0.0]


@pytest.mark.parametrize("unknown", ["direction", "unit"])
def test_a_number_of_an_unknown_kind_is_refused(unknown: str, path: Path, here: Store) -> None:
    bad = {"direction": ["iops", "up", "", "iops"], "unit": ["iops", "read", "", "miles"]}[unknown]
    digest = hashlib.sha256(json.dumps([bad]).encode()).hexdigest()[:16]
    changed(path, _set(numbers=[bad], shape=digest), "shape")
    with pytest.raises(ConfigError, match=rf"{path}:6:1: numbers: "):
        imported(path, here)


def test_deep_repeated_and_endless_content_has_an_end(
    path: Path, tmp_path: Path, here: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = path.read_bytes()
    deep = tmp_path / "deep.ndjson"
    deep.write_bytes(b'{"kind":' + b"[" * 50_000)
    twice = tmp_path / "twice.ndjson"
    twice.write_bytes(text + text)
    monkeypatch.setattr(run_files, "MAX_FILE_BYTES", 100_000)
    monkeypatch.setattr(run_files, "MAX_OTHER_BYTES", 20_000)
    bomb = tmp_path / "bomb.ndjson.gz"
    bomb.write_bytes(
        gzip.compress(b"\n".join([*text.splitlines(), *text.splitlines()[6:7] * 9999]))
    )
    endless = tmp_path / "endless.ndjson.gz"
    endless.write_bytes(gzip.compress(b" " * 2**22))
    many = tmp_path / "many.ndjson"
    many.write_bytes(text + text.splitlines(keepends=True)[3] * 20)
    cut = tmp_path / "cut.ndjson.gz"
    cut.write_bytes(gzip.compress(text)[:-30])
    for file, message in (
        (deep, ":1:.*recursion"), (twice, ":10:1: a second head"), (bomb, "file larger than"),
        (endless, ":1:1: line longer"), (many, "that are no runs"), (cut, "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            imported(file, here)
    assert here.runs() == []


def test_a_pipe_a_folder_and_nothing_are_no_files_and_a_link_is_followed(
    path: Path, tmp_path: Path, here: Store
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("pipe", "none", "empty", ".", "nul\0"):
        with pytest.raises(ConfigError):
            imported(tmp_path / name, here)
    (tmp_path / "link").symlink_to(path)
    assert imported(tmp_path / "link", here).added == 3


def test_text_that_a_terminal_would_obey_is_not_stored(path: Path, here: Store) -> None:
    changed(path, _set(reason="\x1b[2Jgone\u202e"), "run")
    changed(path, _set(facts={"kernel": "6\x1b[1m"}), "environment")
    imported(path, here)
    (first,) = (one for one in here.runs() if one.number == 1)
    assert first.reason == " [2Jgone "
    assert here.environments()[0]["facts"] == {"kernel": "6 [1m"}


def test_two_nodes_never_become_one(path: Path, tmp_path: Path, here: Store) -> None:
    second = replace(run(4), uid="x", environment=Environment(node="pve2", facts={}))
    scenario = replace(second.case.scenario, node="pve2")
    source = store_at(tmp_path / "two", [RUNS[0]])
    source.begin_cycle("d", node="pve2", pack="quick", tier="wall", planned=1)
    source.add_history([replace(second, cycle="d", case=replace(second.case, scenario=scenario))])
    file = exported(source, tmp_path / "two.ndjson")
    with pytest.raises(ConfigError, match="'lab' and 'pve2' would both be 'pve2'"):
        imported(file, here, {"lab": "pve2"})
    with pytest.raises(ConfigError, match="no runs of node 'vienna'"):
        imported(file, here, {"vienna": "graz"})
    assert imported(file, here, {"lab": "pve2", "pve2": "lab"}).nodes == {"lab", "pve2"}


SECRET = "secret"


def test_an_anonymous_file_has_no_name_and_imports_like_another(
    tmp_path: Path, here: Store
) -> None:
    node, storage = f"{SECRET}-node", f"{SECRET}-nas"
    scenario = replace(FIRST.scenario, node=node, storage=storage, identity=f"{SECRET}-serial")
    facts = {"kernel": "6.8.12", "vioscsi": "100.95", "hostname": SECRET, "new_fact": SECRET}
    runs = [
        replace(
            run(day),
            case=replace(FIRST, scenario=scenario),
            environment=Environment(node=node, facts=facts),
            reason=f"{SECRET} is full",
            outcome=Outcome.NOISY,
        )
        for day in range(3)
    ]
    source = store_at(tmp_path / "source", pack=f"{SECRET}-pack")
    source.add_history(runs)
    first, second = (
        exported(source, tmp_path / f"{name}.ndjson", anonymous=True) for name in ("a", "b")
    )
    text = first.read_text()
    assert SECRET not in text
    assert runs[0].case.fingerprint not in text
    assert runs[0].environment.digest not in text
    assert "6.8.12" in text
    assert "100.95" in text
    keys = [{line["case"] for line in lines_of(file) if line["kind"] == "run"}
            for file in (first, second)]  # fmt: skip
    assert len(keys[0]) == len(keys[1]) == 1
    assert keys[0] != keys[1], "the key is not a digest of guessable names"
    assert imported(first, here).nodes == {"node1"}
    assert [one.definition.storage for one in here.runs()] == ["storage1"] * 3


def test_every_fact_that_is_read_has_a_name_and_stays_in_anonymous_files() -> None:
    vm, _ = vm_facts({"running-qemu": "9"}, {"cpu": "host"}, qemu_package="")
    assert {*vm, *host_facts(), *_PACKAGES.values(), *INCOMPARABLE} <= FACT_NAMES.keys()


def test_a_run_whose_text_no_file_can_have_is_left_out(tmp_path: Path, here: Store) -> None:
    bad = replace(run(1), reason="\0", samples=(Sample("x\0", Direction.READ, 1.0, Unit.IOPS),))
    source = store_at(tmp_path / "source", [run(0), bad, replace(bad, uid="z", reason=""), run(3)])
    assert imported(exported(source, tmp_path / "runs.ndjson"), here).added == 2


def test_the_commands_export_and_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = store_at(tmp_path / "a", RUNS)
    source.close()
    file, state = str(tmp_path / "runs.ndjson.gz"), ("--state", str(tmp_path / "b"))
    assert run_cli(["export", "runs", "--state", str(tmp_path / "a"), "--output", file]) == 0
    assert capsys.readouterr().out == f"wrote {file}: 3 runs\n"
    assert run_cli(["import", "runs", file, *state, "--rename", "lab=graz"]) == 0
    assert capsys.readouterr().out == "3 runs of graz imported; 0 were there already\n"
    assert run_cli(["import", "runs", file, *state, "--rename", "lab=a/b"]) == 2
    assert run_cli(["run", "--driver", "simulated", *state]) == 5
    assert run_cli(["results", *state]) == 0
