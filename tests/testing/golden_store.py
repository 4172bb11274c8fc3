"""Write `tests/golden/store/<schema>.sql`: a small database of this code, with rows in every table.

Run it before a migration is added, so that the migration has an old database to start from:

    PYTHONPATH=exporter:tests .venv/bin/python tests/testing/golden_store.py
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.store.changes import Decision, KnownChange
from pvebench.store.outbox import Message
from pvebench.store.store import Store
from pvebench.store.tables import SCHEMA
from pvebench_fleet.fleet_log import FleetLog
from testing.packs import quick
from testing.stores import TemporaryStore

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "store"
START = datetime(2026, 5, 1, tzinfo=UTC)
SAMPLES = (
    Sample("iops", Direction.READ, 1000.0, Unit.IOPS),
    Sample("bytes", Direction.READ, 4096.0, Unit.BYTES),
    Sample("clat_histogram", Direction.READ, 12.0, Unit.OPERATIONS, "0.001"),
    Sample("host_cpu", None, 0.5, Unit.CORES, "qemu"),
)


def run(uid: str, *, minutes: int, kernel: str, outcome: Outcome = Outcome.OK) -> Run:
    """Return a run of a quick case that starts some minutes after START."""
    facts = {"kernel": kernel, "qemu": "9.2.0", "accel": "kvm"}
    started = START + timedelta(minutes=minutes)
    return Run(
        uid=uid,
        case=quick()[1].cases[0],
        environment=Environment(node="lab", facts=facts),
        cycle="c1",
        started=started,
        finished=started + timedelta(seconds=12),
        outcome=outcome,
        reason="" if outcome.good else "why",
        samples=SAMPLES if outcome.good else (),
        evidence={"output": '{"jobs": []}', "note": "Grüße"},
        pass_number=1,
    )


def fill(store: Store) -> None:
    """Write rows into every table."""
    for uid in ("c1", "c2"):
        store.begin_cycle(uid, node="lab", pack="quick", tier="wall", planned=12)
    store.add_run(run("a", minutes=0, kernel="6.8.12"))
    store.add_run(run("b", minutes=1, kernel="6.8.12", outcome=Outcome.FAILED))
    store.add_run(run("c", minutes=2, kernel="6.11.0"))
    store.end_cycle("c1")
    store.journal.close(store.journal.open("volume", {"path": "/gone"}))
    store.journal.open("vm", {"uuid": "left"})
    store.decisions.add(
        Decision(made=START, kind="accept", cases="*", until=START, reason="Grüße; it's right")
    )
    change = KnownChange(
        id="c1",
        since=START.timestamp(),
        worse=True,
        gradual=False,
        cases=frozenset({"lab/a/b/0"}),
        text="a is slower",
        notified="open",
        notified_at=START.timestamp(),
    )
    store.changes.keep([change])
    message = Message(kind="changed", title="slower", body="a is slower", receiver="mail")
    store.outbox.put([message])
    store.identities.record("lab", "local", {"fs": "0123"})
    FleetLog(store.engine).begin()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pvebench.db"
        store = TemporaryStore(path, simulated=False)
        fill(store)
        store.close()
        with closing(sqlite3.connect(path)) as connection:
            dump = "\n".join([*connection.iterdump(), f"PRAGMA user_version = {SCHEMA};"])
    (GOLDEN / f"{SCHEMA}.sql").write_text(f"{dump}\n", "utf-8")


if __name__ == "__main__":
    main()
