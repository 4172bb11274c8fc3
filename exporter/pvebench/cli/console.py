"""The console: as wide as the terminal, and as wide as the text where there is none."""

from __future__ import annotations

from rich.console import Console

_PIPE_WIDTH = 1000


def make_console() -> Console:
    """Return the console of stdout. A pipe gets whole lines: grep and logs want them so."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
