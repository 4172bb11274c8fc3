"""A hub that is slow, absent or hostile changes nothing at a site but its position in the log.

The HTTP server of these tests is Python's own; what a client must bear is RFC 9110's.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pvebench.config import load_settings
from pvebench.errors import ConfigError
from pvebench.model.run import Outcome
from pvebench.store.writing import ReplacedRun
from pvebench_fleet import HubUnreachable, push
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.hub.rules import read_push
from pvebench_fleet.push import HEAD_BYTES, LONGEST_WAIT, HubAddress, Reply, Sender, sending
from pvebench_fleet.wire import Limits, read_line, unpack
from testing.simulated_fleet import ModelLog
from testing.stored_runs import run
from testing.stores import TemporaryStore

PROCESS = "0123456789abcdef"
WELCOME = {"turn": 1, "acked": 0, "chain": ""}


def answer(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def filled() -> ModelLog:
    log = ModelLog(random.Random(1))
    for number in range(5):
        log.add(f"r{number}", number, bad=False)
    return log


def sender_to(log: ModelLog, send: Callable[[str, str, bytes], Reply]) -> Sender:
    return Sender(log, send, PROCESS, lambda: 1e9, lambda: 0.5)


HOSTILE: dict[str, Reply] = {
    "garbage": Reply(200, b"\x00\xff"),
    "another JSON": Reply(200, b"[]"),
    "a number that is too large": Reply(200, answer(turn=2**80)),
    "no limits": Reply(200, answer(**WELCOME, limits={"lines": 0})),
    "endless waiting": Reply(200, answer(**WELCOME, limits={"wait_seconds": 1e9})),
    "a cursor of another log": Reply(200, answer(turn=1, acked=3, chain="0" * 32)),
    "a page": Reply(502, b"<html>bad gateway</html>", 1e12),
    "another turn, always": Reply(412, answer(turn=7)),
    "conflict, always": Reply(409, answer(turn=1, acked=9, chain="1" * 32)),
    "held": Reply(423, b""),
    "full": Reply(507, b"", 5.0),
    "too large": Reply(413, b""),
    "not the protocol": Reply(404, b"not found"),
    "a redirection": Reply(302, b""),
}


@pytest.mark.parametrize("words", HOSTILE)
def test_no_answer_of_a_hub_moves_the_position_forward_or_ends_the_sending(words: str) -> None:
    log = filled()
    sender = sender_to(log, lambda *_: HOSTILE[words])
    waits = [sender.step() for _ in range(50)]
    assert log.position() == (0, "")
    assert all(0 <= wait <= LONGEST_WAIT for wait in waits)
    assert len(log.batch(10)[0]) == 5


def test_waits_grow_to_an_hour_with_chance_in_them() -> None:
    def lost(*_: object) -> Reply:
        raise HubUnreachable("gone")

    log, chance = filled(), random.Random(3)
    sender = Sender(log, lost, PROCESS, lambda: 1e9, chance.random)
    waits = [sender.step() for _ in range(20)]
    assert waits[0] <= 4.0
    assert 1800 <= waits[-1] <= 3600
    assert len({round(wait) for wait in waits[-5:]}) > 1


def test_a_hub_that_asks_to_wait_is_left_alone_for_that_time() -> None:
    sender = sender_to(filled(), lambda *_: Reply(429, b"", 90.0))
    assert sender.step() == 90.0


def test_a_push_keeps_the_limits_of_the_hub_and_has_the_shape_of_its_runs() -> None:
    pushes: list[bytes] = []

    def send(_: str, path: str, body: bytes) -> Reply:
        if path == "push":
            pushes.append(body)
        return Reply(200, answer(**WELCOME, limits={"lines": 2}))

    sender = sender_to(filled(), send)
    sender.step()
    sender.step()
    (push,) = pushes
    head, texts = read_push(unpack(push))
    assert head.to[0] == 2
    assert [read_line(text).kind for text in texts] == ["shape", "run", "run"]


def test_a_log_that_starts_over_asks_for_no_marks_of_the_hub() -> None:
    asked: list[str] = []

    def send(_: str, path: str, body: bytes) -> Reply:
        asked.append(path)
        return Reply(200, answer(turn=1, acked=3, chain="0" * 32))

    sender_to(filled(), send).step()
    assert asked == ["hello", "rewind"]


def test_a_push_is_within_the_bytes_of_the_hub_with_its_line_ends() -> None:
    log = ModelLog(random.Random(1))
    for number in range(60):
        log.add(f"r{number}", number, bad=False)
    pushes: list[bytes] = []

    def send(_: str, path: str, body: bytes) -> Reply:
        if path == "push":
            pushes.append(unpack(body).partition(b"\n")[2])
        return Reply(200, answer(**WELCOME))

    sender = sender_to(log, send)
    sender.step()
    sender.step()
    most = HEAD_BYTES + len(pushes[0]) - 10  # smaller than a hub may say
    sender = sender_to(log, send)
    sender.step()
    sender._limits = Limits.model_construct(bytes=most)
    sender.step()
    assert len(pushes[1]) < most - HEAD_BYTES


# --- Over HTTP, with the real log.


@contextmanager
def server(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # as http.server wants it
            self.rfile.read(int(self.headers.get("content-length", 0)))
            respond(self)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()


def token(directory: Path) -> Path:
    path = directory / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 65536)
    except OSError:
        pass


def redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("location", "http://127.0.0.1:1/elsewhere")
    handler.send_header("content-length", "0")
    handler.end_headers()


def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    with server(endless) as url, pytest.raises(HubUnreachable, match="exceeds"):
        HubAddress(url=url, token_file=token(tmp_path)).send("POST", "hello", b"{}")


def test_the_token_does_not_follow_a_redirection(tmp_path: Path) -> None:
    with server(redirect) as url:
        reply = HubAddress(url=url, token_file=token(tmp_path)).send("POST", "hello", b"{}")
    assert reply.status == 302


def test_an_open_token_file_is_not_sent(tmp_path: Path) -> None:
    path = token(tmp_path)
    path.chmod(0o644)
    with server(redirect) as url, pytest.raises(HubUnreachable, match=r"accessible.*; chmod 600 "):
        HubAddress(url=url, token_file=path).send("POST", "hello", b"{}")


def test_a_run_is_stored_while_the_hub_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "LEAST_WAIT", 0.0)
    asked, answered = threading.Event(), threading.Event()

    def hang(_: BaseHTTPRequestHandler) -> None:
        asked.set()
        answered.wait(20)

    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    with server(hang) as url:
        hub = HubAddress(url=url, token_file=token(tmp_path))
        monkeypatch.setattr(push, "END_SECONDS", 0.0)
        with sending(hub, store):
            assert asked.wait(20)
            number = store.add_run(run(0)).number
            correction = ReplacedRun(
                number=number, gone=(), put=(), outcome=Outcome.FAILED, reason="x"
            )
            store.correct([correction])
        answered.set()
    state = FleetLog(store.engine).state()
    assert state is not None
    assert (state.acked, state.contact) == (0, None)
    assert state.newest == 5


# --- Settings.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fleet: {url: https://hub, token_file: t}", "requires site"),
        ("site: a\nfleet: {url: http://hub, token_file: t}", "use https"),
        ("site: A B", "invalid name"),
        ("site: a\nfleet: {url: https://hub}", "token_file"),
    ],
)
def test_wrong_settings_of_a_fleet_are_refused_with_the_reason(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "pvebench.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings(path)


HEATING: dict[str, Callable[[str], Reply]] = {
    "an old cursor of this log": lambda _: Reply(409, answer(turn=1, acked=0, chain="")),
    "the present cursor": lambda path: Reply(
        200 if path == "hello" else 409, answer(**WELCOME, limits={"wait_seconds": 0})
    ),
    "200 without progress": lambda _: Reply(200, answer(**WELCOME, limits={"wait_seconds": 0})),
    "another turn after each hello": lambda path: Reply(
        200 if path == "hello" else 412, answer(**WELCOME, limits={"wait_seconds": 0})
    ),
    "marks without end": lambda path: Reply(
        200 if path != "push" else 409,
        answer(marks=[[int(path.partition("=")[2]) - 1, "0" * 32]], more=True)
        if path.startswith("marks")
        else answer(turn=1, acked=3, chain="0" * 32, limits={"wait_seconds": 0}),
    ),
}


@pytest.mark.parametrize("words", HEATING)
def test_a_hub_that_leads_nowhere_is_asked_ever_less(words: str) -> None:
    log, asked = filled(), 0
    log.advance(log.batch(2)[2], 0.0)

    def send(_: str, path: str, __: bytes) -> Reply:
        nonlocal asked
        asked += 1
        return HEATING[words](path)

    sender = sender_to(log, send)
    waits = [sender.step() for _ in range(60)]
    assert sum(waits) > 600
    assert min(waits[-4:]) + max(waits[-4:]) > 10
    assert asked < 60 * 60


def test_progress_ends_the_back_off_and_one_moved_cursor_causes_none() -> None:
    log = filled()
    replies = [
        *(Reply(503, b"") for _ in range(8)),
        Reply(200, answer(**WELCOME)),
        Reply(409, answer(turn=1, acked=0, chain="")),
    ]

    def send(_: str, path: str, body: bytes) -> Reply:
        if replies:
            return replies.pop(0)
        head = read_push(unpack(body))[0]
        return Reply(200, answer(turn=1, acked=head.to[0], chain=head.to[1]))

    sender = sender_to(log, send)
    waits = [sender.step() for _ in range(12)]
    assert waits[7] > 300
    assert waits[9] < 60
    assert log.position()[0] == 5
    assert waits[10] == 1.0


def test_the_state_has_no_control_characters_of_a_hub() -> None:
    text = "\x1b[31mred\x07\n" + "x" * 5000
    sender = sender_to(filled(), lambda *_: Reply(500, answer(error=text)))
    sender.step()
    assert sender.state.startswith("the hub returned 500 [31mred x")
    assert sender.state.isprintable()
    assert len(sender.state) <= 500
