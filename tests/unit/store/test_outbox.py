"""The queue of messages: what is stored of them, and in which transactions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from pvebench.errors import StoreLost
from pvebench.store.changes import KnownChange
from pvebench.store.outbox import Message, ReceiverCounts
from pvebench.store.store import Store

NOTE = Message(kind="changed", title="title", body="text", receiver="mail", made=1.0, due=2.0)
CHANGE = KnownChange(id="c", since=1.0, worse=True, gradual=False, cases=frozenset({"a"}))


def test_messages_are_queued_in_their_order_until_they_are_finished(store: Store) -> None:
    store.outbox.put([NOTE, replace(NOTE, receiver="phone", node="pve1", last_run=3.0)])
    first, second = store.outbox.queued()
    assert (first, second.id) == (replace(NOTE, id=1), 2)
    assert (second.receiver, second.node, second.last_run) == ("phone", "pve1", 3.0)
    tried = replace(first, attempts=1, due=60.0, reason="no answer")
    store.outbox.save(tried)
    assert store.outbox.queued() == [tried, second]
    store.outbox.save(replace(tried, state="sent", done=70.0))
    assert store.outbox.queued() == [second]


def test_a_message_and_the_state_of_its_change_are_stored_together_or_not_at_all(
    store: Store,
) -> None:
    store.changes.keep([CHANGE])
    notified = replace(CHANGE, notified="open", notified_at=5.0)
    with closing(sqlite3.connect(store.path)) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON changes BEGIN SELECT RAISE(FAIL, 'full'); END"
        )
        with pytest.raises(Exception, match="full"):
            store.outbox.put([NOTE], [notified])
        assert store.outbox.queued() == []
        database.execute("DROP TRIGGER full")
    store.outbox.put([NOTE], [notified])
    assert store.changes.all() == [notified]
    assert len(store.outbox.queued()) == 1


def test_the_newest_message_of_some_kinds_is_known_for_each_node(store: Store) -> None:
    states = [("stopped", "pve1"), ("resumed", "pve1"), ("weekly", ""), ("stopped", "pve2")]
    store.outbox.put([replace(NOTE, kind=kind, node=node, last_run=3.0) for kind, node in states])
    store.outbox.save(replace(store.outbox.queued()[3], state="dropped", done=9.0))
    found = store.outbox.newest("stopped", "resumed")
    assert {node: one.kind for node, one in found.items()} == {"pve1": "resumed", "pve2": "stopped"}
    # A finished one keeps its state, but no text.
    assert (found["pve2"].last_run, found["pve2"].body) == (3.0, "")


def test_counts_are_by_receiver_and_state(store: Store) -> None:
    assert store.outbox.counts() == {}
    store.outbox.put([NOTE] * 4 + [replace(NOTE, receiver="phone")])
    sent, late, dropped, *_ = store.outbox.queued()
    store.outbox.save(replace(sent, attempts=1, state="sent", done=10.0))
    store.outbox.save(replace(late, attempts=3, state="sent", done=30.0))
    store.outbox.save(replace(dropped, attempts=5, state="dropped", done=20.0))
    assert store.outbox.counts() == {
        "mail": ReceiverCounts(queued=1, sent=2, dropped=1, failures=7, last=30.0, given_up=20.0),
        "phone": ReceiverCounts(queued=1),
    }


@pytest.mark.parametrize("column", ["made", "due", "last_run"])
def test_a_value_that_a_damaged_page_made_is_reported_as_damage(store: Store, column: str) -> None:
    store.outbox.put([NOTE])
    with closing(sqlite3.connect(store.path)) as database:
        database.execute(f"UPDATE messages SET {column} = 'x'")
        database.commit()
    with pytest.raises(StoreLost, match="is damaged: invalid value"):
        store.outbox.queued()
