"""Limits on server responses: deadline, size, strict JSON, shapes, and removal of secrets."""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus

from pydantic_core import from_json
from requests import PreparedRequest, RequestException, Response
from requests.adapters import HTTPAdapter

from pvebench.drivers.ceph_state import STATUS as CEPH_STATUS
from pvebench.drivers.responses import (
    AGENT_INFO,
    Shape,
    anything,
    fields,
    leaf,
    number,
    rows,
    table,
    text,
    whole,
)
from pvebench.model.volume import QEMU_TIMES

# --- Limits of a call
#
# Every call ends by one deadline and one byte limit, whatever the server sends. The socket
# enforces both, so that endless headers, slow bodies and endless chunk lengths cannot bypass
# them. Redirects and compressed responses are rejected: pvebench did not request them.

_CONNECT_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 1 << 20
"""Allowance for the status line, the headers and the chunk framing, bytes."""


class ResponseRejected(RequestException):
    """Response that violates a limit; the text names the violation."""


class _Socket(ssl.SSLSocket):
    """Socket whose class holds the rest of a call: deadline (monotonic seconds) and bytes."""

    until = 0.0
    left = 0

    def recv_into(self, *args: Any, **options: Any) -> int:
        self._limit_wait()
        received = super().recv_into(*args, **options)
        type(self).left -= received
        if self.left < 0:
            raise OSError("response exceeds the byte limit")
        return received

    def send(self, *args: Any, **options: Any) -> int:
        self._limit_wait()
        return super().send(*args, **options)

    def _limit_wait(self) -> None:
        remaining = self.until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("deadline passed")
        self.settimeout(remaining)


class BoundedAdapter(HTTPAdapter):
    """HTTP adapter with a deadline and byte limit per call, and certificate pinning.

    Each changing request uses a new connection.

    Args:
        fingerprint: SHA-256 of the certificate, hexadecimal digits; empty: verified by CAs.
    """

    def __init__(self, fingerprint: str) -> None:
        self._sockets: type[_Socket] = type("Socket", (_Socket,), {})
        self._fingerprint = fingerprint
        super().__init__()

    def allow(self, seconds: float, answer_bytes: int) -> None:
        """Set the total seconds and the body bytes that each following call may use."""
        self._seconds, self._bytes = seconds, answer_bytes

    @property
    def broken_off(self) -> str:
        """Limit that ended the last call; empty if none did."""
        if self._sockets.left < 0:
            return f"longer than {self._bytes >> 20} MiB"
        return "deadline passed" if time.monotonic() >= self._sockets.until else ""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class = self._sockets
        if self._fingerprint:
            # No CA is used, so none needs to be loaded for each connection.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            options["assert_fingerprint"] = self._fingerprint
        super().init_poolmanager(*args, ssl_context=context, **options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        if request.method != "GET" and self.poolmanager is not None:
            # The server closes idle connections. On one that is closing, a change could be lost
            # without evidence of whether the server received it.
            self.poolmanager.clear()
        self._sockets.until = time.monotonic() + self._seconds
        self._sockets.left = self._bytes + _HEAD_BYTES
        request.headers["Accept-Encoding"] = "identity"
        options["timeout"] = (min(_CONNECT_SECONDS, self._seconds), self._seconds)
        response = super().send(request, *args, **options)
        wrong = ""
        if 300 <= response.status_code < 400:
            wrong = f"a redirect ({response.status_code}), which pvebench never follows"
        elif response.headers.get("Content-Encoding", "identity").lower() != "identity":
            wrong = "compressed without being requested"
        if wrong:
            response.close()
            raise ResponseRejected(wrong, response=response)
        return response


# --- Secrets

_GUESSABLE: Final = 16
"""Minimum length in characters; shorter secrets can occur in a response by chance."""

E = TypeVar("E", bound=Exception)


class Secrets:
    """Secrets to remove from text, in all encodings that a server could echo."""

    def __init__(self, secret: str) -> None:
        self._forms: set[str] = set()
        self.add(secret)

    def add(self, secret: str) -> None:
        """Add a secret to remove."""
        coded = base64.b64encode(secret.encode()).decode().rstrip("=")
        escaped = "".join(f"\\u{ord(character):04x}" for character in secret)
        plain = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
        self._forms |= {*plain, coded, escaped} - {""}

    def without(self, value: Any) -> Any:
        """Remove null members and long secrets from a response.

        Short secrets stay: they can occur by chance. Callers treat a null member as missing.
        """
        return _replaced(value, self._pattern(_GUESSABLE))

    def cleaned(self, error: E, *, ours: bool = False) -> E:
        """Remove the secrets from all texts of an error; return it.

        Args:
            ours: whether it has pvebench's words, of which a short secret may be one: the gap would
                reveal it.
        """
        pattern = self._pattern(_GUESSABLE if ours else 1)
        for name, value in [*vars(error).items(), ("args", list(error.args))]:
            setattr(error, name, _replaced(value, pattern))
        return error

    def _pattern(self, shortest: int = 1) -> re.Pattern[str]:
        forms = (form for form in self._forms if len(form) >= shortest)
        longest_first = sorted(forms, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


def _replaced(value: Any, secrets: re.Pattern[str]) -> Any:
    """Return a JSON value without secrets and null members."""
    if isinstance(value, str):
        return secrets.sub("(secret)", value)
    if isinstance(value, list):
        return [_replaced(item, secrets) for item in value]
    if isinstance(value, Exception):  # such as the cause of a lost connection
        value.args = tuple(_replaced(item, secrets) for item in value.args)
    if isinstance(value, dict):
        members = ((key, item) for key, item in value.items() if item is not None)
        return {_replaced(key, secrets): _replaced(item, secrets) for key, item in members}
    return value


# --- Content


def data_of(response: Response) -> Any:
    """Return the member `data` of a response.

    Raises ResponseRejected: it is not a Proxmox VE response.
    """
    try:
        whole = from_json(response.content, allow_inf_nan=False)
    except ValueError:
        raise ResponseRejected(_other_than_json(response)) from None
    if not isinstance(whole, dict) or "data" not in whole:
        raise ResponseRejected("JSON without the member 'data' that Proxmox VE sends")
    return whole["data"]


def _other_than_json(response: Response) -> str:
    if not response.content:
        return "empty"
    start = response.content[:200].lstrip().lower()
    return "a web page" if start.startswith((b"<!doctype", b"<html")) else "not JSON"


class ResponseReader:
    """proxmoxer serializer that requires JSON; proxmoxer's own accepts any text."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def loads(self, response: Response) -> Any:
        return self._secrets.without(data_of(response))

    def loads_errors(self, response: Response) -> dict[str, str] | None:
        """Return parameter -> error of a rejected request; None if it lists none."""
        try:
            errors = from_json(response.content)["errors"]
            return {str(key): str(why) for key, why in list(errors.items())[:20]}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


# --- Shapes of the responses that the driver uses
#
# Responses are checked here once: a field that is missing or of another type is one error that
# names it. tests/pve/requests.txt lists every request with its parameters and privileges.

_UPID: Final = r"UPID:[A-Za-z0-9-]{1,63}:([0-9A-Fa-f]+:){3}[^:\s/]*:[^:/]*:[^\s:/]+:"
_TASK: Final = leaf("a task", lambda value: isinstance(value, str) and re.fullmatch(_UPID, value))

LOGIN: Final = "POST /access/ticket"
_VM: Final = "/nodes/{node}/qemu/{vmid}"


def _each(names: str, shape: Shape) -> dict[str, Shape]:
    return dict.fromkeys(names.split(), shape)


_COUNTERS: Final = _each(
    "rd_operations wr_operations flush_operations rd_bytes wr_bytes unmap_operations_ unmap_bytes_ "
    + " ".join(f"{key}_" for key in QEMU_TIMES),
    number,
)
SHAPES: Final[Mapping[str, Shape]] = {
    # access rights, with an administrator's login: `init` and `setup`
    "GET /access/permissions": table(table(number)),
    "GET /access/roles": rows(roleid=text, privs_=text),
    "GET /access/users": rows(userid=text),
    "GET /access/users/{userid}/token": rows(tokenid=text, privsep_=number),
    "POST /access/users/{userid}/token/{tokenid}": fields(value=text),
    "GET /access/acl": rows(path=text, ugid=text, roleid=text, propagate_=number),
    LOGIN: fields(ticket=text, CSRFPreventionToken_=text),
    "GET /pools": rows(poolid=text),
    "GET /pools/{poolid}": fields(
        members=rows(id_=text, type_=text, vmid_=number, node_=text, storage_=text)
    ),
    # nodes and their activity
    "GET /version": fields(version=text),
    "GET /nodes": rows(node=text, status_=text),
    "GET /nodes/{node}/version": fields(version=text),
    "GET /nodes/{node}/time": fields(time=whole),
    "GET /nodes/{node}/status": fields(
        current__kernel_=fields(release_=text),
        cpuinfo_=fields(model_=text, cpus_=number),
        memory_=fields(total=whole, used=whole),
        **_each("cpu_ wait_", number),
    ),
    "GET /nodes/{node}/apt/versions": rows(Package=text, OldVersion_=text),
    "GET /nodes/{node}/tasks": rows(
        **_each("upid type_ status_", text), **_each("starttime pstart endtime_", whole)
    ),
    "GET /nodes/{node}/tasks/{upid}/status": fields(status=text, exitstatus_=text),
    "GET /nodes/{node}/tasks/{upid}/log": rows(t=text),
    "GET /nodes/{node}/replication": rows(fields()),
    "GET /nodes/{node}/disks/zfs": rows(name=text, frag_=number),
    "GET /nodes/{node}/disks/zfs/{name}": fields(scan_=text, expand_=text, remove_=text),
    "GET /nodes/{node}/disks/list": rows(
        **_each("devpath parent_ used_ model_ serial_ type_", text)
    ),
    "GET /nodes/{node}/ceph/status": CEPH_STATUS,
    "GET /cluster/nextid": number,
    "GET /cluster/resources": rows(
        **_each("type_ node_ status_ hastate_ lock_ tags_", text),
        **_each("vmid_ template_", number),
    ),
    # storages
    "GET /storage": rows(storage=text, pool_=text),
    "GET /nodes/{node}/storage": rows(
        **_each("storage type content_", text),
        **_each("active_ enabled_ avail_ total_ shared_", whole),
    ),
    "GET /nodes/{node}/storage/{storage}/status": fields(type_=text, active_=number, avail_=number),
    "GET /nodes/{node}/storage/{storage}/content": rows(
        **_each("volid format_ notes_", text), **_each("size_ vmid_", number)
    ),
    "DELETE /nodes/{node}/storage/{storage}/content/{volume}": _TASK,
    "POST /nodes/{node}/storage/{storage}/content": text,
    "POST /nodes/{node}/storage/{storage}/upload": _TASK,
    # the benchmark VM
    "POST /nodes/{node}/qemu": _TASK,
    f"POST {_VM}/clone": _TASK,
    f"DELETE {_VM}": _TASK,
    f"GET {_VM}/config": fields(digest_=text),
    f"GET {_VM}/pending": rows(key=text),
    f"GET {_VM}/status/current": fields(
        blockstat_=table(fields(**_COUNTERS)),
        **_each("status qmpstatus_ lock_ running__qemu_ running__machine_", text),
        **_each(
            "pressurecpusome_ pressureiosome_ pressureiofull_ pressurememorysome_ "
            "pressurememoryfull_",
            number,
        ),
    ),
    f"POST {_VM}/status/start": _TASK,
    f"POST {_VM}/status/stop": _TASK,
    f"POST {_VM}/monitor": text,
    # operations: with `init --with-operations`
    f"GET {_VM}/snapshot": rows(name=text),
    f"POST {_VM}/snapshot": _TASK,
    f"DELETE {_VM}/snapshot/{{snapname}}": _TASK,
    f"POST {_VM}/snapshot/{{snapname}}/rollback": _TASK,
    f"POST {_VM}/move_disk": _TASK,
    "POST /nodes/{node}/vzdump": _TASK,
    # the guest
    f"GET {_VM}/agent/info": fields(result=AGENT_INFO),
    f"POST {_VM}/agent/exec": fields(pid=whole),
    f"GET {_VM}/agent/exec-status": fields(
        exited=whole, exitcode_=whole, signal_=whole, out__data_=text, err__data_=text
    ),
    f"GET {_VM}/agent/file-read": fields(content=text, bytes__read_=number),
}
"""Method and path -> shape of the response; those of other requests are not used."""

KEYS: Final = (
    *("id", "node", "storage", "volid", "vmid", "key", "name", "devpath", "Package", "upid"),
    *("path", "roleid", "userid", "tokenid", "poolid", "ugid"),
)
"""Members that sort the rows of a list. The server returns most lists in the order of a hash, which
differs between calls; the lines of a task's log have none of these members, and keep theirs."""


def ordered(answer: Any) -> Any:
    """Return a response with the rows of its list sorted."""
    if isinstance(answer, dict) and "members" in answer:  # of a pool
        return {**answer, "members": ordered(answer["members"])}
    if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
        return answer
    return sorted(answer, key=lambda row: [str(row.get(key, "")) for key in KEYS])


def _pattern(request: str) -> re.Pattern[str]:
    # Only volume names contain slashes, in the last part of these paths.
    named = re.escape(request).replace(r"\{volume\}", ".+")
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", named))


_PATTERNS: Final = [(_pattern(request), shape) for request, shape in SHAPES.items()]


def shape_of(method: str, path: str) -> Shape:
    """Return the shape of the response to a request; `anything` if the driver does not use it."""
    request = f"{method} {path}"
    return next((shape for pattern, shape in _PATTERNS if pattern.fullmatch(request)), anything)


def most_bytes(path: str) -> int:
    """Return the maximum size of a response.

    Version 8 reads 16 MiB of a guest's file at once; some characters take several bytes.
    """
    return 48 << 20 if path.endswith("/agent/file-read") else 8 << 20
