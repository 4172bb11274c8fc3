"""Who logs in at the Proxmox API: an API token, or for `init --apply` an admin."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench.errors import AccessDenied

TOKEN_VARIABLE: Final = "PVEBENCH_PROXMOX_TOKEN"  # noqa: S105 # the variable's name, not a secret
_TOKEN: Final = re.compile(
    r"(?:PVEAPIToken=)?(?P<user>[^\s:/!]+@[^\s:/!]+)!(?P<name>[A-Za-z][A-Za-z0-9._-]+)"
    r"[= ](?P<secret>\S+)\Z"
)


@dataclass(frozen=True, slots=True)
class Token:
    """An API token; its secret is never shown."""

    user: str
    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.user}!{self.name})"


@dataclass(frozen=True, slots=True)
class Password:
    """A login for `pvebench proxmox init --apply`; never stored."""

    user: str
    secret: str

    def __repr__(self) -> str:
        return f"Password({self.user})"


def read_token(path: Path | None) -> Token:
    """Return the token in the environment variable PVEBENCH_PROXMOX_TOKEN, or in file `path`.

    Its form is Proxmox's own, `USER@REALM!NAME=SECRET`.

    Raises:
        AccessDenied: there is none, or it is not of that form.
    """
    text, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
    if not text and path is not None:
        where = str(path)
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise AccessDenied(f"token file {path}: {error.strerror}", next_step=_HOW) from error
    found = _TOKEN.match(text.strip())
    if found is None:
        what = "is not of the form USER@REALM!NAME=SECRET" if text else "holds no API token"
        raise AccessDenied(f"{where} {what}", next_step=_HOW)
    return Token(found["user"], found["name"], found["secret"])


_HOW: Final = "make one, see what pvebench proxmox init prints, and name its file in the settings"
