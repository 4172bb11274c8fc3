"""Files of another machine's /proc and /sys, as they were at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from io import BytesIO, StringIO
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Fetched(Traversable):
    """A path in what was fetched; what reads such files reads a `Path` or this.

    Attributes:
        files: absolute path -> content.
        path: absolute, without a slash at its end; empty: the root.
    """

    files: Mapping[str, bytes]
    path: str = ""

    @classmethod
    def read(cls, said: bytes) -> Fetched:
        """Return what `grep -aHZ ''` says of files: each line after its file's name and a NUL."""
        files: dict[str, list[bytes]] = {}
        name = ""
        for line in said.split(b"\n")[:-1]:
            before, found, text = line.partition(b"\0")
            # A line without a NUL is no answer of grep's.
            name = before.decode("utf-8", "replace") if found else name
            files.setdefault(name, []).append(text)
        return cls({path: b"\n".join([*lines, b""]) for path, lines in files.items()})

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def iterdir(self) -> Iterator[Fetched]:
        """Yield what is in a directory. Raises FileNotFoundError."""
        start = f"{self.path}/"
        names = {one[len(start) :].partition("/")[0] for one in self.files if one.startswith(start)}
        if not names:
            raise FileNotFoundError(2, "was not fetched", self.path)
        return (Fetched(self.files, start + name) for name in sorted(names))

    def joinpath(self, *descendants: Any) -> Fetched:
        return Fetched(self.files, "/".join([self.path, *map(str, descendants)]))

    def __truediv__(self, child: Any) -> Fetched:
        return self.joinpath(child)

    def is_dir(self) -> bool:
        return any(one.startswith(f"{self.path}/") for one in self.files)

    def is_file(self) -> bool:
        return self.path in self.files

    def read_bytes(self) -> bytes:
        """Return the content. Raises FileNotFoundError."""
        if self.path not in self.files:
            raise FileNotFoundError(2, "was not fetched", self.path)
        return self.files[self.path]

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "replace")

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        return BytesIO(self.read_bytes()) if "b" in mode else StringIO(self.read_text())
