"""What is packaged around the wheel: unit, maintainer scripts, manual, settings, role.

systemd, dpkg, man and shellcheck judge it themselves; `make deb-test` installs it for real.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from pvebench.cli.main import COMMANDS
from pvebench.config import load_settings
from pvebench.errors import (
    AlreadyRunning,
    ConfigError,
    GuestImageError,
    PortInUse,
    ServerGone,
    StoreLost,
    StoreMixed,
    StoreUnavailable,
)
from pvebench.store.tables import SCHEMA
from testing.mounts import bind, with_mounts
from testing.packs import ROOT

PACKAGING = ROOT / "packaging"
sys.path.insert(0, str(PACKAGING / "deb"))

from build import HUB_LOCK, checksums, debian_version, lock_entries, pack  # noqa: E402 # its place is known only now
from manual import completions, manual  # noqa: E402 # likewise

UNIT = PACKAGING / "systemd/pvebench.service"
ROLES = PACKAGING / "postgres/10-roles.sql"
DROP_INS = sorted((PACKAGING / "systemd").glob("*.conf"))
SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "hub/postinst", "hub/prerm", "hub/postrm")
HUB_UNITS = sorted((PACKAGING / "systemd/hub").glob("*.service"))
HUB_PROCESSES = {"serve": "door", "pages": "overview", "judge@": "judge"}


def run(command: Sequence[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return] # keywords of its own
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )


def unit_with(directory: Path, *drop_ins: Path) -> Path:
    """The unit as it is in force with drop-ins; its program is one that is here."""
    texts = [one.read_text("utf-8") for one in (UNIT, *drop_ins)]
    text = "\n".join(texts).replace("/usr/bin/pvebench", shutil.which("true") or "")
    path = directory / "pvebench.service"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda one: one.stem if one else "none")
def test_systemd_understands_the_unit_and_calls_it_hard(
    tmp_path: Path, drop_in: Path | None
) -> None:
    """An exposure of at most 2.0, by systemd's own reckoning of it."""
    path = unit_with(tmp_path, *filter(None, [drop_in]))
    done = run(["systemd-analyze", "verify", "--man=no", path])
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20"]
    done = run([*command, path])
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def hub_units(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The units of the hub as they are in force, with programs that are here."""
    place = tmp_path_factory.mktemp("units")
    common = (PACKAGING / "systemd/hub/common.conf").read_text("utf-8")
    for unit in HUB_UNITS:
        text = unit.read_text("utf-8").replace("/usr/bin/pvebench", shutil.which("true") or "")
        text, install, rest = text.partition("\n[Install]")
        (place / unit.name).write_text(f"{text}\n{common}{install}{rest}", "utf-8")
    timer = PACKAGING / "systemd/hub/pvebench-hub-prune.timer"
    shutil.copy(timer, place)
    return sorted(place.glob("*.service"))


def test_systemd_understands_the_units_of_the_hub_and_calls_each_hard(
    hub_units: list[Path],
) -> None:
    timer = hub_units[0].with_name("pvebench-hub-prune.timer")
    done = run(["systemd-analyze", "verify", "--man=no", *hub_units, timer])
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20"]
    for unit in hub_units:
        assert run([*command, unit]).returncode == 0, unit.name


def test_no_unit_that_runs_as_postgres_removes_the_shared_memory_of_the_server() -> None:
    """systemd.exec(5): RemoveIPC= removes that of the unit's user, also of other units."""
    texts = [one.read_text("utf-8") for one in (PACKAGING / "systemd/hub").iterdir()]
    assert any("User=postgres" in text for text in texts)
    assert not any(re.search("(?m)^RemoveIPC=yes", text) for text in texts)


def test_each_process_of_the_hub_runs_as_the_user_whose_role_it_takes() -> None:
    """PostgreSQL's peer authentication: the role is the name of the user."""
    roles = set(re.findall(r"'(pvebench_\w+)', 'LOGIN", ROLES.read_text("utf-8")))
    made = set(
        re.findall(r"(?m)^u (\w+)", (PACKAGING / "deb/hub/sysusers.conf").read_text("utf-8"))
    )
    assert made == roles
    users = {
        unit.stem.removeprefix("pvebench-hub-"): re.findall(
            r"(?m)^User=(\w+)$", unit.read_text("utf-8")
        )
        for unit in HUB_UNITS
    }
    for name, role in HUB_PROCESSES.items():
        assert users.pop(name) == [f"pvebench_{role}"]
    assert users == {
        "roles": ["postgres"], "migrate": ["pvebench_hub"], "prune": ["pvebench_hub"]
    }  # fmt: skip


@pytest.mark.parametrize("package", ["sysusers.conf", "hub/sysusers.conf"])
def test_systemd_makes_the_users_of_a_package(tmp_path: Path, package: str) -> None:
    (tmp_path / "etc").mkdir()
    text = (PACKAGING / "deb" / package).read_text("utf-8")
    done = run(["systemd-sysusers", f"--root={tmp_path}", PACKAGING / "deb" / package])
    assert done.returncode == 0, done.stderr
    made = re.findall(r"(?m)^(\w+):", (tmp_path / "etc/passwd").read_text("utf-8"))
    assert made == re.findall(r"(?m)^u (\w+)", text)


def test_the_package_of_the_hub_has_the_libraries_that_only_the_hub_needs() -> None:
    site, hub = (lock_entries(ROOT / name) for name in ("requirements.lock", HUB_LOCK))
    more = {text.partition("==")[0] for text in hub if text not in site}
    assert more == {"psycopg", "psycopg-binary"}
    assert set(site) <= set(hub)


def test_a_purge_of_the_hub_keeps_the_database_and_says_how_to_delete_it(tmp_path: Path) -> None:
    wants = tmp_path / "systemd" / "system" / "multi-user.target.wants"
    wants.mkdir(parents=True)
    for name in ("pvebench-hub-judge@1.service", "pvebench-hub-serve.service", "pvebench.service"):
        (wants / name).symlink_to("/dev/null")
    done = purge(tmp_path, script="hub/postrm")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the database pvebench stays; to delete it: " in done.stderr
    assert [one.name for one in wants.iterdir()] == ["pvebench.service"]


def test_the_service_starts_again_unless_only_a_person_can_mend_it() -> None:
    (words,) = re.findall(r"(?m)^RestartPreventExitStatus=(.*)$", UNIT.read_text("utf-8"))
    ends = {int(word) for word in words.split()}
    assert ends == {ConfigError.exit_code, StoreLost.exit_code, StoreMixed.exit_code}
    passing = (ServerGone, PortInUse, AlreadyRunning, StoreUnavailable, GuestImageError)
    assert [kind for kind in passing if kind.exit_code in ends] == []


def test_the_unit_lets_fincore_do_every_call_that_it_makes(tmp_path: Path) -> None:
    assert calls_of(tmp_path, "fincore", UNIT) - allowed_calls() == set()


@pytest.mark.parametrize("engine", ["io_uring", "libaio", "psync"])
def test_the_unit_lets_fio_do_every_call_that_it_makes_on_the_host(
    tmp_path: Path, engine: str
) -> None:
    """fio fails without setpriority, by which it keeps its own priority."""
    job = f"--name=a --filename={tmp_path}/file --size=64k --rw=randrw --ioengine={engine}"
    made = calls_of(tmp_path, "fio", *job.split(), "--output-format=json")
    assert made - allowed_calls() == set()


def test_the_unit_lets_qemu_img_do_every_call_that_it_makes(tmp_path: Path) -> None:
    words = ("create", "-f", "qcow2", "-o", "preallocation=falloc", tmp_path / "image", "1M")
    assert calls_of(tmp_path, "qemu-img", *words) - allowed_calls() == set()


def calls_of(directory: Path, *command: str | Path) -> set[str]:
    """Return the system calls of a program and its threads, as strace reports them."""
    calls = directory / "calls"
    assert run(["strace", "-f", "-qq", "-o", calls, *command]).returncode == 0
    return set(re.findall(r"(?m)^\d+ +(\w+)\(", calls.read_text("utf-8", "replace")))


def allowed_calls() -> set[str]:
    """Return the system calls that the unit's filter allows; systemd knows those of a group."""
    allowed: set[str] = set()
    for words in re.findall(r"(?m)^SystemCallFilter=(.*)$", UNIT.read_text("utf-8")):
        named = expanded(*words.removeprefix("~").split())
        allowed = allowed - named if words.startswith("~") else allowed | named
    return allowed


def expanded(*words: str) -> set[str]:
    """Return the calls that words of a filter stand for, groups of groups included."""
    found = {word for word in words if not word.startswith("@")}
    for group in set(words) - found:
        lines = run(["systemd-analyze", "syscall-filter", "--no-pager", group]).stdout.split("\n")
        members = (line.strip() for line in lines[1:])
        found |= expanded(*(one for one in members if one and not one.startswith("#")))
    return found


def test_every_group_of_a_drop_in_is_debians_or_is_made_by_the_package() -> None:
    """Debian's are those of base-passwd; nothing starts with a group that is not there."""
    texts = "".join(one.read_text("utf-8") for one in DROP_INS)
    expected = set(re.findall(r"(?m)^SupplementaryGroups=(\w+)$", texts))
    base = Path("/usr/share/base-passwd/group.master").read_text("utf-8").splitlines()
    made = re.findall(r"(?m)^g (\w+)", (PACKAGING / "deb/sysusers.conf").read_text("utf-8"))
    assert expected - {line.partition(":")[0] for line in base} == set(made)


def test_every_drop_in_is_documented() -> None:
    text = (ROOT / "docs/install.md").read_text("utf-8")
    named = re.findall(r"`(\w+\.conf)` for ", text)
    assert sorted(named) == [one.name for one in DROP_INS]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_maintainer_scripts_are_clean(name: str) -> None:
    assert run(["shellcheck", "--shell=sh", PACKAGING / "deb" / name]).stdout == ""


@pytest.fixture
def preinst(tmp_path: Path) -> Path:
    """The script as the package has it, in a place where it looks at nobody's results."""
    text = (PACKAGING / "deb/preinst").read_text("utf-8")
    for mark, value in {
        "@SCHEMA@": str(SCHEMA),
        "@VERSION@": "0.1.0",
        "/var/lib/pvebench": f"{tmp_path}/state",
        "/etc/pvebench": f"{tmp_path}/etc",
    }.items():
        text = text.replace(mark, value)
    for name in ("state", "etc", "other"):
        (tmp_path / name).mkdir()
    path = tmp_path / "preinst"
    path.write_text(text, "utf-8")
    return path


def write_database(path: Path, schema: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema}")


@pytest.mark.parametrize("schema", sorted({1, SCHEMA}))
def test_results_that_it_can_read_let_it_in(preinst: Path, schema: int) -> None:
    write_database(preinst.parent / "state/pvebench.db", schema)
    done = run(["sh", preinst, "upgrade", "9.9"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", ["", "state: OTHER", 'state: "OTHER"  # on another disk'])
def test_newer_results_refuse_it_wherever_they_are(preinst: Path, line: str) -> None:
    place = preinst.parent / ("other" if line else "state")
    write_database(place / "pvebench.db", 9999)
    settings = preinst.parent / "etc/pvebench.yaml"
    settings.write_text(f"driver: qemu\n{line}\n".replace("OTHER", str(place)), "utf-8")
    done = run(["sh", preinst, "upgrade", "9.9"])
    assert done.returncode == 1
    assert f"{place}/pvebench.db has schema 9999; version" in done.stderr
    assert "next step:" in done.stderr


@pytest.mark.parametrize("content", [None, b"", b"no database", b"SQLite format 3\0"])
def test_what_is_no_database_is_left_to_pvebench_to_tell(
    preinst: Path, content: bytes | None
) -> None:
    if content is not None:
        (preinst.parent / "state/pvebench.db").write_bytes(content)
    assert run(["sh", preinst, "install"]).returncode == 0


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("0.1.0.dev3", "0.1.0"), ("0.1.0a1", "0.1.0b1"), ("0.1.0rc1", "0.1.0"), ("0.9.0", "0.10.0")],
)
def test_debian_sorts_versions_as_python_does(earlier: str, later: str) -> None:
    words = ["dpkg", "--compare-versions", debian_version(earlier), "lt", debian_version(later)]
    assert run(words).returncode == 0
    of_12, of_13 = f"{debian_version(later)}~deb12", f"{debian_version(later)}~deb13"
    assert run(["dpkg", "--compare-versions", of_12, "lt", of_13]).returncode == 0


def test_md5sum_accepts_the_checksums_of_a_package(tmp_path: Path) -> None:
    """As debsums(1) and `dpkg --verify` read them: files outside /etc, one per line."""
    files = [tmp_path / name for name in ("usr/bin/a", "usr/lib/b", "etc/c")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text(file.name, "utf-8")
    sums = tmp_path / "md5sums"
    sums.write_text(checksums(tmp_path, files), "utf-8")
    done = run(["md5sum", "--check", "--strict", sums], cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("usr/bin/a: OK\nusr/lib/b: OK\n", 0)


def test_a_package_of_many_files_asks_git_for_the_time_of_the_commit_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "bin/git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\necho asked >>{tmp_path}/calls\necho 1700000000\n", "utf-8")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=os.pathsep)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = ("Package: many", "Version: 1", "Architecture: all", "Maintainer: t", "Description: t")
    (tree / "DEBIAN/control").write_text("\n".join((*fields, "")), "utf-8")
    for number in range(9):
        (tree / str(number)).touch()
    pack(tree, tmp_path / "many.deb")
    listed = run(["dpkg-deb", "--contents", tmp_path / "many.deb"], env={**os.environ, "TZ": "UTC"})
    assert listed.stdout.count(" 2023-11-14 22:13 ./") == 10
    assert (tmp_path / "calls").read_text("utf-8") == "asked\n"


def test_the_manual_has_every_command_and_man_has_no_complaint(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.1"
    path.write_text(manual("0.1.0"), "utf-8")
    done = run(
        ["man", "--warnings", "--local-file", "-Tutf8", path], env={**os.environ, "MANWIDTH": "200"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"\x1b\[\d+m|.\x08", "", done.stdout)
    assert [name for name in COMMANDS if f"pvebench {name}" not in shown] == []


def test_bash_takes_the_completion(tmp_path: Path) -> None:
    (text,) = (text for path, text in completions().items() if "bash" in path)
    path = tmp_path / "completion"
    path.write_text(text, "utf-8")
    done = run(["bash", "-c", f". {path}; complete -p pvebench"])
    assert "_pvebench_completion pvebench" in done.stdout


def test_the_settings_of_the_package_are_some() -> None:
    assert load_settings(PACKAGING / "deb/pvebench.yaml").driver == "qemu"


def purge(tmp_path: Path, *more: str, script: str = "postrm") -> subprocess.CompletedProcess[str]:
    """Purge in a mount namespace whose /var/lib and /var/cache are the test's own."""
    for name in ("lib", "cache", "disk", "etc", "systemd"):
        (tmp_path / name).mkdir(exist_ok=True)
    mounts = bind(tmp_path / "lib", Path("/var/lib")) + bind(tmp_path / "cache", Path("/var/cache"))
    mounts += bind(tmp_path / "systemd", Path("/etc/systemd"))
    if Path("/etc/pvebench").exists():
        mounts += bind(tmp_path / "etc", Path("/etc/pvebench"))
    return with_mounts(mounts + "".join(more) + f"sh '{PACKAGING}/deb/{script}' purge\n")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A state directory as the service leaves it, with one file of somebody else's."""
    state = tmp_path / "lib" / "pvebench"
    for name in ("run", "storage", "backups", "references", "mnt"):
        (state / name).mkdir(parents=True)
    for name in ("pvebench.db", "pvebench.db-wal", "lock", "instance", "backups/pvebench-1.db"):
        (state / name).write_text("results")
    (state / "storage" / "pvebench-test-0123456789abcdef-raw").write_text("volume")
    (tmp_path / "cache" / "pvebench" / "guest").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "letter").write_text("precious")
    return state


def test_a_purge_removes_what_pvebench_made(tmp_path: Path, installed: Path) -> None:
    (installed / "mnt").rmdir()
    done = purge(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not installed.exists()
    assert not (tmp_path / "cache" / "pvebench").exists()


@pytest.mark.parametrize("where", ["mnt", "storage", "run", "storage/pvebench-test-dir"])
def test_a_purge_removes_nothing_of_a_disk_mounted_below(
    tmp_path: Path, installed: Path, where: str
) -> None:
    """docs/install.md sends people to mount disks there; a bind mount is of the same device."""
    (installed / where).mkdir(exist_ok=True)
    (tmp_path / "disk" / "pvebench-test-of-another").write_text("precious")
    done = purge(tmp_path, bind(tmp_path / "disk", Path("/var/lib/pvebench") / where))
    assert done.returncode == 0
    assert (
        "/var/lib/pvebench not removed: it contains files that pvebench did not create"
        in done.stderr
    )
    mounted = "/var/lib/pvebench/run not removed: a file system is mounted there" in done.stderr
    assert mounted == (where == "run")
    assert len(list((tmp_path / "disk").iterdir())) == 2
    assert not (installed / "pvebench.db").exists()


def test_a_purge_keeps_the_files_of_others_and_says_so(tmp_path: Path, installed: Path) -> None:
    (installed / "thesis.txt").write_text("precious")
    done = purge(tmp_path)
    assert (
        "/var/lib/pvebench not removed: it contains files that pvebench did not create"
        in done.stderr
    )
    assert (installed / "thesis.txt").read_text() == "precious"
    assert not (installed / "storage").exists()


def test_a_purge_follows_no_link(tmp_path: Path, installed: Path) -> None:
    shutil.rmtree(installed)
    installed.symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "run").mkdir()
    assert purge(tmp_path).returncode == 0
    assert (tmp_path / "disk" / "run").exists()
