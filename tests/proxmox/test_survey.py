"""`pvebench setup`: from an address and a login to settings that `check` agrees with."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pve.cluster import Cluster
from pve.server import RunningApi, fingerprint, running_api
from pvebench.cli.main import cli, run_cli
from pvebench.cli.proxmox import CODE_VARIABLE, PASSWORD_VARIABLE
from pvebench.config import load_settings
from pvebench.drivers.proxmox.api.privileges import token_of
from pvebench.drivers.proxmox.proxmox_settings import section
from pvebench.drivers.proxmox.setup.survey import StorageInfo, certificate_fingerprint, names_of
from pvebench.errors import ConfigError, ServerGone
from testing.packs import ROOT

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

PAGE = b"""\
# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="user"} 1
node_cpu_seconds_total{cpu="1",mode="user"} 1
"""


@pytest.fixture
def api(tmp_path: Path, major: int, monkeypatch: Patch) -> Iterator[RunningApi]:
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    with running_api(Cluster(tmp_path / "cluster", major=major)) as found:
        yield found


@pytest.fixture
def exporter() -> Iterator[str]:
    """Serve a page of node_exporter, the same for every node."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{{node}}"
    server.shutdown()
    thread.join()
    server.server_close()


Setup = Callable[..., int]


@pytest.fixture
def setup(api: RunningApi, tmp_path: Path) -> Setup:
    """Run it as a script would: everything given, nothing asked."""

    def run(*options: str) -> int:
        given = ["--host", "127.0.0.1", "--port", str(api.port), "--yes"]
        given += ["--fingerprint", fingerprint(api.certificate), "--node-exporter", ""]
        return run_cli(["setup", "--config", str(tmp_path / "bench.yaml"), *given, *options])

    return run


def test_a_script_gets_settings_a_token_and_the_next_command(
    api: RunningApi, setup: Setup, tmp_path: Path, exporter: str, capsys: Captured
) -> None:
    assert setup("--storage", "thin", "--storage", "local", "--node-exporter", exporter) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"Next: pvebench serve --config {tmp_path / 'bench.yaml'}\n")
    assert "settings: nodes pve1, pve2, driver proxmox" in out
    assert "2 CPUs" in out
    # A node's name is written as it is, and unknown wear has its reason.
    assert "\npve1: writes to local: " in out
    assert "; drive wear unknown: no run has read it from the node's API\n" in out
    assert "type dir, drive not visible through the API; " in out
    given = section(load_settings(tmp_path / "bench.yaml"))
    assert given.nodes == ("pve1", "pve2")
    assert given.version == api.cluster.major
    assert {name: one.type for name, one in given.storages.items()} == {
        "local": "dir",
        "thin": "lvmthin",
    }
    assert given.node_exporter == exporter
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "token").read_text("ascii").startswith(f"{token_of('pvebench')}=")
    run_cli(["check", "--config", str(tmp_path / "bench.yaml")])
    checked = capsys.readouterr().out
    assert "pve1: rights: complete" in checked
    assert "pve2: storage local: dir, 100.0 GiB free\n" in checked
    assert "pve2: storage thin: lvmthin, 100.0 GiB free; not measured by any pack" in checked


@pytest.mark.parametrize(
    ("kind", "typed"), [("totp:492039", "492039"), ("recovery:a1-b2-c3", "recovery:a1-b2-c3")]
)
def test_an_admin_with_a_second_factor_types_its_code(
    api: RunningApi, setup: Setup, monkeypatch: Patch, kind: str, typed: str
) -> None:
    api.cluster.access.users["root@pam"].second_factor = kind
    monkeypatch.setenv(CODE_VARIABLE, typed)
    assert setup() == 0
    assert [call for call in api.calls if "ticket" in call] == ["POST /access/ticket"] * 2


def test_a_wrong_code_makes_nothing_and_is_not_shown(
    api: RunningApi, setup: Setup, monkeypatch: Patch, capsys: Captured
) -> None:
    api.cluster.access.users["root@pam"].second_factor = "totp:492039"
    monkeypatch.setenv(CODE_VARIABLE, "118822")
    assert setup() == 6
    said = capsys.readouterr().err
    assert "root@pam cannot log in: authentication failure" in said
    assert "118822" not in said
    assert api.cluster.access.acl == []


@pytest.mark.parametrize("status", [500, 595, 596])
def test_a_node_that_does_not_answer_is_named_and_the_others_are_used(
    api: RunningApi, setup: Setup, capsys: Captured, status: int
) -> None:
    api.faults.add("status", "GET", "/nodes/pve2/storage", times=9, status=status, text="hangs")
    assert setup() == 0
    assert re.search("pve2 +GET /nodes/pve2/storage: .*hangs, not used", capsys.readouterr().out)


def test_it_shows_what_the_cluster_has(api: RunningApi, setup: Setup, capsys: Captured) -> None:
    api.cluster.all_nodes["pve2"].stalls = True
    api.cluster.storages["thin"].content = "rootdir"
    assert setup() == 0
    out = capsys.readouterr().out
    assert f"Proxmox VE {api.cluster.get_version('')['version']}" in out
    assert "pve2             unknown, not used; run `systemctl status pvestatd` on it" in out
    assert "100.0 GiB of 200.0 GiB free" in out
    assert "no disks or ISO images" in out
    assert "apt install prometheus-node-exporter" in out


def test_a_second_run_changes_nothing(
    api: RunningApi, setup: Setup, tmp_path: Path, capsys: Captured
) -> None:
    assert setup() == 0
    before = {
        path: path.read_text("ascii") for path in (tmp_path / "bench.yaml", tmp_path / "token")
    }
    api.calls.clear()
    assert setup() == 0
    assert {path: path.read_text("ascii") for path in before} == before
    assert [call for call in api.calls if call[:3] != "GET"] == ["POST /access/ticket"]
    assert "is up to date" in capsys.readouterr().out


def test_one_that_ended_half_way_is_to_be_run_again(
    api: RunningApi, setup: Setup, capsys: Captured
) -> None:
    api.faults.add("status_after", "POST", "/pools", status=596, text="")
    assert setup() == 6
    assert capsys.readouterr().err.endswith("next step: run the command again\n")
    assert setup() == 0


def test_settings_that_say_something_else_are_not_written_over(
    api: RunningApi, setup: Setup, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "bench.yaml").write_text("driver: proxmox\n", "ascii")
    assert setup() == 3
    assert "--replace" in capsys.readouterr().err
    assert (tmp_path / "bench.yaml").read_text("ascii") == "driver: proxmox\n"
    assert api.cluster.access.acl == []
    assert setup("--replace") == 0


def test_what_is_not_there_is_refused_with_what_is(setup: Setup, capsys: Captured) -> None:
    assert setup("--storage", "fast") == 2
    assert "no disk storage fast; available: local, share, thin" in (capsys.readouterr().err)
    assert setup("--node", "pve7") == 2
    assert "pve1, pve2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", ["https://pve1", "pve1/", "pve1:8006", "root@pve1", "https://[::1]"]
)
def test_an_address_is_nothing_more_than_that(
    setup: Setup, tmp_path: Path, host: str, capsys: Captured
) -> None:
    assert setup("--host", host) == 2
    assert "not a host name or address; remove https:// and the port" in capsys.readouterr().err
    assert setup() == 0
    path = tmp_path / "bench.yaml"
    path.write_text(path.read_text("utf-8").replace('"127.0.0.1"', f'"{host}"'), "utf-8")
    with pytest.raises(ConfigError, match=r"host: .* is not a host name or address"):
        load_settings(path)


def test_a_name_that_no_one_knows_is_reported_as_that(setup: Setup, capsys: Captured) -> None:
    assert setup("--host", "no-such-host.invalid", "--fingerprint", "") in (2, 6)
    with pytest.raises(ServerGone, match="no-such-host") as found:
        certificate_fingerprint("no-such-host.invalid", 8006)
    assert "cannot resolve the name" in found.value.cause


def test_a_pack_is_found_from_any_directory(
    setup: Setup, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert setup() == 0
    (pack,) = load_settings(tmp_path / "bench.yaml").packs
    assert pack.name == "upgrade-watch.yaml"
    assert pack.exists()


def test_without_a_fingerprint_a_script_is_reported_and_no_password_is_sent(
    api: RunningApi, tmp_path: Path, capsys: Captured
) -> None:
    where = ["--host", "127.0.0.1", "--port", str(api.port), "--yes"]
    assert run_cli(["setup", "--config", str(tmp_path / "bench.yaml"), *where]) == 2
    assert "--yes requires --fingerprint or --ca-file" in capsys.readouterr().err
    assert api.calls == []


def test_enter_answers_a_question_with_the_default(api: RunningApi, tmp_path: Path) -> None:
    answers = ["", "127.0.0.1", "yes", "", "", "", ""]
    arguments = ["setup", "--config", str(tmp_path / "bench.yaml"), "--port", str(api.port)]
    done = CliRunner().invoke(
        cli, [*arguments, "--node-exporter", ""], input="\n".join(answers) + "\n"
    )
    assert done.exit_code == 0, done.output
    assert fingerprint(api.certificate) in done.output
    assert section(load_settings(tmp_path / "bench.yaml")).tls.fingerprint == (
        fingerprint(api.certificate)
    )


def test_the_docs_show_every_question(api: RunningApi, tmp_path: Path, monkeypatch: Patch) -> None:
    asked: list[str] = []

    def recorded(ask: Callable[..., object]) -> Callable[..., object]:
        def ask_again(question: str, **options: object) -> object:
            asked.append(question)
            return ask(question, **options)

        return ask_again

    for name in ("prompt", "confirm"):
        monkeypatch.setattr(click, name, recorded(getattr(click, name)))
    monkeypatch.chdir(tmp_path)
    arguments = ["setup", "proxmox", "--config", "pvebench.yaml", "--port", str(api.port)]
    answers = "127.0.0.1\nyes\n\n\n\n\n"
    done = CliRunner().invoke(cli, [*arguments, "--node-exporter", ""], input=answers)
    assert done.exit_code == 0, done.output
    page = (ROOT / "docs" / "proxmox.md").read_text("utf-8")
    assert len(asked) == 6
    assert [question for question in asked if question not in page] == []


def test_a_fingerprint_that_is_not_the_nodes_ends_it_before_the_password(
    api: RunningApi, tmp_path: Path
) -> None:
    arguments = ["setup", "--config", str(tmp_path / "bench.yaml"), "--port", str(api.port)]
    done = CliRunner().invoke(cli, arguments, input="proxmox\n127.0.0.1\nno\n")
    assert done.exit_code == 1
    assert api.calls == []
    assert not (tmp_path / "bench.yaml").exists()


def found(name: str) -> StorageInfo:
    return StorageInfo(name, "lvmthin", frozenset({"images"}), False, 1, 2, ["pve1"])


def test_where_none_is_called_local_the_first_is_so_that_every_pack_runs() -> None:
    fast, slow = found("local-lvm"), found("Slow.Disks")
    assert names_of([fast, slow]) == {"local": fast, "Slow-Disks": slow}
    assert list(names_of([found("local"), fast])) == ["local", "local-lvm"]
