"""`pvebench grafana push`, against a stand-in that answers as Grafana's documentation says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pvebench.cli.main import run_cli
from pvebench.errors import ConfigError
from pvebench.provision import grafana as client
from pvebench.provision.grafana import FOLDER_UID, MARK, UIDS, Grafana, shipped_dashboards
from testing.grafana import TOKEN, StandInGrafana, standing_in

OURS = {one["uid"] for one in shipped_dashboards().values()}
Push = Callable[..., int]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def there() -> Iterator[StandInGrafana]:
    with standing_in() as grafana:
        yield grafana


@pytest.fixture
def push(there: StandInGrafana, tmp_path: Path) -> Push:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n", "utf-8")
    token.chmod(0o600)

    def run(*options: str, url: str = "") -> int:
        where = ["--url", url or there.url, "--token-file", str(token)]
        return run_cli(["grafana", "push", *where, *options])

    return run


def obsolete(uid: str = "pvebench-obsolete") -> dict[str, object]:
    return {"uid": uid, "title": "Old", "tags": ["pvebench", MARK]}


def test_own_uids_are_distinguished_by_their_beginning() -> None:
    assert all(uid.startswith(UIDS) for uid in OURS)


def test_a_push_makes_folder_and_dashboards_on_the_only_prometheus(
    there: StandInGrafana, push: Push
) -> None:
    assert push() == 0
    assert there.folders == {FOLDER_UID: "Storage benchmark"}
    assert there.dashboards.keys() == OURS
    text = json.dumps(there.dashboards)
    assert "pvebench-prometheus" not in text
    assert '"uid": "prom1"' in text
    variables = there.dashboards["pvebench-overview"]["templating"]["list"]
    assert variables[0]["current"] == {"text": "Metrics", "value": "prom1"}
    assert all(MARK in one["tags"] for one in there.dashboards.values())


def test_a_second_push_changes_nothing(there: StandInGrafana, push: Push, capsys: Captured) -> None:
    assert push() == 0
    there.changes.clear()
    assert push() == 0
    assert there.changes == []
    assert capsys.readouterr().out.count("unchanged") == len(OURS)


def test_what_someone_changed_since_becomes_ours_again(there: StandInGrafana, push: Push) -> None:
    assert push() == 0
    there.changes.clear()
    there.dashboards["pvebench-wall"]["title"] = "Mine"
    there.meta["pvebench-case"]["folderUid"] = "elsewhere"
    assert push() == 0
    assert sorted(there.changes) == ["save pvebench-case", "save pvebench-wall"]
    assert there.dashboards["pvebench-wall"]["title"] != "Mine"


def test_what_is_no_longer_shipped_goes_and_only_that(there: StandInGrafana, push: Push) -> None:
    assert push() == 0
    there.add(obsolete(), FOLDER_UID)
    there.add(obsolete("a-copy-with-its-tags"), FOLDER_UID)
    there.add(obsolete("pvebench-moved-away"), "elsewhere")
    there.add(obsolete("pvebench-of-a-file"), FOLDER_UID, provisioned=True)
    there.add({**obsolete("pvebench-without-mark"), "tags": ["pvebench"]}, FOLDER_UID)
    there.changes.clear()
    assert push() == 0
    assert there.changes == ["delete pvebench-obsolete"]


def test_a_search_that_is_behind_removes_nothing(
    there: StandInGrafana, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push() == 0
    there.add({**obsolete(), "tags": []}, FOLDER_UID)
    there.add(obsolete("pvebench-moved"), "elsewhere")
    found = [{"uid": f"pvebench-{name}"} for name in ("obsolete", "gone", "moved")]
    monkeypatch.setattr(there, "_search", lambda _: found)
    there.changes.clear()
    assert push() == 0
    assert there.changes == []


@pytest.mark.parametrize("provisioned", [True, False])
def test_a_dashboard_of_someone_else_stops_it_before_anything_changes(
    there: StandInGrafana, push: Push, capsys: Captured, provisioned: bool
) -> None:
    tags = ["pvebench", MARK] if provisioned else ["pvebench"]
    there.add({"uid": "pvebench-wall", "title": "x", "tags": tags}, provisioned=provisioned)
    assert push() == 6
    assert "pvebench-wall; nothing was changed" in capsys.readouterr().err
    assert there.changes == []


def test_a_folder_that_was_renamed_keeps_its_name(there: StandInGrafana, push: Push) -> None:
    there.folders[FOLDER_UID] = "Disks"
    assert push("--folder", "Something else") == 0
    assert there.folders == {FOLDER_UID: "Disks"}


def test_several_prometheus_are_asked_about(
    there: StandInGrafana, push: Push, capsys: Captured
) -> None:
    there.sources.append({"uid": "prom2", "name": "Long term", "type": "prometheus"})
    assert push() == 3
    assert "Metrics (prom1), Long term (prom2)" in capsys.readouterr().err
    assert there.changes == []
    assert push("--datasource", "Long term") == 0
    assert '"uid": "prom2"' in json.dumps(there.dashboards)
    assert push("--datasource", "Logs") == 3  # no Prometheus


def test_who_changes_it_meanwhile_wins(
    there: StandInGrafana, push: Push, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push() == 0
    there.dashboards["pvebench-wall"]["title"] = "Mine"
    save = there._save

    def meanwhile(body: dict[str, Any]) -> tuple[int, object]:
        there.dashboards["pvebench-wall"]["version"] += 1
        return save(body)

    monkeypatch.setattr(there, "_save", meanwhile)
    assert push() == 3
    assert "412" in capsys.readouterr().err
    assert there.dashboards["pvebench-wall"]["title"] == "Mine"


@pytest.mark.parametrize(
    "raw",
    [
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, b"null"),
        (200, b'{"uid": 1}'),
        (200, b"[[1]]"),
        (401, json.dumps({"message": f"bad {TOKEN} \x1b[31m" + "x" * 9999}).encode()),
        (500, b"\xff\x00 " + TOKEN.encode()),
        (302, b"http://127.0.0.1:9/elsewhere"),
        (404, b"{}"),
        (403, b'["message"]'),
    ],
)
def test_odd_answers_are_one_short_error_without_the_token(
    there: StandInGrafana, push: Push, capsys: Captured, raw: tuple[int, bytes]
) -> None:
    there.raw = raw
    assert push() == 3
    captured = capsys.readouterr()
    assert TOKEN not in captured.out + captured.err
    assert "\x1b" not in captured.err
    assert len(captured.err) < 900


@pytest.mark.parametrize(
    ("status", "text", "step"),
    [
        (
            403,
            """{"accessErrorId":"ACE0201258609","message":"You'll need additional permissions to """
            """perform this action. Permissions needed: folders:read","title":"Access denied"}""",
            "Permissions needed: folders:read\n  likely cause: missing permission of the token's "
            "service account\n  next step: give it the role Admin",
        ),
        (
            401,
            """{"extra":null,"message":"Invalid API key","messageId":"api-key.invalid","""
            """"statusCode":401,"traceID":""}""",
            "Invalid API key\n  likely cause: unknown or expired token",
        ),
    ],
)
def test_what_a_token_may_not_do_is_reported_with_what_it_needs(
    there: StandInGrafana, push: Push, capsys: Captured, status: int, text: str, step: str
) -> None:
    """As Grafana 12.4.0 answered: a service account of role Editor may read no absent folder."""
    there.raw = (status, text.encode())
    assert push() == 3
    assert step in capsys.readouterr().err


def test_an_answer_without_end_is_broken_off(
    there: StandInGrafana, push: Push, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_BYTES", 100_000)
    there.raw = (200, b"x" * 300_000)
    assert push() == 3
    complaint = "GET /api/datasources: response exceeds 97.7 KiB or 60 s"
    assert complaint in capsys.readouterr().err


def test_a_redirect_gets_no_token(there: StandInGrafana, push: Push) -> None:
    with standing_in() as other:
        seen: list[str] = []
        other.answer = lambda *asked: (seen.append(str(asked)), (200, []))[1]  # type: ignore[method-assign] # a stand-in
        there.raw = (302, f"{other.url}/api/datasources".encode())
        assert push() == 3
        assert seen == []


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x", "grafana", "http://", "https://u:p@x", "http://x?q=1",
     "http://x:99999", "http://x y", "http://[::1", "http://x\n/y"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Grafana(url, TOKEN)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Evil: 1", "ümlaut", "a\0b"])
def test_what_is_no_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ConfigError) as found:
        Grafana("http://x", token)
    assert "Evil" not in str(found.value)


def test_a_token_that_others_can_read_is_refused(
    there: StandInGrafana, push: Push, tmp_path: Path
) -> None:
    (tmp_path / "token").chmod(0o644)
    assert push() == 2
    assert there.changes == []


def test_an_unknown_certificate_gets_no_token(
    push: Push, there: StandInGrafana, capsys: Captured
) -> None:
    assert push(url=there.url.replace("http:", "https:")) == 3
    assert "does not respond" in capsys.readouterr().err
    assert there.changes == []


def test_an_authority_file_that_is_none_is_reported(push: Push, tmp_path: Path) -> None:
    assert push("--ca-file", str(tmp_path / "none.pem")) == 2
    (tmp_path / "none.pem").write_text("no certificate", "utf-8")
    assert push("--ca-file", str(tmp_path / "none.pem")) == 2
