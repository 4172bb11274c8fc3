"""From what proxmoxer and requests raise to the error tree. Pure.

What decides is whether the server may have acted: a request that was never sent can be called
undone, one whose reply was lost cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from proxmoxer.core import AuthenticationError, ResourceException  # type: ignore[import-untyped] # proxmoxer has no types
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
"""The request went out and no answer came back: pveproxy's codes, and those of a proxy."""
UNREACHED: Final = 595
"""pveproxy could not connect to the target node or to pvedaemon."""

_LONGEST: Final = 2000
"""Characters of a server's words that a message repeats."""
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
        self,
        what: str,
        text: str,
        *,
        status: int = 0,
        fields: Mapping[str, str] | None = None,
        evidence: str = "",
    ) -> None:
        self.status = status
        self.text = text.strip()
        self.fields = dict(fields or {})
        details = "".join(f"; {name}: {' '.join(why.split())}" for name, why in self.fields.items())
        super().__init__(
            f"{what}: {self.text}{details}",
            cause="the server declined it, for the reason that it says",
            next_step="see the task on the node, and what else is missing: pvebench check",
            evidence=evidence,
        )


class Forbidden(AccessDenied):
    """A right is missing, or there is no such object: the server makes no difference."""


class LostReply(OutcomeUnknown):
    """As OutcomeUnknown; `text` is what the server or the connection said last."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(
            f"{what}: no answer ({text})",
            cause="the server or the way to it is overloaded or broken",
            next_step="nothing to do: what became of it is looked up, it is never sent again",
        )
        self.text = text


class InvalidResponse(DriverError):
    """What answered is not the API of Proxmox VE, or not one that is known."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(
            f"{what}: the server is not understood: {text}",
            cause="something else than the API of Proxmox VE listens there or stands in between",
            next_step="check host and port in the settings",
        )


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
            return AccessDenied(
                f"{what}: user name or password is refused",
                cause="they are wrong, or the account is disabled",
                next_step="try again with the right ones",
            )
        case ResponseRejected():
            text = f"its answer is {error}"
            return InvalidResponse(what, text) if reads else LostReply(what, text)
        case exceptions.SSLError() if untrusted := _untrusted(what, error):
            return untrusted
        case _:
            pass
    text, sent = _broken(error)
    return _gone(what, text) if reads or not sent else LostReply(what, text)


def _broken(error: Exception) -> tuple[str, bool]:
    """Return what became of a connection, and whether the request may have gone out."""
    match error:
        case exceptions.ConnectTimeout():
            return "no connection within the deadline", False
        case exceptions.ConnectionError() if _never_sent(error):
            return "the connection is refused or impossible", False
        case exceptions.Timeout():
            return "deadline passed", True
        case _:
            return f"{type(error).__name__}, connection lost", True


def spoken(text: str) -> str:
    """Return a server's words as they can be shown: of bearable length, nothing for terminals."""
    return printable(text.strip(), _LONGEST)


def _answered(what: str, error: ResourceException, *, reads: bool) -> DriverError:
    status = int(error.status_code)
    text = spoken(str(error.content or error.status_message or ""))
    if status == UNREACHED:
        return _gone(what, text)
    if status in LOST_REPLY:
        return _gone(what, f"{status} {text}") if reads else LostReply(what, f"{status} {text}")
    if status == 401:
        return AccessDenied(
            f"{what}: the server refuses the credentials: {text}",
            cause="the token is wrong, expired or disabled, or its user is",
            next_step="look under Datacenter > Permissions > API Tokens; a new one is made by: "
            "pvebench proxmox init --config SETTINGS --apply --new-token",
        )
    if status == 403:
        return Forbidden(
            f"{what}: {text}",
            cause="the token or its user lacks this right, or the object does not exist",
            next_step="see what is missing: pvebench check; also after an upgrade to version 9, "
            "pvebench proxmox init --apply gives it",
        )
    fields = error.errors if isinstance(error.errors, dict) else {}
    shown = {spoken(str(key)): spoken(str(why)) for key, why in fields.items()}
    return refusal(what, text, status=status, fields=shown)


def refusal(
    what: str,
    text: str,
    *,
    status: int = 0,
    fields: Mapping[str, str] | None = None,
    evidence: str = "",
) -> DriverError:
    """Return the error for a refusal in the server's words, of a call or at the end of a task."""
    everything = " ".join([text, *(fields or {}).values()])
    if _LOCKED in everything:
        return Busy(
            f"{what}: {text}",
            cause="a backup, snapshot or migration works on the VM",
            next_step="it is tried again later; a lock that nothing needs any more goes with: "
            "qm unlock NUMBER",
        )
    if _CONFIG_LOCK in everything:
        return ConfigLocked(
            f"{what}: {text}",
            cause="another call changes the VM right now",
            next_step="nothing to do: it is tried again",
        )
    if _NO_QUORUM in everything:
        return _gone(what, text)
    return Rejected(what, text, status=status, fields=fields, evidence=evidence)


def _gone(what: str, text: str) -> ServerGone:
    return ServerGone(
        f"{what}: the Proxmox API does not answer: {text}",
        cause="the node is down or rebooting, the cluster has no quorum, or the network is cut",
        next_step="nothing to do if it comes back; else check host and port in the settings",
    )


_PINNED_NEXT: Final = (
    "compare it with what the node shows (pvenode cert info), then give tls.fingerprint anew"
)
_CERTIFICATE: Final = (
    (
        "ingerprint",
        "the fingerprint differs",
        "it was renewed, or the server is somebody else's",
        _PINNED_NEXT,
    ),
    (
        "has expired",
        "it has expired",
        "nobody renewed it, or the clock of this machine is wrong",
        "on the node: pvecm updatecerts --force && systemctl restart pveproxy; with one of an "
        "authority of your own: pvenode acme cert renew",
    ),
    (
        "not yet valid",
        "it is not valid yet",
        "the clock of this machine, or of the node, is wrong",
        "compare what date says on both",
    ),
    (
        "match",
        "it is for other names than the one in the settings",
        "host is an address or a name that the certificate does not have",
        "give a host that it names (pvenode cert info), or tls.fingerprint",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "it cannot be verified",
        "it is signed by the cluster's own authority, or it is somebody else's",
        "give tls.ca_file (/etc/pve/pve-root-ca.pem) or tls.fingerprint in the settings; "
        "the node shows it with: pvenode cert info",
    ),
)
"""What OpenSSL or urllib3 says -> what that means, its cause, what to do."""


def _untrusted(what: str, error: Exception) -> ServerUntrusted | None:
    """Return what is wrong with a certificate; None: another trouble of the connection."""
    text = str(error)
    for word, wrong, cause, next_step in _CERTIFICATE:
        if word in text:
            return ServerUntrusted(
                f"{what}: the server's certificate is not trusted: {wrong}",
                cause=cause,
                next_step=next_step,
                evidence=text,
            )
    return None


def _never_sent(error: Exception) -> bool:
    """Whether the connection was never made: urllib3 says so deep inside."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return type(reason).__name__ in ("NewConnectionError", "NameResolutionError")
