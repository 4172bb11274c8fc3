"""Outlook of an upgrade: which known issues start or end, and what the baseline can show."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.advice.gate_statistic import CHANCE, TOLERANCE, Decision, bound
from pvebench.advice.outlook import Applies, Effect, Expected, expected_issues, runs_needed
from pvebench.cli.main import run_cli
from pvebench.config.known_issues import load_known_issues
from pvebench.model.definition import Definition
from pvebench.model.environment import storage_fact
from testing.packs import QUICK, quick
from testing.simulated_results import series

Captured = pytest.CaptureFixture[str]
CASE = Definition.of(quick()[1].cases[0])


def expected(running: dict[str, str], to: dict[str, str], **options: str) -> dict[str, Expected]:
    case = replace(CASE, options={**CASE.options, **options}, **_labels(options))
    found = expected_issues(load_known_issues(), running, to, [case])
    return {one.issue.id: one for one in found}


def _labels(options: dict[str, str]) -> dict[str, str]:
    return {name: options[name] for name in ("bus", "cache", "format") if name in options}


def test_an_issue_between_the_versions_is_got_lost_or_fixed() -> None:
    got = expected({"qemu_package": "9.0.2-5"}, {"qemu_package": "9.2.0-2"})
    lost = expected({"qemu_package": "9.2.0-2"}, {"qemu_package": "9.2.0-5"})
    fixed = expected({"qemu_package": "10.2.1-2"}, {"qemu_package": "11.0.0-1"})
    assert got["R2"].effect is Effect.GET
    assert lost["R2"].effect is Effect.LOSE
    assert fixed["P24"].effect is Effect.FIXED


def test_an_update_of_another_package_concerns_no_issue() -> None:
    assert expected({"qemu_package": "9.2.0-2"}, {"virtio_win": "0.1.240"}).keys() == {"R31"}


def test_without_the_running_version_an_issue_of_the_target_is_not_called_new() -> None:
    assert expected({}, {"qemu_package": "9.2.0-2"})["R2"].effect is Effect.UNKNOWN


def test_both_versions_in_the_range_keep_the_issue() -> None:
    kept = expected({"qemu_package": "9.2.0-1"}, {"qemu_package": "9.2.0-2"})
    assert kept["R2"].effect is Effect.KEEP


def test_a_fix_is_that_of_the_kernel_series() -> None:
    # P50 is fixed in 6.8.12-14 and in 6.14.11-1; 6.11 is of the second series.
    running = {"kernel": "6.8.12-13-pve"}
    assert expected(running, {"kernel": "6.8.12-14"})["P50"].effect is Effect.FIXED
    assert expected(running, {"kernel": "6.11.11-2"})["P50"].effect is Effect.KEEP


def test_an_issue_that_an_older_package_fixed_ends_with_the_kernels_of_that_time() -> None:
    """Proxmox VE 7.4 had qemu-server 7.4 and the first kernel 6.2 (its changelogs)."""
    assert "R11" in expected({"kernel": "5.15.39-1"}, {"kernel": "5.15.64-1"})
    assert "R11" not in expected({"kernel": "6.14.11-1"}, {"kernel": "6.17.4-1"})


@pytest.mark.parametrize(
    ("running", "to", "effects"),
    [
        (("10.2.1-1", "6.14.11-5"), ("10.2.1-2", "6.14.11-5"), ("keep", "get")),
        (("10.2.1-1", "6.14.11-5"), ("10.2.1-2", "6.17.4-1"), ("lose", None)),
        (("10.2.1-2", "6.14.11-5"), ("10.2.1-2", "6.17.4-1"), ("lose", "lose")),
        (("10.2.1-2", ""), ("10.2.1-2", "6.14.11-5"), ("unknown", "unknown")),
        (("10.2.1-1", ""), ("10.2.1-2", ""), ("lose", None)),
    ],
)
def test_the_fix_of_an_issue_may_need_a_second_component(
    running: tuple[str, str], to: tuple[str, str], effects: tuple[str | None, str | None]
) -> None:
    sides = [
        {fact: text for fact, text in zip(("qemu_package", "kernel"), side, strict=True) if text}
        for side in (running, to)
    ]
    changes = {fact: text for fact, text in sides[1].items() if sides[0].get(fact) != text}
    found = expected(sides[0], changes)
    assert (
        tuple(found[name].effect if name in found else None for name in ("R3", "P101")) == effects
    )


def test_zfs_has_one_range_per_branch() -> None:
    """P92 came with ZFS 2.3.7 and 2.4.2 (the fix of P57), and ended with 2.3.9 and 2.4.4."""
    versions = ["2.3.6", "2.3.7", "2.3.9", "2.4.0", "2.4.2", "2.4.4"]
    found = [expected({}, {"zfs": f"{text}-pve1"}) for text in versions]
    assert ["P92" in issues for issues in found] == [False, True, False, False, True, False]
    assert ["P89" in issues for issues in found] == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    ("facts", "applies"),
    [
        ({}, Applies.POSSIBLE),
        ({storage_fact("local", "type"): "nfs"}, Applies.YES),
        ({storage_fact("local", "type"): "dir", storage_fact("nas", "type"): "nfs"}, Applies.NO),
    ],
)
def test_an_issue_of_a_storage_type_hits_the_cases_on_it(
    facts: dict[str, str], applies: Applies
) -> None:
    found = expected({"kernel": "5.15.39-1", **facts}, {"kernel": "6.2.1-1"})
    assert found["R34"].applies is applies


def test_issues_of_configurations_in_use_come_first() -> None:
    running, to = {"qemu_package": "8.1.2-4"}, {"qemu_package": "8.1.2-5"}
    hit = expected(running, to, bus="scsi", iothread="1")
    missed = expected(running, to, bus="virtio", iothread="1")
    assert hit["R4"].applies is Applies.YES
    assert hit["R4"].cases == (CASE.scenario,)
    assert missed["R4"].applies is Applies.NO
    # R4 precedes R5 in the file; with bus virtio only R5 hits.
    both = expected({"qemu_package": "8.0.2-7"}, to, bus="virtio", iothread="1")
    got = [one.issue.id for one in both.values() if one.effect is Effect.GET]
    assert got.index("R5") < got.index("R4")


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_the_gate_mostly_decides_with_the_needed_runs(loss: float) -> None:
    noise, decided = random.Random(2), 0
    for _ in range(40):
        needed = runs_needed([math.exp(noise.gauss(0, 0.05)) for _ in range(60)])
        assert needed is not None
        before, after = ([noise.gauss(shift, 0.05) for _ in range(needed)] for shift in (0, -loss))
        result = bound(series(before, after), TOLERANCE, CHANCE / 4)
        decided += result.decision is not Decision.UNDECIDED
    assert decided >= 30
    assert runs_needed([1000.0, 1.0] * 10) is None


def test_the_command_lists_the_outlook_and_the_missing_baseline(
    tmp_path: Path, capsys: Captured
) -> None:
    state = ["--state", str(tmp_path)]
    assert run_cli(["run", *state, "--driver", "simulated", "--pack", str(QUICK)]) == 0
    capsys.readouterr()
    options = ["--to", "qemu-server=9.0.3", "--from", "qemu-server=8.4.1"]
    assert run_cli(["upgrade", *state, *options]) == 0
    text = capsys.readouterr().out
    assert "qemu-server 8.4.1 -> 9.0.3" in text
    assert "Issues that you would get:\n" in text
    assert "- R19 (operation): discard does not reach the storage; may apply; fixed in" in text
    assert "Noise unknown, too few runs: 12 cases." in text
    assert run_cli(["upgrade", *state, *options, "--format", "json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert {one["effect"] for one in data["issues"]} == {"get", "keep"}


def test_without_results_the_command_still_lists_issues(tmp_path: Path, capsys: Captured) -> None:
    pasted = tmp_path / "list"
    pasted.write_text("Inst pve-qemu-kvm [9.0.2-5] (9.2.0-2 Proxmox:trixie [amd64])\n?\x1b[1m\n")
    state = ["--state", str(tmp_path / "none")]
    assert run_cli(["upgrade", *state, "--to", str(pasted), "--from", str(pasted)]) == 0
    shown = capsys.readouterr()
    assert "R2 (cost)" in shown.out
    assert "Baseline: none." in shown.out
    assert shown.err == "".join(f"{name}: line not understood: ?\n" for name in ("--to", "--from"))
    short = "pve-manager/9.1.2/aa (running kernel: 6.17.4-1-pve)"
    assert run_cli(["upgrade", *state, "--to", short]) == 0
    assert "pve-manager unknown -> 9.1.2; kernel unknown -> 6.17.4-1" in capsys.readouterr().out
