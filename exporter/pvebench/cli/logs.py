"""Logging to stderr."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from pvebench.sanitize import printable


def configure_logging(level: str, form: str | None) -> None:
    """Log messages of at least `level` to stderr, in the `form` text, logfmt or json.

    Without a form, a terminal gets text, and everything else logfmt.
    """
    form = form or ("text" if sys.stderr.isatty() else "logfmt")
    renderers: dict[str, Processor] = {
        "text": _text_line,
        "logfmt": _Logfmt(key_order=["timestamp", "level", "event"]),
        "json": structlog.processors.JSONRenderer(),
    }
    renderer = renderers[form]
    common: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Looked up for every message: stderr may have been replaced, as in tests.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    # Libraries log through the standard library; their messages get the same form.
    root = logging.getLogger()
    root.handlers = [_Stderr(common, renderer)]
    root.setLevel(max(logging.WARNING, getattr(logging, level.upper())))


def _text_line(_: WrappedLogger, __: str, event: EventDict) -> str:
    """Return a message as a line for people: `pvebench: warning: runs suspended (reason: …)`."""
    level, text, trace = event["level"], event["event"], event.get("exception", "")
    hidden = ("level", "event", "timestamp", "exception")
    facts = ", ".join(f"{name}: {value}" for name, value in event.items() if name not in hidden)
    line = printable(f"pvebench: {level}: {text}" + (f" ({facts})" if facts else ""))
    return f"{line}\n{trace}" if trace else line


class _Logfmt(structlog.processors.LogfmtRenderer):
    """Logfmt renderer that removes terminal control sequences of guest and node output."""

    def __call__(self, logger: WrappedLogger, name: str, event_dict: EventDict) -> str:
        return printable(super().__call__(logger, name, event_dict))


class _Stderr(logging.Handler):
    """Handler for log messages of libraries, in the same form as pvebench's."""

    def __init__(self, common: list[Processor], renderer: Processor) -> None:
        super().__init__()
        self.setFormatter(
            ProcessorFormatter(
                processors=[ProcessorFormatter.remove_processors_meta, renderer],
                foreign_pre_chain=common,
            )
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line to the current stderr."""
        structlog.PrintLogger(sys.stderr).msg(self.format(record))
