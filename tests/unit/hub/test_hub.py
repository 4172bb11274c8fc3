"""`pvebench hub` with a real database."""

from __future__ import annotations

import json

import psycopg
import pytest

from pvebench.cli.main import run_cli
from pvebench_fleet.hub.store.database import HubDatabase


def test_migrating_again_changes_nothing(login: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["hub", "migrate", "--database", login]) == 0
    assert capsys.readouterr().out == "schema 1\n"
    with psycopg.connect(login) as connection:
        connection.execute("UPDATE schema_version SET version = 2")
    assert run_cli(["hub", "migrate", "--database", login]) == 3
    assert "has schema 2, this pvebench has 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_an_invalid_url_is_not_shown_with_its_password(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["hub", command, "--database", "postgresql+psycopg://me:secret@host/db"]) == 3
    assert "secret" not in capsys.readouterr().err


def test_a_site_is_added_held_continued_and_forgotten(
    login: str, hub: HubDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    def sites(*words: str) -> tuple[int, str]:
        code = run_cli(["hub", "sites", words[0], "--database", login, *words[1:]])
        return code, capsys.readouterr().out

    assert "no sites" in sites("list")[1]
    code, token = sites("add", "vienna")
    assert (code, len(token.strip())) == (0, 64)
    assert hub.site_of(token.strip()) == "vienna"
    with psycopg.connect(login) as connection:  # only a digest is stored
        stored = connection.execute("SELECT sha256 FROM token").fetchone()
        assert stored is not None
        assert token.strip().encode() not in stored[0]
    assert "vienna  active  never seen  0 runs received" in sites("list")[1]
    assert sites("hold", "vienna")[0] == 0
    assert json.loads(sites("list", "--format", "json")[1])[0]["state"] == "held"
    assert sites("hold", "vienna", "--keep", "0" * 16)[0] == 2
    assert "would be deleted" in sites("forget", "vienna")[1]
    assert "0 runs of vienna deleted" in sites("forget", "vienna", "--apply")[1]
    assert sites("add", "Not A Name")[0] == 2
    assert sites("hold", "unknown")[0] == 1


def test_a_data_directory_that_is_not_there_is_refused_at_the_start(
    login: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--database", login, "--data-directory", "/nonexistent"]
    assert run_cli(["hub", "serve", *options]) == 2
    assert "'/nonexistent' does not exist" in capsys.readouterr().err
