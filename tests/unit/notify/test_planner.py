"""What people are told: each thing once, whenever the process dies, beside the measuring."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from pvebench.analysis.change import Change
from pvebench.config import load_settings
from pvebench.errors import ConfigError
from pvebench.metrics.live import collect_notified
from pvebench.metrics.text_format import Families
from pvebench.model.week import parse_weekly
from pvebench.notify.delivery import Sent
from pvebench.notify.planner import (
    MAX_TITLE,
    NotificationPlanner,
    NotificationPolicy,
    Sender,
    WorkerActivity,
)
from pvebench.notify.sender import PERMANENT_FAILURE_ATTEMPTS, NotificationSender, addresses_of
from pvebench.service.notifications import policy_of
from pvebench.store import Decision, KnownChange, Message, Store
from pvebench.store.current import Results
from pvebench.store.outbox import MAX_QUEUED
from pvebench.verdicts import Feed, Verdicts, VerdictService
from pvebench.verdicts.headline import summary
from testing.captured_logs import captured_logs
from testing.changes import CASES, FINDING, START, measured, upgrade
from testing.families import families_of
from testing.stores import TemporaryStore

MONDAY = datetime(2026, 11, 16, 7, 0, tzinfo=UTC)
SENDER = Sender("bench", "https://bench.example.org")
NOTE = Message(about="note", kind="changed", title="title", body="text")


@dataclass
class World:
    """A store, a clock, and a service that takes what it is sent, or says why not."""

    store: Store
    now: datetime = MONDAY
    seconds: float = 0.0
    targets: Sequence[str] = ("mail",)
    activities: Sequence[WorkerActivity] = ()
    answer: Sent = field(default_factory=Sent)
    taken: list[tuple[str, str, str]] = field(default_factory=list)

    def planner(self) -> NotificationPlanner:
        return NotificationPlanner(
            self.store,
            lambda: NotificationPolicy(
                targets=self.targets, sender=SENDER, weekly=parse_weekly("Mon 08:00")
            ),
            lambda: self.activities,
            now=lambda: self.now,
            monotonic=lambda: self.seconds,
        )

    def sender(
        self,
        planner: NotificationPlanner | None = None,
        *,
        send: Callable[[str, str, str], Sent] | None = None,
        address: str = "json://{}",
    ) -> NotificationSender:
        return NotificationSender(
            planner or self.planner(),
            self.store.outbox,
            lambda: {name: partial(address.format, name) for name in self.targets},
            send or self.send,
            now=self.time,
        )

    def time(self) -> float:
        return self.now.timestamp()

    def send(self, url: str, title: str, body: str) -> Sent:
        self.taken.append((url, title, body))
        return self.answer

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.seconds += seconds

    def queued(self) -> list[Message]:
        return [one.message for one in self.store.outbox.queued()]

    def say(self, planner: NotificationPlanner, *changes: Change) -> None:
        """Have the changes known, as judging does, and told."""
        kept = {one.id: one for one in self.store.changes.all()}
        self.store.changes.keep(known(one, kept.get(one.id)) for one in changes)
        planner.judged(Verdicts(version=1, changes=changes))

    def end(self, planner: NotificationPlanner, *ids: str) -> None:
        rows = [one for one in self.store.changes.all() if one.id in ids]
        ended = self.now.timestamp()
        self.store.changes.keep(replace(one, ended=ended, ending="resolved") for one in rows)
        planner.judged(Verdicts(version=2))


def known(change: Change, before: KnownChange | None = None) -> KnownChange:
    return KnownChange(
        id=change.id,
        since=change.begin,
        worse=True,
        gradual=False,
        severity=change.severity,
        cases=frozenset(change.cases),
        text=summary(change),
        notified=before.notified if before else "",
    )


def change(name: str, **other: object) -> Change:
    return replace(
        replace(FINDING, id=name, storages=("local-zfs",), severity="warning"),
        **other,  # type: ignore[arg-type] # by name
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    yield World(store)
    store.close()


@pytest.fixture
def told(world: World) -> NotificationPlanner:
    """A planner that has told of one change before."""
    planner = world.planner()
    world.say(planner, change("old"))
    world.sender(planner).step()
    world.taken.clear()
    return planner


def test_a_change_is_reported_once_however_often_it_is_judged_and_the_service_restarted(
    world: World, told: NotificationPlanner
) -> None:
    for _ in range(2):
        for planner in (told, world.planner()):
            world.say(planner, change("old"), change("new"))
            world.sender(planner).step()
            world.wait(86400)
    ((url, title, body),) = [one for one in world.taken if "weekly summary" not in one[1]]
    assert url == "json://mail"
    assert title.startswith("pvebench: a, b, c and 1 more are 18% slower since 1970-04-11")
    assert body.splitlines()[0].startswith("a, b, c and 1 more are 18% slower")
    assert "95% CI" in body
    assert "Since: 1970-04-11\nWhere: pve1, storage local-zfs\n\nCases (4):\n* a\n* b" in body
    assert body.endswith("pvebench on bench\nhttps://bench.example.org/")


def test_its_end_is_reported_once_and_its_return_as_well(
    world: World, told: NotificationPlanner
) -> None:
    world.end(told, "old")
    world.end(told, "old")
    assert [one.title[:24] for one in world.queued()] == ["pvebench: resolved: a, b"]
    assert world.queued()[0].body.startswith("Resolved: later changes have taken back")
    world.wait(86400)
    row = world.store.changes.all()[0]
    world.store.changes.keep([replace(row, ended=None, ending="")])
    told.judged(Verdicts(version=3, changes=(change("old"),)))
    assert world.queued()[1].body.startswith("This change is back:")


def test_an_old_history_is_summed_up_in_one_message_at_the_first_start(world: World) -> None:
    world.say(world.planner(), *(change(f"c{number}") for number in range(25)))
    (one,) = world.queued()
    assert one.title == "pvebench: 25 regressions"
    assert one.body.startswith("pvebench reports each new change once. Already open:")
    assert one.body.count("\n* ") == 11
    assert "* and 15 more" in one.body


def test_ten_thousand_changes_at_once_are_one_message_of_bounded_length(
    world: World, told: NotificationPlanner
) -> None:
    world.say(told, *(change(f"c{number}") for number in range(10_000)))
    (one,) = world.queued()
    assert "* and 9990 more" in one.body
    assert len(one.body) < 10_000
    world.end(told, *(f"c{number}" for number in range(10_000)))
    assert world.queued()[1].title == "pvebench: 10000 changes resolved"


def test_what_is_for_the_better_waits_for_the_week(world: World, told: NotificationPlanner) -> None:
    better = change("gain", severity="info")
    world.say(told, change("old"), better)
    assert world.queued() == []
    world.wait(7200)  # it is past eight
    told.plan()
    told.plan()
    (week,) = world.queued()
    assert week.kind == "weekly"
    assert "Open regressions (1):\n* 1970-04-11: a, b" in week.body
    assert "Open improvements (1):" in week.body
    world.wait(7 * 86400 - 3 * 3600)  # Monday, before eight
    told.plan()
    assert len(world.queued()) == 1
    world.wait(3 * 3600)
    told.plan()
    assert len(world.queued()) == 2


def test_a_week_is_summed_up_once_although_the_clock_jumps(
    world: World, told: NotificationPlanner
) -> None:
    world.wait(7200)
    told.plan()
    world.now += timedelta(days=400)
    told.plan()  # what a clock that is wrong says is the time
    world.now -= timedelta(days=400)
    told.plan()
    world.wait(7 * 86400)
    told.plan()
    told.plan()
    days = [one.about for one in world.queued()]
    assert days == ["weekly/2026-11-16", "weekly/2027-12-20", "weekly/2026-11-23"]


def test_a_stop_is_reported_once_and_so_is_the_next_run(world: World) -> None:
    planner = world.planner()
    world.activities = [WorkerActivity(node="pve1", newest=1000.0, interval=7200, doing="paused")]
    planner.plan()
    world.wait(2.4 * 7200)
    planner.plan()
    assert world.queued() == []
    world.wait(0.2 * 7200)
    planner.plan()
    world.planner().plan()
    (stop,) = world.queued()
    assert stop.title == "pvebench: measuring has stopped on pve1"
    assert "The latest one ended 1970-01-01 00:16 UTC.\nCurrent state: paused." in stop.body
    world.activities = [replace(world.activities[0], newest=90_000.0)]
    # A restart in between forgets nothing.
    world.planner().plan()
    planner.plan()
    assert [one.title for one in world.queued()][1:] == ["pvebench: measuring has resumed on pve1"]


def test_quiet_hours_and_a_clock_that_jumps_are_no_stop(world: World) -> None:
    planner = world.planner()
    world.activities = [WorkerActivity(node="pve1", newest=1000.0, interval=60, waiting=True)]
    for _ in range(20):
        planner.plan()
        world.wait(3600)
    world.activities = [replace(world.activities[0], waiting=False)]
    planner.plan()
    world.now += timedelta(days=365)
    planner.plan()
    assert [one for one in world.queued() if one.kind == "stopped"] == []


def test_a_service_that_falls_again_and_again_reports_it_once(world: World) -> None:
    for _ in range(3):
        world.planner().report_exit("the guest image is missing")
        world.planner().plan()
    (one,) = world.queued()
    assert one.title == "pvebench: measuring has stopped: pvebench has exited"
    assert "the guest image is missing" in one.body
    world.store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=1)
    world.store.add_run(measured(CASES[0], 1))
    world.planner().plan()
    world.planner().plan()
    assert [one.kind for one in world.queued()] == ["stopped", "going"]


def test_without_targets_nothing_is_queued_and_the_first_target_gets_the_sum(world: World) -> None:
    world.targets = ()
    planner = world.planner()
    world.say(planner, change("old"))
    planner.plan()
    assert world.queued() == []
    world.targets = ("mail",)
    world.say(planner, change("old"))
    assert world.queued()[0].title == "pvebench: 1 regression"


def test_a_message_is_tried_again_ever_more_seldom_until_it_arrives(world: World) -> None:
    world.store.outbox.put([NOTE], ["mail"], now=world.time())
    world.answer = Sent(reason="the server returned status 500")
    sender = world.sender()
    waits = []
    for _ in range(9):
        sender.step()
        before = len(world.taken)
        waited = 0
        while len(world.taken) == before:
            world.wait(30)
            waited += 30
            sender.step()
        waits.append(waited)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    world.answer = Sent()
    world.wait(3600)
    sender.step()
    assert world.queued() == []
    counts = world.store.outbox.counts()["mail"]
    assert (counts.sent, counts.last) == (1, world.now.timestamp())
    families = Families()
    collect_notified(sender.states, families)
    values = {one.name: one.samples[0].value for one in families_of(families)}
    assert values["pvebench_notification_failures"] == 10
    assert values["pvebench_notifications_sent"] == 1
    assert values["pvebench_notifications_queued"] == 0


def test_one_target_that_takes_nothing_costs_the_other_one_nothing(world: World) -> None:
    world.targets = ("broken", "mail")
    notes = [replace(NOTE, about=f"note {number}") for number in range(3)]
    world.store.outbox.put(notes, world.targets, now=world.time())

    def send(url: str, title: str, body: str) -> Sent:
        world.send(url, title, body)
        return Sent(reason="no answer" if "broken" in url else "")

    sender = world.sender(send=send)
    sender.step()
    assert [url for url, _, _ in world.taken].count("json://mail") == 3
    assert [url for url, _, _ in world.taken].count("json://broken") == 1


def test_what_is_refused_again_and_again_is_given_up_and_the_next_one_tried(world: World) -> None:
    notes = [NOTE, replace(NOTE, about="next")]
    world.store.outbox.put(notes, ["mail"], now=world.time())
    world.answer = Sent(reason="the server returned status 404", permanent=True)
    sender = world.sender()
    for _ in range(PERMANENT_FAILURE_ATTEMPTS):
        sender.step()
        world.wait(3600)
    assert [one.about for one in world.queued()] == ["next"]
    assert world.store.outbox.counts()["mail"].dropped == 1


def test_a_clock_that_was_ahead_holds_no_message(world: World) -> None:
    world.store.outbox.put([NOTE], ["mail"], now=world.time())
    world.answer = Sent(reason="no answer")
    sender = world.sender()
    world.now += timedelta(days=365)
    sender.step()
    world.now -= timedelta(days=365)
    world.answer = Sent()
    sender.step()
    assert world.queued() == []


def test_a_target_that_takes_nothing_for_long_gets_the_newest(world: World) -> None:
    notes = [replace(NOTE, about=str(number)) for number in range(MAX_QUEUED + 20)]
    world.store.outbox.put(notes, ["mail"], now=world.time())
    assert [one.about for one in world.queued()] == [one.about for one in notes[20:]]
    assert world.store.outbox.counts()["mail"].dropped == 20


def test_killed_between_sending_and_noting_it_comes_again_and_says_that(world: World) -> None:
    """Exactly once cannot be had from SMTP or HTTP; never lost can."""
    world.store.outbox.put([NOTE], ["mail"], now=world.time())
    script = (
        "import os, sys; from pathlib import Path; from pvebench.store import Store\n"
        "from pvebench.notify.sender import NotificationSender\n"
        "from unittest.mock import Mock\n"
        "store = Store(Path(sys.argv[1]))\n"
        "sender = NotificationSender(Mock(), store.outbox, lambda: {'mail': lambda: 'x'},\n"
        "    lambda *_: os.kill(os.getpid(), 9), now=lambda: float(sys.argv[2]))\n"
        "sender.step()\n"
    )
    command = [sys.executable, "-c", script, str(world.store.path), str(world.now.timestamp())]
    done = subprocess.run(command, check=False, timeout=120, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    world.sender().step()
    ((_, _, body),) = world.taken
    assert body == "(Possible duplicate: an earlier attempt was interrupted.)\n\ntext"
    world.sender().step()
    assert len(world.taken) == 1


def test_delivering_has_its_own_thread_and_ends_with_the_service(world: World) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hang(*_: str) -> Sent:
        asked.set()
        go_on.wait(60)
        return Sent()

    world.store.outbox.put([NOTE], ["mail"], now=world.time())
    sender = world.sender(send=hang)
    with sender:
        assert asked.wait(60)
        # Judging goes on meanwhile.
        world.say(world.planner(), change("new"))
        assert len(world.queued()) == 2
        go_on.set()


def test_from_an_upgrade_to_the_messages_and_after_it_is_accepted(world: World) -> None:
    store = world.store
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    upgrade(store, slower=1.25)
    ids = set()
    for _ in range(2):  # the second one is another process
        keeper = VerdictService(
            Feed(Results(store)), (), kept=store.changes, on_update=world.planner().judged
        )
        ids |= {one.id for one in keeper.judge().changes}
    assert len(ids) == 1
    (one,) = world.queued()
    assert "Everything on virtio is 20% slower since pve-qemu-kvm 9.2.0-2" in one.body
    until = measured(CASES[0], 60).finished
    store.decisions.add(Decision(made=START, kind="accept", cases="*", until=until, reason=""))
    keeper.judge()
    keeper.judge()
    assert [one.kind for one in world.queued()] == ["changed", "ended"]
    assert world.queued()[1].body.startswith("Accepted: the current level")


def test_hostile_names_make_no_header_and_no_second_line(
    world: World, told: NotificationPlanner
) -> None:
    evil = 'x\r\nBcc: y@example.org\r\n\r\n<script>"' + "z" * 3000
    world.say(told, change("evil", names=(evil,), nodes=(evil,), storages=(evil,)))
    (one,) = world.queued()
    assert one.title.isprintable()
    assert len(one.title) <= MAX_TITLE
    assert all(line.isprintable() for line in one.body.splitlines())
    assert not any(line.startswith("Bcc") for line in one.body.splitlines())


SETTINGS = """\
notify:
  to:
    - {name: mail, url_file: mail-url}
    - {name: phone, url_env: TEST_PHONE_URL}
  weekly: Fri 17:30
external_url: https://bench.example.org/
"""


def settings_file(directory: Path, text: str = SETTINGS, mode: int = 0o644) -> Path:
    path = directory / "pvebench.yaml"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    secret = directory / "mail-url"
    secret.write_text("mailto://secret@example.org\n", "utf-8")
    secret.chmod(0o600)
    return path


def test_addresses_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(settings_file(tmp_path))
    monkeypatch.setenv("TEST_PHONE_URL", "ntfy://secret")
    read = addresses_of(settings)
    assert {name: one() for name, one in read.items()} == {
        "mail": "mailto://secret@example.org",
        "phone": "ntfy://secret",
    }
    wishes = policy_of(settings)
    assert (wishes.targets, wishes.weekly) == (["mail", "phone"], parse_weekly("Fri 17:30"))
    assert wishes.sender.link == "https://bench.example.org"
    monkeypatch.delenv("TEST_PHONE_URL")
    with pytest.raises(ConfigError, match="TEST_PHONE_URL is not set"):
        read["phone"]()
    (tmp_path / "mail-url").chmod(0o644)
    with pytest.raises(ConfigError, match="accessible to other users"):
        read["mail"]()


INLINE = "notify: {to: [{name: chat, url: 'json://user:hunter2@example.org'}]}\n"


def test_an_address_in_the_settings_needs_settings_that_no_one_else_reads(tmp_path: Path) -> None:
    path = settings_file(tmp_path, INLINE)
    with pytest.raises(ConfigError, match="accessible to other users") as raised:
        load_settings(path)
    assert "hunter2" not in str(raised.value)
    path.chmod(0o600)
    settings = load_settings(path)
    assert "hunter2" not in repr(settings)
    assert addresses_of(settings)["chat"]() == "json://user:hunter2@example.org"


@pytest.mark.parametrize(
    "text",
    [
        "notify: {to: [{name: chat, url: [hunter2]}]}",
        "notify: {to: [{name: chat, url: hunter2, url_env: X}]}",
        "notify: {to: [{name: chat, url_env: 'json://hunter2'}]}",
        "notify: {to: [{name: chat, address: 'json://hunter2'}]}",
        "notify: 'json://hunter2'",
        "notify: {to: ['json://hunter2']}",
        "notify: {to: [{name: chat, url_env: [hunter2]}]}",
        "notify: {to: [{name: chat}]}",
        "notify: {to: []}",
        "notify: {to: [{name: a, url_env: X}, {name: a, url_env: X}]}",
        "notify: {to: [{name: a, url_env: X}], weekly: Someday}",
        "external_url: ftp://hunter2",
        "external_url: https://user:hunter2@example.org",
    ],
)
def test_what_is_wrong_is_reported_without_the_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(settings_file(tmp_path, text, 0o600))
    assert "hunter2" not in str(raised.value)


def test_no_secret_stands_in_the_log_or_the_store_when_sending_fails(world: World) -> None:
    world.store.outbox.put([NOTE], ["mail"], now=world.time())
    world.answer = Sent(reason="the server returned status 500")
    sender = world.sender(address="json://user:hunter2@example.org")
    with captured_logs() as logs:
        sender.step()
    assert [one["reason"] for one in logs] == ["the server returned status 500"]
    assert "hunter2" not in str(logs)
    assert b"hunter2" not in world.store.path.read_bytes()
