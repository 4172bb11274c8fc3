"""How the API says no."""

from __future__ import annotations

from collections.abc import Mapping


class Refused(Exception):
    """An answer that is not 200: `reason` goes into the status line, first line only."""

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        errors: Mapping[str, str] | None = None,
        empty: bool = False,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.errors = dict(errors or {})
        self.empty = empty


def bad_parameter(errors: Mapping[str, str]) -> Refused:
    return Refused(400, "Parameter verification failed.", errors=errors)


def forbidden(path: str, *privileges: str) -> Refused:
    return Refused(403, f"Permission check failed ({path}, {'|'.join(privileges)})")


def failure(text: str) -> Refused:
    return Refused(500, text)
