"""The simulated year, told: what was put into it comes out in sentences a person would say."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from pvebench.cli.demo import fill_store
from pvebench.cli.main import run_cli
from pvebench.drivers.simulated.demo_year import YEAR, Story
from pvebench.scheduler.plan import Assignment, Matrix
from pvebench.store import Store
from testing.demo_year import assignments

END = datetime(2026, 7, 1, tzinfo=UTC)
WANTED = ("randwrite-4k-qd1-fsync1", "randread-4k-qd1", "write-1M-qd8", "idle")


def chosen() -> list[Assignment]:
    """Return four of the demo's ten workloads: a test need not judge all of it."""
    found = []
    for one in assignments():
        cases = tuple(case for case in one.matrix.cases if case.workload.slug in WANTED)
        found.append(Assignment(one.pack, Matrix(cases=cases, excluded=())))
    return found


def filled(directory: Path, story: Story) -> Path:
    store = Store(directory / "pvebench.db", simulated=True)
    fill_store(store, chosen(), end=END, seed=1, story=story)
    store.close()
    return directory


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("year"), YEAR)


def verdict(state: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    capsys.readouterr()
    status = run_cli(["verdict", "--driver", "simulated", "--state", str(state), *options])
    return status, capsys.readouterr().out


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_the_year_is_reported_as_it_was_put_in(
    year: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = verdict(year, capsys)
    assert status == 1
    # Random reads with an I/O thread lost 40 % with the last upgrade, on both nodes; still so.
    assert text.startswith("1 regression: ")
    told = [line for line in text.splitlines() if line[:2] in {"× ", "+ ", "- "}]
    story = [line.partition(": ")[2] for line in told]
    # Random reads with an I/O thread lost 40 % with the last upgrade, on both nodes; still so.
    assert story[0].startswith("Random read with iothread=1 is 40% slower since QEMU 10.0.2-4")
    assert story[0].endswith("on pve1 and pve2)")
    # Guests of pve2 froze for seconds until the next kernel.
    (thawed,) = lines_with(text, "+ ", ": Longest stall", "shorter since kernel 6.14.8-2-pve")
    assert ", back to the earlier level (95% CI" in thawed
    (frozen,) = lines_with(text, "- ", ": Longest stall", "times as long since kernel 6.14.5-1-pve")
    assert "on pve2) [resolved " in frozen
    # The idle guest cost more host CPU, a known issue, until its fix; on both nodes.
    (cheap,) = lines_with(text, "+ ", ": Host CPU of the idle VM 71% lower since QEMU 9.2.0-5")
    assert "on pve1 and pve2); fix of known issue R2" in cheap
    (dear,) = lines_with(text, "- ", ": Host CPU of the idle VM 3.5 times as high", "9.2.0-1")
    assert "known issue R2" in dear
    # Synchronous writes on ZFS that no longer waited: an alarm at the time, over by now.
    assert lines_with(
        text,
        "slower since kernel 6.11.11-2-pve and ZFS 2.2.7-2, back to the earlier level",
        "fix of known issue R1",
    )
    (gain,) = lines_with(text, "- ", "6.0 times faster since kernel 6.11.11-1-pve")
    assert ". Implausible: " in gain
    # All that was put in and nothing else: when it began and when it ended.
    put_in = {days for effect in YEAR.effects for days in (effect.begin, effect.end) if days}
    seen = {(END.date() - date.fromisoformat(line[2:12])).days for line in told}
    near = {day: min(put_in, key=lambda one, day=day: abs(one - day)) for day in seen}
    assert all(abs(day - true) <= 4 for day, true in near.items())
    assert set(near.values()) == put_in


def test_changes_before_a_date_can_be_left_out(
    year: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = verdict(year, capsys, "--since", "2026-06-01", "--format", "json")
    data = json.loads(text)
    assert status == 1
    assert {change["time"][:4] for change in data["changes"]} == {"2026"}
    assert all(change["time"] > "2026-06-01" for change in data["changes"])
    assert data["changes"]


def test_two_environments_are_compared_whatever_lay_between(
    year: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(year / "pvebench.db")
    known = [one for one in store.environments("pve1") if one["facts"]["qemu"] == "9.2.0-5"]
    newest = store.environments("pve1")[-1]
    store.close()
    status, text = verdict(
        year, capsys, "--env", known[0]["digest"], newest["digest"], "--format", "markdown", "--all"
    )
    assert status == 1
    assert lines_with(text, ": Random read with iothread=1 is 40% slower")
    assert not lines_with(text, "idle VM")
    assert "| case | direction | metric |" in text
    assert "| case |" not in verdict(year, capsys, "--format", "markdown")[1]


def test_an_environment_that_does_not_exist_is_reported_with_those_that_do(
    year: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--driver", "simulated", "--state", str(year)]
    assert run_cli(["verdict", *state, "--env", "nowhere", "else"]) == 5
    assert "0 environments match 'nowhere'" in capsys.readouterr().err


def test_accepting_the_year_ends_the_alarm_and_keeps_the_changes_visible(
    year: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pvebench.db").write_bytes((year / "pvebench.db").read_bytes())
    state = ["--driver", "simulated", "--state", str(tmp_path)]
    accept = ["baseline", "accept", "--only", "*/randread*", "--reason", "we need the new QEMU"]
    assert run_cli([*accept, *state]) == 0
    assert "accepted the current level of " in capsys.readouterr().out
    status, text = verdict(tmp_path, capsys)
    assert status == 0
    assert lines_with(text, "- ", ": Random read with iothread=1 is 40% slower", "[accepted]")
    assert run_cli(["baseline", "list", *state]) == 0
    assert "accept */randread*" in capsys.readouterr().out


def test_a_year_in_which_upgrades_change_nothing_is_met_with_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = verdict(filled(tmp_path, replace(YEAR, effects=())), capsys)
    assert status == 0
    assert text.startswith("No regressions. ")
