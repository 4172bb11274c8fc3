"""Known issues: the shipped table, and what a wrong file is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.analysis.change import differences, known_issues
from pvebench.analysis.judge import Judge
from pvebench.config import known_issues as files
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import ConfigError
from pvebench.model.environment import Affected
from pvebench.model.run_metrics import JUDGED

ISSUE = """\
issues:
  - id: X1
    title: something got slow
    kind: slower
    affected: [{fact: kernel, since: 6.8.4-1, before: 6.8.4-3}]
    moves: [throughput]
    source: a test
"""
IDLE = {"qemu_package": "9.2.0-1"}
VIRTIO = {"bus": "virtio", "cache": "none", "iothread": "1"}


def complaint(directory: Path, text: str) -> str:
    path = directory / "issues.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_known_issues(path)
    return str(caught.value).replace(f"{path}:", "")


def test_the_shipped_table_has_all_entries_and_names_only_figures_that_are_judged() -> None:
    issues = load_known_issues()
    rated = [f"R{number}" for number in range(1, 36)]
    assert [issue.id for issue in issues] == rated + [f"P{number}" for number in range(1, 106)]
    assert {name for issue in issues for name in issue.moves} <= set(JUDGED)


def test_a_file_of_ones_own_adds_issues_and_replaces_those_of_the_same_id(tmp_path: Path) -> None:
    path = tmp_path / "issues.yaml"
    path.write_text(ISSUE + ISSUE.partition("\n")[2].replace("X1", "R2"), "utf-8")
    issues = {issue.id: issue for issue in load_known_issues(path)}
    assert len(issues) == 141
    assert issues["R2"].title == issues["X1"].title == "something got slow"


def test_every_issue_has_a_source_and_none_without_moves_explains_a_change() -> None:
    issues = load_known_issues()
    assert not [issue.id for issue in issues if len(issue.source) < 8 or len(issue.title) > 90]
    silent = {issue.id: issue for issue in issues if not issue.moves}
    assert len(silent) == 101
    (span,) = silent["P24"].affected
    before, after = {"qemu_package": "10.2.1-2"}, {"qemu_package": span.before}
    everything = dict.fromkeys(JUDGED, 0.5)
    found = known_issues(tuple(silent.values()), before, after, everything, [VIRTIO])
    assert found == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("moves:", "move:"), "unknown key 'move'; did you mean 'moves'?"),
        (("6.8.4-1", "newest"), "5:38: issues.0.affected.0.since: invalid version 'newest'"),
        (("6.8.4-1", "6.8"), "invalid version 6.8; write it as Debian does, and quote it"),
        (("6.8.4-1", "6.8.5-1"), "before: 6.8.4-3 is not after since: 6.8.5-1"),
        (("before: 6.8.4-3", "and: [{fact: zfs}]"), "5:53: missing key 'since'"),
        (("[throughput]", "[speed]"), "6:13: issues.0.moves.0: 'speed' is not one of"),
    ],
)
def test_an_error_about_a_wrong_file_says_where_and_how(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    assert expected in complaint(tmp_path, ISSUE.replace(*change))


def test_an_id_that_is_used_twice_is_refused(tmp_path: Path) -> None:
    doubled = ISSUE + ISSUE.partition("\n")[2]
    assert complaint(tmp_path, doubled).startswith("8:9: duplicate id 'X1'")


def test_a_range_holds_from_its_first_version_until_the_fix() -> None:
    affected = Affected(fact="kernel", since="6.11.11-1", before="6.11.11-2")
    versions = ["6.8.12-4-pve", "6.11.11-1-pve", "6.11.11-2-pve"]
    assert [affected.holds({"kernel": version}) for version in versions] == [False, True, False]
    assert not affected.holds({})


def test_an_upgrade_into_the_range_with_the_right_shape_matches() -> None:
    issues = load_known_issues()
    after = {"qemu_package": "9.2.0-2"}
    found = known_issues(issues, {"qemu_package": "9.0.2-5"}, after, {"idle_cost": -0.3}, [VIRTIO])
    assert [(match.issue.id, match.ends, match.fixed_in) for match in found] == [
        ("R2", False, "9.2.0-3")
    ]


def test_the_same_upgrade_does_not_match_a_change_of_another_shape() -> None:
    issues, before = load_known_issues(), {"qemu_package": "9.0.2-5"}
    after = {"qemu_package": "9.2.0-2"}
    assert not known_issues(issues, before, after, {"throughput": -0.2}, [VIRTIO])
    assert not known_issues(issues, before, after, {"idle_cost": +0.3}, [VIRTIO])
    # Both sides have the fault: it cannot be what changed.
    assert not known_issues(issues, IDLE, after, {"idle_cost": -0.3}, [VIRTIO])


def test_the_upgrade_that_brings_the_fix_is_reported_as_such() -> None:
    found = known_issues(
        load_known_issues(), IDLE, {"qemu_package": "9.2.0-5"}, {"idle_cost": 0.3}, [VIRTIO]
    )
    assert [(match.issue.id, match.ends) for match in found] == [("R2", True)]


def test_cases_without_the_option_that_an_issue_needs_do_not_match() -> None:
    before, after = {"qemu_package": "8.1.2-4"}, {"qemu_package": "8.1.2-5"}
    scsi = {"bus": "scsi", "iothread": "1"}
    matches = [
        [
            match.issue.id
            for match in known_issues(
                load_known_issues(), before, after, {"cpu_cost": -0.5}, members
            )
        ]
        for members in ([scsi], [VIRTIO], [scsi] * 4 + [VIRTIO])
    ]
    assert matches == [["R4"], [], ["R4"]]


def test_a_implausible_gain_matches_only_where_it_got_faster() -> None:
    before, after = {"kernel": "6.8.12-4-pve"}, {"kernel": "6.11.11-1-pve"}
    sync = [{"durable": "yes"}]
    gain = known_issues(load_known_issues(), before, after, {"throughput": 2.0}, sync)
    loss = known_issues(load_known_issues(), before, after, {"throughput": -2.0}, sync)
    assert [match.issue.id for match in gain] == ["R1"]
    assert "R1" not in [match.issue.id for match in loss]


def test_differences_name_the_likeliest_first_and_the_package_instead_of_its_number() -> None:
    before = {"pve": "9.1", "qemu": "10.0.2", "qemu_package": "10.0.2-4", "governor": "schedutil"}
    after = {"pve": "9.2", "qemu": "10.1.2", "qemu_package": "10.1.2-1", "governor": "performance"}
    assert [one.fact for one in differences(before, after)] == ["governor", "qemu_package", "pve"]


def test_the_shipped_issues_are_read_at_their_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(files, "_read", lambda path: read.append(path) or [])
    issues = load_known_issues()
    Judge(issues)
    assert read == []
    assert len(issues) == 0
    assert read == [files.SHIPPED]
