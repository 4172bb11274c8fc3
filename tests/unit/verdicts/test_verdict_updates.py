"""How much of a CPU judging may cost: what its thread does between judgings."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

from pvebench.errors import StoreError
from pvebench.store.live_results import View
from pvebench.verdicts import verdict_updates
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import headline, overall_state
from pvebench.verdicts.verdict_updates import LEAST_REST_SECONDS, REST, VerdictService

FAULT = RuntimeError("a fault of judging")


class SlowFeed:
    """A feed with nothing new, which takes a while to find that out, by the test's clock."""

    def __init__(self, *seconds: float, fault: Exception | None = None) -> None:
        self.seconds = list(seconds)
        self.now = 100.0
        self.fault = fault
        self.newest_run = 7
        self.nodes = self.decisions = ()
        self.view = View()

    def read(self) -> bool:
        self.now += self.seconds.pop(0)
        if self.fault:
            raise self.fault
        return False


def rests(feed: SlowFeed) -> list[float]:
    """Return how long the thread rests after each judging, until nothing is left to read."""
    found: list[float] = []
    done = threading.Event()

    def rest(seconds: float) -> None:
        found.append(seconds)
        if feed.seconds:
            keeper.nudge()
        else:
            done.set()

    with mock.patch.object(verdict_updates, "JudgeInput", return_value=feed):
        keeper = VerdictService(mock.Mock(), (), monotonic=lambda: feed.now, rest=rest)
    with keeper:
        assert done.wait(30)
    return found


def test_the_thread_rests_twenty_times_as_long_as_it_has_judged() -> None:
    assert rests(SlowFeed(3.0, 0.5)) == [pytest.approx(60.0), pytest.approx(10.0)]
    assert REST >= 19  # of which follows: at most a twentieth of one CPU


def test_after_a_judging_that_took_no_time_the_thread_rests_all_the_same() -> None:
    assert rests(SlowFeed(0.0)) == [LEAST_REST_SECONDS]
    assert LEAST_REST_SECONDS > 0


def test_a_judging_that_fails_rests_as_well() -> None:
    assert rests(SlowFeed(2.0, fault=FAULT)) == [pytest.approx(40.0)]


@pytest.mark.parametrize("fault", [FAULT, StoreError("the database is damaged")])
def test_a_judging_that_fails_is_no_empty_verdict_and_is_made_up_for(fault: Exception) -> None:
    feed = SlowFeed(1.0, 1.0, fault=fault)
    told: list[Verdicts] = []
    done = threading.Event()

    def rest(_: float) -> None:
        if feed.seconds:
            feed.fault = None  # nothing new comes, but what failed is judged
            keeper.nudge()
        else:
            done.set()

    with mock.patch.object(verdict_updates, "JudgeInput", return_value=feed):
        keeper = VerdictService(
            mock.Mock(), (), on_update=told.append, monotonic=lambda: feed.now, rest=rest
        )
    with keeper:
        assert done.wait(30)
    assert [(verdicts.failed, verdicts.version) for verdicts in told] == [(True, 0), (False, 7)]
    failed = told[0]
    assert headline(failed).startswith("Verdict unknown: the latest update failed")
    assert overall_state(failed) == "inconclusive"
    assert headline(told[1]).startswith("No verdict yet. Each case needs 7 runs.")
    assert not keeper.current.failed
