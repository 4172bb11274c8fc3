"""The only SQL of pvebench: runs, samples, raw evidence, environments, cycles, the journal."""

from pvebench.store.journal import StoredJournal
from pvebench.store.records import CaseRecord, StoredRun, Totals
from pvebench.store.state import StateDirectory
from pvebench.store.store import Store

__all__ = ["CaseRecord", "StateDirectory", "Store", "StoredJournal", "StoredRun", "Totals"]
