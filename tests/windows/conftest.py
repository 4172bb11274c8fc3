"""Windows guests whose agent is real, in Wine, or replayed from a transcript of it.

Without the programs of `tests/windows/build`, only transcripts are used; the summary says so.
`PVEBENCH_RECORD=1` (`make e2e-windows`) writes them again, and requires the programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from pvebench.drivers.clocks import START, SimulatedClock, SystemClock
from pvebench.drivers.qemu.qmp import QemuGuest
from pvebench.model.units import MIB
from pvebench_lab.windows.windows_guest import WindowsGuest
from windows.wine import Transcript, WineAgent, witnesses

RECORDED: Final = Path(__file__).parent / "transcripts"
RECORDING: Final = os.environ.get("PVEBENCH_RECORD") == "1"
DISK_BYTES: Final = 64 * MIB
PROGRAMS: Final = witnesses()
DIFFERENCES: Final = (
    "Nothing ran on Windows. Wine is kinder: it accepts unaligned unbuffered I/O, denies no write "
    "to a disk that is online, and PowerShell is a stand-in that knows the lines of each test.",
    "Wine is harsher: guest-get-disks is empty, a raw disk has no size without disk_size.c, a bare "
    "program name fails, and a command line beyond 32,767 characters is cut silently.",
    "Not tried: drivers, NTFS, serial numbers, virtio-serial, VSS, exit codes of taskkill, speed.",
)
"""What the results of these tests do not show."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with `windows` on its transcript, and on the real programs if they are there."""
    if "windows" in metafunc.fixturenames:
        real = RECORDING or PROGRAMS is not None
        kinds = ["real"] * real + ["recorded"] * (not RECORDING)
        metafunc.parametrize("windows", kinds, indirect=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report how many tests only had transcripts."""
    if RECORDING:
        for text in DIFFERENCES:
            terminalreporter.write_line(text)
    passed = terminalreporter.stats.get("passed", [])
    replayed = sum(
        "tests/windows/" in test.nodeid and "[recorded" in test.nodeid for test in passed
    )
    if PROGRAMS is None and replayed:
        terminalreporter.write_line(
            f"{replayed} tests of Windows guests had transcripts only: fio.exe and qemu-ga.exe are "
            "not built; run `make e2e-windows`"
        )


@pytest.fixture(scope="session")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], WineAgent]]:
    """Return the agent in Wine, started at the first use."""
    with ExitStack() as stack:
        started: list[WineAgent] = []

        def start() -> WineAgent:
            if not started:
                assert PROGRAMS is not None, (
                    "run tests/windows/build; it needs `make packages-windows`"
                )
                place = tmp_path_factory.mktemp("wine")
                started.append(WineAgent(PROGRAMS, place, disk_bytes=DISK_BYTES))
                stack.callback(started[0].close)
            return started[0]

        yield start


class Windows:
    """Guest under test.

    Attributes:
        wine: None: the guest is a transcript.
    """

    def __init__(self, guest: WindowsGuest, client: QemuGuest, wine: WineAgent | None) -> None:
        self.guest = guest
        self.client = client
        self.wine = wine

    def answer(self, line: Any, reply: object, **values: str | int) -> None:
        """Let PowerShell answer a line."""
        if self.wine is not None:
            self.wine.answer(line, values, reply)


@pytest.fixture
def windows(
    request: pytest.FixtureRequest, wine: Callable[[], WineAgent], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Windows]:
    """Return a Windows guest."""
    # Of a job that is random, a transcript has one.
    monkeypatch.setattr("pvebench.workloads.fio_job.secrets.token_hex", lambda size: "5a" * size)
    values = [str(v) for k, v in request.node.callspec.params.items() if k != "windows"]
    others = "".join(f"-{value.encode().hex()[:40]}" for value in values)
    path = RECORDED / f"{request.function.__name__}{others}.jsonl"
    if request.param == "recorded":
        client = QemuGuest(Transcript(path), SimulatedClock(START))  # type: ignore[arg-type]
        yield Windows(WindowsGuest(client, SimulatedClock(START)), client, None)
        return
    agent = wine()
    channel = agent.channel
    used: Any = Transcript(path, channel) if RECORDING else channel
    client = QemuGuest(used, SystemClock())
    client.ping(timeout=60.0)
    yield Windows(WindowsGuest(client, SystemClock()), client, agent)
