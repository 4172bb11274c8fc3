"""The console: as wide as the terminal, and as wide as the text where there is none."""

from __future__ import annotations

from rich.console import Console

_PIPE_WIDTH = 1000


def make_console() -> Console:
    """Return the console of stdout. A pipe gets whole lines: grep and logs want them so.

    Titles and names are printed as they are: what stands in brackets is no markup of ours.
    """
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, width=_PIPE_WIDTH)
