"""What a service publishes of its verdicts and of its end: the wiring, with real parts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pvebench.config import Settings
from pvebench.config.settings import NotifySettings
from pvebench.drivers.clocks import SimulatedClock
from pvebench.errors import Interrupted, PvebenchError
from pvebench.service.publisher import Publisher
from pvebench.store.changes import Decision
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from testing.changes import CASES, START, measured, upgrade
from testing.prometheus import free_port


@pytest.fixture
def publisher(store: Store) -> Callable[[bool], Publisher]:
    """Make publishers whose one receiver is not there."""
    to = [{"name": "gone", "url": f"json://127.0.0.1:{free_port()}"}]
    settings = Settings(notify=NotifySettings.model_validate({"to": to}))
    reloader: Any = SimpleNamespace(current=SimpleNamespace(settings=settings))
    unused: Any = None

    def make(endless: bool) -> Publisher:
        clock = SimulatedClock()
        return Publisher(
            LiveResults(store), reloader, clock, list, sites=(), guards=unused, endless=endless
        )

    return make


def test_an_upgrade_and_its_acceptance_are_reported_once_across_restarts(
    store: Store, publisher: Callable[[bool], Publisher]
) -> None:
    upgrade(store, slower=1.25)
    until = measured(CASES[0], 60).finished
    accept = Decision(made=START, kind="accept", cases="*", until=until, reason="")
    for decisions in ([], [accept]):
        for decision in decisions:
            store.decisions.add(decision)
        for endless in (False, True, True):
            service = publisher(endless)
            service._verdicts.judge()
            service._sender.step()
    changed, ended = store.outbox.queued()
    assert "Everything on virtio is 20% slower since pve-qemu-kvm 9.2.0-2" in changed.body
    assert ended.body.startswith("Accepted: the current level")


@pytest.mark.parametrize(
    ("endless", "error", "kinds"),
    [
        (True, PvebenchError("no image"), ["stopped"]),
        (True, Interrupted("stop"), []),
        (False, PvebenchError("no image"), []),
    ],
)
def test_only_an_endless_service_reports_the_error_that_ends_it(
    store: Store,
    publisher: Callable[[bool], Publisher],
    *,
    endless: bool,
    error: PvebenchError,
    kinds: list[str],
) -> None:
    with pytest.raises(PvebenchError), publisher(endless).notifying():
        raise error
    queued = store.outbox.queued()
    assert [message.kind for message in queued] == kinds
    assert all("no image" in message.body and message.attempts == 1 for message in queued)
