"""TLS and users at the door: real certificates, curl, Python's TLS client, real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bcrypt
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pvebench.web import connection_limits, request_filter
from pvebench.web.request_filter import Access
from pvebench.web.server import WebServer, listen
from testing import http_client
from testing.captured_logs import captured_logs
from testing.certificates import Certificate, make_certificate
from testing.connections import hello
from testing.packs import ROOT
from testing.prometheus import free_port

TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"
CLIENTS = (
    "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: own.crt, "
    "client_auth_type: RequireAndVerifyClientCert}\n"
)
PASSWORDS = {"alice": "right", "bob": "also right"}


def large(_: object) -> PlainTextResponse:
    return PlainTextResponse("x" * 5_000_000)


class Door:
    """A served page behind a web configuration file."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.own = make_certificate(directory, "own")
        self.server = make_certificate(directory, "server", by=self.own)
        self.file = directory / "web.yml"
        self.write(text)
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        self.access = Access(address, file=self.file)
        self.address = f"{self.access.scheme}://{address}"
        routes = [Route("/", hello), Route("/-/healthy", hello), Route("/large", large)]
        self.web = WebServer(Starlette(routes=routes), listen(address), self.access)

    def write(self, text: str) -> None:
        """Replace the file, as careful programs do."""
        new = self.directory / "web.new"
        new.write_text(text, "utf-8")
        new.chmod(0o600)
        new.rename(self.file)

    def curl(self, *options: str, path: str = "/") -> subprocess.CompletedProcess[str]:
        command = ["curl", "-sS", "--max-time", "60", "--cacert", str(self.own.certificate)]
        command += [*options, "-w", "%{http_code}", "-o", os.devnull, self.address + path]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def context(self, client: Certificate | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.own.certificate))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context


Start = Callable[[str], Door]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def make(text: str) -> Door:
            made = Door(tmp_path, text)
            stack.enter_context(made.web)
            return made

        yield make


def users(passwords: Mapping[str, str] = PASSWORDS) -> str:
    hashes = {
        name: bcrypt.hashpw(text.encode(), bcrypt.gensalt(4)).decode()
        for name, text in passwords.items()
    }
    return "basic_auth_users:\n" + "".join(f"  {name}: {h}\n" for name, h in hashes.items())


class Counted:
    """bcrypt, with what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashes: list[bytes] = []
        real = bcrypt.checkpw

        def checkpw(password: bytes, hashed: bytes) -> bool:
            self.hashes.append(hashed)
            return real(password, hashed)

        monkeypatch.setattr(request_filter.bcrypt, "checkpw", checkpw)


def test_curl_gets_the_page_over_tls_and_nothing_without(start: Start) -> None:
    here = start(TLS)
    assert here.address.startswith("https://")
    assert here.curl().stdout == "200"
    plain = subprocess.run(
        ["curl", "-sS", f"http://127.0.0.1:{here.port}/"], capture_output=True, check=False
    )
    assert (plain.returncode == 0, plain.stdout) == (False, b"")


def test_what_is_large_arrives_whole_and_connections_are_used_again(start: Start) -> None:
    here = start(TLS)
    with httpx2.Client(verify=here.context(), base_url=here.address) as client:
        for _ in range(3):
            assert len(client.get("/large", timeout=60).content) == 5_000_000
            assert client.get("/", timeout=60).text == "hello\n"


def test_a_request_in_the_same_packet_as_the_end_of_the_handshake_is_answered_in_tls(
    start: Start,
) -> None:
    here = start(TLS)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = here.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", here.port), timeout=60) as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        tls.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        connection.sendall(outgoing.read())  # the client's Finished, and the request
        answer = b""
        while b"hello" not in answer:
            incoming.write(connection.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += tls.read()
    assert answer.startswith(b"HTTP/1.1 200")


def test_old_versions_and_other_suites_find_no_way_in(start: Start) -> None:
    here = start(
        TLS.replace(
            "}", ", max_version: TLS12, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]}"
        )
    )
    assert here.curl().stdout == "200"
    for option in (
        ["--tlsv1.3"],
        ["--tls-max", "1.1"],
        ["--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"],
    ):
        assert here.curl(*option).returncode == 35, option  # CURLE_SSL_CONNECT_ERROR
    with socket.create_connection(("127.0.0.1", here.port)) as plain:
        context = here.context()
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            assert secured.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)


def test_only_certificates_of_the_authority_come_in_where_they_are_required(start: Start) -> None:
    here = start(CLIENTS)
    ours = make_certificate(here.directory, "client", by=here.own)
    foreign = make_certificate(here.directory, "foreign")
    assert here.curl("--cert", str(ours.certificate), "--key", str(ours.key)).stdout == "200"
    for options in ((), ("--cert", str(foreign.certificate), "--key", str(foreign.key))):
        refused = here.curl(*options)
        assert refused.returncode != 0
        assert refused.stdout == "000"


def test_a_renewed_certificate_is_used_without_a_restart(start: Start) -> None:
    here = start(TLS)

    def serial() -> int:
        pem = ssl.get_server_certificate(("127.0.0.1", here.port))
        shown = ["openssl", "x509", "-noout", "-serial"]
        text = subprocess.run(shown, input=pem, capture_output=True, text=True, check=True).stdout
        return int(text.strip().removeprefix("serial="), 16)

    first = serial()
    with httpx2.Client(verify=here.context(), base_url=here.address) as kept:
        assert kept.get("/").status_code == 200
        make_certificate(here.directory, "server", by=here.own)
        assert serial() != first
        assert kept.get("/").status_code == 200  # the connection that was there goes on


def test_a_half_renewed_pair_leaves_the_old_one_in_effect(start: Start) -> None:
    here = start(TLS)
    new = make_certificate(here.directory, "new", by=here.own)
    with captured_logs() as logs:
        new.certificate.rename(here.server.certificate)
        assert [here.curl().stdout for _ in range(3)] == ["200"] * 3
        assert sum("is not the key of" in str(line.get("reason")) for line in logs) == 1
        new.key.rename(here.server.key)
        assert here.curl().stdout == "200"
    assert logs[-1]["event"] == "web configuration reloaded"


def test_users_come_and_go_without_a_restart_but_tls_does_not(start: Start) -> None:
    here = start(TLS + users())
    assert here.curl("-u", "alice:right").stdout == "200"
    here.write(TLS + users({"alice": "changed"}))
    assert here.curl("-u", "alice:right").stdout == "401"
    assert here.curl("-u", "bob:also right").stdout == "401"
    assert here.curl("-u", "alice:changed").stdout == "200"
    for broken in ("", "basic_auth_users: {}\n", "tls_server_config: {", TLS):
        with captured_logs() as logs:
            here.write(broken)
            here.curl()
        assert [line["event"] for line in logs] == ["web configuration reload failed"], broken
        assert here.curl().stdout == "401", broken
        assert here.curl("-u", "alice:changed").stdout == "200"


def test_an_explicit_empty_list_of_users_removes_the_login(start: Start) -> None:
    here = start(users())
    here.write("http_server_config: {}\n")
    assert here.curl().stdout == "401"
    here.write("basic_auth_users: {}\n")
    assert here.curl().stdout == "200"


def test_a_file_without_its_client_certificates_is_not_loaded(start: Start) -> None:
    here = start(CLIENTS)
    here.write(TLS)
    assert here.curl().stdout == "000"
    here.write(TLS.replace("}", ", client_auth_type: NoClientCert}"))
    assert here.curl().stdout == "200"


@pytest.mark.parametrize("path", ["/", "/-/healthy", "/metrics", "/nothing", "/api/v1/status"])
def test_everything_is_behind_the_login(start: Start, path: str) -> None:
    here = start(users())
    assert here.curl(path=path).stdout == "401"
    assert here.curl("-u", "alice:right", path="/").stdout == "200"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !!!",
        "Bearer abc",
        f"Basic {b64encode(b'alice').decode()}",
        f"Basic {b64encode(b'alice:').decode()}",
        f"Basic {b64encode(b':right').decode()}",
        f"Basic {b64encode(b'alice:wrong').decode()}",
        f"Basic {b64encode(b'alice:right ').decode()}",
        f"Basic {b64encode(b'Alice:right').decode()}",
        f"Basic {b64encode(b'bob:right').decode()}",
        f"Basic {b64encode(b'carol:right').decode()}",
        f"Basic {b64encode(b'alice:right' + bytes(1)).decode()}",
        f"Basic {b64encode(bytes([255]) + b':right').decode()}",
        f"Basic {b64encode(b'alice:' + b'x' * 9000).decode()}",
    ],
)
def test_what_is_no_right_login_is_a_401_that_says_how(start: Start, header: str) -> None:
    here = start(users())
    for _ in range(2):  # the second time nothing is remembered that lets it in
        answer = http_client.get(here.address, headers={"authorization": header}, timeout=60)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="pvebench", charset="UTF-8"'
        assert "hello" not in answer.text


def test_hashes_that_htpasswd_made_fit(start: Start) -> None:
    lines = [
        subprocess.run(
            ["htpasswd", "-nbB", "-C", str(cost), name, password],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for name, password, cost in (("alice", "right", 5), ("bob", "schön & gut", 10))
    ]
    assert all(":$2y$" in line for line in lines)
    here = start("basic_auth_users:\n" + "".join(f"  {x.replace(':', ': ')}\n" for x in lines))
    assert here.curl("-u", "alice:right").stdout == "200"
    assert here.curl("-u", "bob:schön & gut").stdout == "200"
    assert here.curl("-u", "alice:schön & gut").stdout == "401"


def test_a_right_login_is_looked_at_once_and_a_wrong_one_each_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, asked = start(users()), Counted(monkeypatch)
    for _ in range(5):
        assert http_client.get(here.address, auth=("alice", "right")).status_code == 200
    assert len(asked.hashes) == 1
    for _ in range(3):
        assert http_client.get(here.address, auth=("alice", "wrong")).status_code == 401
    assert len(asked.hashes) == 4


def test_a_name_that_is_nobodys_costs_a_look_at_somebodys_hash(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, asked = start(users()), Counted(monkeypatch)
    known = set(here.access.now().users.values())
    for number in range(40):
        for _ in range(2):
            name = f"nobody{number}"
            assert http_client.get(here.address, auth=(name, "right")).status_code == 401
    assert set(asked.hashes) == known
    assert len(asked.hashes) == 80
    assert asked.hashes[0::2] == asked.hashes[1::2]  # the same name, the same hash


def test_long_passwords_are_what_htpasswd_makes_of_them(start: Start) -> None:
    here = start(users({"alice": "p" * 72}))
    assert http_client.get(here.address, auth=("alice", "p" * 72)).status_code == 200
    assert http_client.get(here.address, auth=("alice", "p" * 90)).status_code == 200
    assert http_client.get(here.address, auth=("alice", "p" * 71)).status_code == 401


def test_a_flood_of_logins_keeps_no_one_out_who_has_been_in(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(users())
    assert http_client.get(here.address, auth=("alice", "right")).status_code == 200
    begun: list[int] = []

    def slow(*_: object) -> bool:
        begun.append(1)
        time.sleep(0.5)
        return False

    monkeypatch.setattr(request_filter.bcrypt, "checkpw", slow)
    login = b64encode(b"alice:wrong").decode()
    request = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n\r\n".encode()
    flood = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(100)]
    for one in flood:
        one.sendall(request)
    assert http_client.get(here.address, auth=("alice", "right"), timeout=60).status_code == 200
    for one in flood:
        one.settimeout(60)
    status = [one.recv(12)[9:12] for one in flood]
    assert set(status) == {b"401", b"429"}
    assert len(begun) == status.count(b"401") <= 2 * request_filter.MAX_WAITING
    for one in flood:
        one.close()


def test_the_rate_is_limited_as_the_file_says(start: Start) -> None:
    here = start("rate_limit: {interval: 1h, burst: 3}\n")
    answers = [http_client.get(here.address) for _ in range(5)]
    assert [one.status_code for one in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].headers["retry-after"] == "3600"


def test_the_headers_of_the_file_are_on_every_answer_over_ours(start: Start) -> None:
    here = start(
        "http_server_config: {headers: {X-Frame-Options: deny, "
        "Content-Security-Policy: default-src 'self', Strict-Transport-Security: max-age=1}}\n"
        + users()
    )
    for answer in (
        http_client.get(here.address, auth=("alice", "right")),
        http_client.get(here.address),
    ):
        assert answer.headers["x-frame-options"] == "deny"
        assert answer.headers["content-security-policy"] == "default-src 'self'"
        assert answer.headers["strict-transport-security"] == "max-age=1"
        assert answer.headers["x-content-type-options"] == "nosniff"  # ours, as ever


@pytest.mark.parametrize("text", [users(), TLS, CLIENTS, "http_server_config: {}\n"])
def test_the_containers_health_check_sees_life_whatever_the_file_says(
    start: Start, text: str
) -> None:
    here = start(text)
    check = [sys.executable, str(ROOT / "exporter" / "healthcheck.py")]
    assert subprocess.run([*check, str(here.port)], check=False).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as hung:  # the kernel takes the connection
        assert subprocess.run([*check, str(hung.getsockname()[1])], check=False).returncode == 1
    assert subprocess.run([*check, str(free_port())], check=False).returncode == 1


def test_connections_that_never_end_their_handshake_end_soon(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "REQUEST_SECONDS", 3.0)
    here = start(TLS)
    idle = socket.create_connection(("127.0.0.1", here.port), timeout=30)
    with idle, contextlib.suppress(ConnectionResetError):
        assert idle.recv(1) == b""  # asyncio itself would give it a minute
    assert here.curl().stdout == "200"


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff", b"\0"])
def test_a_connection_without_tls_ends_and_harms_no_other(
    start: Start, sent: bytes, caplog: Any
) -> None:
    here = start(TLS)
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in connection.recv(1000)
    assert here.curl().stdout == "200"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
