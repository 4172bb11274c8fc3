from __future__ import annotations

import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from pvebench import cli as commands
from pvebench.cli.main import COMMANDS, GROUPS, cli, run_cli
from pvebench.drivers.linux.procfs import total_memory
from pvebench.model.units import MIB
from pvebench.store.state_directory import StateDirectory
from testing.packs import QUICK, SMALL, write_pack

Captured = pytest.CaptureFixture[str]


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
        assert run_cli(["check", "--boot", "--config", str(config)]) == code
        said = capsys.readouterr()
        assert "at most 0 s" not in said.err
        assert (f"with {issues}" if code == 0 else f"{issues}:1:10: missing key") in str(said)


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


def test_a_complaint_about_no_place_names_none(capsys: Captured) -> None:
    assert run_cli(["plan", "--pack", str(QUICK), "--only", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("pvebench: command line: no case matches")


def test_check_makes_nothing(tmp_path: Path, capsys: Captured) -> None:
    run_cli(["check", "--driver", "simulated", "--state", str(tmp_path / "state")])
    assert "(will be created)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


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
