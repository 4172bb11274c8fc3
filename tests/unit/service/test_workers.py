"""What systemd is told, as sd_notify(3) and sd_watchdog_enabled(3) describe it.

A real socket stands for systemd's; `make deb-test` has the real one.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from pvebench.service.workers import Supervisor
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket

MOMENT = "3000"
"""Microseconds after which systemd would end a silent service: a beat a millisecond."""


class Ears:
    """systemd's end: what was told, in order."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(20)

    def next(self) -> str:
        return self._socket.recv(4096).decode()

    def rest(self) -> list[str]:
        self._socket.setblocking(False)
        heard = []
        try:
            while True:
                heard.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return heard

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listening(address: str) -> Iterator[Ears]:
    ears = Ears(address)
    try:
        yield ears
    finally:
        ears.close()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


def test_a_service_reports_that_it_is_ready_and_that_it_ends(place: str) -> None:
    with listening(place) as ears:
        with Supervisor({"NOTIFY_SOCKET": place}).report_ready(lambda: 0):
            assert ears.next() == "READY=1"
        assert ears.rest() == ["STOPPING=1"]


def test_an_abstract_address_is_understood() -> None:
    name = f"pvebench-test-{os.getpid()}"
    supervisor = Supervisor({"NOTIFY_SOCKET": f"@{name}"})
    with listening(f"\0{name}") as ears, supervisor.report_ready(lambda: 0):
        assert ears.next() == "READY=1"


def test_a_status_is_one_line_whatever_it_says(place: str) -> None:
    """A message has a variable a line: a line break would be a variable more."""
    with listening(place) as ears:
        Supervisor({"NOTIFY_SOCKET": place}).status("fetching\nREADY=1")
        assert ears.next() == "STATUS=fetching READY=1"


def test_it_beats_as_long_as_the_pulse_moves(place: str) -> None:
    counter = itertools.count()
    environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": MOMENT}
    with listening(place) as ears, Supervisor(environment).report_ready(lambda: next(counter)):
        assert [ears.next() for _ in range(4)] == ["READY=1", *["WATCHDOG=1"] * 3]


def test_it_falls_silent_when_the_pulse_stands_still(place: str) -> None:
    asked = itertools.count()
    enough = threading.Event()

    def pulse() -> int:
        if next(asked) > 20:
            enough.set()
        return 7

    environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": MOMENT}
    with listening(place) as ears:
        with Supervisor(environment).report_ready(pulse):
            assert enough.wait(20)
        assert ears.rest() == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_watchdog_of_another_process_is_not_ours(place: str) -> None:
    """The variables are inherited: sd_watchdog_enabled(3) has a child look at WATCHDOG_PID."""
    environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": MOMENT, "WATCHDOG_PID": "1"}
    with listening(place), Supervisor(environment).report_ready(lambda: 0):
        assert "watchdog" not in {one.name for one in threading.enumerate()}


@pytest.mark.parametrize("limit", ["", "soon", "-1", "²"])
def test_a_limit_that_is_no_number_is_none(place: str, limit: str) -> None:
    with (
        listening(place),
        Supervisor({"NOTIFY_SOCKET": place, "WATCHDOG_USEC": limit}).report_ready(lambda: 0),
    ):
        assert "watchdog" not in {one.name for one in threading.enumerate()}


def test_without_a_listener_there_is_no_notification(place: str) -> None:
    with Supervisor({}).report_ready(lambda: 0):
        pass
    with Supervisor({"NOTIFY_SOCKET": place}).report_ready(lambda: 0):
        pass  # whoever was there is gone: measuring goes on


def test_the_pulse_is_that_of_the_pages() -> None:
    opened = open_socket("127.0.0.1:0")
    with WebServer(PlainTextResponse("here"), opened) as server:
        deadline = time.monotonic() + 30
        while server.turns < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
