"""`pvebench setup` for QEMU and for this host, asked or by options."""

from __future__ import annotations

import errno
import re
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from pvebench.cli import setup as setup_command
from pvebench.cli.main import cli, run_cli
from pvebench.cli.questions import settings_text
from pvebench.config import load_settings
from pvebench.drivers.proxmox.setup.survey import certificate_fingerprint
from pvebench.errors import ServerGone

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def setup(*options: str) -> int:
    return run_cli(["setup", *options, "--state", "state", "--no-check"])


def test_a_script_gets_settings_and_when_the_first_answers_come(
    here: Path, capsys: Captured
) -> None:
    (here / "disks").mkdir()
    assert setup("qemu", "--yes", "--storage", "disks", "--label", "bench", "--pack", "quick") == 0
    settings = load_settings(here / "pvebench.yaml")
    assert (settings.driver, settings.node) == ("qemu", "bench")
    assert settings.state == here / "state"
    assert settings.storages["local"].path == here / "disks"
    out = capsys.readouterr().out
    assert "Cycle: 12 cases, about" in out
    assert "(3 runs per case): significant differences between configurations\n" in out
    assert "(7 runs per case): first verdicts\n" in out
    assert "Next: pvebench serve --config pvebench.yaml" in out


@pytest.mark.parametrize(
    # Each case every 30 minutes: the seventh run begins after three hours. With a budget of 1 GiB
    # per day, one cycle is allowed in days.
    ("budget", "text"),
    [(None, r"After about 3 h"), (2**30, r"After at most \d+ d")],
)
@pytest.mark.lab
def test_the_times_are_those_of_the_schedule_within_the_write_budget(
    budget: int | None, text: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvebench.drivers.driver.default_budget", lambda _: budget)
    assert setup("host", "--yes", "--pack", "upgrade-watch") == 0
    (verdict,) = [line for line in capsys.readouterr().out.splitlines() if "7 runs" in line]
    assert re.match(text, verdict)


@pytest.mark.lab
def test_everything_is_asked_that_is_not_given(here: Path) -> None:
    answers = ["host", "nvme=fast, slow", "bench", "y"]
    command = ["setup", "--state", "state", "--no-check"]
    done = CliRunner().invoke(cli, command, input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    settings = load_settings(here / "pvebench.yaml")
    assert (settings.driver, settings.node) == ("host", "bench")
    paths = {name: one.path for name, one in settings.storages.items()}
    assert paths == {"nvme": here / "fast", "local": here / "slow"}


def test_a_no_writes_nothing(here: Path) -> None:
    command = ["setup", "qemu", "--state", "state", "--no-check"]
    done = CliRunner().invoke(cli, command, input="\n\nn\n")
    assert done.exit_code == 1
    assert list(here.iterdir()) == []


def mountinfo(source: str, point: object, kind: str) -> str:
    return f"36 35 8:1 / {point} rw,noatime shared:1 - {kind} {source} rw\n"


def test_what_is_found_is_shown(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mounts").write_text(mountinfo("tank/bench", here, "zfs"), "utf-8")
    monkeypatch.setattr("pvebench.files.MOUNTINFO", here / "mounts")
    assert setup("qemu", "--yes") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " zfs " in line]
    assert line.split()[0] == str(here)
    assert line.endswith(" free")


def test_only_disks_of_this_machine_are_looked_at(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To ask a file server that is away takes for ever.
    (here / "with space").mkdir()
    (here / "file").touch()
    escaped = str(here / "with space").replace(" ", "\\040")
    lines = [
        mountinfo("/dev/sda1", escaped, "ext4"),
        mountinfo("tank/data", here, "zfs"),
        mountinfo("server:/export", here, "nfs4"),
        mountinfo("tmpfs", here, "tmpfs"),
        mountinfo("/dev/sdb1", here / "gone", "xfs"),
        mountinfo("/dev/sda1", here / "file", "ext4"),
        mountinfo("/dev/sdc1", f"{here}/a\x85b\x0cc", "ext4"),  # a name for two lines
    ]
    (here / "mounts").write_text("".join(lines), "utf-8")
    monkeypatch.setattr("pvebench.files.MOUNTINFO", here / "mounts")
    assert setup_command.local_file_systems() == {
        str(here / "with space"): "ext4",
        str(here): "zfs",
    }


def test_it_can_be_run_again_and_writes_nothing_over(here: Path, capsys: Captured) -> None:
    assert setup("qemu", "--yes") == 0
    before = (here / "pvebench.yaml").stat()
    assert setup("qemu", "--yes") == 0
    assert "is up to date" in capsys.readouterr().out
    assert (here / "pvebench.yaml").stat().st_ino == before.st_ino
    assert setup("qemu", "--yes", "--label", "other") == 3
    assert "--replace" in capsys.readouterr().err
    (here / "pvebench.yaml").chmod(0o640)
    assert setup("qemu", "--yes", "--label", "other", "--replace") == 0
    after = (here / "pvebench.yaml").stat()
    assert (after.st_ino, after.st_mode & 0o777) == (before.st_ino, 0o640)
    assert load_settings(here / "pvebench.yaml").node == "other"


@pytest.mark.parametrize(
    "options",
    [
        ["--label", 'a"\nstate: /'],
        ["--label", ""],
        ["--listen", "nowhere"],
        ["--storage", "/x", "--storage", "A B=/y"],
        ["--storage", "a=/x", "--storage", "a=/y"],
        ["--pack", "quik"],
    ],
)
def test_an_answer_that_makes_no_settings_writes_nothing(
    here: Path, options: list[str], capsys: Captured
) -> None:
    code = setup("qemu", "--yes", *options)
    written = (here / "pvebench.yaml").exists()
    assert (code, written) == ((0, True) if options[1] == "" else (2, False))
    assert [path for path in here.iterdir() if path.name.startswith(".")] == []


def test_odd_names_of_directories_stay_what_they_are(here: Path) -> None:
    name = "a \"b\" 'c' # d: é"
    assert setup("qemu", "--yes", "--storage", "/x", "--storage", f"odd={name}") == 0
    assert load_settings(here / "pvebench.yaml").storages["odd"].path == here / name


def test_where_no_storage_is_called_local_the_first_is_and_is_reported(
    here: Path, capsys: Captured
) -> None:
    assert setup("qemu", "--yes", "--storage", "fast=/x", "--storage", "slow=/y") == 0
    assert "fast is named local: packs without a storage measure local\n" in capsys.readouterr().out
    assert set(load_settings(here / "pvebench.yaml").storages) == {"local", "slow"}


@pytest.mark.lab
def test_a_script_that_does_not_say_what_is_reported(here: Path, capsys: Captured) -> None:
    assert setup("--yes") == 2
    assert "--yes requires the kind: proxmox, qemu, host\n" in capsys.readouterr().err


def test_what_is_missing_is_reported_after_the_settings_are_written(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_cli(["setup", "qemu", "--yes", "--state", "state"]) == 3
    captured = capsys.readouterr()
    assert "FAIL  qemu-system-x86_64" in captured.out
    assert load_settings(here / "pvebench.yaml").driver == "qemu"


def test_the_settings_are_a_dump_with_comments_only_at_keys_of_pvebench() -> None:
    storages = {"pool": {"type": "dir"}, "off": {"type": "nfs", "nodes": ["a", "b"]}}
    values = {"driver": "proxmox", "proxmox": {"pool": "x", "tls": {}, "storages": storages}}
    text = settings_text(values)
    assert YAML(typ="safe").load(text) == values
    assert '\n  pool: "x"  # VMs are created only in this pool\n' in text
    assert '\n    "pool": {"type": "dir"}\n' in text


@pytest.mark.parametrize(
    ("error", "fact", "cause"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "is unreachable", "the host is down"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), "rejects connections", "nothing"),
        (TimeoutError(), "does not respond", "the host is down"),
        (ssl.SSLError(1, "wrong version number"), "offers no TLS certificate (wrong", "it does"),
    ],
)
def test_a_cluster_that_shows_no_certificate_is_explained(
    error: OSError, fact: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ssl, "get_server_certificate", refuse)
    with pytest.raises(ServerGone) as caught:
        certificate_fingerprint("pve1", 8006)
    assert caught.value.happened.startswith(f"pve1:8006 {fact}")
    assert "Errno" not in str(caught.value)
    assert caught.value.cause.startswith(cause)
    assert "port 8006" in caught.value.next_step
