"""One site, its hub and now and then a clone of the site, played through a schedule of faults.

The sender (`pvebench_fleet.push`), the door and the rules of the hub are the real ones; the site's
log and the hub's tables are small models in memory, or SQLite's and PostgreSQL's real ones. What
strikes: requests and answers lost, late and doubled; the hub killed between any two statements,
full, migrating; site and hub restored from backups; a clone of the site; restarts. The rules that
a schedule may break are those of `Rules`; the model of what must be there does not read the code.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pvebench.model.run import Sample, Unit
from pvebench_fleet import HubUnreachable
from pvebench_fleet.fleet_log import FIRST, LogPosition, fold
from pvebench_fleet.hub.rules import STEP, Batch, Door, Holder, SiteRow, State, Transaction, release
from pvebench_fleet.push import Reply, Sender
from pvebench_fleet.wire import Limits, Position, RunLine

BAD = "\0"
"""A text that SQLite takes and PostgreSQL does not."""


# --- The site's log: the model, with the meaning of `store.fleet_log`.


@dataclass(frozen=True)
class ModelLine:
    seq: int
    kind: str
    key: str
    revision: int
    nonce: bytes


@dataclass(frozen=True)
class ModelEntry:
    seq: int
    kind: str
    data: Mapping[str, Any] | None


class Log(Protocol):
    """What a schedule does with the log of a site, besides what the sender does."""

    def add(self, uid: str, version: int, *, bad: bool) -> None: ...
    def correct(self, uid: str, version: int) -> None: ...
    def copy(self) -> Any: ...
    def position(self) -> LogPosition: ...
    def chain_at(self, seq: int) -> str | None: ...
    def advance(self, place: LogPosition, now: float) -> None: ...
    def batch(self, most: int) -> tuple[Sequence[Any], LogPosition, LogPosition]: ...
    def renew(self) -> None: ...


class ModelLog:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lines: list[ModelLine] = []
        self._runs: dict[str, tuple[int, int, bool]] = {}
        self._place: LogPosition = FIRST

    def copy(self) -> ModelLog:
        other = ModelLog(self._chance)
        other._lines, other._runs, other._place = [*self._lines], dict(self._runs), self._place
        return other

    def _append(self, uid: str) -> None:
        nonce = self._chance.randbytes(8)
        line = ModelLine(len(self._lines) + 1, "run", uid, self._runs[uid][0], nonce)
        self._lines.append(line)

    def add(self, uid: str, version: int, *, bad: bool) -> None:
        self._runs[uid] = (0, version, bad)
        self._append(uid)

    def correct(self, uid: str, version: int) -> None:
        revision, _, bad = self._runs[uid]
        self._runs[uid] = (revision + 1, version, bad)
        self._append(uid)

    def position(self) -> LogPosition:
        return self._place

    def chain_at(self, seq: int) -> str | None:
        return fold("", self._lines[:seq]) if seq <= len(self._lines) else None

    def advance(self, place: LogPosition, now: float) -> None:
        self._place = place

    def renew(self) -> None:
        self._lines, self._place = [], FIRST
        for uid in self._runs:
            self._append(uid)

    def batch(self, most: int) -> tuple[Sequence[ModelEntry], LogPosition, LogPosition]:
        lines = self._lines[self._place[0] : self._place[0] + most]
        newest = {line.key: line.seq for line in lines}
        entries = [
            ModelEntry(line.seq, line.kind, self._data(line, newest[line.key])) for line in lines
        ]
        last = lines[-1].seq if lines else self._place[0]
        return entries, self._place, (last, fold(self._place[1], lines))

    def _data(self, line: ModelLine, newest: int) -> Mapping[str, Any] | None:
        revision, version, bad = self._runs[line.key]
        return run_data(line.key, revision, version, bad=bad) if line.seq == newest else None


def run_data(uid: str, revision: int, version: int, *, bad: bool) -> dict[str, Any]:
    return {
        "uid": uid,
        "revision": revision,
        "number": int(uid[1:]) + 1,
        "case": "lab/local.scsi.raw.none/w/0123456789abcdef",
        "cycle": "c",
        "environment": "e",
        "started": 1.7e9,
        "finished": 1.7e9 + int(uid[1:]),
        "outcome": "ok",
        "reason": BAD if bad else "",
        "pass": 1,
        "samples": (Sample("iops", None, float(version), Unit.IOPS),),
    }


# --- The hub's tables: the model. A transaction changes a copy, and its commit is one step.


class Killed(Exception):
    """The hub died between two statements."""


@dataclass
class Tables:
    site: SiteRow = field(default_factory=SiteRow)
    holders: dict[str, Holder] = field(default_factory=dict)
    marks: list[Position] = field(default_factory=list)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    replaced: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    refused: int = 0

    def copy(self) -> Tables:
        return Tables(
            self.site,
            dict(self.holders),
            [*self.marks],
            dict(self.rows),
            dict(self.replaced),
            self.refused,
        )


class Hub(Protocol):
    """What a schedule does with the hub, besides what requests do."""

    def begin(self, site: str, sent: float | None) -> AbstractContextManager[Transaction]: ...
    def rows(self) -> dict[str, int]: ...
    def site(self) -> SiteRow: ...
    def back_up(self) -> Any: ...
    def restore(self, backup: Any) -> None: ...


class ModelTransaction:
    """The rules' view of the tables; dies before its statement number `dies_at`."""

    def __init__(self, tables: Tables, dies_at: int) -> None:
        self._tables, self._left = tables, dies_at
        self.site = tables.site

    def _statement(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Killed

    def save(self, site: SiteRow) -> None:
        self._statement()
        self._tables.site = self.site = site

    def holder(self, process: str) -> Holder | None:
        self._statement()
        return self._tables.holders.get(process)

    def put_holder(self, holder: Holder) -> None:
        self._statement()
        self._tables.holders[holder.process] = holder

    def ban_others(self, process: str) -> None:
        self._statement()
        for name, other in self._tables.holders.items():
            self._tables.holders[name] = replace(other, banned=name != process)

    def marks(self, before: int, most: int) -> Sequence[Position]:
        self._statement()
        known = sorted((mark for mark in self._tables.marks if mark[0] < before), reverse=True)
        return known[:most]

    def add_mark(self, place: Position) -> None:
        self._statement()
        self._tables.marks.append(place)

    def drop_marks(self, after: int) -> None:
        self._statement()
        self._tables.marks = [mark for mark in self._tables.marks if mark[0] <= after]

    def store(self, batch: Batch, turn: int) -> Sequence[int]:
        self._statement()
        for line in batch.lines:
            if isinstance(line, RunLine):
                new = (line.revision, int(line.values[0]))
                old = self._tables.rows.get(line.uid)
                if old is not None and old != new:
                    self._tables.replaced.setdefault((turn, line.uid), old)
                self.write(line.uid, new)
        self._statement()
        self._tables.refused += len(batch.refused)
        return [seq for seq, _, _ in batch.refused]

    def write(self, uid: str, new: tuple[int, int]) -> None:
        self._tables.rows[uid] = new

    def undo(self, after: int) -> None:
        self._statement()
        for turn, uid in sorted(self._tables.replaced, reverse=True):
            if turn > after:
                self._tables.rows[uid] = self._tables.replaced.pop((turn, uid))


class ModelHub:
    transaction: type[ModelTransaction] = ModelTransaction

    def __init__(self) -> None:
        self.tables = Tables()
        self.dies_at = 0

    @contextmanager
    def begin(self, site: str, sent: float | None) -> Iterator[Transaction]:
        changed = self.tables.copy()
        yield self.transaction(changed, self.dies_at)
        self.tables = changed

    def rows(self) -> dict[str, int]:
        return {uid: version for uid, (_, version) in self.tables.rows.items()}

    def site(self) -> SiteRow:
        return self.tables.site

    def back_up(self) -> Tables:
        return self.tables.copy()

    def restore(self, backup: Tables) -> None:
        self.tables = backup.copy()


# --- A schedule.


@dataclass
class History:
    """What one site's database has said: (version, number of its line) of each run, in order.

    Attributes:
        shared: lines up to this number may be of an earlier life, or of the site that was cloned:
            the hub may have later versions that this database has lost.
    """

    said: list[tuple[str, int]] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    shared: int = 0

    def copy(self) -> History:
        return History([*self.said], set(self.bad), self.shared)

    def versions(self, until: int) -> dict[str, tuple[int, int]]:
        """Return run -> (newest version, its line), of the lines up to a number."""
        return {
            uid: (version, line)
            for line, (uid, version) in enumerate(self.said[:until], start=1)
            if uid not in self.bad
        }


@dataclass
class Machine:
    """A site's machine: database, process, backups.

    Attributes:
        acked: whether the hub still has what it acknowledged: no backup was restored since.
    """

    log: Log
    history: History
    sender: Sender
    acked: bool = False
    backups: list[tuple[Any, History]] = field(default_factory=list)


class Schedule:
    """Plays one schedule; `broken` has the broken rules.

    Args:
        make_log, hub: models or real ones.
    """

    def __init__(
        self,
        seed: int,
        *,
        make_log: Callable[[random.Random], Log] = ModelLog,
        hub: Hub | None = None,
        step: Callable[[random.Random], int] = lambda chance: chance.randint(1, STEP),
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.hub: Any = hub or ModelHub()
        self.broken: list[tuple[str, str]] = []
        self.struck: Counter[str] = Counter()
        self.now = 1.8e9
        self._step = step
        self._door = Door(
            self.hub.begin,
            lambda: step(self.chance),
            Limits(lines=self.chance.choice([1, 3, 8]), wait_seconds=0),
            lambda: self.now,
        )
        self._late: list[tuple[str, str, bytes]] = []
        self._faults = True
        self._runs = 0
        self._version = 0
        self._said: dict[str, set[int]] = {}
        self._kept: set[str] = set()
        self._hub_backups: list[tuple[Any, set[str], int]] = []
        self._decisions = 0
        self._forgotten = False
        self._cloned = self.chance.random() < 0.25
        log = make_log(self.chance)
        self.site = Machine(log, History(), self._sender(log))
        self.clone: Machine | None = None

    def _sender(self, log: Log) -> Sender:
        process = f"{self.chance.getrandbits(64):016x}"
        return Sender(log, self._send, process, lambda: self.now, self.chance.random)

    # --- The network and the hub.

    def _send(self, method: str, path: str, body: bytes) -> Reply:
        fault = self.chance.random() if self._faults else 1.0
        if fault < 0.06:
            self._struck("request lost")
        if fault < 0.12:
            self._late.append((method, path, body))
            self._struck("request late")
        if fault < 0.20:
            self._struck("refused", lost=False)
            return Reply(self.chance.choice([429, 503, 507]), b"", 1.0)
        if fault < 0.26:
            self._handle(method, path, body)
            self.struck["request doubled"] += 1
        reply = self._handle(method, path, body, dies=0.26 <= fault < 0.38)
        if 0.38 <= fault < 0.5:
            self._struck("answer lost")
        return reply

    def _struck(self, name: str, *, lost: bool = True) -> None:
        self.struck[name] += 1
        if lost:
            raise HubUnreachable(name)

    def _handle(self, method: str, path: str, body: bytes, *, dies: bool = False) -> Reply:
        before = self.hub.site().state
        self.hub.dies_at = self.chance.randint(1, 7) if dies else 0
        try:
            status, content = self._door.answer("lab", method, path, body)
        except Killed:
            self.struck["hub killed"] += 1
            raise HubUnreachable("hub killed") from None
        finally:
            self.hub.dies_at = 0
        self._check_nothing_lost()
        if self.hub.site().state is State.HELD and before is not State.HELD:
            self._on_hold(body)
        return Reply(status, content)

    # --- Steps.

    def play(self) -> Schedule:
        for _ in range(self.chance.randint(30, 120)):
            self._one_step()
        self._end()
        return self

    def _one_step(self) -> None:
        self.now += self.chance.choice([1.0, 60.0, 700.0])
        machine = self.site
        if self.clone is not None and self.chance.random() < 0.4:
            machine = self.clone
        (step,) = self.chance.choices(*zip(*self._steps().items(), strict=True))
        step(machine)

    def _steps(self) -> dict[Callable[[Machine], None], int]:
        """Return what may happen next -> how often."""
        return {
            self._measure: 25,
            self._exchange: 40,
            self._correct: 10,
            self._restart: 5,
            self._back_up: 5,
            self._restore: 4,
            self._hub_goes_back: 6,
            self._deliver_late: 6,
            self._make_clone: 4,
        }

    def _restart(self, machine: Machine) -> None:
        machine.sender = self._sender(machine.log)

    def _back_up(self, machine: Machine) -> None:
        machine.backups.append((machine.log.copy(), machine.history.copy()))

    def _deliver_late(self, _: Machine) -> None:
        if self._late:
            late = self._late.pop(self.chance.randrange(len(self._late)))
            self.struck["late request"] += 1
            self._handle(*late)

    def _measure(self, machine: Machine) -> None:
        uid = f"r{self._runs}"
        self._runs += 1
        bad = self.chance.random() < 0.05
        if bad:
            machine.history.bad.add(uid)
        machine.log.add(uid, self._new_version(uid), bad=bad)
        machine.history.said.append((uid, self._version))

    def _correct(self, machine: Machine) -> None:
        if not machine.history.said:
            return
        uid = self.chance.choice(machine.history.said)[0]
        machine.log.correct(uid, self._new_version(uid))
        machine.history.said.append((uid, self._version))

    def _new_version(self, uid: str) -> int:
        self._version += 1
        self._said.setdefault(uid, set()).add(self._version)
        return self._version

    def _restore(self, machine: Machine) -> None:
        if not machine.backups:
            return
        log, history = self.chance.choice(machine.backups)
        self.struck["site restored"] += 1
        machine.log, machine.history = log.copy(), history.copy()
        machine.history.shared = len(history.said)
        machine.sender = self._sender(machine.log)

    def _hub_goes_back(self, _: Machine) -> None:
        if not self._hub_backups or self.chance.random() < 0.5:
            self._hub_backups.append((self.hub.back_up(), set(self._kept), self._decisions))
            return
        self.struck["hub restored"] += 1
        backup, kept, decisions = self.chance.choice(self._hub_backups)
        self._kept = set(kept)
        self.hub.restore(backup)
        if decisions < self._decisions:
            # A decision made at the hub is lost with it: the clone's results are back.
            self._forgotten = True
            self.site.history.shared = len(self.site.history.said)
        for machine in filter(None, (self.site, self.clone)):
            machine.acked = False

    def _make_clone(self, _: Machine) -> None:
        if not self._cloned or self.clone is not None:
            return
        self.struck["cloned"] += 1
        states = [(self.site.log, self.site.history), *self.site.backups]
        log, history = self.chance.choice(states)
        log, history = log.copy(), history.copy()
        history.shared = len(history.said)
        self.site.history.shared = max(self.site.history.shared, len(history.said))
        self.clone = Machine(log, history, self._sender(log))

    def _exchange(self, machine: Machine) -> None:
        contact = machine.sender.contact
        machine.sender.step()
        if self.hub.site().state is State.HELD:
            if self.chance.random() < 0.3:
                self._decide()
            return
        machine.acked |= self.hub.site().cursor == machine.log.position()
        if machine.sender.contact != contact and self.clone is None:
            self._check_acknowledged(machine)

    def _decide(self) -> None:
        """Let a person say which of the two is the site; the other one is switched off."""
        machines = [self.site, *([self.clone] if self.clone else [])]
        kept = self.chance.choice(machines)
        if not self._release(kept):
            return
        self._decisions += 1
        kept.history.shared, self._forgotten = 0, False
        self.site, self.clone, self._cloned = kept, None, False

    def _release(self, kept: Machine) -> bool:
        with self.hub.begin("lab", None) as change:
            return release(change, kept.sender.process, lambda: self._step(self.chance))

    def _end(self) -> None:
        """End all faults; then everything must arrive."""
        self._faults = False
        for late in self._late:
            self._handle(*late)
        machines = [self.site, *([self.clone] if self.clone else [])]
        for _ in range(2 + len(machines)):
            for machine in machines:
                self._settle(machine)
        if self.hub.site().state is State.HELD:
            self._decide_at_last()
        elif self.clone is not None:
            self._break("twins are held", "both pushed to the end")
        self._settle(self.site)
        self._check_end()

    def _decide_at_last(self) -> None:
        machines = [self.site, *([self.clone] if self.clone else [])]
        self.chance.shuffle(machines)
        for kept in machines:
            if self._release(kept):
                kept.history.shared = 0
                self.site, self.clone = kept, None
                return
        self._break("a hold can be ended", "the hub knows neither process")

    def _settle(self, machine: Machine) -> None:
        for _ in range(400):
            self.now += 3700.0
            machine.sender.step()
            idle = not machine.log.batch(1)[0]
            if self.hub.site().state is State.HELD:
                return
            if idle and self.hub.site().cursor == machine.log.position():
                return

    # --- Rules.

    def _break(self, rule: str, line: str) -> None:
        self.broken.append((rule, line))

    def _check_nothing_lost(self) -> None:
        rows = self.hub.rows()
        if not self._kept <= rows.keys():
            self._break("what was stored stays", f"{sorted(self._kept - rows.keys())[:3]} gone")
        self._kept = set(rows)

    def _check_acknowledged(self, machine: Machine) -> None:
        place = machine.log.position()
        if self.hub.site().cursor == place:
            self._compare(machine, place[0], "what was acknowledged is there")

    def _compare(self, machine: Machine, until: int, rule: str) -> None:
        rows = self.hub.rows()
        for uid, (version, line) in machine.history.versions(until).items():
            later = {v for u, v in machine.history.said[until:] if u == uid}
            if rows.get(uid) in later:
                continue  # a line has the newest content, and the newest line is on its way
            if uid not in rows:
                self._break(rule, f"{uid} is absent")
            elif rows[uid] != version and (
                line > machine.history.shared or rows[uid] not in self._said[uid]
            ):
                self._break(rule, f"{uid} is version {rows[uid]} instead of {version}")

    def _on_hold(self, body: bytes) -> None:
        if self.clone is None and not self._forgotten:
            self._break("only twins are held", "there is no clone")
        for machine in (self.site, self.clone):
            if machine is None:
                continue
            if machine.acked and machine.sender.process.encode() in body:
                self._check_intact(machine)

    def _check_intact(self, machine: Machine) -> None:
        """Check that a clone's pushes replaced nothing that the asking process was acknowledged."""
        rows = self.hub.rows()
        for uid, (version, line) in machine.history.versions(machine.log.position()[0]).items():
            here = rows.get(uid, version)
            own = {v for u, v in machine.history.said if u == uid}
            if line > machine.history.shared and (here < version or here not in own):
                self._break("no clone undoes a correction", f"{uid}: {here} is not {version}")

    def _check_end(self) -> None:
        rows = self.hub.rows()
        self._compare(self.site, len(self.site.history.said), "everything arrives")
        if self.site.log.batch(1)[0]:
            self._break("everything arrives", f"the site waits: {self.site.sender.state}")
        for uid, version in rows.items():
            if version not in self._said.get(uid, ()):
                self._break("nothing is invented", f"{uid} has version {version}")
