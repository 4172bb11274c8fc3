"""Targets that need something around them: the agent, Proxmox's API, the door, the store."""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import fcntl
import functools
import json
import re
import shutil
import socketserver
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

from requests import RequestException, Response

from fuzz.numbers_in import NumbersIn
from pvebench.drivers.clocks import START, SimulatedClock
from pvebench.drivers.proxmox.api.bounds import ResponseRejected, data_of, shape_of
from pvebench.drivers.proxmox.api.connection import version_number
from pvebench.drivers.proxmox.api.faults import translate
from pvebench.drivers.proxmox.node.node_state import node_facts
from pvebench.drivers.proxmox.setup.survey import survey
from pvebench.drivers.proxmox.vm.agent import AgentGuest
from pvebench.drivers.qemu.block_graph import STATISTICS, Names, block_counters
from pvebench.drivers.qemu.disk_readback import look, read_back
from pvebench.drivers.qemu.qemu_hypervisor import qemu_facts
from pvebench.drivers.qemu.qmp import Channel, QemuGuest
from pvebench.drivers.vm_lifecycle import find_in_guest
from pvebench.errors import GuestTimeout, HypervisorGone, PvebenchError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.units import MIB
from pvebench.store.journal import journal_details
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import holder_of
from pvebench.store.store import Store
from testing.simulated_site import app_of
from testing.simulations import simulate

PVE = Path(__file__).resolve().parents[1] / "pve"
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def any_of(asks: Iterable[Callable[[], object]]) -> None:
    """Make all calls; raise one of our own errors only if every call does."""
    refused: PvebenchError | None = None
    understood = False
    for ask in asks:
        try:
            ask()
            understood = True
        except PvebenchError as error:
            refused = error
    if refused and not understood:
        raise refused


class _Replies:
    """A guest that says what is in a list, and then nothing any more."""

    def __init__(self, replies: list[Any]) -> None:
        self._replies = iter(replies)

    def execute(self, command: str, arguments: Any = None, *, timeout: float = 1.0) -> Any:
        for reply in self._replies:
            return reply
        raise GuestTimeout(f"no answer to {command}")


def agent(content: bytes) -> None:
    """Ask the agent of a lab VM, which says anything: the guest is not trusted."""
    try:
        replies = json.loads(content.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return  # qemu.qmp reads the lines
    if not isinstance(replies, list):
        return
    clock = SimulatedClock(START)

    def fresh() -> QemuGuest:
        return QemuGuest(_Replies(replies), clock)  # type: ignore[arg-type] # a stand-in

    any_of(
        (
            lambda: fresh().run(["x"]),
            lambda: fresh().poll(7),
            lambda: fresh().read_file("/x"),
            lambda: fresh().write_file("/x", b"y"),
            lambda: find_in_guest(fresh(), "pvebench1", seconds=5.0),
        )
    )


def agent_seeds() -> list[bytes]:
    """Return answers of QEMU's agent, one after the other."""
    disk = base64.b64encode(b"device=/dev/sda size_bytes=5").decode()
    read = {"count": 3, "buf-b64": "YWJj", "eof": False}
    told = (
        [{"pid": 7}, {"exited": True, "exitcode": 0, "out-data": disk}],
        [{"pid": 7}, {"exited": False}, {"exited": True, "signal": 9, "err-data": ""}],
        [{"exited": True, "exitcode": 0}],
        [5, read, read | {"eof": True}, {}],
        [5, {"count": 1}, {}],
    )
    return [json.dumps(replies).encode() for replies in told]


class _Monitor(socketserver.StreamRequestHandler):
    """QEMU at its socket: answers each command with the next lines, up to a reply.

    Real replies have the id of their command: `"ID"` in a line stands for it. With no reply left it
    hangs up.
    """

    def handle(self) -> None:
        self.wfile.write(QMP_GREETING)
        lines = iter([b'{"id": "ID", "return": {}}', *self.server.lines])
        with contextlib.suppress(OSError):  # it closed first
            while asked := self.request.recv(65536):  # no line: the client ends none
                mine = json.loads(asked).get("id")
                told = (line.replace(b'"ID"', json.dumps(mine).encode()) for line in lines)
                if not any(self._is_reply(line, mine) for line in told):
                    return  # it would wait for what never comes

    def _is_reply(self, line: bytes, mine: str | None) -> bool:
        """Say a line; tell whether it ends the wait of whoever asked."""
        self.wfile.write(line + b"\n")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return (
            isinstance(said, dict)
            and said.get("id") == mine
            and bool({"return", "error"} & {*said})
        )


class _Socket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    lines: list[bytes]


QMP_GREETING = (
    b'{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, '
    b'"package": "Debian"}, "capabilities": ["oob"]}}\r\n'
)


@functools.cache
def monitor() -> tuple[_Socket, str]:
    """Return the socket of a QEMU, for all inputs of the process; what it says is in `lines`."""
    directory = tempfile.mkdtemp(prefix="pvebench-fuzz-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = f"{directory}/qmp"
    server = _Socket(path, _Monitor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, path


QMP_DISKS = (
    Disk(
        bus=Bus.SCSI,
        format=Format.QCOW2,
        cache=Cache.WRITEBACK,
        iothread=True,
        queues=4,
        iops=500,
        mbps=40,
    ),
    Disk(bus=Bus.VIRTIO, format=Format.RAW, cache=Cache.NONE),
)


def qmp(content: bytes) -> None:
    """Ask a QEMU that says anything, by the real client: of each disk all that a run asks."""
    server, path = monitor()
    server.lines = content.split(b"\n")[:40]
    any_of(functools.partial(_ask_qemu, path, disk, content) for disk in QMP_DISKS)


def _ask_qemu(path: str, disk: Disk, content: bytes) -> None:
    channel = Channel("QEMU", path, negotiate=True, check=lambda: None)
    try:
        channel.connect(timeout=2.0)
        facts = qemu_facts(channel)
        machine: Any = SimpleNamespace(qmp=channel, pid=None)
        guest = {"write_cache": "write-back", "rotational": "1"}
        try:
            effective = read_back(
                Names(1), disk, look(machine, Names(1), disk, guest=guest, opened="")
            )
        except (KeyError, StopIteration) as error:  # as in `QemuHypervisor._read_back`
            raise HypervisorGone(f"the node is not there: {error}") from error
        told = channel.ask("query-blockstats", shape=STATISTICS)
        counters = block_counters(Names(1), disk, told)
    finally:
        channel.close()
    there = NumbersIn(content.decode("utf-8", "replace"))
    for name in ("iops", "queues", "cluster_size"):
        assert float(effective[name]) in there or effective[name] == "0", (
            f"{name} is not in the answer"
        )
    assert any(number // MIB == int(effective["mbps"]) for number in (*there, 0.0))
    for counted in astuple(counters):
        assert not counted or float(counted) in there, "a counter is not in the answer"
    assert all(len(fact) <= len(content) for fact in facts.values())


def qmp_seeds() -> list[bytes]:
    """Return what QEMU said."""
    return [path.read_bytes() for path in sorted(GOLDEN.glob("qmp/*.jsonl"))]


class _Server:
    """An API of Proxmox that answers what is in a list, checked as `Api` does."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = iter(bodies)

    def get(self, path: str, /, **_: Any) -> Any:
        return self._answer("GET", path)

    def once(self, path: str, /, **_: Any) -> Any:
        return self._answer("GET", path)

    def post(self, path: str, /, **_: Any) -> Any:
        return self._answer("POST", path)

    def _answer(self, method: str, path: str) -> Any:
        response = Response()
        response.status_code = 200
        response._content = next(self._bodies, b"")
        try:
            data = data_of(response)
            if wrong := shape_of(method, path)(data):
                raise ResponseRejected(wrong)
        except RequestException as error:
            raise translate(f"{method} {path}", error, reads=method == "GET") from error
        return data


def proxmox(content: bytes) -> None:
    """Ask a server that says anything: one body a line."""
    bodies = content.split(b"\n")[:20]
    asks: tuple[Callable[[Any], object], ...] = (
        version_number,
        survey,
        lambda api: node_facts(api, "n"),
        lambda api: _agent_guest(api).run(["x"]),
        lambda api: _agent_guest(api).read_file("/x"),
        lambda api: (guest := _agent_guest(api)).poll(guest.start(["x"])),
    )
    any_of(functools.partial(ask, _Server(bodies)) for ask in asks)


def _agent_guest(api: Any) -> AgentGuest:
    return AgentGuest(api, "/nodes/n/qemu/1", SimulatedClock(START), offsets=True)


def proxmox_seeds() -> list[bytes]:
    """Return what real servers answered, in the order in which the asks above want it."""
    lines = (PVE / "recordings-8.jsonl").read_text("utf-8").splitlines()
    good: dict[str, bytes] = {}
    for line in lines:
        told = json.loads(line)
        kind = re.sub(r"^/nodes/[^/]+", "/nodes/n", told["path"])
        if told["method"] == "GET" and told["status"] == 200 and isinstance(told["body"], dict):
            good[kind] = max(good.get(kind, b""), json.dumps(told["body"]).encode(), key=len)
    expected = (
        ("/version",),
        ("/nodes", "/nodes/n/storage", "/version"),
        ("/nodes/n/version", "/nodes/n/status", "/nodes/n/apt/versions"),
    )
    recorded = [b"\n".join(good[path] for path in paths if path in good) for paths in expected]
    ended = b'{"data":{"pid":7}}\n{"data":{"exited":1,"exitcode":0,"out-data":"hello"}}'
    results = b'{"data":{"pid":7}}\n{"data":{"content":"0 2\\n0\\n1 5\\nhello"}}'
    return [*recorded, ended, results]


# --- the door ---


@functools.cache
def _app() -> tuple[Any, ThreadPoolExecutor, asyncio.AbstractEventLoop]:
    directory = tempfile.mkdtemp()
    app = app_of(simulate(Path(directory), cycles=1))
    # In a thread of its own: a browser's tests leave a loop running in the main one.
    return app, ThreadPoolExecutor(1), asyncio.new_event_loop()


def http(content: bytes) -> None:
    """Send a request: a line `METHOD PATH?QUERY`, lines of headers, an empty line, a body."""
    head, _, body = content.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    # What is none of these the server's HTTP parser has refused already.
    if not (method.isalpha() and path.startswith(b"/") and target.isascii() and b" " not in target):
        return
    if path.startswith(b"/metrics"):
        return  # text from memory, whatever is asked
    headers = [
        (name.lower(), value)
        for name, mark, value in (line.partition(b": ") for line in lines)
        if mark
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.decode().upper(),
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 10620),
    }
    app, thread, loop = _app()
    asked = thread.submit(lambda: loop.run_until_complete(_asked(app, scope, body)))
    status, sent = asked.result()
    assert status in {200, 204, 301, 302, 303, 304, 307, 308} or 400 <= status < 500, status
    assert sent < 4 << 20, "an answer without bound"


async def _asked(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, int]:
    status, sent = 0, 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, sent
        status = message.get("status", status)
        sent += len(message.get("body", b""))

    await app(scope, receive, send)
    return status, sent


def http_seeds() -> list[bytes]:
    """Return requests for every route, as a browser sends them."""
    app, *_ = _app()
    headers = b"Host: 127.0.0.1:10620\nAccept: text/html\nAccept-Encoding: gzip;q=0.5, br"
    paths = [route.path for route in app.routes if hasattr(route, "path")]
    filled = [re.sub(r"\{[^}]*\}", "1", path) for path in paths]
    queries = ("", "?limit=5&outcome=failed", "?metric=iops&from=1700000000&to=1800000000&case=1")
    return [
        f"GET {path}{query}\n".encode() + headers + b"\n\n" for path in filled for query in queries
    ]


# --- the store ---


def database(content: bytes) -> None:
    """Open a database whose pages are anything, and read it as a start does."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pvebench.db"
        path.write_bytes(content)
        store = Store(path)
        try:
            store.check()
            store.runs(limit=100)
            LiveResults(store)
        finally:
            store.close()


def database_seeds() -> list[bytes]:
    """Return a database with runs, of today's layout."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pvebench.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript((PVE.parent / "golden" / "store" / "1.sql").read_text("utf-8"))
        Store(path).close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return [path.read_bytes()]


def journal(content: bytes) -> None:
    """Read a row of the undo journal with any details, as a cleanup does."""
    details = journal_details(content.decode("utf-8", "replace"))
    assert all(isinstance(one, str) for pair in details.items() for one in pair)


def journal_seeds() -> list[bytes]:
    """Return details of journal rows."""
    rows: tuple[object, ...] = ({"path": "/srv/x", "pid": "7"}, {"path": 5}, [], {}, None)
    return [json.dumps(row).encode() for row in rows]


def lock(content: bytes) -> None:
    """Read the process in a lock file that is held."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lock"
        path.write_bytes(content)
        with path.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            process = holder_of(path.parent)
    assert process >= 0
    assert process == 0 or str(process).encode() in content
