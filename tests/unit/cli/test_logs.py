"""The log of a terminal has lines for people."""

from __future__ import annotations

import sys

import pytest

from pvebench.cli.logs import configure_logging
from pvebench.log import log
from testing.captured_logs import log_restored


def test_the_log_of_a_terminal_has_lines_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with log_restored():
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        configure_logging("warning", None)
        log.info("cycle started")
        log.warning("runs suspended", reason="disk\x1b[2J full")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
        configure_logging("warning", None)
        log.warning("runs suspended", reason="full")
    text, logfmt = capsys.readouterr().err.splitlines()
    assert text == "pvebench: warning: runs suspended (reason: disk [2J full)"
    assert logfmt.endswith('level=warning event="runs suspended" reason=full')
