"""The only SQL of pvebench: runs, samples, evidence, environments, cycles, decisions, journal."""

from pvebench.store.copies import Backup, backups_of, restore
from pvebench.store.decisions import Decision, DecisionKind, Decisions
from pvebench.store.journal import StoredJournal
from pvebench.store.mending import Mended
from pvebench.store.records import GOOD, CaseRecord, Point, RunNumbers, StoredRun, Totals
from pvebench.store.retention import Removal
from pvebench.store.state import StateDirectory
from pvebench.store.store import Store

__all__ = [
    "GOOD",
    "Backup",
    "CaseRecord",
    "Decision",
    "DecisionKind",
    "Decisions",
    "Mended",
    "Point",
    "Removal",
    "RunNumbers",
    "StateDirectory",
    "Store",
    "StoredJournal",
    "StoredRun",
    "Totals",
    "backups_of",
    "restore",
]
