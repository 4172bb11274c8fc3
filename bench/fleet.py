"""Ingest of a fleet's hub, in one run, with a private PostgreSQL: `bench/fleet.py [RUNS]`.

`bench/fleet.py --sites [FLEETS] [SEED]`: how often simulated fleets of twelve sites blame an
upgrade that made four of them 5% slower, in one group of cases or in all, or none; from a SEED on.

Prints runs per second through the whole door without HTTP and TLS (gzip, checks, staging, cursor),
the same for pushes that are sent again, and bytes on disk per run. The fleet of docs/fleet.md, 50
sites with 4,050 cases each, has 2.3 runs per second.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import psycopg

from pvebench.model.run import Sample, Unit
from pvebench_fleet.hub.rules import Door
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.schema import migrate
from pvebench_fleet.wire import Head, pack, shape_of
from testing.hub_fleets import effects_of_fleet
from testing.postgres import cluster

FLEET_RUNS_PER_SECOND = 50 * 4050 / 86400
BATCH = 1000
NUMBERS = 25
PROCESS = "0" * 16


def pushes(runs: int) -> list[bytes]:
    """Return pushes of runs with 25 numbers each, of 1,350 cases."""
    samples = [Sample(f"metric{place}", None, 0.0, Unit.IOPS) for place in range(NUMBERS)]
    shape = shape_of(samples)
    found = []
    for first in range(0, runs, BATCH):
        lines = [shape.model_dump_json().encode()]
        for seq in range(first + 1, first + BATCH + 1):
            case, day = seq % 1350, seq // 1350
            finished = 1.76e9 + 86400.0 * day + case
            line = {
                "kind": "run",
                "seq": seq,
                "uid": f"{seq:032x}",
                "revision": 0,
                "number": seq,
                "case": f"pve{case % 3}/scenario{case}/workload/0123456789abcdef",
                "cycle": f"{day:032x}",
                "environment": f"{day // 30:016x}",
                "outcome": "ok",
                "reason": "",
                "pass": 1,
                "started": finished - 60,
                "finished": finished,
                "shape": shape.shape,
                "values": [seq * 1.01 + place for place in range(NUMBERS)],
            }
            lines.append(json.dumps(line).encode())
        head = Head(
            turn=1, process=PROCESS, after=first, chain=f"{first:032x}" if first else "",
            to=(first + BATCH, f"{first + BATCH:032x}"), count=len(lines), now=time.time(),
        )  # fmt: skip
        found.append(pack(head, lines))
    return found


def sent(door: Door, bodies: list[bytes], status: int) -> float:
    """Return the seconds that the door takes for pushes."""
    begun = time.perf_counter()
    for body in bodies:
        assert door.answer("lab", "POST", "push", body)[0] == status
    return time.perf_counter() - begun


def blame(fleets: int = 100, first: int = 0) -> None:
    """Print how often fleets with known truth blame an upgrade."""
    truths = (("one bus", 4, {"bus": "scsi"}), ("all cases", 4, {}), ("none", 0, {}))
    for name, slow, members in truths:
        blamed = wrong = 0
        for seed in range(first, first + fleets):
            found = effects_of_fleet(seed, slow_sites=slow, ratio=0.95, members=members)
            true = [one for one in found if slow and one.difference.fact == "kernel" and one.worse]
            blamed += bool(true)
            wrong += len(found) > len(true)
        print(f"slower: {name}: {fleets} fleets, {blamed} blame the upgrade, {wrong} another one")


def main() -> None:
    """Measure and print."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    if "--sites" in sys.argv:
        blame(*numbers)
        return
    runs = numbers[0] if numbers else 20_000
    bodies = pushes(runs)
    with cluster() as url:
        migrate(url)
        owner, database = HubDatabase(url), HubDatabase(url, role="pvebench_door")
        owner.add_token("lab", "a" * 64)
        door = Door(database.begin, lambda: 1)
        hello = {"process": PROCESS, "seen": 0, "version": "", "schemas": [1], "now": 0.0}
        assert door.answer("lab", "POST", "hello", json.dumps(hello).encode())[0] == 200
        new, again = sent(door, bodies, 200), sent(door, bodies, 409)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM")
            query = (
                "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits "
                "WHERE inhparent = 'run'::regclass"
            )
            ((size,),) = connection.execute(query).fetchall()
        owner.close()
        database.close()
    wire = sum(map(len, bodies))
    print(f"{runs} runs of {NUMBERS} numbers in pushes of {BATCH}, {wire / runs:.0f} B each")
    print(f"new: {runs / new:.0f} runs/s, {runs / new / FLEET_RUNS_PER_SECOND:.0f} x the fleet")
    print(f"sent again: {runs / again:.0f} runs/s, {new / again:.1f} x as fast as new ones")
    print(f"on disk: {size / runs:.0f} B per run")


if __name__ == "__main__":
    main()
