"""Every client of ours, at a server with a certificate by an authority as openssl makes it.

Such an authority has no key usage, like the one that Proxmox VE makes for a cluster
(`gencacert` in PVE/Cluster/Setup.pm). Contexts of Python 3.13 reject it by default. Without TLS, a
program in the network can pretend to be any server: each reader ends in time with its own error.
"""

from __future__ import annotations

import http.server
import itertools
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from pvebench.diagnostics import pipeline
from pvebench.diagnostics.pipeline import fetch
from pvebench.drivers.linux import node_exporter
from pvebench.errors import MachineError, PipelineError, PvebenchError
from pvebench.notify.delivery import send
from pvebench.provision import grafana
from pvebench.provision.grafana import Grafana
from pvebench_fleet import HubUnreachable
from pvebench_fleet import push as fleet
from pvebench_fleet.push import HubAddress
from pvebench_fleet.wire import Answer, read_message
from testing.certificates import make_certificate
from testing.prometheus import free_port


class Api(http.server.BaseHTTPRequestHandler):
    """Answers an empty object to everything."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815 # http.server calls it by this name

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def web_server(tls: ssl.SSLContext) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # a rejected one
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class Mailbox:
    async def handle_DATA(self, *_: object) -> str:  # noqa: N802 # aiosmtpd calls it by this name
        return "250 taken"


@contextmanager
def mail_server(**options: Any) -> Iterator[int]:
    controller = Controller(Mailbox(), hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


Authority = Path
"""Certificate of an authority, for clients with an option; the others are set by variables."""


def ask_hub(host: str, port: int, authority: Authority) -> str:
    token = authority.with_name("token")
    token.write_text("token", "utf-8")
    token.chmod(0o600)
    hub = HubAddress(url=f"https://{host}:{port}", token_file=token, ca_file=authority)
    try:
        return hub.send("GET", "x", b"").content.decode()
    except HubUnreachable as error:
        return error.happened


def ask_grafana(host: str, port: int, authority: Authority) -> str:
    try:
        return str(Grafana(f"https://{host}:{port}", "token", authority).get("/api/x"))
    except PipelineError as error:
        return error.happened


def ask_exporter(host: str, port: int, _: Authority) -> str:
    try:
        return fetch(f"https://{host}:{port}/", "x", next_step="")
    except PipelineError as error:
        return error.happened


def ask_node_exporter(host: str, port: int, _: Authority) -> str:
    try:
        return node_exporter.fetch(f"https://{host}:{port}/metrics")
    except MachineError as error:
        return error.happened


def call_webhook(host: str, port: int, _: Authority) -> str:
    return send(f"jsons://{host}:{port}/", "title", "text").reason or "{}"


HTTP = [ask_hub, ask_grafana, ask_exporter, ask_node_exporter, call_webhook]
Client = Callable[[str, int, Path], str]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an authority that the system trusts; defaults are as strict as those of 3.13."""
    made = make_certificate(tmp_path, "authority", usage=False)
    leaf = make_certificate(tmp_path, "server", by=made)
    chain = leaf.certificate.read_text("ascii") + leaf.key.read_text("ascii")
    (tmp_path / "server.pem").write_text(chain, "ascii")
    trust(made.certificate, monkeypatch)
    default = ssl.create_default_context

    def strict(*args: Any, **options: Any) -> ssl.SSLContext:
        context = default(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    monkeypatch.setattr(ssl, "_create_default_https_context", strict)
    return made.certificate


def trust(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))


def serving(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.with_name("server.pem"))
    return context


@pytest.mark.parametrize("ask", HTTP)
def test_a_client_accepts_an_authority_without_key_usage(ask: Client, authority: Path) -> None:
    with web_server(serving(authority)) as port:
        assert ask("127.0.0.1", port, authority) == "{}"


@pytest.mark.parametrize("ask", HTTP)
def test_a_client_rejects_another_name_and_an_unknown_authority(
    ask: Client, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(serving(authority)) as port:
        assert ask("127.0.0.2", port, authority) != "{}"
        other = make_certificate(tmp_path, "other").certificate
        trust(other, monkeypatch)
        assert ask("127.0.0.1", port, other) != "{}"


def mail(host: str, port: int, mode: str) -> str:
    address = f"mailtos://{host}:{port}?mode={mode}&from=bench@example.org&to=admin@example.org"
    return send(address, "title", "text").reason


@pytest.mark.parametrize(("mode", "option"), [("ssl", "ssl_context"), ("starttls", "tls_context")])
def test_mail_accepts_that_authority_and_rejects_another_one(
    mode: str, option: str, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mail_server(**{option: serving(authority)}) as port:
        assert not mail("127.0.0.1", port, mode)
        trust(make_certificate(tmp_path, "other").certificate, monkeypatch)
        assert mail("127.0.0.1", port, mode)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS: dict[str, Callable[[], Iterable[bytes]]] = {
    "interim responses": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": lambda: itertools.chain([CHUNKED + b"0\r\n"], itertools.repeat(b"a: b\r\n")),
    "slow headers": lambda: itertools.chain([OK], slowly(b"a")),
    "slow chunks": lambda: itertools.chain([CHUNKED], slowly(b"1\r\nx\r\n")),
    "a line without end": lambda: itertools.chain([OK], itertools.repeat(b"a" * 65536)),
    "another protocol": lambda: [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "an early end": lambda: [OK + b"Content-Length: 1000\r\n"],
    "a broken chunk": lambda: [CHUNKED + b"x\r\n"],
    "an error with a broken chunk": lambda: [CHUNKED.replace(b"200", b"500") + b"x\r\n"],
    "an error with an early end": lambda: [b"HTTP/1.1 500 x\r\nContent-Length: 9\r\n\r\n"],
    "nested JSON": lambda: [OK + b"\r\n" + b"[" * 100_000],
}
LIMITS = (
    (node_exporter, "_SECONDS"),
    (pipeline, "_ALL_SECONDS"),
    (fleet, "ANSWER_SECONDS"),
    (grafana, "_ALL_SECONDS"),
)


def slowly(piece: bytes) -> Iterator[bytes]:
    while True:
        time.sleep(0.05)
        yield piece


@contextmanager
def answering(answer: Iterable[bytes]) -> Iterator[int]:
    """Yield the port of a server that gives one answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            opened, _ = listener.accept()
            with closing(opened), suppress(OSError):
                opened.recv(65536)
                for piece in answer:
                    opened.sendall(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def read_node_exporter(port: int, _: Path) -> None:
    node_exporter.read_counters(node_exporter.fetch(f"http://127.0.0.1:{port}/metrics"))


def read_prometheus(port: int, _: Path) -> None:
    pipeline.query_prometheus(f"http://127.0.0.1:{port}", "/api/v1/query")


def read_grafana(port: int, _: Path) -> None:
    grafana.Grafana(f"http://127.0.0.1:{port}", "token").get("/api/health")


def push_to_hub(port: int, folder: Path) -> None:
    token = folder / "token"
    token.write_text("secret", "ascii")
    token.chmod(0o600)
    reply = fleet.HubAddress(url=f"http://127.0.0.1:{port}", token_file=token).send("GET", "x", b"")
    read_message(Answer, reply.content)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("ask", [read_node_exporter, read_prometheus, read_grafana, push_to_hub])
def test_any_answer_ends_in_time_and_with_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[int, Path], None], answer: str
) -> None:
    for module, limit in LIMITS:
        monkeypatch.setattr(module, limit, 0.2)
    errors: list[BaseException] = []

    def run(port: int) -> None:
        try:
            ask(port, tmp_path)
        except BaseException as error:  # noqa: BLE001 # which one is what is tested
            errors.append(error)

    with answering(ANSWERS[answer]()) as port:
        thread = threading.Thread(target=run, args=(port,), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it does not end"
    (error,) = errors
    assert isinstance(error, PvebenchError)
    assert not re.search(r"[\x00-\x1f]", error.reason)
