"""The only SQL of pvebench: runs, samples, evidence, environments, decisions, messages, journal."""

from pvebench.store.case_numbers import CaseNumbers, not_measured
from pvebench.store.changes import Changes, Ending, KnownChange, Told
from pvebench.store.copies import Backup, backups_of, restore
from pvebench.store.decisions import Decision, DecisionKind, Decisions
from pvebench.store.journal import StoredJournal
from pvebench.store.looking import Looked, damaged_blocks_at, identities_at, look_at, outbox_at
from pvebench.store.mending import Mended
from pvebench.store.outbox import Message, Outbox, Queued, TargetCounts
from pvebench.store.records import GOOD, CaseRecord, Number, Point, StoredRun, Sums, Totals, summed
from pvebench.store.retention import Removal
from pvebench.store.state import StateDirectory, holder_of
from pvebench.store.store import Store

__all__ = [
    "GOOD",
    "Backup",
    "CaseNumbers",
    "CaseRecord",
    "Changes",
    "Decision",
    "DecisionKind",
    "Decisions",
    "Ending",
    "KnownChange",
    "Looked",
    "Mended",
    "Message",
    "Number",
    "Outbox",
    "Point",
    "Queued",
    "Removal",
    "StateDirectory",
    "Store",
    "StoredJournal",
    "StoredRun",
    "Sums",
    "TargetCounts",
    "Told",
    "Totals",
    "backups_of",
    "damaged_blocks_at",
    "holder_of",
    "identities_at",
    "look_at",
    "not_measured",
    "outbox_at",
    "restore",
    "summed",
]
