"""Breaks the fleet's protocol, so that its simulation shows that it would notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from pvebench_fleet import push
from pvebench_fleet.hub import rules
from pvebench_fleet.hub.rules import Batch, SiteRow, State
from testing.simulated_fleet import ModelHub, ModelLog, ModelTransaction

Break = AbstractContextManager[Any]


def do_nothing() -> Break:
    """A line of a known run does not replace it: `ON CONFLICT DO NOTHING`."""
    return patch.object(ModelTransaction, "write", _insert_only)


def _insert_only(self: ModelTransaction, uid: str, new: tuple[int, int]) -> None:
    self._tables.rows.setdefault(uid, new)


def higher_revision() -> Break:
    """A line replaces a run only by a higher revision."""

    def write(self: ModelTransaction, uid: str, new: tuple[int, int]) -> None:
        self._tables.rows[uid] = max(self._tables.rows.get(uid, new), new, key=lambda row: row[0])

    return patch.object(ModelTransaction, "write", write)


@contextmanager
def sequence_only() -> Iterator[None]:
    """The chain is not compared: a number alone is the cursor."""
    with (
        patch("testing.simulated_fleet.fold", lambda *_: ""),
        patch.object(ModelLog, "chain_at", lambda *_: ""),
    ):
        yield


def no_process() -> Break:
    """Every process may push: neither turn nor process is compared."""

    def rejected(site: SiteRow, turn: int, process: str) -> Any:
        return rules._stopped(site)

    def hello(change: Any, request: Any, step: Any) -> Any:
        stopped = rules._stopped(change.site)
        return stopped or (200, rules._cursor(change.site))

    return _both(
        patch.object(rules, "_rejected", rejected), patch("pvebench_fleet.hub.rules.hello", hello)
    )


def cursor_first() -> Break:
    """The cursor is committed before the rows."""
    original = ModelHub.begin

    class Early(ModelTransaction):
        hub: Any = None

        def store(self, batch: Batch, turn: int) -> Any:
            early = replace(self.site, cursor=batch.head.to)
            self.hub.tables.site = early
            return super().store(batch, turn)

    @contextmanager
    def begin(self: Any, site: str, sent: float | None) -> Iterator[Any]:
        Early.hub = self
        with original(self, site, sent) as change:
            yield change

    return _both(
        patch.object(ModelHub, "transaction", Early), patch.object(ModelHub, "begin", begin)
    )


def no_undo() -> Break:
    """A hold leaves what a clone has replaced: the hole of an earlier draft."""
    return patch.object(ModelTransaction, "undo", lambda *_: None)


def no_resend() -> Break:
    """The end of a hold leaves the cursor where it is."""

    def release(change: Any, keep: str, step: Callable[[], int]) -> bool:
        if change.holder(keep) is None:
            return False
        turn = change.site.turn + step()
        change.ban_others(keep)
        change.put_holder(rules.Holder(process=keep, turn=turn))
        change.save(replace(change.site, state=State.ACTIVE, turn=turn, process=keep))
        return True

    return patch("testing.simulated_fleet.release", release)


def skip_corrected() -> Break:
    """A line is skipped if any later line has its run, also one of a later push."""

    def data(self: ModelLog, line: Any, newest: int) -> Any:
        revision = self._runs[line.key][0]
        return None if revision > line.revision else original(self, line, line.seq)

    original = ModelLog._data
    return patch.object(ModelLog, "_data", data)


def no_question() -> Break:
    """A site with nothing new does not ask, so that a restored hub stays behind."""
    return patch.object(push, "IDLE_SECONDS", 1e18)


def no_holding() -> Break:
    """Twins are not distinguished: each takes the turn."""

    def hold(change: Any, twin: Any) -> Any:
        site = replace(change.site, turn=change.site.turn + 1, process=twin.process)
        change.put_holder(replace(twin, turn=site.turn))
        change.save(site)
        return 200, rules._cursor(site)

    return patch.object(rules, "_hold", hold)


@contextmanager
def _both(first: Break, second: Break) -> Iterator[None]:
    with first, second:
        yield


MUTANTS: Final[dict[str, Callable[[], Break]]] = {
    "do-nothing": do_nothing,
    "sequence-only": sequence_only,
    "no-process": no_process,
    "cursor-first": cursor_first,
    "higher-revision": higher_revision,
    "no-undo": no_undo,
    "no-resend": no_resend,
    "skip-corrected": skip_corrected,
    "no-question": no_question,
    "no-holding": no_holding,
}
"""Name -> makes the context in which the protocol is broken."""
