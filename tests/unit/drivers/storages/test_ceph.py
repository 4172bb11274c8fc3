"""What a Ceph cluster does beside our runs, and its images as a storage.

Witness: `golden/ceph`, real answers of `ceph status`. What needs a cluster is in `tests/e2e/ceph`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pvebench.config import load_settings
from pvebench.drivers.ceph_state import trouble
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import ConfigError, VolumeError
from pvebench.model.disk import Bus, Cache, Disk, Format, HostCache
from pvebench.model.ports import Hold, HoldKind
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case
from pvebench_lab.storages import ceph
from pvebench_lab.storages.ceph import CephGuard
from testing.packs import tool_workload
from testing.storages import storage_context

Patch = pytest.MonkeyPatch

GOLDEN = Path(__file__).parents[3] / "golden" / "ceph"
READ = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=1, runtime_seconds=1)


def status(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return found


def case(storage: str = "ceph") -> Case:
    disk = Disk(bus=Bus.VIRTIO, format=Format.RAW, cache=Cache.NONE)
    machine = Machine(memory_bytes=MIB, cpus=1)
    scenario = Scenario(
        node="lab", storage=storage, disk=disk, machine=machine, volume_bytes=16 * MIB
    )
    return Case(scenario=scenario, workload=READ)


@pytest.mark.parametrize("name", ["healthy", "deep-scrub"])
def test_a_healthy_cluster_holds_nothing_and_a_scrub_neither(name: str) -> None:
    assert trouble(status(name)) is None


@pytest.mark.parametrize(
    ("name", "text", "passes"),
    [
        ("osd-down", "Ceph is degraded: 1 osds down", False),
        ("degraded", "Ceph is degraded: 11 of 17 placement groups are degraded, undersized", False),
        (
            "recovering",
            "Ceph is moving data: 10 of 17 placement groups are activating, peering, recovering, "
            "recovery_wait",
            True,
        ),
        (
            "slow-heartbeats",
            "Ceph has slow OSDs: Slow OSD heartbeats on back (longest 5407.733ms); "
            "Slow OSD heartbeats on front (longest 5404.242ms)",
            True,
        ),
    ],
)
def test_recovery_slow_osds_and_missing_copies_are_reported(
    name: str, text: str, *, passes: bool
) -> None:
    found = trouble(status(name))
    assert found is not None
    assert (found.text, found.passes) == (text, passes)


def test_slow_operations_are_reported_in_cephs_words() -> None:
    """Name and shape of the check: doc/rados/operations/health-checks of Ceph, and the others."""
    message = "3 slow ops, oldest one blocked for 36 sec, osd.1 has slow ops"
    told = {"SLOW_OPS": {"severity": "HEALTH_WARN", "summary": {"message": message, "count": 3}}}
    found = trouble({**status("healthy"), "health": {"status": "HEALTH_WARN", "checks": told}})
    assert found is not None
    assert found.text == f"Ceph has slow OSDs: {message}"


@pytest.mark.parametrize("odd", [{}, {"health": None, "pgmap": []}, {"pgmap": {}}])
def test_what_is_missing_in_an_answer_holds_nothing(odd: Mapping[str, Any]) -> None:
    assert trouble(odd) is None


def test_what_passes_is_waited_for_and_what_does_not_is_skipped() -> None:
    told = status("recovering")
    guard = CephGuard({"ceph": lambda: told})
    hold = guard.enter(case())
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.BUSY, False)
    assert guard.leave(case()) == hold.reason
    told = status("degraded")
    skipped = guard.enter(case())
    assert isinstance(skipped, Hold)
    assert skipped.skip


def test_only_the_clusters_own_storages_wait_for_it() -> None:
    guard = CephGuard({"ceph": lambda: status("recovering")})
    assert guard.enter(case("local")) is None
    assert guard.leave(case("local")) == ""


def test_a_cluster_that_cannot_be_asked_holds_nothing_the_run_itself_says_why() -> None:
    def silent() -> Mapping[str, Any]:
        raise VolumeError("no answer")

    guard = CephGuard({"ceph": silent})
    assert guard.enter(case()) is None
    assert guard.leave(case()) == ""


def test_librbds_cache_is_emptied_by_plugging_in_again() -> None:
    holds = KINDS["rbd"].holds
    assert (holds.network, holds.host_cache) == (True, HostCache.REOPENED)
    assert holds.formats == {Format.RAW}


@pytest.mark.parametrize("pool", ["-p", "a/b", "a@b", "", "a b"])
def test_a_pools_name_that_rbd_would_read_otherwise_is_refused(tmp_path: Path, pool: str) -> None:
    path = tmp_path / "pvebench.yaml"
    path.write_text(f"storages:\n  c: {{kind: rbd, pool: '{pool}'}}\n", "utf-8")
    with pytest.raises(ConfigError):
        load_settings(path)


class Answers:
    """Stands for Ceph's programs: says what it is told to, and keeps what it was asked."""

    def __init__(self, **said: str) -> None:
        self.said = said
        self.asked: list[list[str]] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.asked.append(command)
        said = next((text for word, text in self.said.items() if word in command), "")
        return subprocess.CompletedProcess(command, 0, said, "")


@pytest.mark.parametrize(
    "said",
    [
        "",
        "not JSON",
        "[]",
        '{"pools": {}}',
        '{"pools": [{}]}',
        '{"pools": [{"name": "p", "stats": {}}]}',
        '{"pools": [{"name": "p", "stats": {"max_avail": 1e400}}]}',
        '{"pools": []}',
    ],
)
def test_an_answer_of_ceph_that_cannot_be_read_is_an_error_that_says_so(
    monkeypatch: Patch, said: str
) -> None:
    monkeypatch.setattr(ceph, "run_program", Answers(df=said))
    with pytest.raises(
        VolumeError, match=r"unexpected output of ceph df|pool p does not exist in this"
    ):
        ceph.look(storage_context(name="c", kind="rbd", pool="p"))


def test_check_reports_room_and_health_as_the_user_of_the_settings(monkeypatch: Patch) -> None:
    room = '{"pools": [{"name": "p", "stats": {"max_avail": 1073741824}}]}'
    answers = Answers(df=room, status=json.dumps(status("degraded")))
    monkeypatch.setattr(ceph, "run_program", answers)
    options = storage_context(name="c", kind="rbd", pool="p", conf="/c", user="u")
    assert ceph.look(options) == "pool p: 1.0 GiB free, HEALTH_WARN"
    assert all(one[:5] == ["ceph", "--conf", "/c", "--id", "u"] for one in answers.asked)


def test_a_pool_is_known_by_the_id_of_its_cluster(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ceph, "run_program", Answers(status=json.dumps(status("healthy"))))
    assert ceph.identify(storage_context(name="c", kind="rbd", pool="p")) == {
        "type": "rbd",
        "pool": "p",
        "cluster": "4cc81e84-4b3a-45c4-a155-fcbb904c3bcc",
    }


def test_a_cluster_without_monitors_is_waited_for_a_minute_and_named(monkeypatch: Patch) -> None:
    def hang(command: list[str], *, seconds: float) -> None:
        raise subprocess.TimeoutExpired(command, seconds)

    monkeypatch.setattr(ceph, "run_program", hang)
    with pytest.raises(VolumeError, match="no answer of the Ceph cluster to ceph within 60 s"):
        ceph.look(storage_context(name="c", kind="rbd", pool="p"))


OWNER = "0123456789abcdef"
ENTRY = {"pool": "p", "conf": "", "user": "", "owner": OWNER, "name": f"{MARK}{OWNER}-ceph.raw"}


def test_undo_leaves_an_image_that_says_it_is_anothers(monkeypatch: Patch) -> None:
    answers = Answers(list='{"pvebench.instance": "fedcba9876543210"}')
    monkeypatch.setattr(ceph, "run_program", answers)
    with pytest.raises(VolumeError, match="not changed: another instance owns it"):
        KINDS["rbd"].undo["rbd"](ENTRY)
    assert not any("remove" in command for command in answers.asked)


def test_undo_waits_while_the_cluster_still_counts_a_killed_qemu_among_the_users(
    monkeypatch: Patch,
) -> None:
    """16 is EBUSY, which `rbd remove` ended with for 30 s after QEMU was killed (e2e/ceph)."""
    answers = Answers(list=json.dumps({"pvebench.instance": OWNER}))
    codes = [16, 16, 0]
    waited: list[float] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        code = codes.pop(0) if "remove" in command else 0
        return replace_code(answers(command), code)

    monkeypatch.setattr(ceph, "run_program", run)
    monkeypatch.setattr("time.sleep", waited.append)
    assert KINDS["rbd"].undo["rbd"](ENTRY) == f"removed test volume p/{ENTRY['name']}"
    assert (codes, len(waited)) == ([], 2)


def replace_code(
    done: subprocess.CompletedProcess[str], code: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, code, done.stdout, done.stderr)


def test_undo_of_an_image_that_never_came_to_be_removes_nothing(monkeypatch: Patch) -> None:
    """2 is ENOENT, as `rbd info` ends for an image that is not there."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 2, "", "No such file or directory")

    monkeypatch.setattr(ceph, "run_program", run)
    KINDS["rbd"].undo["rbd"](ENTRY)
    assert [command[1] for command in asked] == ["info"]


def test_undo_removes_no_image_without_our_mark(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ceph, "run_program", lambda *_, **__: pytest.fail("something was run"))
    for name in ("vm-100-disk-0", f"{MARK}fedcba9876543210-x", f"{MARK}{OWNER}g-x"):
        with pytest.raises(VolumeError, match="not changed"):
            KINDS["rbd"].undo["rbd"]({**ENTRY, "name": name})
