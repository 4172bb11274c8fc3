"""The API's HTTPS server: one thread a connection, errors and faults as Proxmox shows them."""

from __future__ import annotations

import email.parser
import email.policy
import hashlib
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pve.cluster import Cluster
from pve.faults import Fault, Faults
from pve.listed import unlisted
from pve.refusals import Refused
from testing import certificates

PREFIX = "/api2/json"


@cache
def _key_and_certificate() -> bytes:
    with TemporaryDirectory() as place:
        made = certificates.make_certificate(Path(place), "pve1.test")
        return made.key.read_bytes() + made.certificate.read_bytes()


def make_certificate(directory: Path) -> Path:
    """Write the process's certificate for 127.0.0.1 and localhost; return the PEM with its key."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "server.pem"
    path.write_bytes(_key_and_certificate())
    return path


def fingerprint(pem: Path) -> str:
    """Return the SHA-256 of a certificate as Proxmox shows it."""
    text = pem.read_text("ascii")
    der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])
    digest = hashlib.sha256(der).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


@dataclass
class RunningApi:
    """A server that runs.

    Attributes:
        calls: `METHOD PATH` of every request, in order.
        crashes: tracebacks of this server's own mistakes; a test with any has failed.
    """

    cluster: Cluster
    faults: Faults
    port: int
    certificate: Path
    calls: list[str]
    crashes: list[str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # head and body in one packet
    api: RunningApi

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix(PREFIX)
        self.api.calls.append(f"{self.command} {path}")
        fault = self.api.faults.take(self.command, path)
        params = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        try:
            params |= self._body()
            if fault and fault.kind == "delay":
                time.sleep(fault.seconds)
            if fault and fault.kind == "drop_before":
                self._drop()
                return
            if fault and fault.kind == "status":
                raise Refused(fault.status, fault.text, empty=fault.status >= 590)
            data = self._answer(path, params)
            if fault and fault.kind == "status_after":
                raise Refused(fault.status, fault.text, empty=fault.status >= 590)
        except Refused as error:
            self._refuse(error)
            return
        except Exception:
            self.api.crashes.append(traceback.format_exc())
            raise
        self._reply(data, fault)

    def _answer(self, path: str, params: dict[str, Any]) -> Any:
        cluster = self.api.cluster
        name, found = cluster.schema.endpoint(self.command, path)
        who = ""
        if name != "POST /access/ticket":
            who = cluster.access.login(dict(self.headers.items()), self.command)
        blob = params.pop("blob", None)
        if self.headers.get("User-Agent", "").startswith("pvebench/"):
            wrong = unlisted(name, params)
            assert not wrong, wrong
        for key, value in found.items():
            if str(params.get(key, value)) != value:
                raise Refused(400, "Parameter verification failed.", errors={key: "duplicate"})
        if blob is None:
            return cluster.call(who, name, {**params, **found})
        cluster.schema.check(name, {**params, **found})
        cluster.access.check(who, cluster.schema.permissions(name), {**params, **found})
        plain = {key.replace("-", "_"): value for key, value in {**params, **found}.items()}
        return cluster.post_nodes_storage_upload(who, blob=blob, **plain)

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", 0))
        kind = self.headers.get("Content-Type", "")
        raw = self.rfile.read(length) if length else b""
        if kind.startswith("multipart/form-data"):
            return _multipart(kind, raw)
        if length and self.command in ("GET", "DELETE"):
            raise Refused(501, f"Unexpected content for method '{self.command}'")
        if length > 512 * 1024:
            raise Refused(501, "for data too large")
        found = parse_qs(raw.decode("utf-8"), keep_blank_values=True)
        return {
            key: values if key == "command" and self.path.endswith("/agent/exec") else values[-1]
            for key, values in found.items()
        }

    def _refuse(self, error: Refused) -> None:
        body = b""
        if not error.empty:
            answer: dict[str, Any] = {"data": None, "message": f"{error.reason}\n"}
            if error.errors:
                answer["errors"] = error.errors
            body = json.dumps(answer).encode()
        self.close_connection = True
        self.send_response(error.status, error.reason.partition("\n")[0])
        self._finish(body, close=True)

    def _reply(self, data: Any, fault: Fault | None) -> None:
        if fault and fault.kind == "drop_after":
            self._drop()
            return
        body = json.dumps({"data": data}, ensure_ascii=False).encode()
        if fault and fault.kind == "mangle":
            body = fault.text.encode()
        self.send_response(200, "OK")
        if fault and fault.kind == "truncate":
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self._drop()
            return
        self._finish(body, close=False)

    def _finish(self, body: bytes, *, close: bool) -> None:
        self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _drop(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


def _multipart(kind: str, raw: bytes) -> dict[str, Any]:
    """Return the fields of an upload; they must come in Proxmox's order."""
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + raw)
    order = ["content", "checksum-algorithm", "checksum", "filename"]
    fields: dict[str, Any] = {}
    places = []
    for part in message.iter_parts():
        name = str(part.get_param("name", header="content-disposition"))
        if name not in order:
            raise Refused(400, "bad request", empty=True)
        places.append(order.index(name))
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        if name == "filename":
            fields["filename"] = part.get_filename()
            fields["blob"] = content
        else:
            fields[name] = content.decode("ascii")
    if places != sorted(places):
        raise Refused(400, "bad request", empty=True)
    return fields


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that goes away, or distrusts the certificate, is what some tests are about

    def shutdown_request(self, request: Any) -> None:
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
        self.close_request(request)


@contextmanager
def running_api(cluster: Cluster) -> Iterator[RunningApi]:
    """Serve `cluster` on a free port of 127.0.0.1."""
    pem = make_certificate(cluster.directory / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    # The handshake is left to the connection's thread: one that stalls holds up nobody.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    api = RunningApi(cluster, Faults(), server.server_address[1], pem, [], [])
    handler.api = api
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for vm in cluster.vms.values():
            vm.machine.stop()
        assert not api.crashes, api.crashes[0]
