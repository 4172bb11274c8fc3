"""Only names that are ours are answered to: a page elsewhere must not read through its own name."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import load_settings
from pvebench.errors import ConfigError
from pvebench.web.request_filter import Access
from pvebench.web.server import StartupApp, WebServer, listen
from testing import http_client
from testing.captured_logs import captured_logs
from testing.packs import ROOT
from testing.prometheus import free_port

OURS = [
    "127.0.0.1",
    "127.0.0.1:10620",
    "192.0.2.7:80",
    "[::1]:10620",
    "[fe80::1]",
    "localhost",
    "LOCALHOST:10620",
    "localhost.",
    "pvebench.localhost:1",
    "bench.example.org",
    "Bench.Example.org.:443",
    "listened.example.org:10620",
    socket.gethostname(),
]
FOREIGN = [
    "evil.example",
    "evil.example:10620",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evillocalhost",
    "bench.example.org.evil.example",
    "x.bench.example.org",
    "127.0.0.1@evil.example",
    "evil.example#127.0.0.1",
    "2130706433.evil.example",
    "",
    ":10620",
    "[",
    "[::1",
    "[evil.example]",
    "a/b",
    "localhost:99999999",
    "localhost evil.example",
    "x" * 5000,
]


def access() -> Access:
    return Access("listened.example.org:10620", names=["bench.example.org"])


@pytest.mark.parametrize("host", OURS)
def test_addresses_and_names_of_ours_are_answered_to(host: str) -> None:
    assert access().is_allowed(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_any_other_name_is_not(host: str) -> None:
    assert not access().is_allowed(host)


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/api/v1/status"])
def test_an_unknown_host_name_is_answered_with_the_option_and_logged_once(path: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with captured_logs() as logs, WebServer(StartupApp(), listen(address), Access(address)):
        for _ in range(3):
            answer = http_client.get(f"http://{address}{path}", headers={"host": "evil.example"})
            assert answer.status_code == 421
            assert "--host-name" in answer.text
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert ("application/json" in answer.headers["content-type"]) == ("/api" in path)
        assert http_client.get(f"http://{address}/-/healthy").status_code == 200
    (warning,) = logs
    assert (warning["host"], warning["log_level"]) == ("evil.example", "warning")


@pytest.mark.parametrize("host", ["[", "a/b", "<script>alert(1)</script>", "x" * 5000])
def test_a_host_header_of_anything_is_refused_and_not_passed_on(host: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with WebServer(StartupApp(), listen(address)):
        answer = http_client.get(f"http://{address}/", headers={"host": host})
    assert answer.status_code == 421
    assert "<script>" not in answer.text
    assert len(answer.text) < 5000


def test_a_client_of_http_1_0_that_says_no_name_is_answered() -> None:
    """As HAProxy's `option httpchk` asks; every browser says one."""
    address = ("127.0.0.1", free_port())
    with (
        WebServer(StartupApp(), listen(f"{address[0]}:{address[1]}")),
        socket.create_connection(address) as connection,
    ):
        connection.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_names_come_from_the_settings_and_from_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("host_names: [Bench.example.org]\n", "utf-8")
    assert load_settings(path).host_names == ("bench.example.org",)
    path.write_text('host_names: ["http://bench"]\n', "utf-8")
    message = r":1:14: host_names\.0: invalid host name 'http://bench': write it as bench\."
    with pytest.raises(ConfigError, match=message):
        load_settings(path)
    assert run_cli(["serve", "--state", str(tmp_path), "--host-name", "no name"]) == 2
    assert "invalid host name 'no name': write it as bench.example.org" in capsys.readouterr().err


def test_the_names_by_which_the_stack_scrapes_are_the_containers_own() -> None:
    """A container's `hostname` is what it calls itself; see socket.gethostname in Access."""
    compose = (ROOT / "compose.yaml").read_text("utf-8")
    for target in (ROOT / "prometheus" / "targets").glob("*/pvebench.yml"):
        for name in re.findall(r"([a-z-]+):\d+", target.read_text("utf-8")):
            service = re.search(rf"^  {name}:\n(?:    .*\n|\n)+", compose, flags=re.MULTILINE)
            assert service, name
            assert f"    hostname: {name}\n" in service[0]
