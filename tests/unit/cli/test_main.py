from __future__ import annotations

import contextlib
import io
import json
import pkgutil
import re
import sqlite3
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.console import Console

from pvebench import cli as commands
from pvebench.cli.main import COMMANDS, GROUPS, cli, run_cli
from pvebench.cli.progress import Progress, conclude, result_text
from pvebench.config.settings import schema_text
from pvebench.drivers.linux.procfs import total_memory
from pvebench.errors import CycleIncomplete
from pvebench.model.disk import Cache
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.scenario import Machine
from pvebench.model.units import GIB, MIB
from pvebench.model.workload import Direction
from pvebench.service import publisher
from pvebench.store.state_directory import StateDirectory
from testing.captured_logs import log_restored
from testing.packs import QUICK, SMALL, write_pack
from testing.prometheus import free_port
from testing.stored_runs import FIRST
from testing.stored_runs import run as stored
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]


def test_plan_shows_order_cost_and_what_is_left_out(capsys: Captured) -> None:
    assert run_cli(["plan", "--pack", str(QUICK), "--node", "lab"]) == 0
    out = capsys.readouterr().out
    assert "12 cases, 1 boot, 6 switches, 2 fills" in out
    assert "excluded by the pack (format=qcow2, cache=writeback)" in out


def test_plan_as_json_is_data(capsys: Captured) -> None:
    assert (
        run_cli(["plan", "--pack", str(QUICK), "--format=json", "--only", "*virtio.raw.none*"]) == 0
    )
    plan = json.loads(capsys.readouterr().out)[0]
    assert len(plan["cases"]) == 2
    assert plan["switches"] == 1
    assert {left["reason"] for left in plan["excluded"]} >= {"not selected"}


def test_every_command_stands_in_the_module_of_its_name() -> None:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.name == name


def test_the_help_shows_each_group_with_uncut_lines_of_a_terminal(capsys: Captured) -> None:
    assert run_cli(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = lines[lines.index("Measure:") :]
    assert [line for line in commands if len(line) > 80 or line.endswith("...")] == []
    listed = [line.split()[0] for line in commands if line.startswith("  ")]
    assert listed == list(COMMANDS)
    assert [line[:-1] for line in lines if line[:-1] in GROUPS] == list(GROUPS)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["statr"], "Did you mean 'status'?"),
        (["reprot"], "Did you mean 'report'?"),
        (["run", "--cycels", "2"], "Did you mean '--cycles'?"),
        (["baseline", "acept"], "Did you mean 'accept'?"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(
    typed: list[str], hint: str, capsys: Captured
) -> None:
    assert run_cli(typed) == 2
    assert hint in capsys.readouterr().err


def test_no_module_holds_a_command_that_cannot_be_called() -> None:
    for module in pkgutil.iter_modules(commands.__path__):
        content = vars(import_module(f"pvebench.cli.{module.name}"))
        held = {
            name.rstrip("_"): found
            for name, found in content.items()
            if isinstance(found, click.Command) and found is not cli
        }
        groups = [found for found in held.values() if isinstance(found, click.Group)]
        below = [command for group in groups for command in group.commands.values()]
        free = {name for name, found in held.items() if found not in below}
        place = f"pvebench.cli.{module.name}:"
        assert {name for name in free if not COMMANDS.get(name, "").startswith(place)} == set()


def test_a_broken_pack_ends_with_2_and_its_place(tmp_path: Path, capsys: Captured) -> None:
    pack = write_pack(tmp_path, SMALL.replace("every: 10m", "every: 10"))
    assert run_cli(["plan", "--pack", str(pack)]) == 2
    assert f"{pack}:3:8: every: invalid duration 10" in capsys.readouterr().err


def test_simulated_cycles_end_with_0_and_their_results_are_listed(
    tmp_path: Path, capsys: Captured
) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated", "--node", "lab"]
    assert run_cli(["run", *state, "--pack", str(QUICK), "--cycles", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("Results on lab:") == 1
    assert "2 runs each can't exclude noise; 1 more cycle needed." in said
    assert re.search(rf"12 of 12 cases ok\nweb UI .*: \S+ view --state {tmp_path}\n$", said)
    assert run_cli(["results", "--state", str(tmp_path), "--format=json", "--limit", "100"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert len(runs) == 24
    assert {sample["unit"] for run in runs for sample in run["samples"]} >= {"iops", "seconds"}


def test_two_buses_are_compared_in_a_table_and_in_words(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated"]
    assert run_cli(["run", *state, "--pack", str(QUICK), "--cycles", "3"]) == 0
    capsys.readouterr()
    assert run_cli(["compare", "virtio", "scsi", *state]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert re.match(r"scsi is faster than virtio in 0 and slower in [3-6] of 6 results; geo", last)
    assert run_cli(["compare", "cache=none", "local.*.raw.writeback", "--format=json", *state]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [sorted({name.split(".")[3] for name in row["scenarios"]}) for row in rows] == [
        ["none", "writeback"]
    ] * 4
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in rows)
    assert {note for row in rows for note in row["notes"]} == {
        "its writes stay in host memory until the guest flushes"
    }
    assert run_cli(["compare", "virtio", "virtio", *state]) == 5
    assert "compare two values of one option, such as cache=none" in capsys.readouterr().err
    assert run_cli(["compare", "virtio", "nvme", *state]) == 5


def test_guests_of_two_systems_are_compared(tmp_path: Path, capsys: Captured) -> None:
    windows = Machine(memory_bytes=4 * GIB, cpus=2, os="windows", image="disk.qcow2")
    disks = [replace(FIRST.scenario.disk, cache=cache) for cache in (Cache.NONE, Cache.WRITEBACK)]
    linux = [replace(FIRST.scenario, disk=disk) for disk in disks]
    with contextlib.closing(TemporaryStore(tmp_path / "pvebench.db")) as store:
        store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
        scenarios = [*linux, *(replace(one, machine=windows) for one in linux)]
        store.add_history(stored(0, replace(FIRST, scenario=one)) for one in scenarios)
    state = ["--state", str(tmp_path), "--format=json"]
    assert run_cli(["compare", "os=linux", "os=windows", *state]) == 0
    pairs = dict(row["scenarios"] for row in json.loads(capsys.readouterr().out))
    assert pairs.keys() == {one.slug for one in linux}
    assert all(name.endswith(".os-windows") for name in pairs.values())


def test_results_can_be_viewed_after_the_run_and_stay_as_they_are(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ["--state", str(tmp_path)]
    pack = write_pack(tmp_path, SMALL)
    assert run_cli(["run", *state, "--driver", "simulated", "--pack", str(pack)]) == 0
    listen = f"127.0.0.1:{free_port()}"
    pages: list[str] = []

    class Visit:
        def wait(self) -> None:
            with urllib.request.urlopen(f"http://{listen}/", timeout=60) as response:
                pages.append(response.read().decode())
            raise KeyboardInterrupt

    content = (tmp_path / "pvebench.db").read_bytes()
    monkeypatch.setattr(publisher, "threading", SimpleNamespace(Event=Visit))
    assert run_cli(["view", *state, "--listen", listen]) == 130
    assert f"results on http://{listen}/" in capsys.readouterr().out
    assert "randread-4k-qd8" in pages[0]
    assert (tmp_path / "pvebench.db").read_bytes() == content
    assert run_cli(["view", "--state", str(tmp_path / "none")]) == 5


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([Outcome.OK] * 3, "3 of 3 cases ok"),
        ([Outcome.OK, Outcome.NOISY, Outcome.NOISY], "1 of 3 cases ok, 2 noisy"),
        ([Outcome.NOT_STEADY, Outcome.NOISY], "0 of 2 cases ok, 1 noisy, 1 not_steady"),
    ],
)
def test_a_noisy_case_is_not_called_ok_at_the_end(
    outcomes: Sequence[Outcome], said: str, capsys: Captured
) -> None:
    """Its result counts, so the command ends well: seen in a container where ten of twelve were."""
    conclude(outcomes, Path())
    assert capsys.readouterr().out.splitlines()[0] == said


def test_a_case_without_a_result_ends_the_command_with_its_outcome(capsys: Captured) -> None:
    with pytest.raises(
        CycleIncomplete, match=r"1 of 3 cases have no publishable result \(failed\)"
    ) as raised:
        conclude([Outcome.OK, Outcome.NOISY, Outcome.FAILED], Path("/srv/state"))
    assert "`pvebench results --not-ok --state /srv/state`" in raised.value.next_step
    assert capsys.readouterr().out.startswith("1 of 3 cases ok, 1 noisy, 1 failed\n")


def test_simulated_and_measured_results_do_not_share_a_state(
    tmp_path: Path, capsys: Captured
) -> None:
    simulated = ["run", "--state", str(tmp_path), "--driver", "simulated", "--pack", str(QUICK)]
    assert run_cli(simulated) == 0
    assert run_cli(["run", "--state", str(tmp_path), "--pack", str(QUICK)]) == 5
    assert "has simulated results and accepts no measured ones" in capsys.readouterr().err


def test_a_second_instance_ends_with_4(tmp_path: Path, capsys: Captured) -> None:
    with StateDirectory(tmp_path, exclusive=True):
        arguments = ["run", "--state", str(tmp_path), "--driver", "simulated", "--pack", str(QUICK)]
        assert run_cli(arguments) == 4
    assert "is in use by process" in capsys.readouterr().err


def test_results_before_any_run_say_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    assert run_cli(["results", "--state", str(tmp_path)]) == 5
    assert "next step: run `pvebench run` first" in capsys.readouterr().err


def test_check_says_what_is_fine_and_what_is_not(tmp_path: Path, capsys: Captured) -> None:
    pack = write_pack(tmp_path, SMALL.replace("size: 64M", "size: 900T"))
    assert (
        run_cli(["check", "--state", str(tmp_path / "s"), "--pack", str(pack), "--format=json"])
        == 3
    )
    captured = capsys.readouterr()
    found = {row["check"]: row["ok"] for row in json.loads(captured.out)}
    assert found["settings"]
    assert found["qemu-system-x86_64"]
    assert not found["space"]
    assert "checks failed: space" in captured.err


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("upgrade", "apt list --upgradable | pvebench upgrade --to -"),
        ("gate", "pvebench gate --canary pve2"),
        ("storage claim", "pvebench storage claim DEVICE"),
    ],
)
def test_a_command_without_what_it_requires_shows_an_example(
    command: str, example: str, capsys: Captured
) -> None:
    assert run_cli(command.split()) == 2
    assert f"\nExample: {example}" in capsys.readouterr().err


def test_a_broken_file_of_known_issues_fails_the_check(tmp_path: Path, capsys: Captured) -> None:
    for name, entry, code in (("good", "", 0), ("bad", "{id: x}", 2)):
        config, issues = tmp_path / "pvebench.yaml", tmp_path / f"{name}.yaml"
        settings = f"driver: simulated\nstate: {tmp_path}\nknown_issues: [{issues}]\n"
        config.write_text(settings, "utf-8")
        issues.write_text(f"issues: [{entry}]\n", "utf-8")
        assert run_cli(["check", "--config", str(config)]) == code
        said = capsys.readouterr()
        assert (f"with {issues}" if code == 0 else f"{issues}:1:10: missing key") in str(said)


def test_a_run_of_1970_needs_a_begin_of_the_export(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated"]
    assert run_cli(["run", *state, "--pack", str(write_pack(tmp_path, SMALL))]) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "pvebench.db")) as database, database:
        database.execute("UPDATE cases SET first_started = 0")
    assert run_cli(["export", "openmetrics", *state]) == 5
    assert "the first run began 1970-01-01" in capsys.readouterr().err
    assert run_cli(["export", "openmetrics", *state, "--from", "2026-01-01"]) == 0


def test_packs_lists_what_is_there(capsys: Captured) -> None:
    assert run_cli(["packs", str(QUICK.parent), "--format=json"]) == 0
    found = [row["pack"] for row in json.loads(capsys.readouterr().out)]
    assert found == sorted(found)
    assert {"cache-matrix", "lab-all-options", "quick", "upgrade-watch"} <= set(found)


def test_files_without_a_pack_beside_packs_are_named_and_left_out(
    tmp_path: Path, capsys: Captured
) -> None:
    settings = tmp_path / "pvebench.yaml"
    settings.write_text("driver: qemu\npacks: [pack]\n")
    assert run_cli(["packs", str(tmp_path)]) == 2
    assert "contains no packs" in capsys.readouterr().err
    write_pack(tmp_path, SMALL)
    assert run_cli(["packs", str(tmp_path), "--format=json"]) == 0
    output, messages = capsys.readouterr()
    assert [row["file"] for row in json.loads(output)] == [str(tmp_path / "pack.yaml")]
    assert messages == f"{settings}: left out, it has no key 'pack'\n"


def test_a_pack_is_shown_with_its_guest(tmp_path: Path, capsys: Captured) -> None:
    pack = write_pack(tmp_path, SMALL.replace("axes:", "guest: {memory: 1G, cpus: 2}\naxes:"))
    assert run_cli(["packs", "--show", str(pack)]) == 0
    assert "  guest: linux, 1.0 GiB, 2 CPUs\n" in capsys.readouterr().out


def test_an_unknown_option_ends_with_2(capsys: Captured) -> None:
    assert run_cli(["plan", "--nonsense"]) == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["advise", "durability --stored", "upgrade"])
def test_a_command_offers_no_format_that_would_print_the_same(
    command: str, tmp_path: Path, capsys: Captured
) -> None:
    options = ["--state", str(tmp_path / "none"), "--format", "markdown"]
    assert run_cli([*command.split(), *options]) == 2
    assert "'markdown' is not one of 'text', 'json'" in capsys.readouterr().err


def test_the_editor_schema_accepts_the_shipped_packs(capsys: Captured) -> None:
    import jsonschema
    from ruamel.yaml import YAML

    assert run_cli(["schema", "pack"]) == 0
    schema = json.loads(capsys.readouterr().out)
    for path in QUICK.parent.glob("*.yaml"):
        jsonschema.validate(YAML(typ="safe").load(path), schema)


@pytest.mark.parametrize(
    "entry",
    [
        {"fio": {"rw": "randread", "bs": "4k", "iodept": 3}},
        {"fio": {"rw": "randread", "bs": "4k", "iodepth": [1, "2"]}},
        {"fio": {"bs": "4k"}},
        {"dd": {"rw": "write", "flush": "sync"}},
        {"idle": {}, "boot": {}},
        {},
    ],
)
def test_the_schema_knows_each_tools_options(entry: dict[str, Any]) -> None:
    import jsonschema

    schema = json.loads(schema_text("pack"))
    pack = {
        "pack": "p",
        "title": "t",
        "every": "1d",
        "axes": {},
        "volume": {"size": "1G"},
        "workloads": [{"sysbench": {"mode": ["seqrd", "rndrd"], "size": "1G", "validate": True}}],
    }
    jsonschema.validate(pack, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(pack | {"workloads": [entry]}, schema)


def test_a_selection_that_matches_nothing_is_reported(tmp_path: Path, capsys: Captured) -> None:
    arguments = ["run", "--state", str(tmp_path), "--pack", str(QUICK), "--only", "nothing"]
    assert run_cli(arguments) == 2
    message = "pvebench: command line: no case matches --only and --skip"
    assert capsys.readouterr().err.startswith(message)


def scaled(command: click.Command, name: str) -> list[str]:
    if isinstance(command, click.Group):
        parts = [
            (name, command.get_command(click.Context(command), name))
            for name in command.list_commands(click.Context(command))
        ]
        return [found for part, one in parts if one for found in scaled(one, part)]
    return [name] if any(one.name == "scale" for one in command.params) else []


def test_only_what_plans_a_cycle_has_a_scale() -> None:
    assert sorted(scaled(cli, "")) == ["check", "openmetrics", "plan", "run", "serve"]


@pytest.mark.parametrize("command", [["results"], ["results", "--format", "csv"], ["report"]])
def test_a_pack_of_which_there_is_no_run_is_reported(
    tmp_path: Path, capsys: Captured, command: list[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    pack = write_pack(tmp_path, SMALL)
    assert run_cli(["run", "--driver", "simulated", *state, "--pack", str(pack)]) == 0
    assert run_cli([*command, *state, "--pack", "nonsense"]) == 5
    assert "no runs of pack 'nonsense'" in capsys.readouterr().err


def test_simulated_results_are_reported_with_the_driver_that_goes_on_with_them(
    tmp_path: Path, capsys: Captured
) -> None:
    state = ["--state", str(tmp_path / "state")]
    pack = write_pack(tmp_path, SMALL)
    assert run_cli(["run", "--driver", "simulated", *state, "--pack", str(pack)]) == 0
    assert run_cli(["cleanup", *state]) == 5
    assert "--driver simulated" in capsys.readouterr().err
    assert run_cli(["cleanup", *state, "--driver", "simulated"]) == 0


def test_a_scale_that_is_none_is_refused(capsys: Captured) -> None:
    assert run_cli(["plan", "--pack", str(QUICK), "--scale", "0"]) == 2
    assert "--scale" in capsys.readouterr().err


def test_check_makes_nothing(tmp_path: Path, capsys: Captured) -> None:
    run_cli(["check", "--driver", "simulated", "--state", str(tmp_path / "state")])
    assert "(will be created)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "after", "said", "logged"),
    [([], [], 2, 0), (["--log.level", "info"], [], 0, 2), ([], ["-v"], 0, 2)],
)
def test_a_run_is_reported_once(
    before: list[str], after: list[str], said: int, logged: int, tmp_path: Path, capsys: Captured
) -> None:
    """Without a terminal: as a line for people, or in the log; noisy runs included."""
    pack = write_pack(tmp_path, SMALL.replace("runtime: 2s", "runtime: 20s\n  noisy: 0.1%"))
    state = ["--state", str(tmp_path / "state"), "--driver", "simulated"]
    with log_restored():
        assert run_cli([*before, "run", *after, *state, "--pack", str(pack)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("  noisy  ") == said
    assert captured.err.count('event="run ended"') == logged


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome.OK, "read 900 IOPS"),
        (Outcome.NOISY, "read 900 IOPS: the reason"),
        (Outcome.IMPLAUSIBLE, "the reason"),
        (Outcome.FAILED, "the reason"),
    ],
)
def test_a_run_that_is_not_ok_shows_why_and_only_numbers_that_are_published(
    outcome: Outcome, text: str
) -> None:
    samples = (Sample("iops", Direction.READ, 900.0, Unit.IOPS),)
    reason = "" if outcome is Outcome.OK else "the reason"
    ended = replace(stored(0), samples=samples, outcome=outcome, reason=reason)
    assert result_text(ended) == text


def test_a_terminal_has_both_with_v(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    terminal = Progress(console, list, logged=True)
    assert (terminal.live, terminal.lines) == (True, True)
    piped = Console(file=io.StringIO())
    assert [Progress(piped, list, logged=logged).lines for logged in (True, False)] == [False, True]


def test_check_fails_if_the_vms_need_more_memory_than_the_machine_has(
    tmp_path: Path, capsys: Captured
) -> None:
    for vms, good in (("1", True), ("2", False)):
        text = SMALL.replace("iodepth: 8}", f"iodepth: 8, vms: {vms}}}")
        share = total_memory() * 2 // 3 // MIB * MIB
        pack = write_pack(tmp_path, f"{text}guest: {{memory: {share}}}\n")
        run_cli(["check", "--state", str(tmp_path / "s"), "--pack", str(pack), "--format=json"])
        found = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
        assert found["memory"]["ok"] is good
        assert ("reduce vms or guest.memory" in found["memory"]["found"]) is not good


def test_plan_notes_operations_that_cannot_end_within_the_window(
    tmp_path: Path, capsys: Captured
) -> None:
    """64 MiB at 8 MiB/s take 8 s, and an operation begins after a third of the window."""
    late = "backup takes at least 8 s, the window leaves 6 s: it will be canceled"
    for runtime, notes in (("9s", [late]), ("12s", [])):
        text = SMALL.replace("iodepth: 8", "during: backup, target_rate: 8M")
        text = text.replace("[virtio, scsi]", "[scsi]").replace(
            "runtime: 2s", f"runtime: {runtime}"
        )
        options = ["plan", "--pack", str(write_pack(tmp_path, text)), "--node", "lab"]
        assert run_cli([*options, "--format=json"]) == 0
        (plan,) = json.loads(capsys.readouterr().out)
        assert [note["note"] for note in plan["notes"]] == notes
        assert run_cli(options) == 0
        assert (late in " ".join(capsys.readouterr().out.split())) is bool(notes)
