"""A server that means harm, or that is something else than Proxmox VE.

No recording has these answers: they are what the Internet's standards let a server send, and what
is listed among the weaknesses of HTTP clients (CWE-601, CWE-400, CWE-409, CWE-209).
"""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest

from pve.listed import REQUESTS, Request
from pve.server import fingerprint, make_certificate
from pve.site import MACHINE, QuickClock, Site, scenario
from pvebench.drivers.proxmox.api import connection
from pvebench.drivers.proxmox.api.bounds import SHAPES, shape_of
from pvebench.drivers.proxmox.api.connection import Api, Password, Server, Token, version_number
from pvebench.drivers.proxmox.api.faults import InvalidResponse, LostReply, Rejected
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.orphans import OrphanVm, find_orphans
from pvebench.drivers.proxmox.vm import agent
from pvebench.drivers.proxmox.vm.agent import AgentGuest
from pvebench.drivers.proxmox.vm.bench_vm import pool_members
from pvebench.drivers.proxmox.vm.description import filled_of
from pvebench.drivers.proxmox.vm.leftover_vms import undo_vms
from pvebench.errors import (
    DriverError,
    OutputUnreadable,
    PvebenchError,
    ServerGone,
    ServerUntrusted,
)
from pvebench.model.guest import Completed
from testing import certificates
from testing.prometheus import free_port

SECRET = "1f8a02c4-5b7d-4d3e-9a61-0c2f7e9b8d55"
PASSWORD = "correct-horse"
TOKEN = Token("pvebench@pve", "bench", SECRET)
MIB = 1 << 20

Reply = Callable[[ssl.SSLSocket, bytes], None]


@dataclass
class Hostile:
    """A TLS server that answers with whatever bytes a test wants, and what it was sent."""

    port: int
    certificate: Path
    reply: Reply
    heard: list[bytes] = field(default_factory=list)
    sent_bytes: int = 0

    def connect(self, login: Token | Password = TOKEN) -> Api:
        pin = fingerprint(self.certificate)
        server = Server(host="127.0.0.1", port=self.port, fingerprint=pin)
        return Api(server, login, QuickClock())

    def serve(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        with suppress(OSError), context.wrap_socket(raw, server_side=True) as channel:
            channel.settimeout(20)
            request = b""
            while b"\r\n\r\n" not in request:
                piece = channel.recv(65536)
                if not piece:
                    return
                request += piece
            head, _, body = request.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            while length and len(body) < int(length[1]):
                body += channel.recv(65536)
            self.heard.append(head)
            self.reply(channel, request)

    def pour(self, channel: ssl.SSLSocket, piece: bytes, *, pause: float = 0.0) -> None:
        """Send without end, until the client has gone."""
        while True:
            channel.sendall(piece)
            self.sent_bytes += len(piece)
            time.sleep(pause)


def answer(body: bytes, *headers: str, status: str = "200 OK") -> Reply:
    """Return a reply of one well-formed answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    head = "\r\n".join(lines).encode("latin-1")

    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        channel.sendall(head + b"\r\n\r\n" + body)

    return reply


def data(value: Any) -> Reply:
    return answer(json.dumps({"data": value}).encode())


@pytest.fixture
def make_hostile(tmp_path: Path) -> Iterator[Callable[[], Hostile]]:
    pem = make_certificate(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    listeners = []

    def make() -> Hostile:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        found = Hostile(listener.getsockname()[1], pem, data(None))

        def accept() -> None:
            with suppress(OSError):
                while True:
                    raw, _ = listener.accept()
                    threading.Thread(target=found.serve, args=(raw, context), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return found

    yield make
    for listener in listeners:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def hostile(make_hostile: Callable[[], Hostile]) -> Hostile:
    return make_hostile()


# --- sent elsewhere ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("login", [TOKEN, Password("root@pam", "correct horse")], ids=repr)
def test_a_redirect_is_never_followed(
    make_hostile: Callable[[], Hostile], status: str, login: Token | Password
) -> None:
    here, there = make_hostile(), make_hostile()
    here.reply = answer(
        b"", f"Location: https://127.0.0.1:{there.port}/api2/json/version", status=status
    )
    api = here.connect(login)
    with pytest.raises(InvalidResponse, match="redirect"):
        api.get("/version")
    with pytest.raises((LostReply, InvalidResponse), match="redirect"):
        api.post("/pools", poolid="x")
    assert there.heard == []


# --- answers without end -----------------------------------------------------------------------


def endless_headers(hostile: Hostile) -> Reply:
    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        channel.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        hostile.pour(channel, b"x" * 65536)

    return reply


def endless_interim_answers(hostile: Hostile) -> Reply:
    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        hostile.pour(channel, b"HTTP/1.1 100 Continue\r\n\r\n" * 2000)

    return reply


def endless_body(hostile: Hostile) -> Reply:
    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        channel.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"data": "')
        hostile.pour(channel, b"x" * 65536)

    return reply


def endless_chunk_line(hostile: Hostile) -> Reply:
    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        channel.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        hostile.pour(channel, b"0" * 65536)

    return reply


def oversized_refusal(hostile: Hostile) -> Reply:
    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        channel.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 99999999999\r\n\r\n")
        hostile.pour(channel, b"x" * 65536)

    return reply


@pytest.mark.parametrize(
    "make",
    [endless_headers, endless_interim_answers, endless_body, endless_chunk_line, oversized_refusal],
)
def test_an_answer_without_end_is_broken_off(
    hostile: Hostile, make: Callable[[Hostile], Reply]
) -> None:
    hostile.reply = make(hostile)
    started = time.monotonic()
    with pytest.raises(DriverError):
        hostile.connect().post("/pools", poolid="x")
    assert time.monotonic() - started < 15
    assert hostile.sent_bytes < 16 * MIB  # 8 of a body, 1 of a head, the rest is the kernel's


def test_an_answer_that_is_too_long_is_called_so(hostile: Hostile) -> None:
    hostile.reply = endless_body(hostile)
    with pytest.raises(InvalidResponse, match="longer than 8 MiB"):
        hostile.connect().get("/version")
    assert len(hostile.heard) == 1  # asking again would not make it shorter


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"],
    ids=["head", "header", "body"],
)
def test_an_answer_that_drips_ends_at_the_deadline_of_the_whole_call(
    hostile: Hostile, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        channel.sendall(start)
        hostile.pour(channel, b" ", pause=0.05)

    hostile.reply = reply
    started = time.monotonic()
    with pytest.raises(LostReply, match="deadline"):
        hostile.connect().post("/pools", seconds=0.6, poolid="x")
    assert time.monotonic() - started < 5
    monkeypatch.setattr(connection, "_CALL_SECONDS", 0.6)
    started = time.monotonic()
    with pytest.raises(DriverError, match="deadline"):
        hostile.connect().get("/version")
    assert time.monotonic() - started < 8  # with its tries again


def test_a_handshake_that_stalls_ends_at_the_deadline(hostile: Hostile) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(host="127.0.0.1", port=silent.getsockname()[1], fingerprint="AB" * 32)
        started = time.monotonic()
        with pytest.raises(DriverError):
            Api(server, TOKEN, QuickClock()).post("/pools", seconds=0.5, poolid="x")
        assert time.monotonic() - started < 5


def test_a_packed_answer_is_not_unpacked(hostile: Hostile) -> None:
    hostile.reply = answer(b"\x1f\x8b" + b"\0" * 1000, "Content-Encoding: gzip")
    with pytest.raises(InvalidResponse, match="the response is compressed without being requested"):
        hostile.connect().get("/version")
    assert b"Accept-Encoding: identity" in hostile.heard[0]


# --- answers that are none ---------------------------------------------------------------------

BODIES = {
    "web page": b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>",
    "empty": b"",
    "no object": b"[1, 2]",
    "no data": b'{"version": "9"}',
    "cut off": b'{"data": {"version": ',
    "no UTF-8": b'{"data": {"version": "\xff\xfe"}}',
    "no number": b'{"data": {"version": NaN}}',
    "nested": b'{"data":' + b"[" * 200_000,
    "wrong kind": b'{"data": 7}',
    "member missing": b'{"data": {"release": "9.2"}}',
    "member of another kind": b'{"data": {"version": {"major": 9}}}',
    "null": b'{"data": null}',
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_no_answer_of_proxmox_is_one_clear_error(hostile: Hostile, name: str) -> None:
    hostile.reply = answer(BODIES[name], "Content-Type: text/html")
    with pytest.raises(InvalidResponse) as refused:
        hostile.connect().get("/version")
    assert "GET /version: invalid response: the response is" in refused.value.happened
    assert refused.value.cause
    assert "host and port" in refused.value.next_step
    assert len(hostile.heard) == 1


GARBAGE = (None, 7, 1e999, True, "x", "UPID:", [], {}, [1], [None], [{}], [[]], {"a": 1}, {"a": {}})


PASSING: tuple[tuple[tuple[object, ...], str], ...] = (
    (
        GARBAGE,  # nobody looks at the answer
        """POST /access/roles
        PUT /access/roles/{roleid}
        POST /access/users
        PUT /access/users/{userid}/token/{tokenid}
        DELETE /access/users/{userid}/token/{tokenid}
        PUT /access/acl
        POST /pools
        PUT /pools
        PUT /nodes/{node}/qemu/{vmid}/config
        DELETE /nodes/{node}/tasks/{upid}
        POST /nodes/{node}/qemu/{vmid}/agent/ping
        POST /nodes/{node}/qemu/{vmid}/agent/file-write""",
    ),
    (
        ([],),  # rows with a member that must be there
        """GET /access/roles
        GET /access/users
        GET /access/users/{userid}/token
        GET /access/acl
        GET /pools
        GET /nodes
        GET /nodes/{node}/apt/versions
        GET /nodes/{node}/tasks
        GET /nodes/{node}/tasks/{upid}/log
        GET /nodes/{node}/disks/zfs
        GET /nodes/{node}/disks/list
        GET /storage
        GET /nodes/{node}/storage
        GET /nodes/{node}/storage/{storage}/content
        GET /nodes/{node}/qemu/{vmid}/pending
        GET /nodes/{node}/qemu/{vmid}/snapshot""",
    ),
    (
        ([], [{}]),  # rows whose members may all be missing
        """GET /nodes/{node}/replication
        GET /cluster/resources""",
    ),
    (
        ({}, {"a": 1}, {"a": {}}),  # objects whose members may all be missing
        """GET /nodes/{node}/status
        GET /nodes/{node}/disks/zfs/{name}
        GET /nodes/{node}/ceph/status
        GET /nodes/{node}/storage/{storage}/status
        GET /nodes/{node}/qemu/{vmid}/config""",
    ),
    (({}, {"a": {}}), "GET /access/permissions"),
    ((7, True), "GET /cluster/nextid"),
    (
        ("x", "UPID:"),
        """POST /nodes/{node}/storage/{storage}/content
        POST /nodes/{node}/qemu/{vmid}/monitor""",
    ),
)
"""What of the garbage passes, and for which requests; for every other one nothing does."""
KIND = "(nothing|a list|an object|a string|a number)"
REASON = re.compile(
    rf"('a': |row 0: )?({KIND}, (not an? (list|object|string|number|integer|task)|no task)"
    r"|no member '\w+')"
)


@pytest.mark.parametrize("entry", REQUESTS, ids=lambda entry: entry.name)
def test_every_answer_is_of_its_shape_or_refused(entry: Request) -> None:
    """Whatever a shape lets pass has what the driver looks at; what it refuses is told."""
    said = {repr(value): entry.answer(value) for value in GARBAGE}
    wanted = [some for some, names in PASSING if entry.name in map(str.strip, names.split("\n"))]
    assert len(wanted) <= 1
    passing = {repr(value) for some in wanted for value in some}
    assert {value for value, why in said.items() if not why} == passing
    assert [why for why in said.values() if why and not REASON.fullmatch(why)] == []
    assert shape_of(entry.method, entry.path.replace("{", "").replace("}", "")) is entry.answer


def test_every_request_of_which_garbage_passes_is_there() -> None:
    names = {line.strip() for _, some in PASSING for line in some.split("\n")}
    assert names <= {entry.name for entry in REQUESTS}
    assert SHAPES.keys() <= {entry.name for entry in REQUESTS}


def test_a_member_that_is_null_is_one_that_is_not_there(hostile: Hostile) -> None:
    hostile.reply = data([{"node": "pve1", "status": None, "more": [{"a": None, "b": 1}]}])
    assert hostile.connect().get("/nodes") == [{"node": "pve1", "more": [{"b": 1}]}]
    hostile.reply = data([{"node": None}])
    with pytest.raises(InvalidResponse, match="no member 'node'"):
        hostile.connect().get("/nodes")


@pytest.mark.parametrize("version", ["", "x", "9", "9" * 5000, "\u0669.\u0662", "v9.2"])
def test_a_version_that_is_none_is_one_clear_error(hostile: Hostile, version: str) -> None:
    hostile.reply = data({"version": version})
    with pytest.raises(InvalidResponse, match="is not a version"):
        version_number(hostile.connect())


NOTES = (
    '{"a": ' + "[" * 7000,
    "{}",
    '{"key": [], "storage": "s", "volid": "v", "format": "raw", "content": "x", '
    '"size_bytes": 1, "listed_bytes": 1}',
    '{"key": "k", "storage": "s", "volid": "v", "format": "raw", "content": "x", '
    '"size_bytes": true, "listed_bytes": 1}',
)


@pytest.mark.parametrize("note", NOTES)
def test_a_note_that_is_none_says_nothing(note: str) -> None:
    close = "]" * 7000 + "}" if note.endswith("[") else ""
    assert filled_of({"description": f"pvebench-filled: {note}{close}"}) == []


def test_rows_without_a_number_or_a_node_are_nobodys(site: Site) -> None:
    class Rows:
        """An API whose rows lack what they are wanted for."""

        def get(self, path: str, /, **_: Any) -> Any:
            if path.endswith("/time"):
                return {"time": site.clock.now().timestamp()}
            row = {"type": "qemu", "node": "pve1", "status": "running", "tags": "pvebench"}
            return {"members": [row]} if path.startswith("/pools") else [row]

    api = cast("Api", Rows())
    claims = Claims(api, "pve1", lambda: None, site.clock)
    assert claims.take(api.get("/cluster/resources")) == claims.disturbed() == ""
    assert find_orphans(api, pool="bench", known={}) == []
    assert pool_members(api, "bench") == set()


def test_a_task_whose_log_is_no_use_still_reports_how_it_ended(site: Site) -> None:
    """A log of 100 MB is one line of 100 MB: more than is read."""
    site.node.boot(MACHINE)
    site.cluster.tasks.doomed["qmstop"] = "storage 'thin' is on fire"
    site.faults.add("mangle", "GET", "/log", text='{"data": [{"t": "' + "x" * (9 << 20) + '"}]}')
    with pytest.raises(Rejected, match="on fire") as found:
        site.node.power_off()
    assert "log not readable" in found.value.evidence
    assert "longer than 8 MiB" in found.value.evidence


def test_words_of_a_server_do_not_steer_the_terminal_that_shows_what_is_left() -> None:
    stray = OrphanVm(node="pve1", vmid=9, status="\x1b[2J", mark="", volumes=("a\x07b",))
    assert stray.text == "VM 9 on pve1,  [2J, with a b"


MANGLED = ("<html>", '{"data": 7}', '{"data": [{}]}', '{"data": {"a": [1]}}')


def test_whatever_one_answer_is_turned_into_costs_only_what_asked_for_it(site: Site) -> None:
    """Each call of a case is answered with garbage, one by one: an error of ours, then it works."""
    a_case(site)
    calls = sorted({_any_number(call) for call in site.api.calls})
    assert len(calls) > 15
    for count, call in enumerate(calls):
        method, _, path = call.partition(" ")
        site.faults.add("mangle", method, path, text=MANGLED[count % len(MANGLED)])
        with suppress(PvebenchError):
            a_case(site)
        assert len(site.faults.hits) == count + 1, call
    a_case(site)
    assert site.cluster.vms == {}
    assert site.store.journal.pending() == []
    assert site.api.crashes == []


def test_numbers_that_arrive_as_strings_and_booleans_are_numbers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perl's JSON writes what was last used as a string as one; "0" is true in Python."""
    call = site.cluster.call

    def as_text(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: as_text(item) for key, item in value.items()}
        if isinstance(value, list):
            return [as_text(item) for item in value]
        return str(int(value)) if isinstance(value, int) else value

    monkeypatch.setattr(site.cluster, "call", lambda *request: as_text(call(*request)))
    site.cluster.storages["share"].mounted = False
    site.plug(scenario())
    guest = site.node.boot(MACHINE)
    assert guest.run(["sh", "-c", "sleep 0.3; exit 3"]).exit_code == 3
    rows = site.connect().get("/nodes/pve1/storage")
    assert [row["active"] for row in rows] == [1, 0, 1]
    site.cluster.vms[9000].node = "pve2"  # an administrator has migrated it
    lines = site.undo()
    assert lines == ["removed VM 9000 with its volumes"]


@pytest.mark.parametrize("status", [404, 405, 413, 429])
def test_a_status_that_proxmox_does_not_have_is_of_another_service(site: Site, status: int) -> None:
    site.faults.add("status", "GET", "/version", status=status, text="Not Found")
    with pytest.raises(InvalidResponse, match=f"status {status} Not Found") as refused:
        site.connect().get("/version")
    assert "another service" in refused.value.cause


def _any_number(call: str) -> str:
    """Return the pattern of a call: tasks, volumes and programs have another name each time."""
    call = re.sub(r"UPID:[^/]+", "UPID:[^/]+", call.replace("+", r"\+"))
    return re.sub(r"/qemu/\d+", r"/qemu/\\d+", call)


def a_case(site: Site) -> None:
    """Make a volume, plug it in, look at it, run something, and take everything away again."""
    site.node = site.driver("pve1")
    for image in site.cluster.volumes.listed("local", "iso", None):
        site.cluster.volumes.free(image["volid"])
    try:
        site.plug(scenario())
        guest = site.node.boot(MACHINE)
        guest.run(["true"])
        guest.write_file("/run/pvebench/x", b"x")
        guest.read_file("/run/pvebench/x")
        site.node.environment()
        site.node.detach()
    finally:
        with suppress(PvebenchError):
            site.node.shutdown()
        site.cluster.idle()
        with suppress(PvebenchError):
            undo_vms(site.access())


# --- the guest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"nonsense", b"size_bytes=1", b"\xff=\xff x"])
def test_a_guest_that_talks_nonsense_of_its_disk_is_one_clear_error(
    site: Site, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, _ = site.node.volume(scenario())
    site.node.boot(MACHINE, None)

    done = Completed(exit_code=0, stdout=said, stderr=b"")
    monkeypatch.setattr(AgentGuest, "run", lambda *_, **__: done)
    with pytest.raises(PvebenchError, match="unexpected guest output about the disk"):
        site.node.attach(volume, scenario().disk)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"0 1\n",
        b"0 2\nx\n",
        b"0 9999999999999\n",
        b"1 0\n",
        b"\xff",
        b"0 5000\n" + b"7" * 5000,
    ],
)
def test_a_guest_that_talks_nonsense_of_a_job_is_one_clear_error(
    site: Site, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = site.node.boot(MACHINE, None)
    pid = guest.start(["true"])
    monkeypatch.setattr(AgentGuest, "_read", lambda *_: said)
    assert guest.poll(pid) is None  # begins the wait
    site.clock.skip(2.0)
    with pytest.raises(PvebenchError):
        guest.poll(pid)


def test_a_file_without_end_in_the_guest_is_broken_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = site.node.boot(MACHINE, None)
    monkeypatch.setattr(agent, "_LONGEST_FILE", MIB)
    monkeypatch.setattr(AgentGuest, "_slice", lambda *_: (b"x" * 262_144, True))
    with pytest.raises(OutputUnreadable, match="/run/pvebench/endless in the guest exceeds 1 MiB"):
        guest.read_file("/run/pvebench/endless")


# --- secrets -----------------------------------------------------------------------------------

ECHOES = {
    "as it is": SECRET,
    "in capitals": SECRET.upper(),
    "percent-encoded": quote(f"pvebench@pve!bench={SECRET}", safe=""),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "escaped": "".join(f"\\u{ord(one):04x}" for one in SECRET),
}


@pytest.mark.parametrize("form", ECHOES)
@pytest.mark.parametrize("where", ["reason", "message", "field", "page", "data", "log"])
def test_a_token_that_the_server_echoes_is_in_no_message(
    hostile: Hostile, form: str, where: str
) -> None:
    echo = ECHOES[form]
    escaped = echo if form == "escaped" else json.dumps(echo)[1:-1]
    hostile.reply = {
        "reason": answer(b"", status=f"500 no {echo}"),
        "message": answer(f'{{"data":null,"message":"{escaped}"}}'.encode(), status="500 no"),
        "field": answer(
            f'{{"errors":{{"{escaped}":"not {escaped}"}},"data":null}}'.encode(), status="400 no"
        ),
        "page": answer(f"<html>{echo}</html>".encode()),
        "data": answer(f'{{"data":{{"version":"{escaped}"}}}}'.encode()),
        "log": answer(f'{{"data":[{{"n":1,"t":"{escaped}"}}]}}'.encode()),
    }[where]
    said = ""
    try:
        path = "/nodes/pve1/tasks/x/log" if where == "log" else "/version"
        said = json.dumps(hostile.connect().get(path))
    except DriverError as error:
        said = "".join(traceback.format_exception(error)) + repr(vars(error)) + repr(error)
    assert SECRET.lower() not in said.lower()
    assert quote(SECRET) not in said
    assert ECHOES["base64"].rstrip("=") not in said
    assert SECRET not in said.encode().decode("unicode_escape", "replace")


def test_a_password_and_its_ticket_are_in_no_message(hostile: Hostile) -> None:
    ticket = "PVE:root@pam:66D0A1B2::bm8gcmVhbCBzaWduYXR1cmUgYnV0IGxvbmc="
    replies = iter(
        [
            data({"ticket": ticket, "CSRFPreventionToken": "66D0A1B2:csrf-of-this-session"}),
            answer(b"", status=f"500 {ticket} 66D0A1B2:csrf-of-this-session {PASSWORD}"),
        ]
    )

    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        next(replies)(channel, request)

    hostile.reply = reply
    with pytest.raises(DriverError) as refused:
        hostile.connect(Password("root@pam", PASSWORD)).post("/pools", poolid="x")
    said = "".join(traceback.format_exception(refused.value)) + repr(vars(refused.value))
    assert "(secret)" in said
    for secret in (ticket, "csrf-of-this-session", PASSWORD):
        assert secret not in said


@pytest.mark.parametrize("secret", ["Proxmox", "API", "unreachable"])
def test_a_short_password_leaves_no_gap_in_words_of_pvebench(secret: str, hostile: Hostile) -> None:
    login = Password("root@pam", secret)
    server = Server(
        host="127.0.0.1", port=free_port(), fingerprint=fingerprint(hostile.certificate)
    )
    with pytest.raises(DriverError) as unreachable:
        Api(server, login, QuickClock()).get("/version")
    assert "(secret)" not in str(unreachable.value)
    hostile.reply = answer(b"", status=f"500 x{secret}x")
    with pytest.raises(DriverError) as refused:
        hostile.connect(login).get("/version")
    assert f"x{secret}x" not in str(refused.value)


def test_a_cookie_of_the_server_does_not_replace_the_ticket(hostile: Hostile) -> None:
    replies = iter(
        [
            answer(
                b'{"data":{"ticket":"T1","CSRFPreventionToken":"C1"}}', "Set-Cookie: a=b; Path=/"
            ),
            answer(b'{"data":{"version":"9.2"}}', "Set-Cookie: PVEAuthCookie=other; Path=/"),
            data({"version": "9.2"}),
        ]
    )

    def reply(channel: ssl.SSLSocket, request: bytes) -> None:
        next(replies)(channel, request)

    hostile.reply = reply
    api = hostile.connect(Password("root@pam", PASSWORD))
    api.get("/version")
    api.get("/version")
    assert b"Cookie" not in hostile.heard[0]
    for head in hostile.heard[1:]:
        assert re.findall(rb"(?m)^Cookie: (.*)\r$", head) == [b"PVEAuthCookie=T1"]
    assert PASSWORD.encode() not in b"".join(hostile.heard[1:])


def test_a_login_without_an_answer_is_a_server_that_is_away(hostile: Hostile) -> None:
    """It changed nothing, so it is repeated with the read that it is for."""
    hostile.reply = lambda channel, _: channel.close()
    with pytest.raises(ServerGone, match="POST /access/ticket: Proxmox API unreachable"):
        hostile.connect(Password("root@pam", PASSWORD)).get("/version")
    assert len(hostile.heard) == 4


@pytest.mark.parametrize(
    "ticket", [None, {}, {"ticket": 7}, {"ticket": "x", "CSRFPreventionToken": False}, ["x"]]
)
def test_a_login_that_is_answered_with_something_else_is_reported(
    hostile: Hostile, ticket: object
) -> None:
    hostile.reply = data(ticket)
    with pytest.raises(InvalidResponse, match="not a Proxmox VE response"):
        hostile.connect(Password("root@pam", PASSWORD)).get("/version")


def test_words_of_a_server_do_not_steer_the_terminal_nor_fill_it(hostile: Hostile) -> None:
    hostile.reply = answer(b"", status="500 \x1b[2J\x07" + "x" * 50_000)
    with pytest.raises(DriverError) as refused:
        hostile.connect().get("/version")
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 5000


# --- certificates ------------------------------------------------------------------------------


def dated_certificate(
    directory: Path, start: str, end: str, by: certificates.Certificate | None = None
) -> Path:
    """Make a certificate for 127.0.0.1 that is valid from `start` to `end` (YYYYMMDD).

    Args:
        by: the authority that signs it; None: it does so itself.
    """
    (directory / "index.txt").write_text("", "ascii")
    (directory / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=d\n[d]\ndatabase={directory}/index.txt\nnew_certs_dir={directory}\n"
        "rand_serial=yes\ndefault_md=sha256\npolicy=p\nx509_extensions=e\n[p]\n"
        "commonName=supplied\n[e]\nsubjectAltName=IP:127.0.0.1\nbasicConstraints=CA:TRUE\n",
        "ascii",
    )
    key, asked, made = directory / "k.pem", directory / "r.pem", directory / "c.pem"
    new = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    new += ["-nodes", "-subj", "/CN=pve1.test", "-keyout", str(key), "-out", str(asked)]
    sign = ["openssl", "ca", "-batch", "-notext", "-config", str(directory / "ca.cnf")]
    sign += ["-cert", str(by.certificate)] if by else ["-selfsign"]
    sign += ["-keyfile", str(by.key if by else key), "-in", str(asked), "-out", str(made)]
    sign += ["-startdate", f"{start}000000Z", "-enddate", f"{end}000000Z"]
    for command in (new, sign):
        subprocess.run(command, check=True, capture_output=True)
    whole = directory / "whole.pem"
    whole.write_bytes(key.read_bytes() + made.read_bytes())
    return whole


@contextmanager
def shaking_hands(pem: Path) -> Iterator[int]:
    """Serve with a certificate, and say nothing; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def shake_hands() -> None:
            with suppress(OSError):
                while True:
                    raw, _ = listener.accept()
                    with suppress(OSError):
                        context.wrap_socket(raw, server_side=True).close()

        threading.Thread(target=shake_hands, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("start", "end", "said", "remedy"),
    [
        ("20200101", "20210101", "not trusted: expired", "pvecm updatecerts"),
        ("20900101", "20990101", "not trusted: not valid yet", "date"),
    ],
)
def test_a_certificate_out_of_its_time_is_called_so(
    tmp_path: Path, start: str, end: str, said: str, remedy: str
) -> None:
    authority = certificates.make_certificate(tmp_path, "authority")
    pem = dated_certificate(tmp_path, start, end, by=authority)
    with shaking_hands(pem) as port:
        server = Server(host="127.0.0.1", port=port, ca_file=authority.certificate)
        with pytest.raises(ServerUntrusted, match=said) as refused:
            Api(server, TOKEN, QuickClock()).get("/version")
    assert remedy in refused.value.next_step
    assert refused.value.cause


def test_an_authority_that_has_expired_is_no_matter_of_the_servers_certificate(
    tmp_path: Path,
) -> None:
    """Witness: OpenSSL's own word for both is "certificate has expired"."""
    pem = dated_certificate(tmp_path, "20151001", "20251001")
    with shaking_hands(pem) as port:
        server = Server(host="127.0.0.1", port=port, ca_file=tmp_path / "c.pem")
        with pytest.raises(ServerUntrusted, match=r"c\.pem: certificate expired \(Oct  1 ") as told:
            Api(server, TOKEN, QuickClock()).get("/version")
    assert "updatecerts" not in told.value.next_step
    assert "tls.fingerprint" in told.value.next_step
