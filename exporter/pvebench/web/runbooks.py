"""What to do about an alert, where its link leads: its section of docs/runbooks.md."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pvebench.shipped import shipped

_HEADING: Final = re.compile(r"^## (\w+)$", re.MULTILINE)


def runbook(request: Request) -> Response:
    """`/runbooks/PVEBenchChange`."""
    text = sections().get(request.path_params["alert"].lower())
    if text is None:
        raise HTTPException(404)
    return PlainTextResponse(text)


@cache
def sections() -> dict[str, str]:
    """Return an alert's name in small letters -> what to do about it."""
    _, *parts = _HEADING.split(shipped("docs/runbooks.md").read_text("utf-8"))
    return {
        name.lower(): f"{name}\n\n{text.strip()}\n"
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
