"""The server under clients that connect and send nothing. Real sockets, real uvicorn."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from pvebench.cli.logs import configure_logging
from pvebench.web import connection_limits
from pvebench.web.server import WebServer, accepts_gzip, listen
from testing import http_client
from testing.connections import gone, hello
from testing.metrics_page import page_of
from testing.prometheus import free_port
from testing.simulated_site import app_of, served
from testing.simulations import simulate
from testing.stores import TemporaryStore


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(connection_limits, "REQUEST_SECONDS", 3.0)
    where = ("127.0.0.1", free_port())
    with WebServer(Starlette(routes=[Route("/", hello)]), listen(f"{where[0]}:{where[1]}")):
        yield where


def test_connections_that_ask_nothing_keep_no_one_out(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No time limit closes them, only the need for their places.
    monkeypatch.setattr(connection_limits, "REQUEST_SECONDS", 3600.0)
    idle = [socket.create_connection(address) for _ in range(200)]
    answer = http_client.get(f"http://{address[0]}:{address[1]}/", timeout=60)
    assert answer.text == "hello\n"
    # Those that wait for a place when the answer arrives replace others after it.
    deadline = time.monotonic() + 60
    while sum(not gone(one) for one in idle) > 20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for one in idle:
        one.close()


def test_a_connection_without_a_whole_request_ends_soon(address: tuple[str, int]) -> None:
    silent, dripping = (socket.create_connection(address) for _ in range(2))
    dripping.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
    deadline = time.monotonic() + 60
    while not gone(dripping):
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError):
            dripping.sendall(b"x: y\r\n")
        time.sleep(0.2)
    while not gone(silent):
        assert time.monotonic() < deadline
    silent.close()
    dripping.close()


def test_one_that_asks_again_and_again_is_kept(address: tuple[str, int]) -> None:
    with httpx2.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        begun = time.monotonic()
        while time.monotonic() - begun < 5:
            assert client.get("/", timeout=60).text == "hello\n"
            time.sleep(0.5)


def test_endless_headers_are_refused(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        sent = 0
        while sent < 10_000 and not gone(connection):
            with contextlib.suppress(OSError):
                connection.sendall(b"y: " + b"z" * 1000 + b"\r\n")
            sent += 1
    assert sent < 10_000


ACCEPTED = ("gzip", "gzip;q=0.001", "deflate, gzip;q=0.5", "*", "GZIP")
REFUSED = ("gzip;q=0", "gzip; q=0.0", "gzip;q=0, *", "gzip;q=abc")
REFUSED += ("*;q=0", "identity", "x-gzippy", "")


@pytest.mark.parametrize("header", [*ACCEPTED, *REFUSED])
def test_gzip_is_sent_where_rfc_9110_allows_it(header: str) -> None:
    """The headers are those of RFC 9110, section 12.5.3."""
    assert accepts_gzip(header) is (header in ACCEPTED)


@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_a_client_that_refuses_gzip_gets_none(tmp_path: Path, path: str) -> None:
    simulation = simulate(tmp_path)
    simulation.worker.run()
    with served(app_of(simulation, page=page_of(simulation))) as site:
        for header, encoding in (("gzip;q=0", None), ("gzip", "gzip")):
            answer = http_client.get(
                f"{site}{path}", headers={"accept-encoding": header}, timeout=60
            )
            assert answer.headers.get("content-encoding") == encoding


def test_what_a_library_logs_has_the_form_of_the_log(
    capsys: pytest.CaptureFixture[str], address: tuple[str, int]
) -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        configure_logging("warning", "json")
        with socket.create_connection(address) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            connection.recv(100)
        (line,) = capsys.readouterr().err.splitlines()
    finally:
        root.handlers, root.level = before
    assert line.startswith("{")
    assert '"event": "Invalid HTTP request received."' in line
    assert '"level": "warning"' in line


def test_only_the_owner_can_read_the_database(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.db"
    path.touch(0o644)
    TemporaryStore(path, simulated=True).begin_cycle("c", node="n", pack="p", tier="t", planned=1)
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o77 == 0, file
