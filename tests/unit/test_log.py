"""Text of others in the log cannot control a terminal."""

from __future__ import annotations

import logging

import pytest

from pvebench.cli.logs import configure_logging
from pvebench.log import log
from testing.captured_logs import log_restored


def test_words_of_others_in_the_log_cannot_steer_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with log_restored():
        configure_logging("info", "logfmt")
        log.warning("left", found="a\x1b[2J b\x07", other="\x1b]0;x\x07\n")
        logging.getLogger("x").warning("\x1b[31m")
    told = capsys.readouterr().err
    assert told.count("\n") == 2
    assert told.replace("\n", "").isprintable()
