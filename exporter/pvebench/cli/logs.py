"""Logging to stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final

from pvebench.log import log
from pvebench.sanitize import printable

_METHODS: Final = {logging.ERROR: "error", logging.CRITICAL: "critical"}


def configure_logging(level: str, form: str | None) -> None:
    """Log messages of at least `level` to stderr, in the `form` text, logfmt or json.

    Without a form, a terminal gets text, and everything else logfmt.
    """
    form = form or ("text" if sys.stderr.isatty() else "logfmt")
    least = getattr(logging, level.upper())
    log.configure(least, partial(_configure_structlog, least, form))
    # Libraries log through the standard library; their messages get the same form.
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(logging.WARNING, least))


def _configure_structlog(least: int, form: str) -> None:
    import structlog  # noqa: PLC0415 # slow import, unneeded without a message

    logfmt = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    renderers: dict[str, structlog.typing.Processor] = {
        "text": _text_line,
        # Output of guests and nodes must not control the terminal.
        "logfmt": lambda *message: printable(logfmt(*message)),
        "json": structlog.processors.JSONRenderer(),
    }
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderers[form],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        # Looked up for every message: stderr may have been replaced, as in tests.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _text_line(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    """Return a message as a line for people: `pvebench: warning: runs suspended (reason: …)`."""
    level, text, trace = event["level"], event["event"], event.get("exception", "")
    hidden = ("level", "event", "timestamp", "exception")
    facts = ", ".join(f"{name}: {value}" for name, value in event.items() if name not in hidden)
    line = printable(f"pvebench: {level}: {text}" + (f" ({facts})" if facts else ""))
    return f"{line}\n{trace}" if trace else line


class _Forward(logging.Handler):
    """Handler that forwards messages of libraries to the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record as one message."""
        method = getattr(log, _METHODS.get(record.levelno, "warning"))
        method(record.getMessage(), exc_info=record.exc_info)
