"""The only SQL of pvebench: runs, samples, raw evidence, environments, cycles, the journal."""

from pvebench.store.history import History
from pvebench.store.journal import StoredJournal
from pvebench.store.records import GOOD, CaseRecord, Point, StoredRun, Totals, define
from pvebench.store.state import StateDirectory
from pvebench.store.store import Store

__all__ = [
    "GOOD",
    "CaseRecord",
    "History",
    "Point",
    "StateDirectory",
    "Store",
    "StoredJournal",
    "StoredRun",
    "Totals",
    "define",
]
