"""The only SQL of pvebench: runs, samples, evidence, environments, cycles, decisions, journal."""

from pvebench.store.decisions import Decision, DecisionKind, Decisions
from pvebench.store.history import History
from pvebench.store.journal import StoredJournal
from pvebench.store.numbers import Numbers, RunNumbers
from pvebench.store.records import GOOD, CaseRecord, Point, StoredRun, Totals, define
from pvebench.store.state import StateDirectory
from pvebench.store.store import Store

__all__ = [
    "GOOD",
    "CaseRecord",
    "Decision",
    "DecisionKind",
    "Decisions",
    "History",
    "Numbers",
    "Point",
    "RunNumbers",
    "StateDirectory",
    "Store",
    "StoredJournal",
    "StoredRun",
    "Totals",
    "define",
]
