"""From what proxmoxer and requests raise to the error tree. Pure.

What decides is whether the server may have acted: a request that was never sent can be called
undone, one whose reply was lost cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from proxmoxer.core import (  # type: ignore[import-untyped] # proxmoxer has no types
    AuthenticationError,
    ResourceException,
)
from requests import exceptions

from pvebench.errors import (
    AccessDenied,
    Busy,
    DriverError,
    OutcomeUnknown,
    ServerGone,
    ServerUntrusted,
)

LOST_REPLY: Final = frozenset({502, 503, 504, 596, 597, 598, 599})
"""The request went out and no answer came back: pveproxy's codes, and those of a proxy."""
UNREACHED: Final = 595
"""pveproxy could not connect to the target node or to pvedaemon."""

_LOCKED: Final = "VM is locked ("
_CONFIG_LOCK: Final = "can't lock file"
_NO_QUORUM: Final = "no quorum"


class Rejected(DriverError):
    """The server understood the request and declined it.

    Attributes:
        status: HTTP status; 0 for an error that ended a task.
        text: the server's own words.
        fields: parameter -> complaint.
    """

    def __init__(
        self, what: str, text: str, *, status: int = 0, fields: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> None:  # fmt: skip
        self.status = status
        self.text = text.strip()
        self.fields = dict(fields or {})
        details = "".join(f"; {name}: {' '.join(why.split())}" for name, why in self.fields.items())
        super().__init__(f"{what}: {self.text}{details}", evidence=evidence)


class LostReply(OutcomeUnknown):
    """As OutcomeUnknown; `text` is what the server or the connection said last."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(
            f"{what}: no answer ({text})",
            cause="the server or the way to it is overloaded or broken",
        )
        self.text = text


class ConfigLocked(Busy):
    """Another call holds the VM's configuration for a moment; the same call may be made again."""


def translate(what: str, error: Exception, *, reads: bool) -> DriverError:
    """Return the error of the tree for `error`.

    Args:
        what: method and path, for the message; never holds a secret.
        reads: the call changes nothing, so a lost answer is no loss.
    """
    match error:
        case ResourceException():
            return _answered(what, error, reads=reads)
        case AuthenticationError():
            return AccessDenied(f"{what}: user name or password is wrong")
        case exceptions.SSLError():
            return _untrusted(what, error)
        case exceptions.ConnectTimeout():
            return _gone(what, "no connection within the deadline")
        case exceptions.ConnectionError() if _never_sent(error):
            return _gone(what, "the connection is refused or impossible")
        case exceptions.Timeout():
            text = "deadline passed"
        case _:
            text = f"{type(error).__name__}, connection lost"
    return _gone(what, text) if reads else LostReply(what, text)


def _answered(what: str, error: ResourceException, *, reads: bool) -> DriverError:
    status, text = int(error.status_code), str(error.content or error.status_message or "").strip()
    if status == UNREACHED:
        return _gone(what, text)
    if status in LOST_REPLY:
        return _gone(what, f"{status} {text}") if reads else LostReply(what, f"{status} {text}")
    if status == 401:
        return AccessDenied(
            f"{what}: the server refuses the credentials: {text}",
            cause="the token is wrong, expired or disabled, or its user is",
            next_step="look under Datacenter > Permissions > API Tokens; make a new one if need be",
        )
    if status == 403:
        return AccessDenied(
            f"{what}: {text}",
            cause="the token or its user lacks this right, or the object does not exist",
            next_step="see what is missing: pvebench check",
        )
    fields = error.errors if isinstance(error.errors, dict) else {}
    shown = {str(key): str(why) for key, why in fields.items() if key != "errors"}
    return refusal(what, text, status=status, fields=shown)


def refusal(
    what: str, text: str, *, status: int = 0, fields: Mapping[str, str] | None = None,
    evidence: str = "",
) -> DriverError:  # fmt: skip
    """Return the error for a refusal in the server's words, of a call or at the end of a task."""
    everything = " ".join([text, *(fields or {}).values()])
    if _LOCKED in everything:
        return Busy(
            f"{what}: {text}",
            cause="a backup, snapshot or migration works on the VM",
            next_step="nothing to do: it is tried again later",
        )
    if _CONFIG_LOCK in everything:
        return ConfigLocked(f"{what}: {text}", cause="another call changes the VM right now")
    if _NO_QUORUM in everything:
        return _gone(what, text)
    return Rejected(what, text, status=status, fields=fields, evidence=evidence)


def _gone(what: str, text: str) -> ServerGone:
    return ServerGone(
        f"{what}: the Proxmox API does not answer: {text}",
        cause="the node is down or rebooting, the cluster has no quorum, or the network is cut",
        next_step="nothing to do if it comes back; else check host and port in the settings",
    )


def _untrusted(what: str, error: Exception) -> ServerUntrusted:
    text = str(error)
    reason = "the fingerprint differs" if "ingerprint" in text else "it cannot be verified"
    return ServerUntrusted(
        f"{what}: the server's certificate is not trusted: {reason}",
        cause="it is signed by the cluster's own authority, was renewed, or is somebody else's",
        next_step="give tls.ca_file (/etc/pve/pve-root-ca.pem) or tls.fingerprint in the settings; "
        "the node shows it with: pvenode cert info",
        evidence=text,
    )


def _never_sent(error: Exception) -> bool:
    """Whether the connection was never made: urllib3 says so deep inside."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return type(reason).__name__ in ("NewConnectionError", "NameResolutionError")
