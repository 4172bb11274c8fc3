"""What may go wrong at each door of a simulated pvebench, and the moments at which it may die.

A moment is any step at which something becomes durable or changes outside: a transaction, a VM or
volume that begins or ends to exist, any wait. A process that has died does nothing more: whatever
its `finally` blocks try raises again.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, event

from pvebench.drivers.clocks import SimulatedClock
from pvebench.errors import GuestTimeout, NoSpace, OutcomeUnknown
from pvebench.model.ports import HostProbe, HostSnapshot

LIFE_SECONDS: Final = 6 * 3600.0
"""No life of a schedule waits so long, unless something waits for ever."""
JUMPS: Final = (-400 * 86400, -43_200, -90, 90, 43_200, 400 * 86400)
"""By so many seconds somebody sets the clock on the wall."""


class Killed(BaseException):
    """The process is dead. Not an Exception: nothing may catch it."""


class WaitsForEver(BaseException):
    """The process waits for what will not come. Likewise."""


class Fate:
    """Counts moments and ends the process at the chosen one; None: it lives."""

    def __init__(self, dies_at: int | None) -> None:
        self._left = dies_at
        self.dead = False

    def moment(self) -> None:
        if self._left is not None:
            self._left -= 1
            self.dead = self.dead or self._left <= 0
        if self.dead:
            raise Killed


@dataclass
class Trouble:
    """How often what strikes, by seed; `calm` ends all of it.

    Attributes:
        rates: what -> probability each time that it could strike.
        struck: what -> how often it did.
    """

    rng: random.Random
    rates: Mapping[str, float]
    calm: bool = False
    struck: Counter[str] = field(default_factory=Counter)

    def strikes(self, what: str) -> bool:
        hit = not self.calm and self.rng.random() < self.rates.get(what, 0.0)
        self.struck[what] += hit
        return hit


PORT_FAULTS: Final = (
    "reply lost",
    "reply repeated",
    "slow",
    "disk full",
    "counters back",
    "clock set",
    "database full",
    "commit unknown",
)
SELDOM: Final = ("disk full", "counters back", "commit unknown")
"""Those that could strike only a few times in a run."""


class MortalClock(SimulatedClock):
    """Time in which one may die, and whose wall clock somebody sets now and then."""

    def __init__(self, fate: Fate, start: datetime, trouble: Trouble) -> None:
        super().__init__(start)
        self._fate, self._trouble = fate, trouble
        self._off = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._off)

    def sleep(self, seconds: float) -> None:
        self._fate.moment()
        if self._trouble.strikes("clock set"):
            self._off += self._trouble.rng.choice(JUMPS)
        super().sleep(seconds)
        if self.monotonic() > LIFE_SECONDS:
            raise WaitsForEver

    def pass_time(self, seconds: float) -> None:
        """Let time pass that nobody's stop ends, as that of an answer from another machine."""
        self._fate.moment()
        self._elapsed += seconds
        if self.monotonic() > LIFE_SECONDS:
            raise WaitsForEver


class Unreliable:
    """A port behind a bad line: slow, replies lost after the effect, or all of it said twice.

    Args:
        methods: that may raise OutcomeUnknown, GuestSilent and the like, by the port's word;
            others are only slow.
        twice: methods that mean the same when they are said again.
    """

    def __init__(
        self,
        inner: Any,
        clock: MortalClock,
        trouble: Trouble,
        methods: tuple[str, ...],
        twice: tuple[str, ...] = (),
    ) -> None:
        self._inner, self._clock, self._trouble = inner, clock, trouble
        self._methods, self._twice = methods, twice

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._called(name, found) if name in self._methods else found

    def _called(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if self._trouble.strikes("slow"):
                self._clock.sleep(self._trouble.rng.choice((1.0, 20.0, 55.0)))
            answer = method(*given, **named)
            if name in self._twice and self._trouble.strikes("reply repeated"):
                method(*given, **named)
            if self._trouble.strikes("reply lost"):
                raise (GuestTimeout if name in GUEST else OutcomeUnknown)(f"the reply to {name}")
            return answer

        return call


GUEST: Final = ("run", "ask", "start", "poll", "read_file", "write_file")
HYPERVISOR: Final = (
    *("boot", "launch", "volume", "take_snapshots", "attach", "detach", "counters", "power_off"),
)
REPEATED: Final = ("run", "ask", "read_file", "write_file", "detach", "counters", "power_off")


class UnreliableHypervisor(Unreliable):
    """The hypervisor, its guests likewise; its storage may be full."""

    def __init__(self, inner: Any, clock: MortalClock, trouble: Trouble) -> None:
        super().__init__(inner, clock, trouble, HYPERVISOR, REPEATED)
        self._guests: dict[int, tuple[Any, Unreliable]] = {}

    def boot(self, *given: Any, **named: Any) -> Any:
        guest = self._called("boot", self._inner.boot)(*given, **named)
        known = self._guests.get(id(guest))
        if known is None or known[0] is not guest:
            shown = Unreliable(guest, self._clock, self._trouble, GUEST, REPEATED)
            known = self._guests[id(guest)] = guest, shown
        return known[1]

    def volume(self, *given: Any) -> Any:
        if self._trouble.strikes("disk full"):
            raise NoSpace("simulated: the storage is full")
        return self._called("volume", self._inner.volume)(*given)


class WrongProbe:
    """A host whose counters go back, or are not there, now and then."""

    def __init__(self, inner: HostProbe, trouble: Trouble) -> None:
        self._inner, self._trouble = inner, trouble

    def snapshot(self) -> HostSnapshot:
        found = self._inner.snapshot()
        if not self._trouble.strikes("counters back"):
            return found
        return replace(found, cpu_seconds=self._trouble.rng.choice(({}, {"total": 0.0})))


@contextmanager
def troubled(engine: Engine, fate: Fate, trouble: Trouble) -> Iterator[None]:
    """Have an engine's database full for a while, or its commits told late or not, while inside.

    Each commit is two moments: before it nothing of the transaction is there, after it all is.
    """
    full = [0]

    def refuse(*_: Any) -> None:
        fate.moment()
        if not full[0] and trouble.strikes("database full"):
            full[0] = trouble.rng.randint(1, 8)
        if full[0]:
            full[0] -= 1
            raise sqlite3.OperationalError("database or disk is full")

    def execute(cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("BEGIN IMMEDIATE", "INSERT", "UPDATE")):
            refuse()

    real = engine.dialect.do_commit

    def commit(connection: Any) -> None:
        fate.moment()
        real(connection)
        fate.moment()
        if trouble.strikes("commit unknown"):
            raise sqlite3.OperationalError("disk I/O error")

    event.listen(engine, "do_execute", execute)
    engine.dialect.do_commit = commit  # type: ignore[method-assign] # there is no event after it
    try:
        yield
    finally:
        event.remove(engine, "do_execute", execute)
        engine.dialect.do_commit = real  # type: ignore[method-assign] # as it was
