"""The console: as wide as the terminal; without a terminal, as wide as the text."""

from __future__ import annotations

from typing import Final

from rich.console import Console

_PIPE_WIDTH: Final = 1000


def make_console() -> Console:
    """Return the console of stdout. A pipe gets unwrapped lines, for grep and logs.

    Titles and names are printed verbatim: brackets in them are no markup.
    """
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, width=_PIPE_WIDTH)
