"""Translation of proxmoxer and requests exceptions to pvebench errors. Pure.

The result depends on whether the server may have acted: a request that was never sent had no
effect; one whose response was lost may have had one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from proxmoxer.core import ResourceException  # type: ignore[import-untyped] # proxmoxer has no types
from requests import exceptions

from pvebench.drivers.proxmox.api.bounds import ResponseRejected
from pvebench.errors import (
    AccessDenied,
    Busy,
    DriverError,
    OutcomeUnknown,
    ServerGone,
    ServerUntrusted,
)
from pvebench.sanitize import printable

LOST_REPLY: Final = frozenset({502, 503, 504, 596, 597, 598, 599})
"""Status codes of pveproxy and other proxies for a sent request without a response."""
UNREACHED: Final = 595
"""Status code if pveproxy could not connect to the target node or to pvedaemon."""

INIT: Final = "pvebench proxmox init --config SETTINGS --apply"
"""Command that grants the rights, as a user types it; options follow."""

_LONGEST: Final = 2000
"""Maximum characters of server text in a message."""

_CAUSES: Final = (
    (" is disabled", "the storage is disabled", "run `pvesm status` on the node"),
    (" does not exist", "it was removed or renamed", "check the names in the settings"),
    (
        "killed before its end",
        "it was stopped by force, or the node crashed or ran out of memory",
        "check the node; `pvebench cleanup` lists what the task may have left",
    ),
    ("No space left", "the storage is full", "free space on it, or use a smaller volume.size"),
    ("hostname lookup", "the cluster has no node of this name", "run `pvecm nodes` on a node"),
    ("", "the node could not do it", "run `journalctl -u pvedaemon` on the node"),
)
"""Part of the server's text, likely cause, next step."""


class Rejected(DriverError):
    """Request that the server understood and rejected.

    Attributes:
        what: method and path, or name of the task.
        status: HTTP status; 0 for an error that ended a task.
        text: the server's message.
        fields: parameter -> error.
    """

    def __init__(
        self,
        what: str,
        text: str,
        *,
        status: int = 0,
        fields: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> None:
        self.what, self.status, self.text = what, status, text.strip()
        self.fields = dict(fields or {})
        details = "".join(f"; {name}: {' '.join(why.split())}" for name, why in self.fields.items())
        known, cause, step = next(row for row in _CAUSES if row[0] in self.text)
        if not (known or status):
            cause, step = "the task failed on the node", "read the log of the task on the node"
        super().__init__(
            f"{what}: {self.text}{details}", cause=cause, next_step=step, evidence=evidence
        )


class Forbidden(AccessDenied):
    """Missing right or missing object; the server's response is the same for both."""


class LostReply(OutcomeUnknown):
    """OutcomeUnknown with `text`, the last message of the server or the connection."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(
            f"{what}: no response ({text})",
            cause="the server or the network is overloaded or down",
            next_step="no action needed; pvebench checks the state and never repeats the request",
        )
        self.text = text


class InvalidResponse(DriverError):
    """Response that is not one of a known Proxmox VE API."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(
            f"{what}: invalid response: {text}",
            cause="another service or a proxy answers instead of the Proxmox VE API",
            next_step="check host and port in the settings",
        )


class ConfigLocked(Busy):
    """Short lock by another request on the VM's configuration; the call can be repeated."""


def readable(text: str) -> str:
    """Sanitize server text for terminals and limit its length."""
    return printable(text.strip(), _LONGEST)


def translate(what: str, error: Exception, *, reads: bool) -> DriverError:
    """Return the pvebench error for `error`.

    Args:
        what: method and path, for the message; never holds a secret.
        reads: the call changes nothing, so a lost response has no effect.
    """
    match error:
        case ResourceException():
            return _answered(what, error, reads=reads)
        case ResponseRejected():
            text = f"the response is {error}"
            return InvalidResponse(what, text) if reads else LostReply(what, text)
        case exceptions.SSLError() if untrusted := _untrusted(what, error):
            return untrusted
        case exceptions.ConnectTimeout():
            return _gone(what, "no connection within the deadline")
        case exceptions.ConnectionError() if _never_sent(error):
            return _gone(what, "connection refused or impossible")
        case _:
            timeout = isinstance(error, exceptions.Timeout)
            text = "deadline passed" if timeout else f"{type(error).__name__}, connection lost"
            return _lost(what, text, reads=reads)


def _answered(what: str, error: ResourceException, *, reads: bool) -> DriverError:
    status = int(error.status_code)
    text = readable(str(error.content or error.status_message or ""))
    if status == UNREACHED:
        return _gone(what, text)
    if status in LOST_REPLY:
        return _lost(what, f"{status} {text}", reads=reads)
    if status == 401:
        return AccessDenied(
            f"{what}: the server rejects the credentials: {text}",
            cause="the token or its user is wrong, expired or disabled",
            next_step="check Datacenter > Permissions > API Tokens; to create a new token, run "
            f"{INIT} --new-token",
        )
    if status == 403:
        return Forbidden(
            f"{what}: {text}",
            cause="the token or its user lacks this right, or the object does not exist",
            next_step=f"run `{INIT}`, also after an upgrade to version 9",
        )
    if 400 < status < 500:  # Proxmox VE has no others
        return InvalidResponse(what, f"status {status} {text}")
    shown = {readable(key): readable(why) for key, why in (error.errors or {}).items()}
    return specific(Rejected(what, text, status=status, fields=shown))


_HELD_UP: Final = (
    (
        "VM is locked (",
        Busy,
        "a backup, snapshot or migration locks the VM",
        "no action needed; pvebench retries later. If the lock is stale, run qm unlock {vmid}",
    ),
    (
        # The server checks the digest before the lock, and a lock changes the digest.
        "file change by other user",
        Busy,
        "a backup, snapshot, migration or administrator changed the VM's configuration",
        "no action needed; pvebench reads the configuration again and retries",
    ),
    (
        "can't lock file",
        ConfigLocked,
        "another request is changing the VM",
        "no action needed; pvebench retries",
    ),
)
"""Part of the server's text, error, cause, next step."""


def specific(error: Rejected) -> DriverError:
    """Return the error that the server's message stands for; `error` if it is no special one."""
    for part, kind, cause, next_step in _HELD_UP:
        if part in error.happened:
            vmid = re.search(r"(?:VM |/qemu/)(\d+)", error.what)
            step = next_step.format(vmid=vmid[1] if vmid else "NUMBER")
            return kind(f"{error.what}: {error.text}", cause=cause, next_step=step)
    return _gone(error.what, error.text) if "no quorum" in error.happened else error


def _lost(what: str, text: str, *, reads: bool) -> DriverError:
    return _gone(what, text) if reads else LostReply(what, text)


def _gone(what: str, text: str) -> ServerGone:
    return ServerGone(
        f"{what}: Proxmox API unreachable: {text}",
        cause="the node is down or rebooting, the cluster has no quorum, or the network is cut",
        next_step="pvebench reconnects; if this persists, check host and port in the settings",
    )


_CERTIFICATE: Final = (
    (
        "ingerprint",
        "the fingerprint differs",
        "the certificate was renewed, or this is another server",
        "compare it with the output of pvenode cert info on the node, then update tls.fingerprint",
    ),
    (
        "has expired",
        "expired",
        "it was not renewed, or the clock of this machine is wrong",
        "run on the node: pvecm updatecerts --force && systemctl restart pveproxy; with your own "
        "CA: pvenode acme cert renew",
    ),
    (
        "not yet valid",
        "not valid yet",
        "the clock of this machine or of the node is wrong",
        "compare the output of date on both",
    ),
    (
        "match",
        "it does not cover the host in the settings",
        "host is an address or a name that the certificate lacks",
        "set host to a name in the certificate (pvenode cert info), or set tls.fingerprint",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "verification failed",
        "it is signed by the cluster's own CA, or this is another server",
        "set tls.ca_file (/etc/pve/pve-root-ca.pem) or tls.fingerprint in the settings; "
        "pvenode cert info on the node prints it",
    ),
)
"""Part of the OpenSSL or urllib3 message, fact, cause, action."""


def _untrusted(what: str, error: Exception) -> ServerUntrusted | None:
    """Return the certificate error; None: the connection failed for another reason."""
    text = str(error)
    for word, wrong, cause, next_step in _CERTIFICATE:
        if word in text:
            what = f"{what}: server certificate not trusted: {wrong}"
            return ServerUntrusted(what, cause=cause, next_step=next_step, evidence=text)
    return None


def _never_sent(error: Exception) -> bool:
    """Return whether the connection was never made, from urllib3's nested reason."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return type(reason).__name__ in ("NewConnectionError", "NameResolutionError")
