"""Notifications are sent at least once, whenever the process dies, beside the measuring."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from pvebench.config import Settings, load_settings
from pvebench.config.settings import NotifySettings
from pvebench.drivers.clocks import SimulatedClock
from pvebench.errors import ConfigError, StoreError
from pvebench.metrics.exposition import Families
from pvebench.notify.delivery import Sent
from pvebench.notify.planner import NodeActivity
from pvebench.notify.sender import NotificationSender, address_of, text_of
from pvebench.service.publisher import collect_notified
from pvebench.store.outbox import Message, QueueState, ReceiverCounts
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import summary
from testing.captured_logs import captured_logs
from testing.changes import FINDING, known, named
from testing.families import families_of

MONDAY = datetime(2026, 11, 16, 7, 0, tzinfo=UTC)
NOTE = Message(kind="changed", title="title", body="text", receiver="mail")
FAILED = Sent(reason="the server returned status 500")


class World(SimulatedClock):
    """A store, a clock, and a server that accepts what it gets, or gives a reason."""

    def __init__(self, store: Store) -> None:
        super().__init__(MONDAY)
        self.store = store
        self.receivers: Sequence[str] = ("mail",)
        self.address = "json://{}"
        self.activities: Sequence[NodeActivity] = ()
        self.answer = Sent()
        self.taken: list[tuple[str, str, str]] = []

    def jump(self, days: float) -> None:
        """Set the wall clock."""
        self._start += timedelta(days=days)

    def settings(self) -> Settings:
        to = [{"name": name, "url": self.address.format(name)} for name in self.receivers]
        notify = NotifySettings.model_validate({"to": to}) if to else None
        return Settings(notify=notify, time_zone="Europe/Berlin")

    def sender(self) -> NotificationSender:
        return NotificationSender(
            self.store, self.settings, lambda: self.activities, self, send=self.send
        )

    def send(self, url: str, title: str, body: str) -> Sent:
        self.taken.append((url, title, body))
        return self.answer

    def titles(self) -> list[str]:
        """Return the accepted titles without prefix."""
        return [title.removeprefix("pvebench: ") for _, title, _ in self.taken]

    def report(self, sender: NotificationSender, *opened: str) -> None:
        """Store changes as an update of the verdicts does, and let it send."""
        stored = {one.id for one in self.store.changes.all()}
        self.store.changes.keep(known(named(name)) for name in opened if name not in stored)
        sender.judged(Verdicts(version=1, changes=tuple(named(name) for name in opened)))
        sender.step()


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_a_change_is_reported_later_if_the_queue_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = world.sender()
    with monkeypatch.context() as patched:
        patched.setattr(world.store.outbox, "put", Mock(side_effect=StoreError("disk full")))
        with pytest.raises(StoreError):
            world.report(sender, "new")
        sender._try_step()
    assert world.store.outbox.faults == {"notifications": "disk full"}
    sender._try_step()
    sender._try_step()
    assert world.titles() == [summary(FINDING)]
    assert world.store.outbox.faults == {}


def test_a_fault_of_pvebench_ends_no_delivery(world: World) -> None:
    sender = world.sender()
    world.activities = None  # type: ignore[assignment] # the fault
    sender._try_step()
    assert world.store.outbox.faults == {"notifications": "internal error: TypeError"}
    world.activities = ()
    sender._try_step()
    assert world.store.outbox.faults == {}


def test_a_summary_follows_each_week_since_the_start(world: World) -> None:
    sender = world.sender()  # at eight in Berlin
    world.report(sender)
    world.sleep(7 * 86400 - 1)
    sender.step()
    world.sleep(1)
    world.sender().step()  # a new process knows no verdict yet
    assert world.taken == []
    sender.step()
    world.report(world.sender())
    ((url, title, _),) = world.taken
    assert url == "json://mail"
    assert title.startswith("pvebench: weekly summary: ")


def test_a_stop_and_the_next_run_are_reported_once_across_restarts(world: World) -> None:
    world.activities = [NodeActivity(node="pve1", last_run=1000.0, interval=60, waiting=True)]
    sender = world.sender()
    for _ in range(3):
        world.sleep(3600)
        sender.step()  # quiet hours
    world.activities = [replace(world.activities[0], waiting=False)]
    world.jump(days=365)
    world.sleep(3600)
    sender.step()
    assert "measuring has stopped on pve1" not in world.titles()
    world.sleep(1)
    sender.step()
    world.sender().step()
    world.activities = [replace(world.activities[0], last_run=90_000.0)]
    world.sender().step()
    sender.step()
    world.sleep(3600)
    sender.step()
    assert world.titles() == ["measuring has stopped on pve1", "measuring has resumed on pve1"]


def test_the_first_receiver_gets_the_changes_that_are_open(world: World) -> None:
    world.receivers = ()
    sender = world.sender()
    world.report(sender, "old")
    world.receivers = ("mail",)
    world.report(sender, "old")
    assert world.titles() == [summary(FINDING)]


def test_a_message_is_tried_again_ever_more_seldom_until_it_arrives(world: World) -> None:
    world.store.outbox.put([NOTE])
    world.answer = FAILED
    sender = world.sender()
    sender.step()
    waits = []
    for _ in range(9):
        before, begun = len(world.taken), world.monotonic()
        while len(world.taken) == before:
            world.sleep(30)
            sender.step()
        waits.append(world.monotonic() - begun)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    world.answer = Sent()
    world.sleep(3600)
    sender.step()
    assert world.store.outbox.queued() == []
    families = Families()
    collect_notified(sender.counts, families)
    values = {one.name: one.samples[0].value for one in families_of(families)}
    assert values == {
        "pvebench_notifications_queued": 0,
        "pvebench_notifications_sent": 1,
        "pvebench_notifications_dropped": 0,
        "pvebench_notification_failures": 10,
        "pvebench_notification_success_timestamp_seconds": world.now().timestamp(),
    }


def test_a_receiver_that_fails_costs_the_other_one_nothing(world: World) -> None:
    world.receivers = ("broken", "mail")
    world.store.outbox.put([replace(NOTE, receiver=to) for to in world.receivers * 3])
    send = world.send
    world.send = lambda url, *text: FAILED if "broken" in url else send(url, *text)  # type: ignore[method-assign] # the server
    sender = world.sender()
    sender.step()
    assert [url for url, _, _ in world.taken] == ["json://mail"] * 3
    assert sender.counts["broken"] == ReceiverCounts(queued=3, failures=1)


@pytest.mark.parametrize(("permanent", "attempts"), [(True, 5), (False, 170)])
def test_after_five_rejections_or_a_week_a_message_is_dropped_and_the_next_one_tried(
    world: World, *, permanent: bool, attempts: int
) -> None:
    world.answer = Sent(reason="no", permanent=permanent)
    world.store.outbox.put([NOTE, replace(NOTE, title="next")])
    sender = world.sender()
    for _ in range(attempts):
        sender.step()
        world.sleep(3600)
    assert world.titles() == [*["title"] * attempts, "next"]
    counts = world.store.outbox.counts()["mail"]
    assert (counts.queued, counts.dropped, counts.failures) == (1, 1, attempts + 1)


def test_of_more_than_a_hundred_messages_the_oldest_are_dropped(world: World) -> None:
    world.store.outbox.put([replace(NOTE, title=str(number)) for number in range(120)])
    world.answer = FAILED
    world.sender().step()
    queued = world.store.outbox.queued()
    assert [one.title for one in queued] == [str(number) for number in range(20, 120)]
    assert world.titles() == ["20"]


def test_messages_for_a_removed_receiver_are_dropped_with_its_fault(world: World) -> None:
    world.store.outbox.put([NOTE])
    world.answer = FAILED
    sender = world.sender()
    sender.step()
    assert world.store.outbox.faults == {"notify mail": FAILED.reason}
    world.receivers = ("other",)
    sender.step()
    assert (world.store.outbox.queued(), world.store.outbox.faults) == ([], {})
    assert sender.counts.keys() == {"other"}


def test_a_clock_that_was_ahead_delays_no_message(world: World) -> None:
    world.store.outbox.put([NOTE])
    world.answer = FAILED
    sender = world.sender()
    for days in (0.125, -0.125):
        world.jump(days)
        sender.step()
    assert len(world.taken) == 2


def test_killed_between_sending_and_noting_it_the_message_comes_again(world: World) -> None:
    """Exactly once cannot be had from SMTP or HTTP; never lost can."""
    world.store.outbox.put([NOTE])
    script = (
        "import os, sys; from pathlib import Path; from datetime import datetime, UTC\n"
        "from unittest.mock import Mock\n"
        "from pvebench.config import Settings\n"
        "from pvebench.config.settings import NotifySettings\n"
        "from pvebench.notify.sender import NotificationSender\n"
        "from pvebench.store.store import Store\n"
        "to = [{'name': 'mail', 'url': 'json://x'}]\n"
        "settings = Settings(notify=NotifySettings.model_validate({'to': to}))\n"
        "clock = Mock(now=lambda: datetime.fromtimestamp(float(sys.argv[2]), UTC))\n"
        "NotificationSender(Store(Path(sys.argv[1])), lambda: settings, list, clock,\n"
        "    send=lambda *_: os.kill(os.getpid(), 9)).step()\n"
    )
    command = [sys.executable, "-c", script, str(world.store.path), str(world.now().timestamp())]
    done = subprocess.run(command, check=False, timeout=120, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    sender = world.sender()
    sender.step()
    assert world.taken == []  # a crash at each start must not repeat it at each start
    world.sleep(60)
    sender.step()
    sender.step()
    assert world.titles() == ["title"]


@pytest.mark.parametrize(("state", "most"), [("sent", 6), ("queued", 0)])
def test_a_message_whose_state_cannot_be_stored_is_repeated_seldom_or_not_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, state: QueueState, most: int
) -> None:
    world.store.outbox.put([NOTE])
    save = world.store.outbox.save

    def full(message: Message) -> None:
        if message.state == state:
            raise StoreError("disk full")
        save(message)

    sender = world.sender()
    with monkeypatch.context() as patched:
        patched.setattr(world.store.outbox, "save", full)
        for _ in range(120):
            sender._try_step()
            world.sleep(30)
    assert len(world.taken) == most
    world.sleep(3600)
    sender._try_step()
    assert world.store.outbox.queued() == []


def test_delivery_has_its_own_thread_and_ends_with_the_service(world: World) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hang(*_: str) -> Sent:
        asked.set()
        answered.wait(60)
        return Sent()

    world.send = hang  # type: ignore[method-assign] # the server
    world.store.outbox.put([NOTE, NOTE])
    with world.sender() as sender:
        assert asked.wait(60)
        sender.judged(Verdicts())  # verdicts do not wait meanwhile
        sender._stopped.set()
        answered.set()
    sender._thread.join()
    assert world.store.outbox.counts()["mail"].sent == 1


def test_new_verdicts_wake_the_thread(world: World) -> None:
    looked, arrived = threading.Event(), threading.Event()
    world.send = lambda *_: arrived.set() or Sent()  # type: ignore[method-assign,func-returns-value] # the server
    world.store.changes.keep([known(named("new"))])
    sender = NotificationSender(
        *(world.store, world.settings, lambda: looked.set() or (), world),  # type: ignore[func-returns-value]
        send=world.send,
    )
    with sender:
        assert looked.wait(60)
        sender.judged(Verdicts(version=1, changes=(named("new"),)))
        assert arrived.wait(20)  # less than the time between two looks


def test_the_thread_looks_twice_a_minute_and_holds_up_no_shutdown(world: World) -> None:
    sender = world.sender()
    woken, thread = Mock(wait=Mock(side_effect=lambda _: sender._stopped.set())), Mock()
    sender._woken = woken
    sender._run()
    woken.wait.assert_called_once_with(30)
    sender._thread = thread
    sender.__exit__()
    sender.report_exit("the last message")
    sender.__exit__()
    assert [call.args for call in thread.join.call_args_list] == [(2,), (20,)]


def test_a_message_has_a_short_title_and_says_where_it_comes_from() -> None:
    title, body = text_of(replace(NOTE, title="x" * 400), Settings())
    assert (len(title), title[:11]) == (120, "pvebench: x")
    assert body == f"text\n\npvebench on {socket.gethostname()}"


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
    assert settings.notify is not None
    mail, phone = settings.notify.to
    assert address_of(mail) == "mailto://secret@example.org"
    assert address_of(phone) == "ntfy://secret"
    footer = f"\n\npvebench on {socket.gethostname()}\nhttps://bench.example.org/"
    assert text_of(NOTE, settings)[1] == f"text{footer}"
    monkeypatch.delenv("TEST_PHONE_URL")
    with pytest.raises(ConfigError, match="TEST_PHONE_URL is not set"):
        address_of(phone)
    (tmp_path / "mail-url").chmod(0o644)
    with pytest.raises(ConfigError, match="accessible to other users"):
        address_of(mail)


def test_an_address_that_cannot_be_read_is_a_failed_attempt(world: World, tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path))
    (tmp_path / "mail-url").unlink()
    world.store.outbox.put([NOTE])
    NotificationSender(world.store, lambda: settings, list, world, send=world.send).step()
    (queued,) = world.store.outbox.queued()
    assert queued.reason.startswith("reading the address failed: ")
    assert (world.taken, queued.attempts) == ([], 1)


INLINE = "notify: {to: [{name: chat, url: 'json://user:hunter2@example.org'}]}\n"


def test_an_address_in_the_settings_needs_settings_that_no_one_else_reads(tmp_path: Path) -> None:
    path = settings_file(tmp_path, INLINE)
    with pytest.raises(ConfigError, match="accessible to other users") as raised:
        load_settings(path)
    assert "hunter2" not in str(raised.value)
    path.chmod(0o600)
    settings = load_settings(path)
    assert "hunter2" not in repr(settings)
    assert settings.notify is not None
    assert address_of(settings.notify.to[0]) == "json://user:hunter2@example.org"


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


def test_no_secret_is_in_the_log_or_the_store_when_sending_fails(world: World) -> None:
    world.store.outbox.put([NOTE])
    world.answer = FAILED
    world.address = "json://user:hunter2@example.org"
    sender = world.sender()
    with captured_logs() as logs:
        sender.step()
    assert [one["reason"] for one in logs] == ["the server returned status 500"]
    assert "hunter2" not in str(logs)
    assert b"hunter2" not in world.store.path.read_bytes()
