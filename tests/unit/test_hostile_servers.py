"""Servers that answer without end, slowly, cut off or in another protocol.

A program in the network can pretend to be any of them: node_exporter, Prometheus and Grafana are
often without TLS. Each reader ends with its own error.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from pvebench.diagnostics import pipeline
from pvebench.drivers.linux import node_exporter
from pvebench.errors import PvebenchError
from pvebench.provision import grafana
from pvebench_fleet import connection as fleet
from pvebench_fleet.wire import Answer, read_message

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
def serving(answer: Iterable[bytes]) -> Iterator[int]:
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


def ask_node_exporter(port: int, _: Path) -> None:
    node_exporter.read_counters(node_exporter.fetch(f"http://127.0.0.1:{port}/metrics"))


def ask_prometheus(port: int, _: Path) -> None:
    pipeline.query_prometheus(f"http://127.0.0.1:{port}", "/api/v1/query")


def ask_grafana(port: int, _: Path) -> None:
    grafana.Grafana(f"http://127.0.0.1:{port}", "token").get("/api/health")


def ask_hub(port: int, folder: Path) -> None:
    token = folder / "token"
    token.write_text("secret", "ascii")
    token.chmod(0o600)
    reply = fleet.HubAddress(url=f"http://127.0.0.1:{port}", token_file=token).send("GET", "x", b"")
    read_message(Answer, reply.content)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("ask", [ask_node_exporter, ask_prometheus, ask_grafana, ask_hub])
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

    with serving(ANSWERS[answer]()) as port:
        thread = threading.Thread(target=run, args=(port,), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it does not end"
    (error,) = errors
    assert isinstance(error, PvebenchError)
    assert not re.search(r"[\x00-\x1f]", error.reason)
