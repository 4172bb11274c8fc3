"""The simulated year, reported: what was put into it comes out in sentences a person would say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench_lab.cli.demo import fill_store
from pvebench_lab.simulated.demo_year import YEAR, Story
from testing.demo_year import assignments
from testing.stores import TemporaryStore

END = datetime(2026, 7, 1, tzinfo=UTC)
WORKLOADS = ("randwrite-4k-qd1-fsync1", "randread-4k-qd1", "write-1M-qd8", "idle")
"""Four of the demo's ten workloads: a test need not judge all of it."""


def filled(directory: Path, story: Story, *workloads: str) -> Path:
    store = TemporaryStore(directory / "pvebench.db", simulated=True)
    fill_store(store, assignments(*workloads), end=END, seed=1, story=story)
    store.close()
    return directory


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("year"), YEAR, *WORKLOADS)


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last part of the year of one workload."""
    return filled(tmp_path_factory.mktemp("reads"), replace(YEAR, days=140), "randread-4k-qd1")


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
    assert text.startswith("1 regression: ")
    every = "on pve1, pve2, pve3 and pve4)"
    lines = [line for line in text.splitlines() if line[:2] in {"× ", "+ ", "- "}]
    story = [line.partition(": ")[2] for line in lines]
    # Random reads with an I/O thread lost 40 % with the last upgrade, on all nodes; still so.
    assert story[0].startswith("Random read with iothread=1 is 40% slower since QEMU 10.0.2-4")
    assert story[0].endswith(every)
    # Guests of pve2 froze for seconds until the next kernel.
    (thawed,) = lines_with(text, "+ ", ": Longest stall", "shorter since kernel 6.14.8-2-pve")
    assert ", back to the earlier level (95% CI" in thawed
    (frozen,) = lines_with(text, "- ", ": Longest stall", "times as long since kernel 6.14.5-1-pve")
    assert "on pve2) [resolved " in frozen
    # The idle guest cost more host CPU, a known issue, until its fix; on all nodes.
    (cheap,) = lines_with(text, "+ ", ": Host CPU of the idle VM 71% lower since QEMU 9.2.0-5")
    assert f"{every}; fix of known issue R2" in cheap
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
    # Ceph was slower while backups ran, and no event explains it.
    (busy,) = lines_with(text, "- ", "30% slower since", "no known event nearby")
    assert "on pve1; " in busy
    assert re.search(r"\[resolved 2026-05-\d\d after [67] days\]", busy)
    # All that was put in and nothing else: when it began and when it ended.
    put_in = {days for effect in YEAR.effects for days in (effect.begin, effect.end) if days}
    put_in -= {75, 66}  # two cases of a node, in the test below
    seen = {(END.date() - date.fromisoformat(line[2:12])).days for line in lines}
    near = {day: min({*put_in, 75, 66}, key=lambda one, day=day: abs(one - day)) for day in seen}
    assert all(abs(day - true) <= 4 for day, true in near.items())
    assert set(near.values()) >= put_in


def test_a_rollback_ends_a_change_with_the_earlier_version(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    pve4 = assignments("randwrite-4k-qd1-fsync1", "write-1M-qd8")[3:]
    fill_store(store, pve4, end=END, seed=1, story=replace(YEAR, days=140))
    verdicts = VerdictService(LiveResults(store), ()).judge()
    store.close()
    texts = [sentence(change) for change in verdicts.changes]
    (returned,) = [text for text in texts if "since kernel 6.11.11-2-pve, back to" in text]
    assert re.search(r" 3[1-5]% faster", returned)
    (slow,) = [text for text in texts if "% slower since kernel 6.14.5-1-pve (" in text]
    assert re.search(r" 2[3-7]% slower .* \[resolved 2026-04-2\d after [89] days\]$", slow)


def test_changes_before_a_date_can_be_left_out(
    reads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = verdict(reads, capsys, "--since", "2026-06-01", "--format", "json")
    data = json.loads(text)
    assert status == 1
    assert all(change["time"] > "2026-06-01" for change in data["changes"])
    assert data["changes"]


def test_two_environments_are_compared_whatever_lay_between(
    reads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TemporaryStore(reads / "pvebench.db")
    known = [one for one in store.environments("pve1") if one["facts"]["qemu"] == "9.2.0-5"]
    newest = store.environments("pve1")[-1]
    store.close()
    status, text = verdict(
        reads,
        capsys,
        "--env",
        known[0]["digest"],
        newest["digest"],
        "--format",
        "markdown",
        "--all",
    )
    assert status == 1
    assert lines_with(text, ": Most cases are 40% slower", "8 of 10 cases")
    assert not lines_with(text, "ongest stall")
    assert "| case | direction | metric |" in text


def test_an_environment_that_does_not_exist_is_reported_with_those_that_do(
    reads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--driver", "simulated", "--state", str(reads)]
    assert run_cli(["verdict", *state, "--env", "nowhere", "else"]) == 5
    assert "0 environments match 'nowhere'" in capsys.readouterr().err


def test_accepting_the_year_ends_the_alarm_and_keeps_the_changes_visible(
    reads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pvebench.db").write_bytes((reads / "pvebench.db").read_bytes())
    state = ["--driver", "simulated", "--state", str(tmp_path)]
    accept = ["baseline", "accept", "--only", "*/randread*", "--reason", "we need the new QEMU"]
    assert run_cli([*accept, *state]) == 0
    assert "accepted the current level of " in capsys.readouterr().out
    status, text = verdict(tmp_path, capsys)
    assert status == 0
    assert lines_with(text, "- ", ": Everything with iothread=1 is 40% slower", "[accepted]")
    assert any(line < "- 2026-06" for line in lines_with(text, "- 2026-"))
    assert run_cli(["baseline", "list", *state]) == 0
    assert "accept */randread*" in capsys.readouterr().out


def test_a_year_in_which_upgrades_change_nothing_is_met_with_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = replace(YEAR, effects=(), outages=())
    status, text = verdict(filled(tmp_path, quiet, "randread-4k-qd1"), capsys)
    assert status == 0
    assert text.startswith("No regressions. ")
