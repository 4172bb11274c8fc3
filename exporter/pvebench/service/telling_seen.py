"""Whether messages to people would arrive, as far as that shows without sending one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from pvebench.analysis.missing import count_text
from pvebench.config import Settings
from pvebench.config.notify import NotifyTarget
from pvebench.errors import ConfigError
from pvebench.files import is_open
from pvebench.notify.addresses import address_of
from pvebench.notify.messages import show_time
from pvebench.notify.sending import look_at as look_at_address
from pvebench.service.observation import Observation, Sight
from pvebench.store import Queued, TargetCounts, look_at, outbox_at

_TRY = "to try it: pvebench notify --test"


def messages_seen(settings: Settings, *, seconds: float) -> Iterator[Observation]:
    """Yield what is seen of each target of `notify`: its address, and what waits for it.

    Args:
        seconds: that looking at one address may take.

    Raises:
        StoreError: what waits cannot be read.
    """
    targets = settings.notify.to if settings.notify else ()
    for target in targets:
        fault = _address_seen(target, seconds)
        if fault is not None:
            yield Observation(f"notify {target.name}", *fault)
    path = settings.state / "pvebench.db"
    seen = look_at(path, most_bytes=0)
    if seen is not None and not seen.current:
        text = "what waits is not read: the database is of another version"
        yield Observation("notifications", Sight.UNKNOWN, text)
        return
    with outbox_at(path) if seen else nullcontext() as outbox:
        counts, queued = (outbox.counts(), outbox.queued()) if outbox else ({}, [])
    for target in targets:
        waiting = [one for one in queued if one.target == target.name]
        became = counts.get(target.name, TargetCounts())
        found = _waiting_seen(waiting) if waiting else _counts_seen(became)
        yield Observation(f"notify {target.name}", *found)


def _address_seen(target: NotifyTarget, seconds: float) -> tuple[Sight, str] | None:
    """Return what is wrong with an address; None: nothing that shows."""
    try:
        address = address_of(target)
    except ConfigError as error:
        # The environment is this command's own, not the service's.
        sight = Sight.UNKNOWN if target.url_env else Sight.WRONG
        return sight, str(error)
    except OSError as error:
        return Sight.WRONG, f"{target.url_file} cannot be read: {error.strerror}"
    sent = look_at_address(address, seconds=seconds)
    if sent.reason:
        return Sight.WRONG if sent.hopeless else Sight.UNKNOWN, sent.reason
    if target.url_file is not None and is_open(target.url_file):
        text = f"everybody can read its address: chmod o= {target.url_file}"
        return Sight.WRONG, text
    return None


def _waiting_seen(waiting: Sequence[Queued]) -> tuple[Sight, str]:
    oldest = waiting[0]
    text = f"{count_text(len(waiting), 'message')} for it, the oldest of {show_time(oldest.made)}, "
    if not oldest.attempts:
        return Sight.LOOK, f"{text}not tried yet: a running pvebench serve does"
    why = oldest.reason or "the last attempt was cut off"
    tries = count_text(oldest.attempts, "attempt")
    return Sight.WRONG, f"{text}after {tries}: {why}; {_TRY}"


def _counts_seen(counts: TargetCounts) -> tuple[Sight, str]:
    if counts.given_up is not None and counts.given_up > (counts.last or 0.0):
        text = f"the newest message was given up, {show_time(counts.given_up)}; {_TRY}"
        return Sight.WRONG, text
    if counts.last is None:
        return Sight.FINE, f"nothing was to be told yet; {_TRY}"
    return Sight.FINE, f"{counts.sent} sent, the last one {show_time(counts.last)}"
