"""Requests of sites: from the bytes of a request to the bytes of the answer; no HTTP server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from pvebench.errors import FleetMessageInvalid
from pvebench.model.units import whole_number
from pvebench_fleet.hub import rules
from pvebench_fleet.hub.rules import AHEAD_SECONDS, Answered, Transaction
from pvebench_fleet.wire import Answer, Head, Hello, Limits, Rewind, read_message, unpack

ANOTHER_SITE: Final = "this is the token of site {}; use the one of this site"
AHEAD: Final = "the clock of this site is {:.0f} h ahead of that of the hub; check both"
"""Refused as a whole, so that the site keeps its results."""
MARKS: Final = 500
"""Places per answer."""
Begin = Callable[[str, float | None], AbstractContextManager[Transaction]]
"""Opens the transaction of a site, whose clock says so many UNIX seconds; locks its row."""


@dataclass(frozen=True, slots=True)
class Door:
    """Handles the requests of sites that are already identified by their tokens.

    Attributes:
        step: returns the step to the next turn, from 1 to `rules.STEP`.
    """

    begin: Begin
    step: Callable[[], int]
    limits: Limits = field(default_factory=Limits)
    now: Callable[[], float] = time.time

    def answer(self, site: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a request; `path` as after `/fleet/1/`."""
        name, _, query = path.partition("?")
        try:
            status, fields = self._answer(site, (method, name), query, body)
        except FleetMessageInvalid as error:
            large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            status = large if error.too_large else HTTPStatus.BAD_REQUEST
            fields = {"error": error.reason}
        if "marks" in fields:
            return status, json.dumps(fields).encode()
        answer = Answer(now=self.now(), limits=self.limits, **fields)
        return status, answer.model_dump_json().encode()

    def _answer(self, site: str, route: tuple[str, str], query: str, body: bytes) -> Answered:
        match route:
            case "POST", "hello":
                greeting = read_message(Hello, body)
                if greeting.site not in {"", site}:
                    return HTTPStatus.FORBIDDEN, {"error": ANOTHER_SITE.format(site)}
                with self.begin(site, greeting.now) as change:
                    return rules.hello(change, greeting, self.step)
            case "POST", "push":
                return self._push(site, *rules.read_push(unpack(body, self.limits.bytes)))
            case "POST", "rewind":
                request = read_message(Rewind, body)
                with self.begin(site, None) as change:
                    return rules.rewind(change, request)
            case "GET", "marks":
                return HTTPStatus.OK, self._marks(site, query)
            case _:
                return HTTPStatus.NOT_FOUND, {"error": "no such address"}

    def _push(self, site: str, head: Head, texts: Sequence[bytes]) -> Answered:
        ahead = head.now - self.now()
        with self.begin(site, head.now) as change:
            if ahead > AHEAD_SECONDS:
                return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": AHEAD.format(ahead / 3600)}
            return rules.push(change, head, texts)

    def _marks(self, site: str, query: str) -> dict[str, Any]:
        before = whole_number(parse_qs(query).get("before", [""])[0])
        with self.begin(site, None) as change:
            marks = [*change.marks(2**62 if before is None else before, MARKS + 1)]
        return {"marks": marks[:MARKS], "more": len(marks) > MARKS}
