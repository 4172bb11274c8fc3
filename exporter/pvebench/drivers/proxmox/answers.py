"""What came back from the server: read strictly, and with no secret of ours in it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, quote_plus

from requests import Response

from pvebench.drivers.proxmox.bounds import AnswerRefused
from pvebench.errors import DriverError

_GUESSABLE: Final = 16
"""A secret shorter than this may be a word that an answer has for other reasons."""
_HIDDEN: Final = "(secret)"

F = TypeVar("F", bound=DriverError)


class Secrets:
    """What must never be shown, in the forms that a server could echo it in."""

    def __init__(self, *secrets: str) -> None:
        self._known: set[str] = set()
        self._all = self._long = _any_of(self._known)
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide this one as well from now on."""
        coded = base64.b64encode(secret.encode()).decode().rstrip("=")
        escaped = "".join(f"\\u{ord(one):04x}" for one in secret)
        plain = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
        self._known |= {*plain, coded, escaped} - {""}
        self._all = _any_of(self._known)
        self._long = _any_of({one for one in self._known if len(one) >= _GUESSABLE})

    def hide(self, text: str) -> str:
        """Return a text for messages without them."""
        return self._all.sub(_HIDDEN, text)

    def without(self, value: Any) -> Any:
        """Return an answer without those that no answer has by chance, and without nulls."""
        if isinstance(value, str):
            return self._long.sub(_HIDDEN, value)
        if isinstance(value, list):
            return [self.without(one) for one in value]
        if isinstance(value, dict):
            # A member that is null is one that is not there, to all who look at it.
            told = ((key, one) for key, one in value.items() if one is not None)
            return {self.without(key): self.without(one) for key, one in told}
        return value

    def cleaned(self, fault: F) -> F:
        """Return the error with all that it says cleaned of them."""
        for name in ("happened", "cause", "next_step", "evidence", "text"):
            if isinstance(said := getattr(fault, name, None), str):
                setattr(fault, name, self.hide(said))
        fault.args = tuple(self.hide(str(one)) for one in fault.args)
        if isinstance(fields := getattr(fault, "fields", None), dict):
            fault.__dict__["fields"] = {
                self.hide(key): self.hide(why) for key, why in fields.items()
            }
        return fault


def _any_of(secrets: set[str]) -> re.Pattern[str]:
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


def data_of(response: Response) -> Any:
    """Return the member `data` of an answer.

    Raises:
        AnswerRefused: it is not what Proxmox VE answers.
    """
    try:
        whole = json.loads(response.content.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise AnswerRefused(_other_than_json(response)) from None
    if not isinstance(whole, dict) or "data" not in whole:
        raise AnswerRefused("JSON that is no answer of Proxmox VE: it has no member 'data'")
    return whole["data"]


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _other_than_json(response: Response) -> str:
    if not response.content:
        return "empty"
    start = response.content[:200].lstrip().lower()
    return "a web page" if start.startswith((b"<!doctype", b"<html")) else "no JSON"


class Answers:
    """proxmoxer's serializer: JSON or an error, where its own makes up an answer of any text."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def get_accept_types(self) -> str:
        return "application/json"

    def loads(self, response: Response) -> Any:
        return self._secrets.without(data_of(response))

    def loads_errors(self, response: Response) -> dict[str, str] | None:
        """Return parameter -> complaint of a refusal; nothing if it does not say."""
        try:
            errors = json.loads(response.content.decode("utf-8"))["errors"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return None
        if not isinstance(errors, dict):
            return None
        return {str(key): str(why) for key, why in list(errors.items())[:20]}
