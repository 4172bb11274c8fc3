"""Packs by name: where they are looked for, what is said, what is copied."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pvebench.cli import packs as packs_module
from pvebench.cli.main import run_cli
from pvebench.cli.options import complete_pack, pack_file
from pvebench.config import load_pack, load_settings, shipped_packs
from pvebench.config.settings import schema_text
from pvebench.errors import ConfigError, MachineError
from pvebench.shipped import shipped
from testing.packs import QUICK, ROOT, SMALL, write_pack

pytestmark = pytest.mark.lab  # published packs measure with its tools
OURS = ROOT / "scenarios" / "quick.yaml"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without anything."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def settings_of(directory: Path, packs: str) -> Path:
    directory.mkdir(exist_ok=True)
    config = directory / "pvebench.yaml"
    config.write_text(f"packs: {packs}\n", "utf-8")
    return config


def test_every_shipped_pack_has_its_files_name() -> None:
    assert {load_pack(path).name for path in shipped_packs().values()} == shipped_packs().keys()


def test_a_name_means_the_pack_that_comes_with_pvebench(tmp_path: Path) -> None:
    assert pack_file(Path("quick")) == OURS
    assert load_settings(settings_of(tmp_path / "s", "[quick]")).packs == (OURS,)


def test_a_file_beside_the_settings_goes_before_the_working_directory(
    tmp_path: Path, elsewhere: Path
) -> None:
    config = settings_of(tmp_path / "s", "[quick]")
    here = write_pack(elsewhere, name="quick.yaml")
    assert pack_file(Path("quick"), config).resolve() == here
    assert load_settings(config).packs == (OURS,)  # the same wherever pvebench is started
    beside = write_pack(config.parent, name="quick.yaml")
    assert pack_file(Path("quick"), config) == beside
    assert load_settings(config).packs == (beside,)


def test_settings_that_are_named_like_a_pack_are_not_that_pack(tmp_path: Path) -> None:
    config = settings_of(tmp_path, "[quick]").rename(tmp_path / "quick.yaml")
    assert load_settings(config).packs == (OURS,)
    assert pack_file(Path("quick"), config) == OURS


def test_a_path_still_works(tmp_path: Path, elsewhere: Path) -> None:
    config = settings_of(tmp_path / "s", "[quick.yaml, ../up.yaml, plain]")
    literal = write_pack(config.parent, name="plain")
    found = load_settings(config).packs
    assert found == (config.parent / "quick.yaml", config.parent / "../up.yaml", literal)
    for given in ("./sub/quick", "../../x", "quick.yaml", "/etc/passwd"):
        assert pack_file(Path(given)) == Path(given)


def test_a_directory_of_that_name_is_no_pack(elsewhere: Path) -> None:
    (elsewhere / "quick").mkdir()
    (elsewhere / "quick.yaml").mkdir()
    assert pack_file(Path("quick")) == OURS


def test_a_misspelt_name_is_reported_with_the_nearest_and_the_searched_places(
    tmp_path: Path, elsewhere: Path
) -> None:
    config = settings_of(tmp_path / "s", "[quik]")
    with pytest.raises(ConfigError) as found:
        pack_file(Path("quik"), config)
    message = str(found.value)
    assert f"no quik.yaml in {config.parent}, {elsewhere}" in message
    assert "did you mean quick?" in message


def test_a_name_in_the_settings_that_no_pack_has_is_missed_when_it_is_read(tmp_path: Path) -> None:
    config = settings_of(tmp_path / "s", "[quik]")
    settings = load_settings(config)  # pause and abort need no pack
    with pytest.raises(ConfigError) as found:
        load_pack(settings.packs[0])
    assert str(config.parent / "quik.yaml") in str(found.value)
    assert "did you mean quick?" in str(found.value)


def test_a_path_to_a_checkout_that_is_not_there_leads_to_the_name() -> None:
    with pytest.raises(ConfigError, match=r"write quick without \.yaml"):
        load_pack(Path("scenarios/quick.yaml"))


@pytest.mark.parametrize("name", ["x" * 5000, "..", ".", "a b", "ümlaut", "-", "a\nb", "%s{0}"])
def test_an_odd_name_is_one_error(name: str, capsys: Captured) -> None:
    assert run_cli(["plan", f"--pack={name}"]) == 2
    assert len(capsys.readouterr().err) < 12_000


def test_packs_lists_ours_and_what_goes_before(elsewhere: Path, capsys: Captured) -> None:
    assert run_cli(["packs", "--format=json"]) == 0
    rows = {row["pack"]: row["file"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {name: str(path) for name, path in shipped_packs().items()}
    write_pack(elsewhere, SMALL.replace("pack: small", "pack: quick"), "quick.yaml")
    assert run_cli(["packs", "--format=json"]) == 0
    rows = {row["pack"]: row["file"] for row in json.loads(capsys.readouterr().out)}
    assert rows["quick"] == "quick.yaml"


def test_a_copy_means_the_same_and_goes_first(elsewhere: Path, capsys: Captured) -> None:
    assert run_cli(["packs", "--copy", "quick"]) == 0
    copy = elsewhere / "quick.yaml"
    assert "schema" not in copy.read_text("utf-8")
    assert pack_file(Path("quick")).resolve() == copy
    copied, ours = load_pack(copy), load_pack(OURS)
    assert (copied.axes, copied.workloads) == (ours.axes, ours.workloads)


def test_a_copy_writes_nothing_over(elsewhere: Path, capsys: Captured) -> None:
    (elsewhere / "quick.yaml").symlink_to(elsewhere / "nowhere")
    assert run_cli(["packs", "--copy", "quick"]) == 3
    assert "already exists" in capsys.readouterr().err
    assert not (elsewhere / "nowhere").exists()


@pytest.mark.parametrize("name", ["../quick", "/etc/passwd", "quick.yaml", "schema", "", "a\0b"])
def test_only_what_comes_with_pvebench_is_copied(
    name: str, elsewhere: Path, capsys: Captured
) -> None:
    assert run_cli(["packs", f"--copy={name}"]) == 2
    assert "--copy: unknown pack" in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []


def test_results_are_asked_for_by_the_name_of_a_pack_that_is_gone(
    tmp_path: Path, capsys: Captured
) -> None:
    assert run_cli(["results", "--pack", "long-gone", "--state", str(tmp_path / "s")]) == 5
    assert "no results yet" in capsys.readouterr().err


def test_a_shell_completes_names_and_files() -> None:
    found = [(one.value, one.type) for one in complete_pack(None, None, "qu")]  # type: ignore[arg-type] # not looked at
    assert found == [("quick", "plain"), ("qu", "file")]


def test_what_did_not_come_along_is_reported() -> None:
    with pytest.raises(MachineError, match="of pvebench is missing"):
        shipped("scenarios/nothing-of-this-name")


def test_the_packs_fit_a_screen_and_show_has_the_details(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs_module, "make_console", lambda: Console(width=80))
    assert run_cli(["packs"]) == 0
    *lines, hint = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_packs())
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert "packs --show NAME" in hint
    write_pack(Path(), SMALL, "quick.yaml")
    assert run_cli(["packs"]) == 0
    assert "  quick.yaml: Two scenarios\n" in capsys.readouterr().out
    assert run_cli(["packs", "--show", "media-sweep-2018"]) == 0
    shown = capsys.readouterr().out
    assert "  every: 7 days\n" in shown
    assert "Proxmox VE 5.2 on two Xeon" in shown
    assert run_cli(["packs", "--show", "media-swep-2018"]) == 2
    assert "did you mean media-sweep-2018?" in capsys.readouterr().err


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


def test_packs_lists_what_is_there(capsys: Captured) -> None:
    assert run_cli(["packs", str(QUICK.parent), "--format=json"]) == 0
    found = [row["pack"] for row in json.loads(capsys.readouterr().out)]
    assert found == sorted(found)
    assert {"cache-matrix", "lab-all-options", "quick", "upgrade-watch"} <= set(found)


def test_files_without_a_pack_beside_packs_are_named_and_left_out(
    tmp_path: Path, capsys: Captured
) -> None:
    write_pack(tmp_path, SMALL)
    settings = tmp_path / "pvebench.yaml"
    settings.write_text("driver: qemu\npacks: [pack]\n")
    assert run_cli(["packs", str(tmp_path), "--format=json"]) == 0
    output, messages = capsys.readouterr()
    assert [row["file"] for row in json.loads(output)] == [str(tmp_path / "pack.yaml")]
    assert messages == f"{settings}: left out, it has no key 'pack'\n"


def test_a_pack_is_shown_with_its_guest(tmp_path: Path, capsys: Captured) -> None:
    pack = write_pack(tmp_path, SMALL.replace("axes:", "guest: {memory: 1G, cpus: 2}\naxes:"))
    assert run_cli(["packs", "--show", str(pack)]) == 0
    assert "  guest: linux, 1.0 GiB, 2 CPUs\n" in capsys.readouterr().out


def test_an_empty_directory_of_packs_is_reported(tmp_path: Path, capsys: Captured) -> None:
    assert run_cli(["packs", str(tmp_path)]) == 2
    assert "no packs" in capsys.readouterr().err


@cache
def in_schema() -> Callable[[object], bool]:
    """Return what tells a pack of the editor's schema, which itself is checked once."""
    from jsonschema.validators import validator_for

    schema = json.loads(schema_text("pack"))
    validator_for(schema).check_schema(schema)
    return validator_for(schema)(schema).is_valid


def test_the_editor_schema_accepts_the_shipped_packs(capsys: Captured) -> None:
    from ruamel.yaml import YAML

    assert run_cli(["schema", "pack"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(schema_text("pack"))
    for path in QUICK.parent.glob("*.yaml"):
        assert in_schema()(YAML(typ="safe").load(path)), path


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
    pack = {
        "pack": "p",
        "title": "t",
        "every": "1d",
        "axes": {},
        "volume": {"size": "1G"},
        "workloads": [{"sysbench": {"mode": ["seqrd", "rndrd"], "size": "1G", "validate": True}}],
    }
    assert in_schema()(pack)
    assert not in_schema()(pack | {"workloads": [entry]})


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
