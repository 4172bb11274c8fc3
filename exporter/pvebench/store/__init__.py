"""The only SQL: runs, samples, evidence, environments, decisions, notifications, journal."""

from pvebench.model.judged import Number
from pvebench.store.backups import Backup, backups_of, restore
from pvebench.store.changes import (
    Changes,
    Decision,
    DecisionKind,
    Decisions,
    Ending,
    KnownChange,
    Notified,
)
from pvebench.store.fleet_log import FleetState
from pvebench.store.imported import ImportCount, ImportedRun
from pvebench.store.instance_lock import holder_of
from pvebench.store.journal import StoredJournal
from pvebench.store.outbox import Message, Outbox, QueueState, ReceiverCounts
from pvebench.store.records import (
    CaseNumbers,
    CaseRecord,
    Point,
    StoredRun,
    Sums,
    Totals,
    not_measured,
    numbers_of,
    summed,
)
from pvebench.store.replacement import ReplacedRun
from pvebench.store.retention import Removal
from pvebench.store.state import (
    StateDirectory,
    StoreSummary,
    fleet_state_at,
    identities_at,
    outbox_at,
    summarize_store,
    writes_at,
)
from pvebench.store.store import Store
from pvebench.store.tables import GOOD

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
    "FleetState",
    "ImportCount",
    "ImportedRun",
    "KnownChange",
    "Message",
    "Notified",
    "Number",
    "Outbox",
    "Point",
    "QueueState",
    "ReceiverCounts",
    "Removal",
    "ReplacedRun",
    "StateDirectory",
    "Store",
    "StoreSummary",
    "StoredJournal",
    "StoredRun",
    "Sums",
    "Totals",
    "backups_of",
    "fleet_state_at",
    "holder_of",
    "identities_at",
    "not_measured",
    "numbers_of",
    "outbox_at",
    "restore",
    "summarize_store",
    "summed",
    "writes_at",
]
