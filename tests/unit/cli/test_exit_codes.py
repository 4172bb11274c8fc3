"""Exit codes mean what docs/cli.md says, command by command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from pvebench import errors
from pvebench.cli import progress
from pvebench.cli.main import cli, run_cli
from pvebench.errors import Interrupted, PvebenchError
from pvebench.model.guest import Completed
from pvebench.model.run import Outcome
from pvebench.store.state_directory import StateDirectory
from pvebench_lab.simulated.simulated_hypervisor import SimulatedGuest
from testing.packs import ROOT, SMALL, write_pack
from testing.prometheus import free_port
from testing.stores import TemporaryStore

NOISY: Final = SMALL.replace("runtime: 2s", "runtime: 20s\n  noisy: 0.1%")
STATE: Final = ("--state", "{state}")
NO_DATABASE: Final = ("--database", "postgresql://127.0.0.1:1/none")
CLOSED: Final = "http://127.0.0.1:1"


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command without the groups, as words."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


EVERY: Final = tuple(leaves(cli))
WITHOUT_RESULTS: Final[dict[tuple[str, ...], tuple[int, tuple[str, ...]]]] = {
    ("run",): (2, (*STATE, "--only", "nothing")),
    ("serve",): (2, (*STATE, "--only", "nothing")),
    ("status",): (0, STATE),
    ("pause",): (0, STATE),
    ("resume",): (0, STATE),
    ("abort",): (0, STATE),
    ("verdict",): (5, STATE),
    ("results",): (5, STATE),
    ("report",): (5, STATE),
    ("advise",): (5, STATE),
    ("durability",): (5, (*STATE, "--stored")),
    ("upgrade",): (0, (*STATE, "--to", "pve-qemu-kvm=10.1.2-1")),
    ("view",): (5, STATE),
    ("compare",): (5, (*STATE, "a", "b")),
    ("gate",): (5, (*STATE, "--canary", "pve1", "--tolerance", "5%")),
    ("export", "openmetrics"): (5, STATE),
    ("export", "runs"): (5, STATE),
    ("baseline", "accept"): (5, (*STATE, "--all", "--reason", "x")),
    ("baseline", "list"): (5, STATE),
    ("baseline", "reset"): (5, (*STATE, "--only", "*", "--reason", "x")),
    ("judge",): (2, ("{state}/none.csv",)),
    ("import", "references"): (2, (*STATE, "{state}/none.csv")),
    ("import", "runs"): (2, (*STATE, "{state}/none.ndjson")),
    ("setup",): (2, ("qemu", "--config", "{state}/a.yaml", "--pack", "nonsense", "--yes")),
    ("check",): (3, (*STATE, "--pack", "{huge}")),
    ("packs",): (0, ()),
    ("plan",): (0, STATE),
    ("schema",): (0, ("pack",)),
    ("storage", "accept"): (2, (*STATE, "nowhere")),
    ("storage", "claim"): (6, ("{state}/none",)),
    ("guest", "build"): (2, ("--force=1",)),
    ("guest", "show"): (7, ("--directory", "{state}")),
    ("proxmox", "init"): (2, ("--config", "{state}/none.yaml")),
    ("proxmox", "node-script"): (0, ()),
    ("grafana", "push"): (2, ("--url", CLOSED, "--token-file", "{state}/none")),
    ("print", "dashboards"): (0, ("overview",)),
    ("print", "prometheus"): (0, ()),
    ("doctor",): (3, (*STATE, "--exporter", CLOSED)),
    ("notify",): (2, STATE),
    ("fleet", "status"): (5, STATE),
    ("fleet", "resend"): (5, STATE),
    ("hub", "serve"): (3, NO_DATABASE),
    ("hub", "pages"): (3, NO_DATABASE),
    ("hub", "judge"): (3, (*NO_DATABASE, "--once")),
    ("hub", "prune"): (3, NO_DATABASE),
    ("hub", "doctor"): (3, NO_DATABASE),
    ("hub", "migrate"): (3, NO_DATABASE),
    ("hub", "sites", "add"): (3, (*NO_DATABASE, "vienna")),
    ("hub", "sites", "list"): (3, NO_DATABASE),
    ("hub", "sites", "hold"): (3, (*NO_DATABASE, "vienna")),
    ("hub", "sites", "forget"): (3, (*NO_DATABASE, "vienna")),
    ("cleanup",): (0, STATE),
    ("prune",): (5, STATE),
    ("restore",): (0, STATE),
    ("reparse",): (5, STATE),
    ("demo", "export"): (5, (*STATE, "--directory", "{state}/files")),
    ("demo", "fill"): (2, (*STATE, "--pack", "nonsense")),
    ("demo", "show"): (2, (*STATE, "--pack", "nonsense")),
}
"""Command -> exit code where nothing was measured, and its arguments."""


def test_every_command_has_a_code() -> None:
    assert set(WITHOUT_RESULTS) == set(EVERY)


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_a_command_ends_with_the_code_of_the_table(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    huge = write_pack(tmp_path, SMALL.replace("size: 64M", "size: 900T"))
    code, arguments = WITHOUT_RESULTS[command]
    words = [word.format(state=tmp_path / "state", huge=huge) for word in arguments]
    assert run_cli([*command, *words]) == code
    assert run_cli([*command, "--nonsense"]) == 2


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("run",), 4),
        (("serve", "--listen", f"127.0.0.1:{free_port()}"), 4),
        (("cleanup",), 4),
        (("prune", "--apply"), 4),
        (("reparse", "--apply"), 4),
        (("restore", "copy.db"), 4),
        (("status",), 0),
    ],
)
def test_a_state_directory_in_use_gives_4_where_it_is_changed(
    command: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    with StateDirectory(tmp_path, exclusive=True):
        options = ["--state", str(tmp_path), "--driver", "simulated"]
        assert run_cli([*command, *options]) == code


def outcomes(state: Path) -> set[Outcome]:
    store = TemporaryStore(state / "pvebench.db")
    found = {run.outcome for run in store.runs(limit=100)}
    store.close()
    return found


def simulated(directory: Path, text: str) -> tuple[int, set[Outcome]]:
    """Return the exit code of a simulated cycle, and the outcomes of its runs."""
    pack, state = write_pack(directory, text), directory / "state"
    options = ["--driver", "simulated", "--state", str(state), "--pack", str(pack)]
    return run_cli(["run", *options]), outcomes(state)


def test_noisy_runs_give_0_and_a_case_without_a_publishable_result_gives_9(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("noisy", "failed"):
        (tmp_path / name).mkdir()
    assert simulated(tmp_path / "noisy", NOISY) == (0, {Outcome.NOISY})
    monkeypatch.setattr(SimulatedGuest, "poll", lambda *_: Completed(1, b"", b"failed"))
    assert simulated(tmp_path / "failed", SMALL) == (9, {Outcome.FAILED})


def test_a_stop_gives_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (KeyboardInterrupt(), Interrupted("stopped")):

        def stop(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(progress, "measure", stop)
        assert run_cli(["run", "--driver", "simulated", "--state", str(tmp_path)]) == 130


def test_the_table_has_the_code_of_every_error_and_no_other() -> None:
    text = (ROOT / "docs/cli.md").read_text("utf-8").partition("## Exit codes")[2]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    classes = [found for found in vars(errors).values() if isinstance(found, type)]
    codes = {one.exit_code for one in classes if issubclass(one, PvebenchError)}
    assert listed == codes | {0, 10}
