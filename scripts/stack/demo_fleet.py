"""`make demo-fleet`: twelve simulated sites and their hub, on a private PostgreSQL.

A kernel makes random reads with an I/O thread 12% slower at seven of the nine sites that upgrade.
One site is killed while it sends, one is restored from an old copy, one is cloned. Two processes
judge. At the end the hub's page must name the kernel, the cases and the number of sites, and must
have every run exactly once.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from pvebench.log import log
from pvebench.model.workload import Case
from pvebench.store.store import Store
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket
from pvebench_fleet import push
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.hub.app import FleetPages, Readers, make_app, make_pages
from pvebench_fleet.hub.fleet_view import upgrades
from pvebench_fleet.hub.rules import Door
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.overview import read_fleet_view, read_overview
from pvebench_fleet.hub.store.schema import migrate
from pvebench_fleet.push import HubAddress, sending
from pvebench_fleet.wire import Limits
from pvebench_lab.simulated.demo_year import YEAR, Effect, Story, Upgrade
from testing.demo_year import assignments
from testing.hub_sites import filled_store
from testing.postgres import cluster
from testing.stored_runs import run

SITES: Final = (
    *("bregenz", "dornbirn", "eisenstadt", "graz", "innsbruck", "klagenfurt"),
    *("linz", "salzburg", "steyr", "villach", "wels", "wien"),
)
UPGRADED: Final = 9
SLOWER: Final = 7
KERNEL: Final = "6.14.8-2-pve"
KILLED, RESTORED, CLONED = SITES[0], SITES[1], SITES[2]
WORKLOADS: Final = ("randread-4k-qd1", "randwrite-4k-qd1")
LINES: Final = 100
"""Lines per push: a site is killed between two of them."""


def _is_slower(case: Case) -> bool:
    return case.workload.slug == WORKLOADS[0] and case.scenario.slug.endswith("iothread-1")


def story(number: int, days: float) -> Story:
    """Return what happens at a site; each upgrades on another day."""
    upgraded = days / 2 - 0.5 * number
    upgrade = Upgrade(days=upgraded, facts={"kernel": KERNEL})
    effect = Effect(begin=upgraded, end=0, matches=_is_slower, speed=0.88)
    return Story(
        days=days,
        facts={**YEAR.facts, "kernel": "6.14.5-1-pve"},
        upgrades=(upgrade,) if number < UPGRADED else (),
        effects=(effect,) if number < SLOWER else (),
    )


# --- A site: a process that sends what is in its folder.


def send(url: str, folders: Sequence[Path]) -> None:
    """Send the results of folders until SIGTERM."""
    # A simulated site has no other work, and asks often enough to be noticed as a clone.
    push.LEAST_WAIT = 0.01  # type: ignore[misc] # a constant of real sites
    push.IDLE_SECONDS = 2.0  # type: ignore[attr-defined] # likewise
    with ExitStack() as stack:
        for folder in folders:
            store = Store(folder / "pvebench.db", simulated=True)
            hub = HubAddress(url=url, token_file=folder / "token")
            stack.enter_context(sending(hub, store))
        signal.sigwait({signal.SIGTERM})


def started(url: str, *folders: Path) -> subprocess.Popen[bytes]:
    """Start the process of a site, or of several."""
    command = [sys.executable, __file__, "--send", url, *map(str, folders)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def acked(folder: Path) -> tuple[int, int]:
    """Return the acknowledged and the newest line of a site."""
    store = Store(folder / "pvebench.db", simulated=True)
    state = FleetLog(store.engine).state()
    store.close()
    return (0, 1) if state is None else (state.acked, state.newest)


def until(condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    """Wait for a condition; end the demo if it does not come."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process."""
    process.terminate()
    process.wait(30)


def send_all(url: str, *folders: Path) -> None:
    """Send everything that sites have."""

    def is_sent(folder: Path) -> bool:
        sent, newest = acked(folder)
        return sent == newest

    process = started(url, *folders)
    for folder in folders:
        until(partial(is_sent, folder), f"{folder.name} sends")
    ended(process)


# --- The faults.


def kill_one(folder: Path, url: str) -> None:
    """Kill a site while it sends."""
    process = started(url, folder)
    until(lambda: acked(folder)[0] > 0, "the first push")
    process.kill()
    process.wait(30)
    print(f"{folder.name}: killed after {acked(folder)[0]} of {acked(folder)[1]} lines", flush=True)


def restore_one(folder: Path, url: str) -> None:
    """Send five more runs, go back to a copy from before them, and measure three others."""
    database, copy = folder / "pvebench.db", folder / "copy.db"
    store = Store(database, simulated=True)
    store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    store.close()
    send_all(url, folder)
    shutil.copy(database, copy)
    for days in (range(5), range(10, 13)):
        store = Store(database, simulated=True)
        for day in days:
            store.add_run(run(day))
        store.close()
        send_all(url, folder)
        if days.start == 0:
            for path in folder.glob("pvebench.db*"):
                path.unlink()
            shutil.copy(copy, database)
    print(f"{folder.name}: restored from an old copy; the hub keeps the five lost runs", flush=True)


def clone_one(folder: Path, url: str, hub: HubDatabase) -> None:
    """Run a copy of a site beside it, until the hub holds both; then select the right one."""
    twin = folder.with_name("twin")
    shutil.copytree(folder, twin)
    processes = [started(url, one) for one in (folder, twin)]

    def is_held() -> bool:
        return any(one["name"] == folder.name and one["state"] == "held" for one in hub.sites())

    until(is_held, "the hub holds the cloned site")
    ended(processes[1])
    store = Store(folder / "pvebench.db", simulated=True)
    state = FleetLog(store.engine).state()
    store.close()
    name = state.process if state else ""
    hub.keep(folder.name, name, lambda: 7)
    ended(processes[0])
    print(f"{folder.name}: cloned; held, continued with process {name}", flush=True)


# --- The fleet.


def play(days: float, *, stay: bool) -> int:
    """Run the fleet; return the exit code."""
    log.configure(logging.CRITICAL)
    where = Path(tempfile.mkdtemp(prefix="pvebench-fleet-"))
    try:
        with cluster() as url:
            migrate(url)
            return _play(where, url, days, stay=stay)
    finally:
        shutil.rmtree(where, ignore_errors=True)


def _play(where: Path, url: str, days: float, *, stay: bool) -> int:
    hub, door = HubDatabase(url), HubDatabase(url, role="pvebench_door")
    reader = HubDatabase(url, role="pvebench_overview")
    limits = Limits(lines=LINES, wait_seconds=0)
    app = make_app(Door(door.begin, lambda: 7, limits), door)
    with open_socket("127.0.0.1:0") as at, open_socket("127.0.0.1:0") as shown:
        address, page = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in (at, shown))
        pages = make_pages(Readers(everyone=FleetPages(reader, [], "simulated fleet")))
        with WebServer(app, at), WebServer(pages, shown):
            runs = _fill(where, hub, days) + 8
            kill_one(where / KILLED, address)
            restore_one(where / RESTORED, address)
            clone_one(where / CLONED, address, hub)
            send_all(address, *(where / name for name in SITES))
            print(f"{runs} runs sent; two processes judge …", flush=True)
            judges = [_judge(url) for _ in range(2)]
            try:
                until(lambda: _all_judged(reader), "judging")
            finally:
                for judge in judges:
                    ended(judge)
            code = _report(hub, reader, runs)
            if stay:
                print(f"{page}/ until Ctrl-C")
                signal.sigwait({signal.SIGINT, signal.SIGTERM})
            return code


def _fill(where: Path, hub: HubDatabase, days: float) -> int:
    node, end, runs = assignments(*WORKLOADS)[3:], datetime.now(UTC).timestamp(), 0
    for number, name in enumerate(SITES):
        store = filled_store(where / name, node, story(number, days), end=end, seed=number)
        runs += store.totals().runs
        store.close()
        token = where / name / "token"
        token.write_text(f"{number:064x}")
        token.chmod(0o600)
        hub.add_token(name, f"{number:064x}")
        print(f"{name}: {days:.0f} simulated days", flush=True)
    return runs


def _judge(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pvebench", "hub", "judge", "--database", url]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _all_judged(reader: HubDatabase) -> bool:
    return not any(node.unjudged for node in reader.read(read_overview).nodes)


def _report(hub: HubDatabase, reader: HubDatabase, runs: int) -> int:
    with hub.connection() as opened:
        (found,) = opened.execute("SELECT count(*) AS n, count(DISTINCT uid) AS uids FROM run")
    stored = found["n"] == runs
    print(f"hub: {found['n']} runs, {runs} expected")
    sentences = [one.text for one in upgrades(reader.read(read_fleet_view))]
    for text in sentences:
        print(text)
    expected = f"at {SLOWER} of {UPGRADED} sites since kernel {KERNEL}"
    right = len(sentences) == 1 and expected in sentences[0] and "iothread=1" in sentences[0]
    if not right:
        print(f"expected one sentence with: {expected}")
    return 0 if right and stored else 1


def main() -> int:
    """Run the demo, or one of its sites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=40, help="length of the histories")
    parser.add_argument("--stay", action="store_true", help="serve the page until Ctrl-C")
    parser.add_argument("--send", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        send(given.send[0], [Path(text) for text in given.send[1:]])
        os._exit(0)
    return play(given.days, stay=given.stay)


if __name__ == "__main__":
    sys.exit(main())
