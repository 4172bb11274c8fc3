"""The undo journal of a database: its entries and their order."""

from __future__ import annotations

from pvebench.store.store import Store
from testing.stores import TemporaryStore


def test_the_journal_gives_open_changes_newest_first_also_after_a_new_opening(store: Store) -> None:
    first = store.journal.open("volume", {"path": "/a"})
    second = store.journal.open("vm", {"uuid": "u"})
    store.journal.close(store.journal.open("vm", {"uuid": "done"}))
    store.close()
    pending = TemporaryStore(store.path).journal.pending()
    assert [(number, kind) for number, kind, _ in pending] == [(second, "vm"), (first, "volume")]
