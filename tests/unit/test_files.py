"""Who else can read a secret. The rule is ssh's: see the file modes in ssh(1), `-i`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox.api.connection import read_token
from pvebench.errors import ConfigError
from pvebench.files import check_secret, read_secret
from testing.captured_logs import captured_logs

TOKEN = "a@pve!name=0123456789ab\n"


def secret(directory: Path, mode: int) -> Path:
    path = directory / "token"
    path.write_text(TOKEN, "ascii")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620, 0o777])
def test_a_token_of_our_own_that_others_can_read_is_refused_with_the_command(
    tmp_path: Path, mode: int
) -> None:
    path = secret(tmp_path, mode)
    with pytest.raises(ConfigError) as refused:
        read_token(path)
    assert f"mode {mode:04o}" in str(refused.value)
    assert "0123456789ab" not in str(refused.value)
    subprocess.run(refused.value.next_step.split(), check=True)
    assert read_token(path).name == "name"


def test_ssh_itself_refuses_the_same_modes(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    for mode in (0o644, 0o640, 0o604, 0o660, 0o620, 0o600, 0o400):
        key.chmod(mode)
        derived = subprocess.run(
            ["ssh-keygen", "-y", "-f", str(key)], capture_output=True, check=False
        )
        ours = True
        try:
            check_secret(key)
        except ConfigError:
            ours = False
        assert (derived.returncode == 0) is ours, oct(mode)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_token_that_only_its_owner_reads_is_taken_without_a_word(
    tmp_path: Path, mode: int
) -> None:
    path = secret(tmp_path, mode)
    with captured_logs() as logs:
        assert read_secret(path) == TOKEN.strip()
        path.write_text(f"\ufeff{TOKEN}", "utf-8")  # as Notepad writes it
        assert read_secret(path) == TOKEN.strip()
    assert logs == []


def test_about_someone_elses_that_everybody_reads_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with captured_logs() as logs:
        assert read_secret(secret(tmp_path, 0o640)) == TOKEN.strip()  # by its group, on purpose
        assert logs == []
        read_secret(secret(tmp_path, 0o644))
    (warning,) = logs
    assert warning["next_step"] == f"chmod o= {tmp_path / 'token'}"


def test_what_is_mounted_by_itself_is_up_to_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is one of a container's /proc/self/mountinfo, under Docker 28."""
    path, mounts = secret(tmp_path, 0o644), tmp_path / "mountinfo"
    line = f"612 595 8:1 /srv/secrets/proxmox_token {path} ro,relatime - ext4 /dev/sda1 rw\n"
    mounts.write_text(line, "utf-8")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr("pvebench.files.MOUNTINFO", mounts)
    with captured_logs() as logs:
        read_secret(path)
    assert logs == []


def test_a_pipe_instead_of_a_token_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_token(tmp_path / "token")


def test_the_password_of_grafana_is_held_to_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = secret(tmp_path, 0o644)
    given = ["doctor", "--state", str(tmp_path), "--grafana-password-file", str(path)]
    assert run_cli(given) == 2
    assert f"chmod 600 {path}" in capsys.readouterr().err
