"""Scrapes among clients that read slowly or never end their handshake, and invalid bodies."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bcrypt
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pvebench.web.request_filter import Access
from pvebench.web.server import MAX_QUEUED, WebServer, listen
from testing.certificates import make_certificate
from testing.connections import gone, hello
from testing.prometheus import free_port

MAX_CONNECTIONS, RESERVED_CONNECTIONS = 128, 16  # as docs/security.md states
SLOW = 150
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
LOGIN = ("prometheus", "right")
REQUEST = (
    b"GET /large HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic "
    + b64encode(":".join(LOGIN).encode())
    + b"\r\n\r\n"
)


def large(_: object) -> PlainTextResponse:
    return PlainTextResponse("x" * 1_000_000)


released, entered = threading.Event(), threading.Event()
"""The first ends all responses of `endless` and `busy`; the second is set in `busy`."""


async def endless(_: object) -> PlainTextResponse:
    while not released.is_set():  # noqa: ASYNC110 # set by another thread
        await asyncio.sleep(0.05)
    return PlainTextResponse("done")


async def busy(_: object) -> PlainTextResponse:
    entered.set()
    released.wait()
    return PlainTextResponse("done")


class Served:
    """A server, with TLS and a user or without.

    Attributes:
        trust: TLS context of clients; None: plain HTTP.
    """

    def __init__(self, directory: Path, *, tls: bool, scrapers: tuple[str, ...] = ()) -> None:
        self.trust = None
        file = None
        if tls:
            own = make_certificate(directory, "own")
            make_certificate(directory, "server", by=own)
            file = directory / "web.yml"
            file.write_text(
                "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"
                f"basic_auth_users: {{prometheus: {HASH}}}\n"
            )
            file.chmod(0o600)
            self.trust = ssl.create_default_context(cafile=str(own.certificate))
        self.address = ("127.0.0.1", free_port())
        listener = listen(f"127.0.0.1:{self.address[1]}")
        access = Access("127.0.0.1:1", file=file, scrapers=scrapers)
        routes = [
            Route("/metrics", hello),
            Route("/endless", endless),
            Route("/busy", busy),
            Route("/large", large, methods=["GET", "POST"]),
        ]
        self.web = WebServer(Starlette(routes=routes), listener, access)
        self.url = f"{access.scheme}://127.0.0.1:{self.address[1]}/metrics"

    def count(self) -> int:
        """Return the number of connections of the server."""
        return len(self.web._server.server_state.connections)

    def computing(self) -> int:
        """Return the number of connections whose client waits for a response."""
        connections = list(self.web._server.server_state.connections)
        return sum(not connection.slow_seconds for connection in connections)

    def scrape(self) -> float:
        """Return the seconds of a scrape on a new connection."""
        with httpx2.Client(verify=self.trust or False, auth=LOGIN) as client:
            begun = time.monotonic()
            assert client.get(self.url, timeout=30).text == "hello\n"
            return time.monotonic() - begun

    def slow_reader(self) -> socket.socket:
        """Send requests until the server reads no more, and read nothing."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(self.address)
        if self.trust is not None:
            connection = self.trust.wrap_socket(connection, server_hostname="localhost")
        connection.settimeout(0.01)
        with contextlib.suppress(OSError):
            connection.sendall(REQUEST * 100)
        return connection

    def half_handshake(self) -> socket.socket:
        """Begin a handshake, or a request, and leave it there."""
        connection = socket.create_connection(self.address, timeout=30)
        connection.sendall(b"\x16\x03\x01\x02\x00" if self.trust else REQUEST[:20])
        return connection


SCRAPE_SECONDS = 1.0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_scrape_succeeds_among_slow_readers_and_half_done_handshakes(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvebench.web.connection_limits.REQUEST_SECONDS", 3600.0)
    site = Served(tmp_path, tls=tls)
    with site.web, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(site.slow_reader()) for _ in range(SLOW)]
        slow += [stack.enter_context(site.half_handshake()) for _ in range(SLOW)]
        taken = [site.scrape() for _ in range(10)]
        assert MAX_CONNECTIONS / 2 < site.count() <= MAX_CONNECTIONS  # the attack lasts
    # A loaded machine delays single scrapes; a server without a free place delays or refuses all.
    assert sorted(taken)[len(taken) // 2] < SCRAPE_SECONDS
    assert max(taken) < 10 * SCRAPE_SECONDS  # Prometheus' default timeout


@pytest.mark.parametrize("host", [b"localhost", b"foreign.example"])
def test_an_invalid_body_logs_no_traceback(
    tmp_path: Path, host: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    site = Served(tmp_path, tls=False)
    head = b"POST /large HTTP/1.1\r\nHost: " + host + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    with site.web:
        for parts in ([head, b"no chunk\r\n"], [head + b"no chunk\r\n"]):
            with socket.create_connection(site.address, timeout=30) as connection:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(0.1)  # either order of response and error is valid
                with contextlib.suppress(ConnectionError):
                    assert connection.recv(12).startswith(b"HTTP/1.1 ")
        site.scrape()
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []
    assert not [one for one in caplog.records if one.exc_info]


def test_other_clients_leave_reserved_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Served(tmp_path, tls=False, scrapers=("192.0.2.0/24",))
    with site.web:
        site.scrape()
        monkeypatch.setattr(Access, "is_scraper", lambda *_: False)
        slow = [site.half_handshake() for _ in range(SLOW)]
        site.scrape()
        assert site.count() <= MAX_CONNECTIONS - RESERVED_CONNECTIONS
        for one in slow:
            one.close()


def test_a_scrape_has_a_place_while_other_clients_are_closed_for_lack_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Served(tmp_path, tls=False)
    released.clear()
    with site.web, contextlib.ExitStack() as stack:
        stack.callback(released.set)
        monkeypatch.setattr(Access, "is_scraper", lambda *_: False)
        for count in range(1, MAX_CONNECTIONS - RESERVED_CONNECTIONS + 1):
            client = stack.enter_context(socket.create_connection(site.address, timeout=30))
            client.sendall(REQUEST.replace(b"/large", b"/endless"))
            while site.computing() < count:
                time.sleep(0.01)
        refused = stack.enter_context(socket.create_connection(site.address, timeout=30))
        while not gone(refused):
            time.sleep(0.01)
        monkeypatch.setattr(Access, "is_scraper", lambda *_: True)
        assert site.scrape() < 10 * SCRAPE_SECONDS


def test_a_burst_while_the_server_computes_takes_few_file_descriptors(tmp_path: Path) -> None:
    site = Served(tmp_path, tls=False)
    released.clear()
    with site.web, contextlib.ExitStack() as stack:
        stack.callback(released.set)
        first = stack.enter_context(socket.create_connection(site.address, timeout=30))
        first.sendall(REQUEST.replace(b"/large", b"/busy"))
        assert entered.wait(30)
        clients = [stack.enter_context(socket.socket()) for _ in range(6 * MAX_QUEUED)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(site.address)
        assert len(select.select([], clients, [], 0)[1]) <= 2 * MAX_QUEUED
        released.set()
        site.scrape()


def test_the_pulse_of_the_watchdog_does_not_stop_when_the_clock_is_set_back(tmp_path: Path) -> None:
    web = Served(tmp_path, tls=False).web
    # In a thread: a browser of other tests has an event loop in this one.
    with web._socket, ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            thread.submit(lambda: asyncio.run(web._server.on_tick(0))).result()
            web._server.last_notified += 3600
    assert web.turns == 2


def test_loopback_and_scrape_addresses_are_scrapers() -> None:
    access = Access(scrapers=("192.0.2.0/24", "2001:db8::7"))
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.9", "::ffff:192.0.2.9"):
        assert access.is_scraper(address), address
    for address in ("198.51.100.1", "2001:db8::8", "fe80::1%eth0"):
        assert not access.is_scraper(address), address
