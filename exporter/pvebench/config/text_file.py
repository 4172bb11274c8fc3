"""Reading a file that somebody else wrote: regular, of bounded size, UTF-8."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from pvebench.errors import ConfigError, Problem
from pvebench.model.units import MIB, show_bytes

MOST_BYTES: Final = MIB
"""Far more than anybody writes by hand."""


def read_text(path: Path, *, most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """Return a file's text.

    Args:
        most: bytes that it may have.

    Raises:
        ConfigError: it cannot be read, is no regular file (a pipe may never end), is larger, or
            is not UTF-8.
    """
    try:
        content = _content(path, most)
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start + 1})"
        step = f"iconv -f WINDOWS-1252 -t UTF-8 {path} > new, if a spreadsheet wrote it"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError([Problem(str(path), 0, 0, message)]) from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error}")]) from error


def _content(path: Path, most: int) -> bytes:
    # Opening a pipe that nobody writes to would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(21, "Is a directory")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(22, "it is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(27, f"it is larger than {show_bytes(most)}")
    return content
